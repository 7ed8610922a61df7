"""Joint training and cRT: all data of all sessions at once, which few-shot learning may not have. The upper reference.

    joint       one network, from its first weights, on the images of all sessions met; a linear classifier answers
    cRT         that network stands still; its classifier is drawn anew and trained on as many images of every class

Sessions are collected and `finish()` trains once on all of them, or, with `every`, each is trained as it comes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from forgetfree import incremental, learners
from forgetfree.batches import first_batch, shifted, signature
from forgetfree.checks import check_switch, check_whole
from forgetfree.contracts import Data, LearnerState, Memory, Task
from forgetfree.errors import InputError, TaskError
from forgetfree.heads import HeadFactory, check_heads, linear_head
from forgetfree.network import Masked, SharedNetwork
from forgetfree.rng import derive, generator
from forgetfree.training import Fitted, Progress, Recipe, Session

CLASSIFIER = Recipe(
    epochs=16, batch_size=256, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, milestones=(8, 12, 14),
    factor=0.5,
)  # fmt: skip
"""How the released code trains cRT's classifier for CIFAR-100."""
DEVIATION = 0.001
"""Of the normal distribution that cRT's classifier is drawn from; its bias is zero."""

Checkpoint = Path | str | None
Callback = Callable[[Progress], None] | None


