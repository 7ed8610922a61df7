"""SoftNet and HardNet (Algorithm 2): one subnetwork for few-shot class-incremental learning.

    base        effective weight θ·m_soft:   m_soft = 1 on the top c of the scores (major), U(0,1) elsewhere (minor)
    sessions    m_soft stays; of the weights only minor ones of one block move, by a metric loss over all class means
    answers     the nearest class mean

HardNet has no minor weights: its mask is zero there, and its sessions only add class means.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import incremental, learners
from forgetfree.batches import Batch
from forgetfree.checks import check_number, check_one_of, check_switch, check_whole
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory, linear_head, nearest_mean
from forgetfree.incremental import Exemplars
from forgetfree.masks import Masks, Minor, Rank, Scores, check_capacity, soften
from forgetfree.network import Masked, SharedNetwork
from forgetfree.tickets import PackedMask
from forgetfree.training import Recipe, Session, Trainable

SESSION = Recipe(epochs=6, batch_size=512, optimizer="sgd", lr=0.02)
"""How the paper trains a session: six steps over all its images."""
SMALLEST = 1e-12


class SoftNet:
    """Learn a large first session, then classes from a few images each; one answer for all classes met.

    learner = SoftNet(backbone, capacity=0.8)
    learner.learn(Task("animals", names, (images, labels), valid))
    learner.learn(Task("birds", more, (few_images, few_labels)))
    learner.classes[learner.predict(images).argmax(1)[0]]
    """

    scenario: Literal["fscil"] = "fscil"
    forget_free = False
    soft = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        capacity: float,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = nearest_mean,
        masked: Masked = None,
        by: Rank = "magnitude",
        draw: Literal["epoch", "forward"] = "epoch",
        soft_from_epoch: int = 0,
        block: str | None = None,
        temperature: float = 1.0,
        pull: float = 0.0,
        follow: bool = False,
        exemplars: int = 0,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.capacity = check_capacity(capacity)
        self.draw = check_one_of("draw, for how long minor weights stay as they are,", draw, "epoch", "forward")
        self.soft_from_epoch = check_whole("soft_from_epoch, the first soft epoch,", soft_from_epoch)
        self.temperature = check_number("temperature, by which distances are divided,", temperature, SMALLEST)
        self.pull = check_number("pull, the weight of what holds features where they were,", pull, 0)
        self.follow = check_switch("follow", follow)
        self.exemplars = Exemplars(exemplars)
        self.session = session or SESSION
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        self.block = block
        moving_in(block, self.network.weights)  # a block that is not there is refused now
        self.scores = Scores.random(self.network.weights, seed, by=by)  # Algorithm 2, line 2
        self.drawn = Minor.NONE
        """The number of the draw of minor weights that was kept."""
        self.lessons = incremental.lessons(self, recipe, incremental.by_means(heads), seed, cache_bytes)

    learn, predict, remove, classes = incremental.learn, incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    learning, _place = incremental.learning, learners.place

    @property
    def base(self) -> str:
        """What its first session depends on, beside data, network and recipe: runs with the same share it."""
        words = ["soft" if self.soft else "hard", incremental.written(self.capacity)]
        words += [self.scores.by] if self.scores.by != "magnitude" else []
        words += [self.draw] if self.soft and self.draw != "epoch" else []
        words += [f"from{self.soft_from_epoch}"] if self.soft and self.soft_from_epoch else []
        return "-".join(words)

    @contextmanager
    def _base(self, task: Task) -> Iterator[Session]:
        lent, scores, minor = self.network.lend(), self.scores.fork(), self._minor(Minor.NONE)

        def features(inputs: Inputs) -> Any:
            if minor.training and self.soft and session.epoch >= self.soft_from_epoch:
                minor.draw(session.epoch if self.draw == "epoch" else minor.number + 1)
            return lent(inputs, scores.soft(self.capacity, minor))  # lines 4 and 6; 7 and 8 are the optimizer's

        def keep() -> nn.Module:
            self.network.keep(task.name, lent, scores.top(self.capacity))
            self.drawn = minor.number
            return incremental.nearest(
                self, task, incremental.class_means(self, task, task.train, range(len(task.classes)))
            )

        parts: dict[str, Trainable] = {"network": lent, "scores": scores, "minor": minor}
        settings = {"capacity": self.capacity, "base": self.base}
        with self.lessons.session(
            task, parts, features, keep, holders=(self, self.network), head=linear_head, settings=settings
        ) as session:
            yield session

    @contextmanager
    def _session(self, task: Task) -> Iterator[Session]:
        start = incremental.grown_means(self, task)
        # without exemplars no class but the new ones has images here
        fixed = incremental.base_count(self) if self.exemplars else len(self.lessons.met)
        task = incremental.rehearsing(task, self.exemplars)  # lines 12 and 13
        before, masks = self._answer(), self._soft_masks()
        lent = self.network.lend_again(incremental.ticket_of(self), self.movable())

        def loss(batch: Batch) -> Tensor:
            seen = lent(self._place().admit(batch.inputs), masks)
            labels = batch.labels.to(seen.device)
            value = incremental.metric_loss(seen, labels, start, fixed, temperature=self.temperature)  # line 16
            if self.pull:
                was = incremental.seen_by(self, before, batch.inputs)
                value = value + self.pull * (seen - was).square().sum(1).mean()
            return value

        def answering(_: Session) -> nn.Module:
            means = incremental.means_after(self, task, start, self.exemplars)
            if self.follow:
                means[:fixed] = followed(start[:fixed], *self._drift(before, task))
            self.exemplars = incremental.with_shots(self, task, self.exemplars)
            return incremental.nearest(self, task, means)

        settings = {
            "block": self.block, "temperature": self.temperature, "pull": self.pull, "follow": self.follow,
            "exemplars": self.exemplars.count,
        }  # fmt: skip
        with incremental.later_session(
            self, task, lent, answering, masks=masks, loss=loss, settings=settings,
            head=lambda _, wide: incremental.nearest(self, wide, start),
        ) as session:  # fmt: skip
            yield session

    def movable(self) -> dict[str, Tensor]:
        """The weights that sessions may move: minor ones of the chosen block. HardNet has none."""
        majors = self.network.used
        names = moving_in(self.block, self.network.weights) if self.soft else []
        return {name: ~majors[name] for name in names}

    def soft_mask(self, name: str) -> Tensor:
        """m_soft of one tensor: one on major weights, in [0, 1) elsewhere."""
        if name not in self.network.weights:
            raise InputError(f"there is no shared tensor {name!r}; there are {list(self.network.weights)}.")
        major = self.network.used[name].float()
        return soften(major, self._minor(self.drawn).value(name).to(major.device))

    def memory(self) -> Memory:
        kept = incremental.memory(self)
        if self.drawn == Minor.NONE:
            return kept
        # answers take minor weights too, so none is free
        every = {name: PackedMask.pack(torch.ones(mask.shape)) for name, mask in kept.used.items()}
        return replace(kept, used=every)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {
            "capacity": self.capacity, "by": self.scores.by, "block": self.block, "draw": self.draw,
            "soft_from_epoch": self.soft_from_epoch, "temperature": self.temperature, "pull": self.pull,
            "follow": self.follow, "exemplars": self.exemplars.count,
        }  # fmt: skip
        return incremental.stored(
            self, resumable=resumable, arguments=arguments, training={"drawn": self.drawn}
        )  # fmt: skip

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "SoftNet":
        """A learner made again from what was stored."""
        learner: SoftNet = incremental.revived(cls, backbone, stored, **others)
        learner.drawn = stored.training["drawn"]
        return learner

    def to(self, device: torch.device | str) -> "SoftNet":
        with self.lessons.moved(device):
            self.network.to(device)
            self.scores = self.scores.to(torch.device(device))
        return self

    def _answer(self, _: str = "") -> nn.Module:
        minor = self._minor(self.drawn).value if self.drawn != Minor.NONE else None
        return self.network.answer(incremental.ticket_of(self), background=minor)

    def _minor(self, number: int) -> Minor:
        return Minor({name: value.shape for name, value in self.network.weights.items()}, self.lessons.seed, number)

    def _soft_masks(self) -> Masks:
        return {name: self.soft_mask(name) for name in self.network.weights}

    def _drift(self, before: nn.Module, task: Task) -> tuple[Tensor, Tensor]:
        """Features of the session's images before it, and by how much they moved."""
        now = self._answer()
        old, _ = incremental.features_of(self, before, task, task.train)
        new, _ = incremental.features_of(self, now, task, task.train)
        return old, new - old


class HardNet(SoftNet):
    """SoftNet without minor weights: a binary mask; later sessions add class means, and nothing moves."""

    soft = False


def moving_in(block: str | None, weights: Mapping[str, Any]) -> list[str]:
    """The tensors of the block that sessions move in: by a pattern, or the last block of the last stage."""
    if block is not None:
        names = [name for name in weights if fnmatchcase(name, str(block))]
        if not names:
            raise InputError(f"no shared tensor matches block={block!r}; there are {list(weights)}.")
        return names
    last = list(weights)[-1]
    within = ".".join(last.split(".")[:-2])  # the module that holds the last layer
    return [name for name in weights if name.startswith(f"{within}.")] if within else [last]


def followed(means: Tensor, features: Tensor, drift: Tensor) -> Tensor:
    """Class means moved as features near them moved: a mean of drifts, weighted by similarity to each class mean."""
    distance = torch.cdist(incremental.wide(means), incremental.wide(features)).square()
    width = distance.mean().clamp_min(SMALLEST)
    weights = torch.softmax(-distance / width, dim=1)
    return means + weights.to(drift) @ drift
