"""What all few-shot class-incremental learners do alike, as functions that a method's class takes or calls.

The first session is large and teaches the network; each later one brings a few classes with a few images. All learn in
one ticket, that of the first session, and one head answers for all classes met: predict takes no task name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset

from forgetfree import learners
from forgetfree.batches import Batch, batches, explained, signature
from forgetfree.checks import check_whole
from forgetfree.contracts import Data, Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError, LearningError, TaskError
from forgetfree.heads import HeadFactory, Metric, Prototypes, check_heads, linear_head, nearest_mean, similarity
from forgetfree.lessons import Lessons, Place
from forgetfree.masks import Masks
from forgetfree.modules import as_call
from forgetfree.network import LentNetwork, SharedNetwork
from forgetfree.training import Progress, Recipe, Session, check_recipe


class Growing(Protocol):
    """A learner of sessions."""

    lessons: Lessons
    network: SharedNetwork
    session: Recipe
    """How later sessions are trained."""

    def _answer(self, name: str = "") -> nn.Module: ...
    def _place(self) -> Place: ...


def lessons(self: Growing, recipe: Recipe | None, heads: HeadFactory, seed: int, cache_bytes: int) -> Lessons:
    """The lessons of a learner of sessions, whose `session` is known already."""
    check_recipe("session", self.session)
    return Lessons(
        self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes, growing=True
    )


class Learning(Growing, Protocol):
    def learning(self, task: Task) -> AbstractContextManager[Session]: ...


def learn(
    self: Learning,
    task: Task,
    checkpoint: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Learn one more session. `checkpoint` is a file that lets a killed `learn` go on, to the same bits."""
    with self.learning(task) as session:
        recipe = self.session if self.lessons.learned else None
        self.lessons.fit(session, checkpoint=checkpoint, progress=progress, recipe=recipe)


class InTwoKinds(Growing, Protocol):
    """One that says how its first session goes, and how a later one does."""

    def _base(self, task: Task) -> AbstractContextManager[Session]: ...
    def _session(self, task: Task) -> AbstractContextManager[Session]: ...


@contextmanager
def learning(self: InTwoKinds, task: Task) -> Iterator[Session]:
    """Learn a session in your own loop: `session.parameters()`, `session.loss(batch)`, then `session.keep()`."""
    exemplars: Exemplars | None = getattr(self, "exemplars", None)
    with self.lessons.turn(task):
        joined = self.lessons.joined(task)
        check_classes(task)
        if exemplars is not None and exemplars.count:
            check_keepable(task)
        with (self._session if self.lessons.learned else self._base)(joined) as session:
            yield session


def check_classes(task: Task) -> None:
    """Refuse a class without an image before anything is trained; a Dataset is not read for this."""
    if isinstance(task.train, tuple | list):
        there = set(task.train[1].tolist())
        missing = [name for label, name in enumerate(task.classes) if label not in there]
        if missing:
            raise InputError(
                f"task {task.name!r}: no training image is of class {missing[0]!r}, so that it has no mean. Give "
                "images of it, or leave it out of the classes."
            )


def predict(self: Growing, inputs: Inputs, task: None = None) -> Tensor:
    """A score for every class met, in the order of `classes`; in eval mode, without gradient."""
    if task is not None:
        raise TaskError(
            f"few-shot sessions are not asked by name: one answer has a score for each of the "
            f"{len(self.lessons.met)} classes met. Leave task={task!r} out."
        )
    return self.lessons.answer(inputs)


def remove(self: Growing, task: str) -> None:
    """A session cannot be removed: one head tells its classes from all others."""
    self.lessons.refuse_unknown([task])
    raise TaskError(f"session {task!r} cannot be removed: one head tells its classes from all others met.")


@property  # type: ignore[misc]
def classes(self: Growing) -> tuple[int | str, ...]:
    """All classes met, in the order of the scores that `predict` gives."""
    return self.lessons.met


def answer(self: Growing, _: str = "") -> nn.Module:
    """What the head sees: the network as the first session's ticket has it."""
    return self.network.answer(ticket_of(self))


def ticket_of(self: Growing) -> str:
    """The name of the first session, in whose ticket all learn."""
    return next(iter(self.network.tickets))


def everything(network: SharedNetwork) -> Masks:
    """Masks that hide nothing: for methods whose first session trains a dense network."""
    return {name: torch.ones_like(value) for name, value in network.weights.items()}


