"""Joint training and cRT: all data of all sessions at once, which few-shot learning may not have. The upper reference.

    joint       one network, from its first weights, on the images of all sessions met; a linear classifier answers
    cRT         that network stands still; its classifier is drawn anew and trained on as many images of every class

Sessions are collected and `finish()` trains once on all of them, or, with `every`, each is trained as it comes.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from forgetfree.authoring import Context, FewShotLearner, Phase, ProgressCallback, Recipe, Session, Task, TaskModel
from forgetfree.base_heads import BaseHead
from forgetfree.batches import first_batch, shifted, signature
from forgetfree.contracts import Data
from forgetfree.errors import InputError, TaskError
from forgetfree.few_shot.collected import Collected
from forgetfree.few_shot.episodes import Balanced
from forgetfree.few_shot.learner import BaseClassifier, classifier_of
from forgetfree.heads import HeadFactory, example_head, linear_head
from forgetfree.network import TrainableView
from forgetfree.rng import generator
from forgetfree.samples import Samples, joined_data
from forgetfree.settings import LATER, Whole, learner
from forgetfree.views import SeenThrough

DEVIATION = 0.001
"""Of the normal distribution that cRT's classifier is drawn from; its bias is zero."""


@learner
class Joint(FewShotLearner):
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

    every: Annotated[bool, LATER] = False
    """Whether each session is trained as it comes."""

    default_heads = staticmethod(linear_head)
    head_kind = nn.Module
    resumable_state = ("wrapped", "collected")

    def start(self) -> None:
        self.wrapped: Mapping[str, Tensor] = {}
        """The weights before the first session, where all training starts."""
        self.collected = Collected()
        """All data met, trained or only collected."""

    def check(self) -> None:
        self.network.check_like("wrapped weights", self.wrapped)
        head = example_head(self.heads or linear_head)
        if next(head.parameters(), None) is None:
            raise InputError(
                f"joint training learns its classifier, and a {type(head).__name__} learns nothing: heads are "
                "'linear', 'linear_without_bias' or 'cosine_classifier'."
            )

    @property
    def waiting(self) -> Mapping[str, Task]:
        """The sessions that were collected and are not trained yet."""
        return {name: task for name, task in self.collected.tasks.items() if name not in self.tasks}

    def learn(
        self, task: Task, checkpoint: Path | str | None = None, progress: ProgressCallback | None = None, *,
        recipe: Recipe | None = None, capacity: float | None = None,
    ) -> None:  # fmt: skip
        """Train the first session, and with `every` each one; otherwise collect it for `finish()`.

        `checkpoint` is a file that lets a killed `learn` go on, to the same bits; joint training has its own beside it.
        """
        if self.tasks and (recipe is not None or capacity is not None):
            raise InputError("joint training has one recipe for all sessions: set learner.recipe before it is trained.")
        if self.every or not self.tasks:
            super().learn(task, checkpoint, progress, recipe=recipe, capacity=capacity)
        else:
            with self.engine.exclusive(task):
                self.accept(task)
                self.collected = self.collected.with_task(task)

    def finish(self, checkpoint: Path | str | None = None, progress: ProgressCallback | None = None) -> None:
        """Train on all sessions met, if some are waiting for it."""
        if not self.tasks:
            raise TaskError("there is nothing to finish: no session was met. Call learn(task) first.")
        if self.waiting:
            super().learn(list(self.waiting.values())[-1], checkpoint, progress)

    def accept(self, task: Task) -> None:
        if self.waiting.get(task.name) is task:
            return
        if self.tasks and not self.collected.tasks:
            raise TaskError(
                f"this learner came from an archive, without the data of {', '.join(self.tasks)}, and trains on all "
                "data at once: it can answer, not learn."
            )
        self.engine.with_global_labels(task)
        check_mixable(task, self.collected.tasks)
        if self.tasks:
            sample = first_batch(task, 2, (self.recipe or Recipe()).loader).inputs
            first = next(iter(self.tasks.values()))
            given = signature(self.network.placement.cast(sample))
            if given != first.inputs:
                raise InputError(
                    f"sessions are mixed where their inputs are alike: {task.name!r} has {given}, {first.name!r} "
                    f"{first.inputs}."
                )

    def session_task(self, joined: Task, task: Task) -> Task:
        return together(self.collected.with_task(task).tasks) if self.tasks else joined

    def first_head(self) -> HeadFactory:
        return self.heads or linear_head

    def first(self, task: Task, context: Context) -> TaskModel:
        return Mixed(self, self.network.trainable_view(), dict(self.network.weights), context)

    def later(self, task: Task, context: Context) -> TaskModel:
        model = Mixed(self, self.network.view_from(self.wrapped), self.wrapped, context)
        model.head = self.first_head()
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        assert self.coming is not None
        assert isinstance(session.model, Mixed)
        self.wrapped = session.model.wrapped
        self.collected = self.collected.with_task(self.coming)
        for task in list(self.waiting.values())[:-1]:  # the last is written down by the engine
            seen = replace(task, classes=self.classes + task.classes)
            self.engine.note(seen, context.first_inputs, f"trained together with {session.task.name!r}", None)
        return session.head

    def check_storable(self, *, resumable: bool) -> None:
        if self.waiting and not resumable:
            raise TaskError(
                f"{', '.join(self.waiting)}: collected but not trained, and an archive without resumable=True has no "
                "data in it. Call finish() first."
            )

    def trained(self, recipe: Recipe, context: Context) -> tuple[Phase, ...]:
        """How a session is trained: network and classifier together."""
        return (Phase(self.recipe or recipe, "joint" if context.known else ""),)


