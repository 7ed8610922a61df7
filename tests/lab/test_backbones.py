"""The backbones of the paper's benchmarks: their sizes, norms and first weights, and that they never forget."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.answering import where_rows_meet
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.experiment import known_keys
from forgetfree.methods.single_task import SingleTask
from forgetfree.modules import clone, origin_of, reset

CLASSES = 3
CAPACITY = 0.02


@dataclass(frozen=True, eq=False)
class Case:
    """A backbone as a benchmark builds it, with what it takes, what it gives, and the published number of weights."""

    name: str
    arguments: dict[str, Any]
    inputs: tuple[int, ...]
    features: int
    weights: int
    large: bool = False

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return BACKBONES[self.name](**self.arguments)

    def samples(self, count: int, seed: int) -> Tensor:
        return torch.randn(count, *self.inputs, generator=torch.Generator().manual_seed(seed))

    def task(self, name: str, seed: int) -> ff.Task:
        return ff.Task(name, tuple(range(CLASSES)), (self.samples(4, seed), torch.arange(4) % CLASSES))

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.arguments.values())])


IMAGE = (3, 32, 32)
CASES = [
    Case("mlp", {}, (1, 28, 28), 100, 88_400),
    Case("lenet", {}, IMAGE, 500, 2_986_500),
    Case("lenet", {"size": "large", "channels": 1}, (1, 32, 32), 1500, 24_436_400, large=True),
    Case("alexnet", {}, IMAGE, 2048, 6_499_328),
    Case("alexnet", {"norm": "batch"}, IMAGE, 2048, 6_499_328),
    Case("resnet18_reduced", {}, IMAGE, 640, 1_090_140),
    Case("resnet18_reduced", {"norm": "batch"}, IMAGE, 640, 1_090_140),
    Case("tinynet", {}, (3, 64, 64), 640, 2_743_520),
    Case("resnet18", {}, IMAGE, 512, 11_159_232, large=True),
    Case("resnet18", {"stem": "imagenet"}, (3, 84, 84), 512, 11_166_912, large=True),
    Case("resnet20", {}, IMAGE, 64, 270_256),
    Case("conv4", {}, (1, 32, 32), 256, 111_168),
    Case("conv4", {"channels": 3, "width": 16}, IMAGE, 64, 7_344),
]
SMALL = [case for case in CASES if not case.large]
ARCHIVED = [case for case in SMALL if str(case) != "alexnet-batch"]  # takes seconds; the residual one stands for it
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_normed = pytest.mark.parametrize("name", ["alexnet", "resnet18_reduced"])
FEW_SHOT: dict[str, dict[str, Any]] = {"resnet18": {"stem": "imagenet"}, "resnet20": {}, "conv4": {"width": 8}}
every_few_shot = pytest.mark.parametrize("name", FEW_SHOT)


@pytest.fixture(scope="module", autouse=True)
def _learners_leave_with_the_module() -> Iterator[None]:
    yield
    learned.cache_clear()


@cache
def learned(case: Case) -> tuple[ff.WSN, Tensor, Tensor]:
    """A learner of two tasks, a batch, and what the first task answered to it before the second was learned."""
    learner = ff.WSN(case.build(), capacity=CAPACITY, recipe=ff.Recipe(epochs=1, batch_size=4), seed=1)
    learner.learn(case.task("a", seed=1))
    batch = case.samples(3, seed=9)
    before = learner.predict(batch, task="a")
    learner.learn(case.task("b", seed=2))
    return learner, batch, before


def masked_layers(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Linear)]


def norms(module: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]


def test_every_backbone_of_the_table_is_tested() -> None:
    assert {case.name for case in CASES} == set(BACKBONES)


@every_case
def test_it_has_the_published_number_of_weights_and_no_bias(case: Case) -> None:
    module = case.build()
    assert sum(weight.numel() for weight in module.parameters() if weight.dim() >= 2) == case.weights
    assert sum(layer.weight.numel() for layer in masked_layers(module)) == case.weights
    assert all(layer.bias is None for layer in masked_layers(module))


@every_case
def test_features_are_a_row_per_sample(case: Case) -> None:
    with torch.no_grad():
        assert case.build()(case.samples(2, seed=0)).shape == (2, case.features)


def test_a_lenet_takes_the_channels_it_is_told() -> None:
    assert BACKBONES["lenet"](channels=1)(torch.randn(2, 1, 32, 32)).shape == (2, 500)


def test_the_dropout_rates_of_alexnet_are_the_released_ones() -> None:
    rates = [part.p for part in BACKBONES["alexnet"]().modules() if isinstance(part, nn.Dropout)]
    assert rates == [0.2, 0.2, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(("name", "count"), [("alexnet", 5), ("resnet18_reduced", 20)])
def test_every_norm_is_of_the_kind_that_was_asked_for(name: str, count: int) -> None:
    of_task, of_batch = norms(BACKBONES[name]()), norms(BACKBONES[name](norm="batch"))
    assert len(of_task) == len(of_batch) == count
    assert all(norm.affine and norm.running_mean is not None for norm in of_task)
    assert not any(norm.affine or norm.running_mean is not None for norm in of_batch)


@every_normed
def test_rows_meet_in_norms_of_the_batch_and_not_in_norms_of_the_task(name: str) -> None:
    assert where_rows_meet(BACKBONES[name](norm="task")) is None
    assert where_rows_meet(BACKBONES[name](norm="batch")) == "1 (BatchNorm2d)"


def test_a_batch_of_several_tasks_is_answered_with_norms_of_the_task_and_refused_with_norms_of_the_batch() -> None:
    for case in (case for case in CASES if case.name == "resnet18_reduced"):
        learner, batch, _ = learned(case)
        if case.arguments:
            with pytest.raises(ff.InputError, match="BatchNorm2d"):
                learner.predict(batch, task=["a", "b", "a"])
        else:
            assert learner.predict(batch, task=["a", "b", "a"]).shape == (3, CLASSES)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_a_second_task_changes_no_bit_of_the_first(case: Case) -> None:
    learner, batch, before = learned(case)
    assert before.isfinite().all()
    assert not torch.equal(before[0], before[1])  # a network that passes nothing on would keep its bits as well
    assert torch.equal(learner.predict(batch, task="a"), before)
    assert sum(mask.shape.numel() for mask in learner.memory().used.values()) == case.weights


@pytest.mark.parametrize("case", ARCHIVED, ids=str)
def test_an_archive_builds_it_by_name_and_answers_bit_for_bit(case: Case, tmp_path: Path) -> None:
    learner, batch, _ = learned(case)
    path = tmp_path / "file.ticket"
    ff.save(learner, path, codec="ans")  # the fastest; all are tested with archives
    loaded = ff.load(path)
    for name in "ab":
        assert torch.equal(loaded.predict(batch, task=name), learner.predict(batch, task=name))


@every_normed
def test_an_unknown_norm_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ff.InputError, match=r"'task', 'batch'.*'layer'"):
        BACKBONES[name](norm="layer")


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ff.InputError, match=r"'small' or 'large'.*'medium'"):
        BACKBONES["lenet"](size="medium")


@pytest.mark.parametrize("name", BACKBONES)
def test_an_experiment_can_read_its_settings_off_the_signature(name: str) -> None:
    given = {key for case in CASES if case.name == name for key in case.arguments}
    assert given <= set(known_keys("backbone", name))


def names_of_torchvision() -> dict[str, tuple[int, ...]]:
    """Every tensor of torchvision's ResNet-18 and its shape, without the classifier."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(convolution: str, norm: str, *shape: int) -> None:
        shapes[f"{convolution}.weight"] = shape
        shapes.update({f"{norm}.{part}": shape[:1] for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm}.num_batches_tracked"] = ()

    add("conv1", "bn1", 64, 3, 7, 7)
    before = 64
    for layer, width in (("layer1", 64), ("layer2", 128), ("layer3", 256), ("layer4", 512)):
        add(f"{layer}.0.conv1", f"{layer}.0.bn1", width, before, 3, 3)
        add(f"{layer}.0.conv2", f"{layer}.0.bn2", width, width, 3, 3)
        if layer != "layer1":
            add(f"{layer}.0.downsample.0", f"{layer}.0.downsample.1", width, before, 1, 1)
        add(f"{layer}.1.conv1", f"{layer}.1.bn1", width, width, 3, 3)
        add(f"{layer}.1.conv2", f"{layer}.1.bn2", width, width, 3, 3)
        before = width
    return shapes


def few_shot(name: str, *, seed: int = 0, **more: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BACKBONES[name](**FEW_SHOT[name], **more)


def write_weights(path: Path, module: nn.Module, *, without: str = "", **more: Tensor) -> str:
    """A file of the tensors of `module`, without those whose name ends so, and of others in their place or beside."""
    tensors = {
        name: tensor for name, tensor in module.state_dict().items() if not without or not name.endswith(without)
    }
    save_file({**tensors, **{name.replace("__", "."): tensor for name, tensor in more.items()}}, path)
    return str(path)


def weights_of(module: nn.Module) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in module.state_dict().values()])