@contextmanager
def dense_base(
    self: Growing,
    task: Task,
    answering: Callable[[Session], nn.Module],
    *,
    head: HeadFactory = linear_head,
) -> Iterator[Session]:
    """The first session of all methods that start from a dense network: cross-entropy through a linear classifier.

    `answering` makes the head to answer with, once the network is kept. All such methods train the same network from
    the same seed, so its checkpoint is one for all of them.
    """
    lent, masks = self.network.lend(), everything(self.network)

    def features(inputs: Inputs) -> Any:
        return lent(inputs, masks)

    def keep() -> nn.Module:
        self.network.keep(task.name, lent, masks)
        return answering(session)

    with self.lessons.session(
        task, {"network": lent}, features, keep, holders=(self, self.network), head=head, settings={"base": "dense"}
    ) as session:
        yield session


@contextmanager
def base_by_means(self: Growing, task: Task) -> Iterator[Session]:
    """That first session, answered by the nearest class mean."""

    def answering(_: Session) -> nn.Module:
        return nearest(self, task, class_means(self, task, task.train, range(len(task.classes))))

    with dense_base(self, task, answering) as session:
        yield session


@contextmanager
def later_session(
    self: Growing,
    task: Task,
    lent: LentNetwork,
    answering: Callable[[Session], nn.Module],
    *,
    masks: Masks | None = None,
    head: HeadFactory | None = None,
    loss: Callable[[Batch], Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Session]:
    """A later session: what was lent again learns on by `loss`, and is taken back."""
    seen = masks or everything(self.network)

    def features(inputs: Inputs) -> Any:
        return lent(inputs, seen)

    def keep() -> nn.Module:
        self.network.move(ticket_of(self), lent)
        return answering(session)

    with self.lessons.session(
        task, {"network": lent}, features, keep, holders=(self, self.network), head=head, loss=loss, settings=settings
    ) as session:
        yield session


def means_of(self: Growing) -> Tensor:
    """The class means that the learner answers with now, [classes met, features]."""
    head = head_of(self)
    assert isinstance(head, Prototypes)
    return head.means


def head_of(self: Growing) -> nn.Module:
    """The one head that answers now."""
    (head,) = self.lessons.heads.kept.values()
    return head


def metric_of(self: Growing, task: Task) -> Metric:
    """How near is measured, by the heads the learner was built with."""
    head = (self.lessons.heads.factory or nearest_mean)(1, task)
    assert isinstance(head, Prototypes)
    return head.metric


def by_means(heads: HeadFactory) -> HeadFactory:
    """Heads that answer by the nearest class mean; others are refused."""
    return check_heads(
        heads, Prototypes, "this method answers by the nearest class mean: heads are 'euclidean' or 'cosine'"
    )


def nearest(self: Growing, task: Task, means: Tensor) -> Prototypes:
    """The head that answers by these class means."""
    if not bool(means.isfinite().all()):
        raise LearningError(
            f"task {task.name!r}: a class mean is not finite. The learner is as it was before. Check the inputs for "
            "NaN, or lower the learning rate."
        )
    return Prototypes(means, metric_of(self, task))


def class_means(self: Growing, task: Task, data: Data, classes: Sequence[int]) -> Tensor:
    """The mean features of these classes (as `task` labels them), by the network as it is kept now; no augmentation."""
    return means_by_class(*features_of(self, self._answer(), task, data), classes)


def means_by_class(features: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The mean of the features of each of these classes."""
    missing = [label for label in classes if not bool((labels == label).any())]
    if missing:
        raise InputError(f"no training image has label {missing[0]}, so that its class has no mean.")
    return torch.stack([features[labels == label].double().mean(0) for label in classes]).to(features.dtype)


def features_of(self: Growing, module: nn.Module, task: Task, data: Data) -> tuple[Tensor, Tensor]:
    """Features of all samples, in their order, in eval mode and without gradient; and their labels."""
    place, recipe = learners.place(self), self.lessons.recipe
    found, labels = [], []
    module.eval()
    with torch.no_grad(), torch.autocast(place.device.type, enabled=False):
        for batch in batches(task, data, recipe.eval_batch_size, loader=recipe.loader):
            inputs = place.admit(batch.inputs)
            args, kwargs = as_call(inputs)
            with explained(inputs, *first_inputs(self)):
                found.append(module(*args, **kwargs))
            labels.append(batch.labels.to(place.device))
    return torch.cat(found), torch.cat(labels)


def first_inputs(self: Growing) -> tuple[Any, str]:
    """The signature of what the first session was learned on, and its name; None and nothing while it is learned."""
    return next(((known.inputs, known.name) for known in self.lessons.learned.values()), (None, ""))


def seen_by(self: Growing, module: nn.Module, inputs: Inputs) -> Tensor:
    """What a module that does not learn, the network before a session, makes of a batch."""
    args, kwargs = as_call(learners.place(self).admit(inputs))
    with torch.no_grad():
        features: Tensor = module(*args, **kwargs)
    return features


def grown_means(self: Growing, task: Task) -> Tensor:
    """The class means before a session, and after them those of its new classes."""
    known = means_of(self)
    new = class_means(self, task, task.train, range(len(known), len(task.classes)))
    return torch.cat([known, new])


def metric_loss(
    features: Tensor,
    labels: Tensor,
    means: Tensor,
    known: int,
    *,
    temperature: float = 1.0,
    metric: Metric = "cosine",
) -> Tensor:
    """Cross-entropy over minus the distance to all class means: of cosines (Equation 12 of the paper), or Euclidean.

    Means of classes from `known` on are those of this batch where it has images of them, with gradient; all others are
    as they were stored.
    """
    near = similarity(features, batch_means(features, labels, means, known), metric)
    distance = 1 - near if metric == "cosine" else -near
    return nn.functional.cross_entropy(-distance / temperature, labels)


def batch_means(features: Tensor, labels: Tensor, means: Tensor, known: int) -> Tensor:
    """The class means, from class `known` on those of this batch where it has images of them, with gradient."""
    rows = [
        features[labels == label].mean(0) if label >= known and bool((labels == label).any()) else means[label]
        for label in range(len(means))
    ]
    return torch.stack(rows)


def base_count(self: Growing) -> int:
    """How many classes the first session brought."""
    return len(self.lessons.learned[ticket_of(self)].classes)


def rehearsing(task: Task, exemplars: "Exemplars") -> Task:
    """The session with the kept images of earlier classes among its own."""
    return replace(task, train=joined_data([task.train, exemplars.data()])) if exemplars else task


def means_after(self: Growing, task: Task, means: Tensor, exemplars: "Exemplars") -> Tensor:
    """The class means after a session: of its new classes and of those it rehearsed anew, all others as they were."""
    again = [*exemplars.kept, *range(len(self.lessons.met), len(means))]
    moved = means.clone()
    moved[again] = class_means(self, task, task.train, again)
    return moved


def with_shots(self: Growing, task: Task, exemplars: "Exemplars") -> "Exemplars":
    """The exemplars, and the first images of each class that is new in this session."""
    for label in range(len(self.lessons.met), len(task.classes)) if exemplars.count else ():
        exemplars = exemplars.with_class(label, samples_of(task.train, label))
    return exemplars


def joined_data(parts: Sequence[Data]) -> Data:
    """Several parts of data as one."""
    if all(isinstance(part, tuple) and isinstance(part[0], Tensor) for part in parts):
        inputs, labels = zip(*parts, strict=True)
        kinds = [signature(each) for each in inputs]
        if any(kind != kinds[0] for kind in kinds):
            raise InputError(f"sessions are trained together where their inputs are alike; got {kinds} (batch apart).")
        return torch.cat(inputs), torch.cat([each.long() for each in labels])
    return ConcatDataset([Samples(part) for part in parts])


class Samples(Dataset[tuple[Any, int]]):
    """Any data sample by sample; labels are plain numbers, so that parts of several kinds make one batch."""

    def __init__(self, data: Data):
        if isinstance(data, tuple | list):
            inputs, labels = data
            if not isinstance(inputs, Tensor):
                raise InputError("sessions are joined where their inputs are one tensor, or a Dataset.")
            self._data: Any = TensorDataset(inputs, labels)
        elif isinstance(data, IterableDataset):
            raise InputError("sessions are joined in any order: as tensors or as a Dataset, not as a stream.")
        else:
            self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        inputs, label = self._data[at]
        return torch.as_tensor(inputs) if hasattr(inputs, "__array__") else inputs, int(label)


class Exemplars:
    """Images of earlier classes that are kept to train on again: at most `count` of a class, in order of preference."""

    def __init__(self, count: int, kept: Mapping[int, Tensor] | None = None):
        self.count = check_whole("exemplars, how many images of a class are kept,", count)
        self.kept: dict[int, Tensor] = dict(kept or {})

    def __bool__(self) -> bool:
        return bool(self.kept)

    def with_class(self, label: int, images: Tensor) -> "Exemplars":
        """These, and the first `count` images of one class."""
        if not self.count:
            return self
        return Exemplars(self.count, {**self.kept, label: images[: self.count].detach().clone()})

    def data(self) -> tuple[Tensor, Tensor]:
        labels = [torch.full((len(images),), label) for label, images in self.kept.items()]
        return torch.cat(list(self.kept.values())), torch.cat(labels)

    def tensors(self) -> dict[str, Tensor]:
        return {f"exemplars.{label}": images for label, images in self.kept.items()}

    @classmethod
    def from_tensors(cls, count: int, tensors: Mapping[str, Tensor]) -> "Exemplars":
        kept = {int(name.removeprefix("exemplars.")): value for name, value in tensors.items()}
        return cls(count, dict(sorted(kept.items())))


def written(value: float) -> str:
    """A number in the name of a file: short, but never the same for two."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def wide(features: Tensor) -> Tensor:
    """Half types as float32, for operations that half types lack."""
    return features if features.dtype in (torch.float32, torch.float64) else features.float()


def herd(features: Tensor, count: int) -> list[int]:
    """Positions of the samples whose running mean stays closest to the mean of all, the best first."""
    goal, total = features.double().mean(0), torch.zeros_like(features.double().sum(0))
    chosen: list[int] = []
    left = list(range(len(features)))
    while left and len(chosen) < count:
        reached = (total + features[left].double()) / (len(chosen) + 1)
        best = left[int((goal - reached).square().sum(1).argmin())]
        chosen.append(best)
        left.remove(best)
        total = total + features[best].double()
    return chosen


def samples_of(data: Data, label: int) -> Tensor:
    """The inputs of one class, in their order."""
    if isinstance(data, tuple | list):
        inputs, labels = data
        if not isinstance(inputs, Tensor):
            raise InputError("exemplars are kept of inputs that are one tensor.")
        return inputs[(labels == label).to(inputs.device)]
    pairs = [data[at] for at in range(len(data))]  # type: ignore[arg-type]
    return torch.stack([torch.as_tensor(inputs) for inputs, given in pairs if int(given) == label])


def samples_at(data: Data, positions: Sequence[int]) -> Tensor:
    """The inputs at these positions."""
    if isinstance(data, tuple | list):
        inputs, _ = data
        assert isinstance(inputs, Tensor)
        return inputs[torch.as_tensor(positions, dtype=torch.long)]
    return torch.stack([torch.as_tensor(data[at][0]) for at in positions])


def check_keepable(task: Task) -> None:
    """Refuse data that no single images can be kept of, before anything is learned."""
    data: Any = task.train
    if isinstance(data, tuple | list):
        single = isinstance(data[0], Tensor)
    elif isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        single = False
    else:
        single = hasattr(data[0][0], "__array__")  # tensors have it too
    if not single:
        raise InputError(
            f"task {task.name!r}: this method keeps images of every class, so that training data are one tensor of "
            "inputs with their labels, or a Dataset with a length whose samples are one tensor and a label."
        )


def memory(self: Growing, training: Mapping[str, Tensor] | None = None) -> Memory:
    """The network in its one ticket, the head that answers, and what is kept for `training` only, exemplars too."""
    return self.network.memory(self.lessons.heads.tensors(), {**(training or {}), **_kept_images(self)})


def _kept_images(self: Growing) -> dict[str, Tensor]:
    exemplars: Exemplars | None = getattr(self, "exemplars", None)
    return {} if exemplars is None else exemplars.tensors()


def stored(
    self: Any,
    *,
    resumable: bool,
    arguments: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
) -> LearnerState:
    """All of the learner; `arguments` and `training` are the method's own, exemplars apart."""
    with self.lessons.still():
        common = {"start": dict(self.network.start), "fixed": dict(self.network.fixed)}
        return self.lessons.stored(  # type: ignore[no-any-return]
            self.network.module,
            self.memory(),
            resumable=resumable,
            arguments={**arguments, "session": self.session.described()},
            training={**common, "exemplars": _kept_images(self), **(training or {})},
        )


def revived(kind: Any, /, backbone: nn.Module, stored: LearnerState, **others: Any) -> Any:
    """A learner made again from what was stored; what its method keeps beside all this, it takes itself."""
    session, names = Recipe.from_described(stored.arguments["session"]), set(stored.memory.shared)
    arguments = {**stored.arguments, "session": session, "masked": lambda name, *_: name in names, **others}
    learner, training = kind(backbone, **arguments), stored.training
    learner.network.restore(stored.memory.shared, stored.memory.tickets, training["start"], training["fixed"])
    learner.lessons.restore(stored)
    if training["exemplars"]:
        learner.exemplars = Exemplars.from_tensors(learner.exemplars.count, training["exemplars"])
    return learner
