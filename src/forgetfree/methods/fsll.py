"""FSLL, few-shot lifelong learning: in a session only the weights that matter least move, those nearest to zero.

    base        a dense network learns the first session
    sessions    the `fraction` of each tensor that is smallest in magnitude moves, chosen anew every time, by
                triplets + mean cosine between new and old class means + strength · mean |w - w_old|
    answers     the nearest class mean

The released variant is that of the code published with F2M: whole tensors move, those without a weight above
`threshold`; the cosines are a cross-entropy over all class means, and the pull to the old weights has no gradient, so
there is none. In both, biases and norms stand still; the released code lets norms take statistics of the few images.

The L1 pull is a mean over the weights that move: as a sum, its slope is so much steeper than that of the images that a
step of the session jumps over the old value, and the pull drives weights away from where it should hold them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import incremental, learners
from forgetfree.batches import Batch
from forgetfree.checks import check_number, check_one_of
from forgetfree.contracts import LearnerState, Task
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory, nearest_mean, similarity
from forgetfree.incremental import Exemplars
from forgetfree.masks import select
from forgetfree.network import Masked, SharedNetwork
from forgetfree.training import Recipe, Session

SESSION = Recipe(epochs=15, batch_size=25, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=5e-4)
"""How the released code trains a session: all images of five classes in one step."""


class FSLL:
    """Move the least important weights in a session, hold all others bit for bit; answer by the nearest class mean.

    `fraction` of every tensor moves in the paper's variant, tensors up to `threshold` in the released one. With
    `exemplars`, so many images of every class of the later sessions are kept, learned again, and their means renewed.
    """

    scenario: Literal["fscil"] = "fscil"
    forget_free = False
    base = "dense"

    def __init__(
        self,
        backbone: nn.Module,
        *,
        variant: Literal["paper", "released"] = "paper",
        fraction: float = 0.1,
        threshold: float = 0.4,
        strength: float = 5.0,
        margin: float = 0.0,
        exemplars: int = 0,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = nearest_mean,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.variant = check_one_of("variant", variant, "paper", "released")
        self.fraction = check_number("fraction, the part of each tensor that a session moves,", fraction, 0)
        if self.fraction > 1:
            raise InputError(f"fraction is the part of each tensor that a session moves, in [0, 1]; got {fraction!r}.")
        self.threshold = check_number("threshold, the largest weight of a tensor that moves,", threshold, 0)
        self.strength = check_number("strength, the weight of what pulls weights back,", strength, 0)
        self.margin = check_number("margin, by which other classes are to be farther,", margin, 0)
        self.exemplars = Exemplars(exemplars)
        self.session = session or SESSION
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        self.lessons = incremental.lessons(self, recipe, incremental.by_means(heads), seed, cache_bytes)

    learn, predict, remove, classes = incremental.learn, incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    to, memory, _place, _answer = learners.to, incremental.memory, learners.place, incremental.answer
    learning, _base = incremental.learning, incremental.base_by_means

    @contextmanager
    def _session(self, task: Task) -> Iterator[Session]:
        start, known, base = incremental.grown_means(self, task), len(self.lessons.met), incremental.base_count(self)
        task = incremental.rehearsing(task, self.exemplars)
        movable, before, masks = self.movable(), self.network.weights, incremental.everything(self.network)
        lent = self.network.lend_again(incremental.ticket_of(self), movable)

        def loss(batch: Batch) -> Tensor:
            features = lent(self._place().admit(batch.inputs), masks)
            labels = batch.labels.to(features.device)
            value = triplet_loss(features, labels, self.margin)
            if self.variant == "released":
                return value + incremental.metric_loss(features, labels, start, base)
            means = incremental.batch_means(features, labels, start, base)
            new = means[torch.unique(labels[labels >= known])]
            if len(new):
                value = value + similarity(new, start[:known], "cosine").mean()
            moved = [(w - before[name]).abs()[movable[name]] for name, w in lent.named_parameters()]
            return value + self.strength * torch.cat(moved).mean() if moved else value

        def answering(_: Session) -> nn.Module:
            means = incremental.means_after(self, task, start, self.exemplars)
            self.exemplars = incremental.with_shots(self, task, self.exemplars)
            return incremental.nearest(self, task, means)

        with incremental.later_session(
            self, task, lent, answering, loss=loss, settings=self._arguments(),
            head=lambda _, wide: incremental.nearest(self, wide, start),
        ) as session:  # fmt: skip
            yield session

    def movable(self) -> dict[str, Tensor]:
        """True where the next session may move a weight."""
        sizes = {name: weight.abs() for name, weight in self.network.weights.items()}
        if self.variant == "released":
            return {name: size >= 0 for name, size in sizes.items() if float(size.max()) <= self.threshold}
        counts = {name: round(self.fraction * size.numel()) for name, size in sizes.items()}
        return {name: select(-size, counts[name]) for name, size in sizes.items() if counts[name]}

    def stored(self, *, resumable: bool = False) -> LearnerState:
        return incremental.stored(self, resumable=resumable, arguments=self._arguments())

    revived = classmethod(incremental.revived)

    def _arguments(self) -> dict[str, Any]:
        return {
            "variant": self.variant, "fraction": self.fraction, "threshold": self.threshold,
            "strength": self.strength, "margin": self.margin, "exemplars": self.exemplars.count,
        }  # fmt: skip


def triplet_loss(features: Tensor, labels: Tensor, margin: float) -> Tensor:
    """How much farther than another class, less a margin, the own class is: the mean over all triplets, none mined.

    A triplet is an image, another one of its class, and one of another class.
    """
    rows = incremental.wide(features)
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    alike = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchor, positive = (alike & ~itself).nonzero(as_tuple=True)
    hinge = (distance[anchor, positive][:, None] - distance[anchor] + margin).clamp_min(0)  # [pairs, batch]
    negative = ~alike[anchor]
    return hinge[negative].mean() if bool(negative.any()) else features.sum() * 0