class Mixed(SeenThrough):
    """A dense network and its classifier, learned together from the images of all sessions."""

    def __init__(self, method: Joint, network: TrainableView, wrapped: Mapping[str, Tensor], context: Context):
        super().__init__(network, method.network.everything)
        self._method, self.wrapped, self._context = method, dict(wrapped), context

    def phases(self, recipe: Recipe) -> tuple[Phase, ...]:
        return self._method.trained(recipe, self._context)


@learner
class CRT(Joint):
    """Classifier re-training: the network of joint training, and a classifier that sees all classes equally often.

    `recipe` trains the network, `session` the classifier. An epoch of the latter is as long as the largest class has
    images, times the number of classes. Classes take turns, in an order drawn anew for every round; in its turn a
    class gives its next `draws` images, and begins again, in another order, after its last. The network stands still
    in eval mode; images are augmented as before. In the first session the classifier is trained again too; the
    checkpoint of the network there may be one for all methods with a dense network, so the classifier's is named by
    its own settings.
    """

    draws: Annotated[int, Whole("how many images a class gives in its turn", 1), LATER] = 4
    base_classifier: BaseClassifier = "linear"
    """What the network learns with, in all sessions; the classifier that answers is always drawn anew."""

    # how the released code trains cRT's classifier for CIFAR-100
    default_session = Recipe(
        epochs=16, batch_size=256, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, milestones=(8, 12, 14),
        factor=0.5,
    )  # fmt: skip
    head_kind = nn.Linear
    head_words = "cRT draws a linear classifier anew: heads are 'linear' or 'linear_without_bias'"

    def first_head(self) -> HeadFactory:
        usual = self.heads or linear_head
        return usual if self.base_classifier == "linear" else classifier_of(self.base_classifier)

    def trained(self, recipe: Recipe, context: Context) -> tuple[Phase, ...]:
        """Network and classifier together, then the classifier alone."""
        again = self.session or recipe
        # without workers: in several processes a stream would come several times
        loader = {key: value for key, value in (again.loader or {}).items() if key == "collate_fn"}
        first = Phase(self.recipe or recipe, "joint" if context.known else "")
        return first, Phase(replace(again, loader=loader or None), "classifier", lambda s: self._begin(s, context))

    def _begin(self, session: Session, context: Context) -> None:
        """The network stands still from now on, and the classifier is drawn anew."""
        session.model.network.stand_still()
        if isinstance(session.head, BaseHead):
            session.head = (self.heads or linear_head)(session.head.weight.shape[1], session.task).to(
                context.placement.device
            )
        drawn = generator(context.seed, context.position, "classifier")
        with torch.no_grad():
            for parameter in session.head.parameters():
                fresh = torch.zeros(parameter.shape)
                parameter.copy_(fresh.normal_(0, DEVIATION, generator=drawn) if parameter.dim() > 1 else fresh)

        def chance() -> torch.Generator:
            return generator(context.seed, context.position, "balanced", session.epoch)

        session.task = replace(session.task, train=Balanced(session.task.train, self.draws, chance))


def together(sessions: Mapping[str, Task]) -> Task:
    """All sessions as one task with the name of the last: classes in the order they were met, labels moved along."""
    tasks = list(sessions.values())
    starts = [0, *accumulate(len(task.classes) for task in tasks[:-1])]

    def joined(parts: list[Data]) -> Data:
        return joined_data([shifted(part, start) for part, start in zip(parts, starts, strict=True)])

    valid = [task.valid for task in tasks if task.valid is not None]
    return replace(
        tasks[-1],
        classes=tuple(name for task in tasks for name in task.classes),
        train=joined([task.train for task in tasks]),
        valid=joined(valid) if len(valid) == len(tasks) else None,
        augment=tasks[0].augment,
        loss=tasks[0].loss,
    )


def check_mixable(task: Task, collected: Mapping[str, Task]) -> None:
    """Refuse a session that could not be trained with the others."""
    if task.name in collected:
        raise TaskError(f"task {task.name!r} is collected already; sessions met are {list(collected)}.")
    for known in collected.values():
        again = [name for name in task.classes if name in known.classes]
        if again:
            raise TaskError(f"task {task.name!r} brings {again[0]!r}, which {known.name!r} has already.")
    for data in (task.train, task.valid):
        if data is not None:
            Samples(data)  # refuses what cannot be mixed
        if isinstance(data, tuple | list) and not bool(torch.as_tensor(data[0]).isfinite().all()):
            raise InputError(f"task {task.name!r}: some inputs are not finite numbers.")
