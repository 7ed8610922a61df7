"""Certificates: whoever changes one bit of a task is found out, and whoever does not, is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree import certificate
from forgetfree.batches import tensors_of
from forgetfree.rng import derive, philox_uniform, preserved_rng, seed_all
from snapshots import FEATURES, backbone, learner, task
from zoo import ZOO, Entry

QUICK = ff.Recipe(epochs=1, batch_size=16, lr=0.02)
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def taught(tasks: str = "ab", **options: Any) -> ff.WSN:
    made = learner(QUICK, **options)
    for position, name in enumerate(tasks):
        made.learn(task(name, position))
    return made


def flip_a_bit(values: Tensor, at: int) -> None:
    """The lowest bit of one value, in place: a change that no tolerance would notice."""
    values.detach().view(-1).view(torch.int32)[at] ^= 1


def standing(made: Any) -> dict[str, bool]:
    return {found.task: found.ok for found in made.verify()}


@pytest.mark.parametrize("kind", ZOO)
def test_a_task_stands_by_its_certificate_after_learning_after_more_tasks_and_after_loading(
    kind: str, tmp_path: Path
) -> None:
    entry = ZOO[kind]
    made = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    for position, name in enumerate("abc"):
        made.learn(entry.task(name, seed=position))
        assert standing(made) == dict.fromkeys("abc"[: position + 1], True)
    ff.save(made, tmp_path / "file")
    loaded = ff.load(tmp_path / "file", entry.build())
    for found in (*made.verify(), *loaded.verify(), *ff.verify(tmp_path / "file", entry.build()).tasks):
        assert (found.tensors, found.rule, found.difference, found.ok) == (True, "bit for bit", 0.0, True)
    loaded.learn(entry.task("d", seed=3))
    assert standing(loaded) == dict.fromkeys("abcd", True)


def a_used_weight(made: ff.WSN) -> None:
    used = made.network.tickets["a"].mask("0.weight").view(-1).nonzero()[0]
    flip_a_bit(made.network._kept.weights["0.weight"], int(used))


def an_own_tensor(made: ff.WSN) -> None:
    flip_a_bit(made.network._kept.tickets["a"].own["1.running_mean"], 3)


def a_head(made: ff.WSN) -> None:
    flip_a_bit(made.engine.heads._kept["a"].weight, 5)


@pytest.mark.parametrize("change", [a_used_weight, an_own_tensor, a_head])
def test_one_bit_that_changed_in_memory_is_found(change: Callable[[ff.WSN], None]) -> None:
    made = taught()
    change(made)
    first = made.verify()[0]
    assert not first.tensors
    assert not first.ok


def test_a_bit_of_one_task_is_no_matter_of_another_nor_is_a_free_weight() -> None:
    made = taught()
    free = (~made.network.used["0.weight"]).view(-1).nonzero()[0]
    flip_a_bit(made.network._kept.weights["0.weight"], int(free))
    assert standing(made) == {"a": True, "b": True}
    a_head(made)
    assert standing(made) == {"a": False, "b": True}


def with_answers(made: ff.WSN, change: Callable[[Tensor], Tensor]) -> None:
    """Certify other answers: the same tensors then seem to answer differently."""
    known = made.tasks["a"]
    assert known.certificate is not None
    assert known.certificate.answers is not None
    other = replace(known.certificate, answers=change(known.certificate.answers))
    made.engine._learned = {**made.engine.learned, "a": replace(known, certificate=other)}


def one_bit_off(answers: Tensor) -> Tensor:
    changed = answers.clone()
    flip_a_bit(changed, 2)
    return changed


def test_under_the_same_circumstances_answers_must_be_equal_bit_for_bit() -> None:
    made = taught("a")
    with_answers(made, one_bit_off)
    found = made.verify()[0]
    assert (found.tensors, found.rule, found.ok) == (True, "bit for bit", False)
    assert found.difference is not None
    assert found.difference < 1e-6


@pytest.mark.parametrize(("apart", "ok"), [(0.0, True), (5e-5, True), (1e-3, False), (float("nan"), False)])
def test_under_other_circumstances_they_may_differ_a_little(
    apart: float, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = taught("a")
    with_answers(made, lambda answers: answers * (1 + apart))
    monkeypatch.setattr(certificate, "fingerprint", lambda parts: {"torch": "of tomorrow"})
    found = made.verify()[0]
    assert (found.rule, found.ok) == ("within 0.0001", ok)


def test_under_other_circumstances_tensors_must_still_be_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taught("a")
    a_used_weight(made)
    monkeypatch.setattr(certificate, "fingerprint", lambda parts: {"torch": "of tomorrow"})
    assert standing(made) == {"a": False}


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([float("nan"), 2.0], [float("nan"), 2.0], 0.0),
        ([float("nan"), 2.0], [1.0, 2.0], float("inf")),
        ([float("inf"), 2.0], [float("inf"), 4.0], 0.5),
        ([float("inf"), 2.0], [float("-inf"), 2.0], float("inf")),
        ([float("inf"), 2.0], [3.0, 2.0], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_a_difference_is_relative_and_numbers_are_not_compared_with_others(
    one: list[float], other: list[float], apart: float
) -> None:
    assert certificate.difference(torch.tensor(one), torch.tensor(other)) == apart


def test_a_method_that_forgets_fails_its_certificates_but_its_archive_is_certified_when_saved(tmp_path: Path) -> None:
    made = ff.METHODS["finetune"](backbone(), recipe=QUICK)
    made.learn(task("a"))
    assert standing(made) == {"a": True}
    made.learn(task("b", 1))
    assert standing(made) == {"a": False, "b": True}
    ff.save(made, tmp_path / "file")
    assert standing(made) == {"a": False, "b": True}
    assert ff.verify(tmp_path / "file", backbone()).ok
    assert standing(ff.load(tmp_path / "file", backbone())) == {"a": True, "b": True}


def probe_of(made: Any, name: str) -> Any:
    known = made.tasks[name]
    return certificate._probe(known.inputs, known.certificate.ranges, known.certificate.probe)


@pytest.mark.parametrize("kind", ["mlp with dropout", "tied weight", "transformer encoder"])
def test_a_probe_holds_nothing_of_the_training_values(kind: str) -> None:
    entry, probes, answers = ZOO[kind], [], []
    for seed in (0, 1):
        made = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
        made.learn(entry.task("a", seed=seed, count=200))
        probes.append(list(tensors_of(probe_of(made, "a"))))
        answers.append(made.tasks["a"].certificate.answers)
    assert all(torch.equal(*pair) for pair in zip(*probes, strict=True))
    assert not torch.equal(*answers)


def test_a_probe_has_the_form_of_the_inputs() -> None:
    entry = ZOO["transformer encoder"]
    made = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    made.learn(entry.task("a"))
    probe, like = probe_of(made, "a"), entry.inputs(certificate.ROWS)
    assert {name: (value.shape, value.dtype) for name, value in probe.items()} == {
        name: (value.shape, value.dtype) for name, value in like.items()
    }


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (0, 1, torch.bool), (0, 255, torch.uint8), (250, 255, torch.uint8), (-128, 127, torch.int8),
        (7, 7, torch.int64), (-5, 3, torch.int32), (0, 2**62, torch.int64), (-(2**63), 2**63 - 1, torch.int64),
    ],
)  # fmt: skip
def test_whole_numbers_stay_in_the_range_of_the_training_inputs(low: int, high: int, kind: torch.dtype) -> None:
    inputs = torch.tensor([[low, high, low]], dtype=kind)
    ranges = certificate.ranges_of(inputs)
    assert ranges == (low, high)
    name = str(kind).removeprefix("torch.")
    drawn = torch.cat([certificate._probe(((500,), name), ranges, seed).view(-1) for seed in range(4)])
    assert drawn.dtype == kind
    assert low <= int(drawn.min()) <= int(drawn.max()) <= high
    if 0 < high - low < 256:
        assert set(drawn.tolist()) == set(range(low, high + 1))


def test_ranges_come_in_the_form_of_the_inputs() -> None:
    whole, real = torch.tensor([[3], [5]]), torch.ones(2, 1)
    assert certificate.ranges_of((whole, real)) == ((3, 5), None)
    assert certificate.ranges_of({"words": whole, "values": real}) == {"words": (3, 5), "values": None}
    assert certificate.ranges_of(torch.empty(0, 2, dtype=torch.long)) is None


class Fussy(nn.Module):
    """Takes rows that it was shown, and nothing else."""

    def __init__(self, error: Exception):
        super().__init__()
        self.layer = nn.Linear(FEATURES, 8)
        self.error = error

    def forward(self, rows: Tensor) -> Tensor:
        if bool((rows.abs() <= 1).all()):
            raise self.error
        return self.layer(rows)


@pytest.mark.parametrize("error", [ValueError("a"), KeyError("b"), RuntimeError("c"), ZeroDivisionError("d")], ids=repr)
def test_a_module_that_cannot_answer_its_probe_is_certified_by_its_tensors(error: Exception, tmp_path: Path) -> None:
    made = ff.WSN(Fussy(error), capacity=0.3, recipe=QUICK)
    for position, name in enumerate("ab"):
        made.learn(task(name, position))
        assert made.tasks[name].certificate.answers is None
    ff.save(made, tmp_path / "file")
    for found in (*made.verify(), *ff.verify(tmp_path / "file", Fussy(error)).tasks):
        assert found.ok
        assert found.difference is None
        assert "tensors only" in found.rule
    a_head(made)
    assert standing(made) == {"a": False, "b": True}


def test_a_task_with_enormous_samples_is_certified_by_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "LARGEST_PROBE", certificate.ROWS * FEATURES - 1)
    made = taught("a")
    assert made.tasks["a"].certificate.answers is None
    assert standing(made) == {"a": True}


def test_a_certificate_knows_its_circumstances() -> None:
    seen = taught("a").tasks["a"].certificate.fingerprint
    assert seen["torch"] == str(torch.__version__)
    assert seen["threads"] == torch.get_num_threads()
    assert seen["dtypes"] == ["float32", "int64"]
    assert seen["device"] == "cpu"


def test_a_module_of_another_type_answers_in_it() -> None:
    entry = Entry(lambda: backbone().to(torch.bfloat16), ZOO["mlp with dropout"].draw)
    made = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    made.learn(entry.task("a"))
    assert made.tasks["a"].certificate.answers.dtype == torch.bfloat16
    assert standing(made) == {"a": True}


def test_counted_numbers_are_those_of_all_times() -> None:
    assert philox_uniform(5, 0, "probe").tolist() == FIRST_NUMBERS
    assert derive(0, "probe") == FIRST_KEY
    assert philox_uniform(5, 0, "other").tolist() != FIRST_NUMBERS
    assert philox_uniform(3, 0, "probe").tolist() == FIRST_NUMBERS[:3]
    assert philox_uniform(0, 0, "probe").size == 0


@pytest.mark.parametrize(("seed", "words"), [(0, ("probe",)), (7, ("free", "0.weight")), (2**70, (1, "ü")), (-1, ())])
def test_counted_numbers_are_philox(seed: int, words: tuple[int | str, ...]) -> None:
    key = derive(seed, *words)
    blocks = [philox(key, counter) for counter in range(1, 27)]
    expected = np.array([word >> 40 for block in blocks for word in block][:101]) / 2**24
    numbers = philox_uniform(101, seed, *words)
    assert numbers.dtype == np.float32
    assert numbers.tolist() == expected.tolist()


def philox(key: int, counter: int) -> list[int]:
    """Philox-4x64-10 as in Salmon et al., 2011, with one word of key and one of counter."""
    whole = 2**64 - 1
    x, keys = [counter, 0, 0, 0], [key, 0]
    for _ in range(10):
        one, other = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [other >> 64 ^ x[1] ^ keys[0], other & whole, one >> 64 ^ x[3] ^ keys[1], one & whole]
        keys = [keys[0] + 0x9E3779B97F4A7C15 & whole, keys[1] + 0xBB67AE8584CAA73B & whole]
    return x


FIRST_KEY = 7466163400333119554
FIRST_NUMBERS = [0.6480982899665833, 0.5285543203353882, 0.5381463766098022, 0.15763700008392334, 0.5849230885505676]


class Backend:
    """A backend that has no more than torch.mps has: no name of the device, and random states of one device only."""

    state = torch.zeros(3)

    def get_rng_state(self) -> Tensor:
        return self.state.clone()

    def set_rng_state(self, state: Tensor) -> None:
        self.state = state

    def manual_seed(self, seed: int) -> None:
        self.state = torch.full((3,), float(seed % 97))


def test_a_backend_without_a_name_for_its_device_is_called_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda _: Backend())
    there = {"backbone": nn.Linear(2, 2, device="meta")}
    assert certificate.fingerprint(there)["device"] == "meta"


def test_the_random_state_of_a_backend_with_one_device_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend()
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    with preserved_rng(torch.device("mps")):
        seed_all(torch.device("mps"), 5, "here")
        assert backend.state.any()
    assert not backend.state.any()