def test_resnet18_has_the_names_and_shapes_of_torchvision() -> None:
    module = BACKBONES["resnet18"](stem="imagenet")
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == names_of_torchvision()
    assert (
        sum(weight.numel() for weight in module.parameters()) == 11_689_512 - 513_000
    )  # published, less its classifier


@pytest.mark.parametrize(("stem", "sides"), [("cifar", [32, 32, 16, 8, 4]), ("imagenet", [16, 8, 4, 2, 1])])
def test_the_stem_of_resnet18_says_how_small_an_image_gets(stem: str, sides: list[int]) -> None:
    module, seen = BACKBONES["resnet18"](stem=stem), []
    for part in ("conv1", "layer1", "layer2", "layer3", "layer4"):
        module.get_submodule(part).register_forward_hook(lambda _, __, answer: seen.append(answer.shape[-1]))
    module(torch.randn(2, *IMAGE))
    assert seen == sides


@every_few_shot
def test_norms_have_weights_and_statistics_and_rows_do_not_meet(name: str) -> None:
    module = few_shot(name)
    assert all(norm.affine and norm.track_running_stats for norm in norms(module))
    assert len(norms(module)) == len(masked_layers(module))
    assert where_rows_meet(module) is None


@every_few_shot
def test_weights_are_drawn_kaiming_normal_by_fan_out_and_drawn_so_again(name: str) -> None:
    module = clone(few_shot(name))  # learners draw a copy anew
    first = weights_of(module)
    for _ in range(2):
        for layer in masked_layers(module):
            spread = math.sqrt(2 / (layer.weight.shape[0] * layer.weight[0, 0].numel()))
            assert abs(layer.weight.std() / spread - 1) < 4 / math.sqrt(2 * layer.weight.numel())
            assert layer.weight.numel() < 1000 or layer.weight.abs().max() > 2.5 * spread  # a uniform one ends at 1.7
        reset(module)
    assert not torch.equal(weights_of(module), first)


