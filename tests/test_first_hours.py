"""What a new user gets wrong in the first hours is said in one sentence, and what everybody needs is there."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.network import SharedNetwork
from zoo import FSCIL, TIL

ROWS = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 2
QUICK = ff.Recipe(epochs=1)


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU())


def task(name: str = "a", **others: Any) -> ff.Task:
    return ff.Task(name, (f"{name} 0", f"{name} 1"), (ROWS, LABELS), **others)


@pytest.mark.parametrize("classes", [2, None, 2.0, {"a", "b"}])
def test_classes_that_are_a_number_are_refused_with_what_to_write(classes: Any) -> None:
    with pytest.raises(ff.InputError, match=r"classes are several names.*range\(2\)"):
        ff.Task("p", classes, (ROWS, LABELS))


@pytest.mark.parametrize("method", TIL)
def test_without_a_task_an_answer_is_refused_by_the_names_there_are(method: str) -> None:
    kind = ff.METHODS[method]
    others = {"capacity": 0.5} if "capacity" in kind.__dataclass_fields__ else {}
    learner = kind(body(), **others)
    with pytest.raises(ff.TaskError, match="no task is learned yet"):
        learner.predict(ROWS)
    learner.learn(task("cats"))
    if method == "multitask":
        learner.finish()
    for ask in (lambda: learner.predict(ROWS), lambda: learner.predict(ROWS, None)):
        with pytest.raises(ff.TaskError, match=r"which task.*predict\(inputs, task=.*'cats'"):
            ask()


# ---- losses of one's own


class Weighted(nn.Module):
    """A loss that is no function of torch's."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels, weight=torch.tensor([1.0, 3.0]))


LOSSES = [
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), label_smoothing=0.1),
    Weighted(),
    lambda outputs, labels: nn.functional.multi_margin_loss(outputs, labels),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_ones_own_leaves_classes_what_they_are(loss: Any, tmp_path: Path) -> None:
    one = task(valid=(ROWS, LABELS), loss=loss)
    assert one.classifies
    learner = ff.WSN(body(), capacity=0.5, recipe=ff.Recipe(epochs=3))
    learner.learn(one)
    curve = learner.tasks["a"].curves[-1]
    assert 0 <= curve["valid_accuracy"] <= 1
    with torch.no_grad():
        scores = learner.predict(ROWS, "a")
        assert float(loss(scores, LABELS)) == pytest.approx(min(c["valid_loss"] for c in learner.tasks["a"].curves))
    wrong = ff.Task("b", ("p", "q"), (ROWS, LABELS + 7), loss=loss)
    with pytest.raises(ff.InputError, match="out of range"):
        learner.learn(wrong)
    ff.save(learner, tmp_path / "file")
    assert ff.load(tmp_path / "file", body()).tasks["a"].classes == ("a 0", "a 1")


def test_weights_of_classes_change_what_is_learned() -> None:
    heavy = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 100.0]))
    shares = []
    for loss in (None, heavy):
        learner = ff.WSN(body(), capacity=0.5, recipe=ff.Recipe(epochs=20, lr=0.01))
        learner.learn(ff.Task("a", ("p", "q"), (torch.randn(24, 8), LABELS), loss=loss))
        shares.append(float((learner.predict(ROWS, "a").argmax(1) == 1).float().mean()))
    assert shares[1] > shares[0]


@pytest.mark.parametrize("method", FSCIL)
def test_a_few_shot_session_may_have_a_loss_of_its_own(method: str) -> None:
    kind = ff.METHODS[method]
    others = {"capacity": 0.5} if "capacity" in kind.__dataclass_fields__ else {}
    learner = kind(body(), recipe=QUICK, session=QUICK, **others)
    learner.learn(task(loss=nn.CrossEntropyLoss(label_smoothing=0.1)))
    assert learner.predict(ROWS).shape == (24, 2)