class Joint:
    """One network for all classes, trained on everything together when `finish()` is called.

    learner = Joint(backbone)
    learner.learn(base)         # trained at once
    learner.learn(birds)        # collected
    learner.finish()            # base and birds together, from the weights that the backbone had when wrapped

    Until then `predict` and `tasks` know the classes that were trained. `recipe` trains the first session and, the same
    way, all of them together; `session` has nothing to say here. Images of all sessions are augmented as those of the
    first are. Validation data chooses an epoch where every session has some: else the choice would be one-sided. Data
    are kept as they are given, not copied.
    """

    scenario: Literal["fscil"] = "fscil"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        every: bool = False,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = linear_head,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.every = check_switch("every, whether each session is trained as it comes,", every)
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        self.wrapped: Mapping[str, Tensor] = dict(self.network.weights)
        """The first weights, where all training starts."""
        self.sessions: Mapping[str, Task] = {}
        """All data met, trained or only collected."""
        self.session = session or Recipe()  # no session is trained by itself
        self.lessons = incremental.lessons(self, recipe, heads, seed, cache_bytes)

    predict, remove, classes = incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    _place, _answer = learners.place, incremental.answer

    @property
    def base(self) -> str:
        """What the network of the first session depends on: that of all dense methods has a linear classifier."""
        kind = self.lessons.kind_of_heads
        return "dense" if kind == "linear" else f"dense-{kind}"

    def learn(self, task: Task, checkpoint: Checkpoint = None, progress: Callback = None) -> None:
        """Train the first session, and with `every` each one; otherwise collect it for `finish()`.

        `checkpoint` is a file that lets a killed `learn` go on, to the same bits; joint training has its own beside it.
        """
        if self.every or not self.tasks:
            with self.learning(task) as session:
                self._train(session, checkpoint, progress)
        else:
            with self.lessons.turn(task):
                self.sessions = self._with(task)

    @property
    def waiting(self) -> Mapping[str, Task]:
        """The sessions that were collected and are not trained yet."""
        return {name: task for name, task in self.sessions.items() if name not in self.lessons.learned}

    def finish(self, checkpoint: Checkpoint = None, progress: Callback = None) -> None:
        """Train on all sessions met, if some are waiting for it."""
        if not self.tasks:
            raise TaskError("there is nothing to finish: no session was met. Call learn(task) first.")
        if not self.waiting:
            return
        with self.lessons.turn(list(self.waiting.values())[-1]), self._joint(self.sessions) as session:
            self._train(session, checkpoint, progress)

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Train a session at once in your own loop, with all that were met before it; then `session.keep()`.

        cRT's classifier is then as your loop has trained it.
        """
        with self.lessons.turn(task):
            sessions = self._with(task)
            with self._joint(sessions) if self.tasks else self._base(task) as session:
                yield session

    @contextmanager
    def _base(self, task: Task) -> Iterator[Session]:
        def answering(session: Session) -> nn.Module:
            self.sessions = {task.name: task}
            return classifier_of(session)

        head = self.lessons.heads.factory or linear_head
        with incremental.dense_base(self, self.lessons.joined(task), answering, head=head) as session:
            yield session

    @contextmanager
    def _joint(self, sessions: Mapping[str, Task]) -> Iterator[Session]:
        def answering(session: Session) -> nn.Module:
            self.sessions = sessions
            for task in list(self.waiting.values())[:-1]:  # the last is written down by the lessons
                seen, _ = incremental.first_inputs(self)
                met = replace(task, classes=self.lessons.met + task.classes)
                self.lessons.note(met, seen, f"trained together with {session.task.name!r}", None)
            return classifier_of(session)

        with incremental.later_session(
            self,
            together(sessions),
            self.network.lend_from(self.wrapped),
            answering,
            settings={"joint": list(sessions)},
        ) as session:
            yield session

    def _train(self, session: Session, checkpoint: Checkpoint, progress: Callback) -> None:
        """Train the session and keep it."""
        fitted = self._fit(session, checkpoint, progress)
        session.keep(fitted.selection, fitted)

    def _fit(self, session: Session, checkpoint: Checkpoint, progress: Callback) -> Fitted:
        """Train network and classifier; in the first session as all methods that start from a dense network do."""
        head = session.parts["head"]
        if not [*head.named_parameters()]:
            raise InputError(
                f"joint training learns its classifier, and a {type(head).__name__} learns nothing: "
                "heads are 'linear', 'linear_without_bias' or 'cosine_classifier'."
            )
        recipe, phase = self.lessons.recipe, "joint" if self.tasks else ""
        return self.lessons.train(session, recipe, checkpoint=checkpoint, progress=progress, phase=phase)

    def _with(self, task: Task) -> Mapping[str, Task]:
        """All sessions met, and this one after them; refuse one that could not be trained with the others."""
        self.lessons.joined(task)
        if self.tasks and not self.sessions:
            raise TaskError(
                f"this learner came from an archive, without the data of {', '.join(self.tasks)}, and trains on all "
                "data at once: it can answer, not learn."
            )
        if task.name in self.sessions:
            raise TaskError(f"task {task.name!r} is collected already; sessions met are {list(self.sessions)}.")
        for known in self.sessions.values():
            again = [name for name in task.classes if name in known.classes]
            if again:
                raise TaskError(f"task {task.name!r} brings {again[0]!r}, which {known.name!r} has already.")
        for data in (task.train, task.valid):
            if data is not None:
                incremental.Samples(data)  # refuses what cannot be mixed
            if isinstance(data, tuple | list) and not bool(torch.as_tensor(data[0]).isfinite().all()):
                raise InputError(f"task {task.name!r}: some inputs are not finite numbers.")
        if self.tasks:
            sample = first_batch(task, 2, self.lessons.recipe.loader).inputs
            given, (expected, first) = signature(self._place().admit(sample)), incremental.first_inputs(self)
            if given != expected:
                raise InputError(
                    f"sessions are mixed where their inputs are alike: {task.name!r} has {given}, {first!r} {expected}."
                )
        return {**self.sessions, task.name: task}

    def memory(self) -> Memory:
        """The network and its classifier; for training all data met, and the first weights."""
        data = {
            f"sessions.{name}.{part}.{kind}": value
            for name, task in self.sessions.items()
            for part, given in (("train", task.train), ("valid", task.valid))
            if given is not None
            for kind, value in zip(("inputs", "labels"), sized(given), strict=True)
        }
        wrapped = {f"wrapped.{name}": value for name, value in self.wrapped.items()} if self.sessions else {}
        return incremental.memory(self, training={**data, **wrapped})

    def stored(self, *, resumable: bool = False) -> LearnerState:
        with self.lessons.still():
            if self.waiting and not resumable:
                raise TaskError(
                    f"{', '.join(self.waiting)}: collected but not trained, and an archive without resumable=True has "
                    "no data in it. Call finish() first."
                )
            known: dict[str, Any] = {}
            if resumable:
                sessions = [plain(task) for task in self.sessions.values()]
                known = {"wrapped": dict(self.wrapped), "sessions": sessions}
            return incremental.stored(self, resumable=resumable, arguments=self._arguments(), training=known)

    def _arguments(self) -> dict[str, Any]:
        return {"every": self.every}

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "Joint":
        """A learner made again from what was stored; without the data it answers, and learns no more."""
        learner: Joint = incremental.revived(cls, backbone, stored, **others)
        if stored.resumable:
            learner.wrapped = stored.training["wrapped"]
            learner.sessions = {known["name"]: Task(**known) for known in stored.training["sessions"]}
        return learner

    def to(self, device: torch.device | str) -> "Joint":
        with self.lessons.moved(device):
            self.network.to(device)
            self.wrapped = {name: value.to(device) for name, value in self.wrapped.items()}
        return self


class CRT(Joint):
    """Classifier re-training: the network of joint training, and a classifier that sees all classes equally often.

    `recipe` trains the network, `session` the classifier. An epoch of the latter is as long as the largest class has
    images, times the number of classes. Classes take turns, in an order drawn anew for every round; in its turn a
    class gives its next `draws` images, and begins again, in another order, after its last. The network stands still
    in eval mode; images are augmented as before. In the first session the classifier is trained again too; the
    checkpoint of the network there may be one for all methods with a dense network, so the classifier's is named by
    its own settings.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        every: bool = False,
        draws: int = 4,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = linear_head,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        check_heads(heads, nn.Linear, "cRT draws a linear classifier anew: heads are 'linear' or 'linear_without_bias'")
        super().__init__(
            backbone, every=every, recipe=recipe, session=session or CLASSIFIER, heads=heads, masked=masked, seed=seed,
            device=device, cache_bytes=cache_bytes,
        )  # fmt: skip
        self.draws = check_whole("draws, how many images a class gives in its turn,", draws, 1)

    def _train(self, session: Session, checkpoint: Checkpoint, progress: Callback) -> None:
        trained = self._fit(session, checkpoint, progress)
        classifier = self._again(session, {"joint": trained.curves[-1]["loss"]})
        # without workers: in several processes a stream would come several times
        loader = {key: value for key, value in (self.session.loader or {}).items() if key == "collate_fn"}
        recipe = replace(self.session, loader=loader or None)
        own = checkpoint if self.tasks or checkpoint is None else self._named(Path(checkpoint))
        again = self.lessons.train(classifier, recipe, checkpoint=own, progress=progress, phase="classifier")
        classifier.keep(again.selection, again.after(trained))

    def _named(self, checkpoint: Path) -> Path:
        """Where the classifier of the first session is, beside its network: one file for equal settings."""
        settings = repr((self.draws, sorted(self.session.described().items())))
        return checkpoint.with_name(f"{checkpoint.stem}-{derive(0, settings) >> 31:08x}{checkpoint.suffix}")

    def _again(self, session: Session, settings: Mapping[str, Any]) -> Session:
        """The session with its network standing still and its classifier drawn anew: only the latter is trained."""
        network, head = session.parts["network"], session.parts["head"]
        network.train(False)
        for _, parameter in network.named_parameters():
            parameter.requires_grad_(False)
        seed, position = self.lessons.seed, self.lessons.position
        drawn = generator(seed, position, "classifier")
        with torch.no_grad():
            for _, parameter in head.named_parameters():
                fresh = torch.zeros(parameter.shape)
                parameter.copy_(fresh.normal_(0, DEVIATION, generator=drawn) if parameter.dim() > 1 else fresh)

        def chance() -> Generator:
            return generator(seed, position, "balanced", classifier.epoch)

        task = replace(session.task, train=Balanced(session.task.train, self.draws, chance))
        classifier = Session(
            task, {"head": head}, session, session.keep, settings={**session.settings, **settings, "draws": self.draws}
        )
        return classifier

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "draws": self.draws}


