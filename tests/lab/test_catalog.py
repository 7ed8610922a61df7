"""Every experiment of the catalog: found by walking, counted, and run at scale smoke with every method it names."""

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from bench import hidden, page, rates
from bench.tables import stored

import forgetfree
from forgetfree.heads import head_by_name
from forgetfree.lab.benchmarks.sources import ENVIRONMENT
from forgetfree.lab.experiment import catalog, describe, perform, plan
from forgetfree.methods import METHODS

FOLDER = Path(forgetfree.__file__).parent / "lab" / "catalog"
FILES = sorted(FOLDER.rglob("*.toml"))
NAMES = [str(file.relative_to(FOLDER).with_suffix("")) for file in FILES]
NEEDS_DATA = {
    "til/cifar100_split": ["cifar100"],
    "til/cifar100_superclass": ["cifar100"],
    "til/five_datasets": ["cifar10", "mnist", "svhn", "fashion_mnist", "notmnist"],
    "til/omniglot_rotation": ["omniglot"],
    "til/permuted_mnist": ["mnist"],
    "til/tiny_imagenet": ["tiny_imagenet"],
    "fscil/cifar100": ["cifar100", "fscil_splits"],
    "fscil/cub200": ["cub200"],
    "fscil/mini_imagenet": ["mini_imagenet"],
    "fscil/omniglot": ["omniglot"],
}
NOT_SHARED = {"fscil/cub200"}
"""Data that a root for tests need not have."""
PAIRS = [
    (name, method) for name in NAMES for method, made in METHODS.items() if made.scenario == name.partition("/")[0]
]


