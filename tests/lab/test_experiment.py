"""Words become plans: overrides, lists, scales; what does not exist is named, with the nearest that does."""

import tomllib

import pytest
import tomli_w

import forgetfree as ff
from forgetfree.lab.experiment import Plan, catalog, parse_overrides, plan
from zoo import FSCIL, TIL


def only(*args, **kwargs):
    (result,) = plan(*args, **kwargs)
    return result


def test_overrides_go_where_they_belong():
    result = only("til/digits_permuted", overrides={"capacity": 0.2, "recipe.epochs": 3, "benchmark.tasks": 4})
    assert result.settings["method"]["capacity"] == 0.2
    assert result.settings["recipe"]["epochs"] == 3
    assert result.settings["benchmark"]["tasks"] == 4


def test_a_key_that_only_one_section_has_needs_no_section():
    assert only("til/digits_permuted", overrides={"epochs": 2}).settings["recipe"]["epochs"] == 2


def test_a_list_means_one_run_each_and_lists_multiply():
    plans = plan(
        "til/digits_permuted", seeds=[0, 1], overrides={"capacity": [0.1, 0.2], "recipe.lr": [0.1, 0.01, 0.001]}
    )
    assert len(plans) == len({str(each.folder) for each in plans}) == 12


def test_a_key_that_takes_a_list_keeps_it_whole():
    result = only("til/digits_permuted", overrides={"backbone.hidden": [50, 40, 30]})
    assert result.settings["backbone"]["hidden"] == (50, 40, 30)


def test_the_more_particular_setting_wins():
    wsn, finetune = plan("til/permuted_mnist", methods=["wsn", "finetune"], scale="paper")
    assert (wsn.settings["recipe"]["optimizer"], finetune.settings["recipe"]["optimizer"]) == ("adam", "sgd")
    assert finetune.settings["recipe"]["patience"] is None
    assert only("til/permuted_mnist", scale="cpu").settings["recipe"]["batch_size"] == 64


def test_folders_are_named_by_what_differs():
    result = only("til/permuted_mnist", scale="paper", seeds=[1], overrides={"capacity": 0.05})
    assert str(result.folder) == "til-permuted_mnist/wsn-capacity=0.05-paper-seed1"


def test_a_plan_comes_back_from_its_toml():
    for method in TIL:
        result = only("til/permuted_mnist", methods=[method], scale="paper", overrides={"recipe.epochs": 2})
        assert Plan.from_toml(tomllib.loads(tomli_w.dumps(result.as_toml()))) == result
    for method in FSCIL:
        result = only("fscil/digits", methods=[method], overrides={"session.epochs": 2, "recipe.milestones": [3]})
        assert Plan.from_toml(tomllib.loads(tomli_w.dumps(result.as_toml()))) == result
        assert (result.settings["session"]["epochs"], result.settings["recipe"]["milestones"]) == (2, (3,))


def test_a_method_of_the_other_scenario_is_refused_with_what_to_do():
    with pytest.raises(ff.InputError, match=r"softnet learns in few-shot.*--method wsn --set background_noise=1e-3"):
        plan("til/permuted_mnist", methods=["softnet"])
    with pytest.raises(ff.InputError, match=r"wsn learns task by task.*There are: bayes_means, softnet"):
        plan("fscil/digits", methods=["wsn"])


def test_runs_that_start_alike_share_the_network_of_the_first_session():
    from forgetfree.lab.experiment.performing import _base_of

    start = _base_of(only("fscil/cifar100", methods=["ncm"]))
    assert start == _base_of(only("fscil/cifar100", methods=["softnet"], overrides={"benchmark.tasks": 3}))
    assert start != _base_of(only("fscil/cifar100", methods=["ncm"], seeds=[1]))
    assert start != _base_of(only("fscil/cifar100", methods=["ncm"], overrides={"recipe.lr": 0.05}))
    assert start != _base_of(only("fscil/cifar100", methods=["ncm"], overrides={"split": "random"}))


def test_another_backbone_at_a_scale_takes_no_settings_of_the_usual_one():
    usual, small = (
        only("fscil/cub200", methods=["ncm"], scale=scale).settings["backbone"] for scale in ("cpu", "smoke")
    )
    assert usual["stem"] == "imagenet"
    assert (small["name"], "stem" in small) == ("conv4", False)