class Balanced(IterableDataset[tuple[Any, int]]):
    """As many images of every class, in an order drawn by a new `chance()` for every pass."""

    def __init__(self, data: Data, draws: int, chance: Callable[[], Generator]):
        self._data = incremental.Samples(data)
        self._draws, self._chance = draws, chance
        labels = labels_of(data)
        self._classes = [(labels == label).nonzero().squeeze(1) for label in sorted(set(labels.tolist()))]

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        length = len(self._classes) * max(map(len, self._classes))
        return (self._data[at] for at in islice(self._drawn(self._chance()), length))

    def _drawn(self, chance: Generator) -> Iterator[int]:
        """Positions without end: in a round every class has one turn."""
        images = [_over_and_over(positions, chance) for positions in self._classes]
        for number in _over_and_over(torch.arange(len(images)), chance):
            yield from islice(images[number], self._draws)


def _over_and_over(values: Tensor, chance: Generator) -> Iterator[int]:
    """All values in a random order, then all in another one, without end."""
    while True:
        yield from values[torch.randperm(len(values), generator=chance)].tolist()


def together(sessions: Mapping[str, Task]) -> Task:
    """All sessions as one task with the name of the last: classes in the order they were met, labels moved along."""
    tasks = list(sessions.values())
    starts = [0, *accumulate(len(task.classes) for task in tasks[:-1])]

    def joined(parts: list[Data]) -> Data:
        return incremental.joined_data([shifted(part, start) for part, start in zip(parts, starts, strict=True)])

    valid = [task.valid for task in tasks if task.valid is not None]
    return replace(
        tasks[-1],
        classes=tuple(name for task in tasks for name in task.classes),
        train=joined([task.train for task in tasks]),
        valid=joined(valid) if len(valid) == len(tasks) else None,
        augment=tasks[0].augment,
    )