@pytest.mark.parametrize("name", ["resnet20", "conv4"])
def test_single_tasks_are_learned_in_networks_drawn_anew(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    learner = SingleTask(few_shot(name), recipe=ff.Recipe(epochs=1, batch_size=4), seed=1)
    learner.learn(case.task("a", seed=1))
    assert learner.predict(case.samples(2, seed=2), task="a").isfinite().all()


@every_few_shot
def test_weights_of_a_file_are_those_of_the_module_bit_for_bit(name: str, tmp_path: Path) -> None:
    module = few_shot(name, seed=1)
    for norm in norms(module):
        norm.running_mean += 0.5
    path = write_weights(tmp_path / "weights.safetensors", module)
    started = few_shot(name, seed=2, init=path)
    assert not torch.equal(weights_of(few_shot(name, seed=2)), weights_of(module))
    assert torch.equal(weights_of(started), weights_of(module))
    assert all(parameter.requires_grad for parameter in started.parameters())


def test_a_classifier_in_a_file_is_ignored_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = few_shot("resnet20", seed=1)
    path = write_weights(tmp_path / "file", module, fc__weight=torch.zeros(10, 64), fc__bias=torch.zeros(10))
    with caplog.at_level(logging.INFO, logger="forgetfree"):
        assert torch.equal(weights_of(few_shot("resnet20", init=path)), weights_of(module))
    assert "fc.weight, fc.bias" in caplog.text
    assert path in caplog.text


def test_an_older_file_without_the_counters_of_norms_is_read(tmp_path: Path) -> None:
    module = few_shot("resnet20", seed=1)
    path = write_weights(tmp_path / "file", module, without="num_batches_tracked")
    assert torch.equal(weights_of(few_shot("resnet20", init=path)), weights_of(module))


def test_names_and_shapes_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    module, path = few_shot("resnet20"), tmp_path / "file"
    with pytest.raises(ff.ModuleError, match=r"file does not fit ResNet: missing: layer3\.2\.conv2\.weight\.$"):
        few_shot("resnet20", init=write_weights(path, module, without="layer3.2.conv2.weight"))
    with pytest.raises(ff.ModuleError, match=r"missing: .*running_mean, .* and 16 more"):
        few_shot("resnet20", init=write_weights(path, module, without="running_mean"))
    with pytest.raises(ff.ModuleError, match=r"ResNet: unknown: layer9\.weight\.$"):
        few_shot("resnet20", init=write_weights(path, module, layer9__weight=torch.zeros(3)))
    grey = torch.zeros(16, 1, 3, 3)
    with pytest.raises(
        ff.ModuleError, match=r"of another shape: conv1\.weight \(is \(16, 1, 3, 3\), .*\(16, 3, 3, 3\)\)"
    ):
        few_shot("resnet20", init=write_weights(path, module, conv1__weight=grey))


def test_a_file_that_is_not_there_or_not_of_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ff.FileError, match=r"nowhere: No such file"):
        few_shot("resnet20", init=str(tmp_path / "nowhere"))
    with pytest.raises(ff.FileError, match="cannot read"):
        few_shot("resnet20", init=str(tmp_path))
    torch.save(few_shot("conv4").state_dict(), tmp_path / "pickled.pth")
    with pytest.raises(ff.FileError, match=r"pickled\.pth is none, or damaged"):
        few_shot("resnet20", init=str(tmp_path / "pickled.pth"))


def test_an_archive_does_not_ask_for_the_file_that_learning_started_from(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "file", few_shot("conv4", seed=1))
    module = few_shot("conv4", init=path)
    assert origin_of(module) == {"name": "conv4", "arguments": {"width": 8}}
    case = Case("conv4", {}, (1, 32, 32), 32, 0)
    learner = ff.WSN(module, capacity=0.3, recipe=ff.Recipe(epochs=1, batch_size=4), seed=1)
    learner.learn(case.task("a", seed=1))
    ff.save(learner, tmp_path / "file.ticket")
    Path(path).unlink()
    batch = case.samples(3, seed=2)
    assert torch.equal(ff.load(tmp_path / "file.ticket").predict(batch, task="a"), learner.predict(batch, task="a"))


def test_an_unknown_stem_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ff.InputError, match=r"'cifar' or 'imagenet'.*'mnist'"):
        BACKBONES["resnet18"](stem="mnist")