def test_another_backbone_can_be_asked_for_and_brings_its_own_settings():
    result = only("fscil/cub200", methods=["ncm"], overrides={"backbone.width": 8, "backbone.name": "conv4"})
    assert result.settings["backbone"]["name"] == "conv4"
    assert result.settings["backbone"]["width"] == 8
    assert "stem" not in result.settings["backbone"]
    assert "backbone.name=conv4-backbone.width=8" in str(result.folder)
    assert Plan.from_toml(tomllib.loads(tomli_w.dumps(result.as_toml()))) == result
    usual = only("fscil/cub200", methods=["ncm"])
    same = only("fscil/cub200", methods=["ncm"], overrides={"backbone.name": usual.settings["backbone"]["name"]})
    assert same.settings == usual.settings
    both = plan("fscil/cifar100", methods=["ncm"], overrides={"backbone.name": ["resnet18", "resnet20"]})
    assert [one.settings["backbone"]["name"] for one in both] == ["resnet18", "resnet20"]
    with pytest.raises(ff.InputError, match=r"no backbone 'resnet19'.*resnet18"):
        plan("fscil/cifar100", overrides={"backbone.name": "resnet19"})
    with pytest.raises(ff.InputError, match=r"backbone\.name"):
        plan("fscil/cifar100", overrides={"backbone": "resnet18"})


def test_a_setting_of_method_and_benchmark_is_told_apart():
    drawn = plan("fscil/cifar100", methods=["softnet"], overrides={"benchmark.draw": [0, 1, 2]})
    assert [one.settings["benchmark"]["draw"] for one in drawn] == [0, 1, 2]
    assert {one.settings["method"]["resample"] for one in drawn} == {"epoch"}
    with pytest.raises(ff.InputError, match=r"draw takes 'epoch' or 'forward'; got 0\. Another.* is benchmark\.draw\."):
        plan("fscil/cifar100", methods=["softnet"], overrides={"draw": [0, 1, 2]})


def test_few_shot_rivals_are_set_up_as_published():
    for experiment in ("fscil/cifar100", "fscil/mini_imagenet", "fscil/cub200"):
        made = {one.method: one.settings for one in plan(experiment, methods=FSCIL, scale="paper")}
        assert [made[name]["method"]["exemplars"] for name in ("fsll", "f2m")] == [5, 5], experiment
        assert [made[name]["method"]["exemplars"] for name in ("icarl", "rebalance")] == [2, 2], experiment
        assert [made[name]["method"]["every"] for name in ("joint", "crt")] == [True, True], experiment
        assert made["fsll"]["session"]["batch_size"] == 25