def test_weights_for_other_classes_than_there_are_scores_of_are_refused() -> None:
    few = nn.CrossEntropyLoss(weight=torch.ones(3))
    with pytest.raises(ff.InputError, match="weights for 3 classes, and there are scores for 2"):
        ff.WSN(body(), capacity=0.5, recipe=QUICK).learn(task(loss=few))


def test_labels_of_a_loss_without_classes_are_handed_on_as_they_are() -> None:
    seen = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(labels.dtype)
        return (outputs.squeeze(1) - labels).abs().mean()

    learner = ff.WSN(body(), capacity=0.5, recipe=QUICK)
    learner.learn(ff.Task("depth", (), (ROWS, torch.rand(24)), loss=loss, outputs=1))
    assert set(seen) == {torch.float32}
    several = ff.Task("tags", ("red", "round"), (ROWS, torch.rand(24, 2).round()), loss="bce_with_logits")
    assert not several.classifies
    learner.learn(several)


def test_several_labels_at_once_are_still_possible_with_a_loss_of_ones_own() -> None:
    """Labels that are no positions: the loss says what they are."""
    learner = ff.WSN(body(), capacity=0.5, recipe=QUICK)
    soft = torch.rand(24, 2).softmax(1)
    learner.learn(ff.Task("soft", ("p", "q"), (ROWS, soft), loss=nn.CrossEntropyLoss()))
    assert "valid_accuracy" not in learner.tasks["soft"].curves[-1]


# ---- a backbone that still ends in its classifier


class Pretrained(nn.Module):
    """As torchvision has them: a body, and the classifier of another data set."""

    def __init__(self, name: str, width: int = 1000):
        super().__init__()
        self.body = body()
        setattr(self, name, nn.Linear(12, width))
        self.last = name

    def forward(self, rows: Tensor) -> Tensor:
        return getattr(self, self.last)(self.body(rows))


@pytest.mark.parametrize("name", ["fc", "classifier", "head", "heads", "score"])
@pytest.mark.parametrize("method", ["wsn", "finetune"])
def test_a_backbone_that_ends_in_its_classifier_is_warned_of_once(name: str, method: str) -> None:
    learner = ff.METHODS[method](Pretrained(name), recipe=QUICK, **({"capacity": 0.5} if method == "wsn" else {}))
    with pytest.warns(UserWarning, match=rf"{name} \(Linear, 1000 outputs\).*{name} = nn.Identity\(\)"):
        learner.learn(task("a"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn(task("b"))


def test_a_last_layer_with_one_output_for_each_class_is_warned_of() -> None:
    learner = ff.WSN(nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2)), capacity=0.5, recipe=QUICK)
    with pytest.warns(UserWarning, match=r"2 \(Linear, 2 outputs\)"):
        learner.learn(task())


@pytest.mark.parametrize(
    "backbone",
    [
        body(),
        nn.Linear(8, 12),
        nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 16)),
        nn.Sequential(nn.Linear(8, 2), nn.ReLU()),
    ],
)
def test_a_backbone_without_a_classifier_is_not_warned_of(backbone: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ff.WSN(backbone, capacity=0.5, recipe=QUICK).learn(task())


# ---- what a learner says of itself


@pytest.mark.parametrize("method", ff.METHODS)
def test_a_learner_says_its_tasks_its_capacity_and_what_is_used(method: str) -> None:
    kind = ff.METHODS[method]
    others = {"capacity": 0.5} if "capacity" in kind.__dataclass_fields__ else {}
    learner = kind(body(), **others)
    learner.learn(task("cats"))
    if hasattr(learner, "finish"):
        learner.finish()
    said = repr(learner)
    assert said.startswith(f"{kind.__name__}(")
    assert ("capacity=0.5" in said) is bool(others)
    assert "cats" in said if kind.scenario == "til" else "1 session and 2 classes" in said
    assert ("% of the shared weights used" in said) is isinstance(learner.network, SharedNetwork)