def test_the_walk_finds_what_the_catalog_lists():
    assert len(NAMES) == 14
    assert list(catalog()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_of_a_file_is_a_command_that_plans(name):
    first = describe(name).splitlines()[0]
    words = first.removeprefix("# ").split()
    assert words[:3] == ["forgetfree", "run", name], first
    options = dict(zip(words[3::2], words[4::2], strict=True))
    sets = [value for key, value in zip(words[3::2], words[4::2], strict=True) if key == "--set"]
    from forgetfree.lab.experiment import parse_overrides

    overrides = parse_overrides(sets)
    assert len(plan(name, methods=[options["--method"]], scale=options["--scale"], overrides=overrides)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_validation_and_tests_are_asked_in_batches_of_one_size(name):
    """Norms that take statistics of their batch answer by its size: what is chosen by one is not what another tests."""
    content = tomllib.loads(describe(name))
    for scale in content["scales"]:
        for run in plan(name, methods=content["methods"], scale=scale):
            assert run.settings["recipe"]["eval_batch_size"] == run.settings["protocol"]["batch"], (scale, run.method)


def test_tiny_imagenet_is_cropped_and_mirrored_at_the_paper_s_scale_as_released():
    augmentation = {scale: plan("til/tiny_imagenet", scale=scale)[0].settings["benchmark"]["augmentation"]
                    for scale in ("smoke", "cpu", "paper")}  # fmt: skip
    assert augmentation == {"smoke": "none", "cpu": "none", "paper": "crop_and_flip"}


@pytest.mark.parametrize("name", ["cifar100", "mini_imagenet", "cub200"])
def test_sessions_are_augmented_for_the_methods_whose_programs_do(name):
    methods = [method for method, made in METHODS.items() if made.scenario == "fscil"]
    runs = plan(f"fscil/{name}", methods=methods, scale="cpu")
    augmented = [run.method for run in runs if run.settings["benchmark"]["augment_sessions"]]
    assert sorted(augmented) == ["icarl", "rebalance"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_names_every_method_and_the_scales(name):
    content = tomllib.loads(describe(name))
    assert [(name, method) for method in METHODS if method in content["methods"]] == [
        pair for pair in PAIRS if pair[0] == name
    ]
    assert set(content["methods"]) <= set(METHODS)
    assert {"smoke", "cpu"} <= set(content["scales"])


WHOLE = {"til/digits_split", "fscil/digits"}
"""Experiments that every method runs in `make test`; each of the others runs two methods there."""
LARGE = {"til/cifar100_split"}
"""Whose masks take long to code: one method, without masks."""
QUICK = [
    (name, method)
    for number, name in enumerate(NAMES)
    for methods in [[method for each, method in PAIRS if each == name]]
    for some in [[*methods[: name not in LARGE], methods[number % len(methods)]]]
    for method in (methods if name in WHOLE else dict.fromkeys(some))
]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_experiment_is_planned_with_every_method(name, method):
    assert plan(name, methods=[method], scale="smoke")[0].settings["method"]["heads"]


def test_every_experiment_and_every_method_is_run():
    assert {name for name, _ in QUICK} == set(NAMES)
    assert {method for _, method in QUICK} == set(METHODS)


@pytest.mark.parametrize(
    ("name", "method"),
    [pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS],
)
def test_an_experiment_runs_at_scale_smoke(name, method, tmp_path, request):
    root = None
    for source in NEEDS_DATA.get(name, []):
        root = request.getfixturevalue("miniature_" + source)
    check_run(name, method, tmp_path, root)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get(ENVIRONMENT), reason=f"needs a data root in {ENVIRONMENT}")
@pytest.mark.parametrize(("name", "method"), [pair for pair in PAIRS if pair[0] in NEEDS_DATA.keys() - NOT_SHARED])
def test_an_experiment_runs_at_scale_smoke_on_real_data(name, method, tmp_path):
    check_run(name, method, tmp_path, Path(os.environ[ENVIRONMENT]))


ONE_SESSION = {"fscil/iris"}
"""A network to look at, learned once; there is no later task."""


def check_run(name, method, out, root):
    (each,) = plan(name, methods=[method], scale="smoke")
    record = perform(each, out, data_root=root)
    assert len(record.accuracy) == len(record.tasks) >= (1 if name in ONE_SESSION else 2)
    assert 0 <= record.acc <= 1
    assert all(value is None for t, row in enumerate(record.accuracy) for value in row[t + 1 :])
    if record.sessions:
        assert record.archive["verified"]
        assert record.archive["different"] == 0
        assert record.by_session[-1].overall == pytest.approx(record.acc)
    if METHODS[method].forget_free:
        assert record.different == 0
        assert record.compared > 0 or len(record.tasks) == 1
        assert record.bwt == 0 or record.sessions  # of one answer for all classes, scores stay, and more compete


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("til/")])
def test_rates_at_scale_cpu_are_those_that_the_stored_search_chose(name):
    rows = rates.measured()
    for run in plan(name, methods=[method for pair, method in PAIRS if pair == name], scale="cpu"):
        search = rates.search_for(run)
        rate = rates.chosen(rows, search)
        assert run.settings["recipe"]["lr"] == rate, f"{run.method}: run python -m bench.rates, or take what it chose"
        assert run.settings["recipe"]["momentum"] == 0, f"{run.method}: searched without"
        penalty = rates.penalty_for(search, rate)
        if penalty is not None:
            assert run.settings["method"][penalty.setting] == rates.chosen(rows, penalty)


def test_the_search_for_rates_is_whole_and_took_as_much_effort_for_every_method():
    rows = rates.measured()
    assert list(rates.remaining(rows, rates.needed())) == []
    counts = {search: len(rates.of(rows, search)) for search in rates.needed()}
    assert set(counts.values()) == {4}
    assert sum(row["seconds"] for row in rows) < 4 * 3600


@pytest.mark.parametrize("name", ["fscil/omniglot"])
def test_heads_are_those_that_the_stored_search_chose(name):
    rows = stored(page.STORED / f"heads-{name.partition('/')[2]}.json")[f"heads: every row, {name}"].rows
    for head, row in hidden.chosen(rows).items():
        wanted = replace(head_by_name(row["settings"]), offset=row["offset"])
        if head == "means":
            continue  # which are there under two names
        (run,) = plan(name, methods=["ncm"], overrides={"heads": head})
        assert head_by_name(run.settings["method"]["heads"]) == wanted, f"{head}: take what bench.hidden chose"
        assert run.overrides == {"heads": head}
        assert f"heads={head}-" in str(run.folder)