def test_words_are_read_as_toml_then_as_text():
    assert parse_overrides(["split=topic,random", "init=a, b.pt"]) == {"split": ["topic", "random"], "init": "a, b.pt"}
    words = ["capacity=0.05,0.1", "recipe.optimizer=sgd", "recipe.patience=none", "backbone.hidden=[5, 6]", "x=true"]
    assert parse_overrides(words) == {
        "capacity": [0.05, 0.1],
        "recipe.optimizer": "sgd",
        "recipe.patience": "none",
        "backbone.hidden": [5, 6],
        "x": True,
    }


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: plan("til/digits_permutd"), r"til/digits_permuted.*There are: "),
        (lambda: plan("til/digits_permuted", methods=["wsm"]), r"Did you mean wsn"),
        (lambda: plan("til/digits_permuted", scale="papr"), r"no scale 'papr'"),
        (lambda: plan("til/digits_permuted", overrides={"capacty": 0.1}), r"Did you mean capacity"),
        (lambda: plan("til/digits_permuted", overrides={"recipe.epoch": 1}), r"Did you mean epochs"),
        (lambda: plan("til/digits_permuted", methods=["finetune"], overrides={"capacity": 0.1}), r"method finetune"),
        (lambda: plan("til/digits_permuted", overrides={"recipe.epochs": "many"}), r"a whole number; got 'many'"),
        (lambda: plan("til/digits_permuted", overrides={"recipe.epochs": 2.5}), r"takes a whole number"),
        (lambda: plan("til/digits_permuted", overrides={"recipe.optimizer": "lion"}), r"'adam' or 'adamw'"),
        (lambda: plan("til/digits_permuted", overrides={"heads": "wide"}), r"linear_without_bias"),
        (lambda: parse_overrides(["capacity"]), r"--set takes key=value"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_named_with_what_does(call, said):
    with pytest.raises(ff.InputError, match=said):
        call()


def test_an_unknown_key_in_a_catalog_file_is_an_error(monkeypatch):
    from forgetfree.lab.experiment import planning

    name, content = planning.read("til/digits_permuted")
    content["recipe"]["epoch"] = 3
    monkeypatch.setattr(planning, "read", lambda experiment: (name, content))
    with pytest.raises(ff.InputError, match="no key 'epoch' of recipe"):
        plan("til/digits_permuted")


def test_the_catalog_has_titles():
    assert all(catalog().values())


def test_a_plan_names_every_switch_also_those_nobody_set():
    settings = only("til/digits_permuted").as_toml()
    assert settings["method"] == {
        "capacity": 0.1,
        "heads": "linear",
        "own_from": "wrapped",
        "by": "magnitude",
        "sparse_answers": False,
        "background_noise": 0.0,
    }
    assert settings["recipe"]["optimizer"] == "adam"
    assert settings["recipe"]["clip"] == "none"
    assert settings["protocol"] == {"evaluate": "all", "batch": 256, "forward": True}


@pytest.fixture
def renamed(monkeypatch):
    """WSN as if `capacity` had been called `fraction` before."""
    from forgetfree.lab.experiment import schema

    monkeypatch.setattr(ff.WSN, "renamed", {"fraction": "capacity"}, raising=False)
    schema.warn_renamed.cache_clear()


def test_a_key_may_be_given_by_its_earlier_name_and_that_is_said_once(renamed, caplog):
    for _ in range(2):
        result = only("til/digits_permuted", overrides={"fraction": 0.3})
    assert result.settings["method"]["capacity"] == 0.3
    assert "fraction" not in result.settings["method"]
    assert str(result.folder).endswith("/wsn-fraction=0.3-cpu-seed0")
    assert [record.getMessage() for record in caplog.records] == [
        "--set fraction: the key fraction is now called capacity; the old name will go."
    ]
    assert [each.settings["method"]["capacity"] for each in plan("til/digits_split", overrides={"fraction": [0.1, 0.2]})
            ] == [0.1, 0.2]  # fmt: skip
    with pytest.raises(ff.InputError, match=r"no key 'fractions' of method\. There are: .*capacity"):
        plan("til/digits_permuted", overrides={"method.fractions": 1})


def test_a_stored_run_with_earlier_names_keeps_its_folder_and_is_read_without_a_word(renamed, caplog):
    result = only("til/digits_permuted", overrides={"capacity": 0.3})
    content = tomllib.loads(tomli_w.dumps(result.as_toml()))
    content["method"]["fraction"] = content["method"].pop("capacity")
    content["overrides"] = {"fraction": 0.3}
    again = Plan.from_toml(content)
    assert again.settings == result.settings
    assert str(again.folder).endswith("/wsn-fraction=0.3-cpu-seed0")
    assert not caplog.records
    assert Plan.from_toml(again.as_toml()) == again


def test_a_file_may_use_an_earlier_name_but_not_both(renamed, caplog, tmp_path):
    text = 'scenario = "til"\nbenchmark.name = "digits_split"\nbackbone.name = "mlp"\nmethods.wsn.fraction = 0.2\n'
    (tmp_path / "mine.toml").write_text(text)
    assert only(str(tmp_path / "mine.toml")).settings["method"]["capacity"] == 0.2
    assert "method wsn: the key fraction is now called capacity" in caplog.text
    (tmp_path / "mine.toml").write_text(f"{text}methods.wsn.capacity = 0.2\n")
    with pytest.raises(ff.InputError, match="says both fraction and capacity"):
        plan(str(tmp_path / "mine.toml"))


def test_defaults_of_a_method_are_found_in_its_signature_its_fields_and_its_default_heads(monkeypatch):
    from dataclasses import dataclass, field

    from forgetfree.heads import nearest_direction
    from forgetfree.lab.experiment import schema
    from forgetfree.methods import METHODS
    from forgetfree.registry import MethodEntry

    @dataclass(eq=False, kw_only=True)
    class Host:
        backbone: object
        heads: object = None
        seed: int = 0
        recipe: object = None
        sizes: tuple[int, ...] = field(default_factory=lambda: (1, 2))
        default_heads = None

    @dataclass(eq=False, kw_only=True)
    class Mine(Host):
        strength: float
        default_heads = staticmethod(nearest_direction)

    monkeypatch.setattr(METHODS, "_plugged", {})
    monkeypatch.setattr(METHODS, "_functions", {"mine": Mine, "plain": Host, "own": Mine})
    METHODS.plug({name: MethodEntry(f"mine:{name}", "") for name in ("mine", "plain", "own")}, "mine")
    assert schema.known_keys("method", "mine") == {"heads": object, "sizes": tuple[int, ...], "strength": float}
    assert schema._defaults("method", "mine") == {"heads": "cosine", "sizes": (1, 2)}
    assert schema._defaults("method", "plain")["heads"] == "linear"
    assert schema.missing("method", "mine", {"sizes": ()}) == ["strength"]
    monkeypatch.setattr(Mine, "default_heads", staticmethod(lambda features, task: None))
    assert schema._defaults("method", "own") == {"sizes": (1, 2)}  # heads without a name are the method's own affair


# settings of one method among several


def test_a_setting_of_one_method_leaves_the_others_alone():
    grid = plan(
        "til/digits_permuted", methods=["wsn", "finetune"],
        overrides={"wsn.capacity": [0.05, 0.3], "finetune.recipe.lr": 0.02, "epochs": 2},
    )  # fmt: skip
    assert [(each.method, each.overrides) for each in grid] == [
        ("wsn", {"recipe.epochs": 2, "capacity": 0.05}),
        ("wsn", {"recipe.epochs": 2, "capacity": 0.3}),
        ("finetune", {"recipe.epochs": 2, "recipe.lr": 0.02}),
    ]
    assert [each.settings["recipe"]["lr"] for each in grid[1:]] == [
        only("til/digits_permuted").settings["recipe"]["lr"],
        0.02,
    ]


def test_a_run_is_found_again_however_its_setting_was_named():
    said = ("capacity", "method.capacity", "wsn.capacity", "wsn.method.capacity")
    assert len({only("til/digits_permuted", overrides={key: 0.2}).folder for key in said}) == 1
    recipe = ("lr", "recipe.lr", "wsn.lr", "wsn.recipe.lr")
    assert len({only("til/digits_permuted", overrides={key: 0.2}).folder for key in recipe}) == 1
    other = only("til/digits_permuted", overrides={"wsn.backbone.name": "mlp"})
    assert other.folder == only("til/digits_permuted", overrides={"backbone.name": "mlp"}).folder


def test_what_is_said_of_one_method_goes_before_what_is_said_of_all():
    grid = plan("til/digits_permuted", methods=["wsn", "ewc"], overrides={"wsn.lr": 0.5, "recipe.lr": [0.1, 0.2]})
    assert [(each.method, each.settings["recipe"]["lr"]) for each in grid] == [("wsn", 0.5), ("ewc", 0.1), ("ewc", 0.2)]


@pytest.mark.parametrize(
    ("methods", "overrides", "said"),
    [
        (["wsn", "ewc"], {"capacity": [0.1, 0.3]}, r"a setting of wsn, not of ewc: --set wsn\.capacity=0\.1,0\.3"),
        (["ewc", "wsn"], {"method.capacity": 0.1}, r"of wsn, not of ewc: --set wsn\.capacity=0\.1"),
        (["wsn"], {"packnet.lr": 0.1}, r"packnet is not among the methods of these runs.* add --method packnet"),
        (["wsn"], {"wns.capacity": 0.1}, r"Did you mean wsn\.capacity"),
        (["wsn"], {"wsn.capacty": 0.1}, r"no setting 'capacty' .*method wsn.*Did you mean capacity"),
        (["wsn"], {"wsn.recipe.epoch": 1}, r"Did you mean epochs"),
        (["wsn"], {"wsn.": 1}, r"no setting '' "),
    ],
)  # fmt: skip
def test_a_setting_that_fits_no_chosen_method_says_what_would(methods, overrides, said):
    with pytest.raises(ff.InputError, match=said):
        plan("til/digits_permuted", methods=methods, overrides=overrides)


def test_a_key_is_set_once():
    with pytest.raises(ff.InputError, match=r"capacity is set twice.*--set capacity=0\.1,0\.3"):
        parse_overrides(["capacity=0.1", "capacity=0.3"])