def classifier_of(session: Session) -> nn.Module:
    """The head that the session was trained with, which is also the one that answers."""
    head = session.parts["head"]
    assert isinstance(head, nn.Module)
    return head


def labels_of(data: Data) -> Tensor:
    """The labels of all samples, in their order; of a Dataset every sample is read."""
    if isinstance(data, tuple | list):
        return data[1].long().cpu()
    return torch.tensor([int(data[at][1]) for at in range(len(data))])  # type: ignore[arg-type]


def sized(data: Data) -> tuple[Tensor, Tensor]:
    """Inputs and labels, to be counted; of a Dataset, which is not read for this, its first sample in place of all."""
    if isinstance(data, tuple | list):
        return data[0], data[1]  # type: ignore[return-value]
    inputs, label = data[0]
    count = len(data)  # type: ignore[arg-type]
    parts = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple | list) else [inputs]
    sample = torch.cat([torch.as_tensor(part).flatten() for part in parts])
    return sample.expand(count, len(sample)), torch.as_tensor(label).expand(count)


def plain(task: Task) -> dict[str, Any]:
    """A session as an archive can hold it."""
    if task.augment is not None or any(isinstance(data, Dataset) for data in (task.train, task.valid)):
        raise InputError(
            f"the data of {task.name!r} is a Dataset, or augmented by a function, which an archive cannot hold. Save "
            "without resumable: what is read from it can answer, not learn."
        )
    valid = None if task.valid is None else tuple(task.valid)  # type: ignore[arg-type]
    return {"name": task.name, "classes": task.classes, "train": tuple(task.train), "valid": valid}  # type: ignore[arg-type]
