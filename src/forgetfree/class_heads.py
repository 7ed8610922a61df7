"""Heads that know a class by its images' mean: a few statistics are fixed at the end of the first session, and every
class has a row, made of its own images alone.

    head = Bayes()(width, task).fitted(base)    the end of the first session
    head = head.extended(new)                   a later one: rows are added, nothing else changes
    scores = head(features)                     [images, classes]

None is trained. Scores of known classes keep their bits when classes are added, those of `ridge` apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.checks import check_number, check_one_of, check_whole
from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.moments import Moments
from forgetfree.rng import check_seed, generator

Metric = Literal["euclidean", "cosine"]
Within = Literal["train", "held_out", "augmented"]
"""The images that the spread within classes is measured on."""
AT_ONCE = 1 << 24
"""How many differences between features and rows are held at a time."""
LEAST_PSI = 1e-3
"""Directions in which the classes of the first session differ less than this, within-spreads, tell nothing apart."""


WHOLE = ("base", "counts")
"""Tensors of whole numbers; `rows` and `directions` may be either."""
EITHER = ("rows", "directions")


class ClassHead(nn.Module):
    """A score for every class, the higher the likelier; rows of the first `base` classes come from many images."""

    scatters: ClassVar[bool] = False
    """Whether it asks for the spread within classes."""
    balanced: ClassVar[bool] = False
    """Whether every class has the same say in it, however many its images."""
    keeps_bits: ClassVar[bool] = True
    """Whether scores of known classes stay as they are when classes are added."""
    base: Tensor
    """How many classes the first session had."""
    means: Tensor
    """Of the features themselves, [classes, features], where sessions train against them; otherwise there are none."""
    offset: float
    """Added to the scores of classes that are not of the first session."""

    def __init__(self, width: int, offset: float = 0.0):
        super().__init__()
        self.offset = offset
        self.register_buffer("base", torch.zeros((), dtype=torch.long))
        self.register_buffer("means", torch.zeros(0, width))

    def lift(self, features: Tensor) -> Tensor:
        """Features as they are averaged and compared."""
        return features

    def fitted(self, moments: Moments, within: Tensor | None = None) -> Self:
        """This head after the first session, whose images have these moments and this spread `within` classes."""
        self.base = torch.tensor(len(moments.counts))
        measured = self.scatters and not self.balanced and within is None
        self.fix(moments, moments.within() if measured else within)
        self.add(moments)
        return self

    def extended(self, moments: Moments) -> Self:
        """This head with rows for more classes."""
        self.add(moments)
        return self

    def fix(self, moments: Moments, within: Tensor | None) -> None:
        """Take from the first session what never changes again."""

    @abstractmethod
    def add(self, moments: Moments) -> None:
        """Add a row for each class."""

    @abstractmethod
    def replace(self, rows: list[int], moments: Moments) -> None:
        """Give classes that are known other rows."""

    @abstractmethod
    def scores(self, lifted: Tensor) -> Tensor:
        """How likely each class is."""

    @abstractmethod
    def keep_rows(self, rows: Tensor) -> None:
        """Forget all classes but those of these rows."""

    def drop(self, rows: Tensor) -> None:
        """Forget the classes of these rows; all others keep their scores, bit for bit."""
        left = torch.ones(self.outputs, dtype=torch.bool)
        left[rows] = False
        base = int(self.base)
        if len(self.means):
            self.means = self.means[left.to(self.means.device)]
        self.keep_rows(left.nonzero().squeeze(1).to(self.base.device))
        self.base = self.base.new_tensor(int(left[:base].sum()))

    def only(self, rows: Sequence[int]) -> "Self":
        """This head for the classes of these rows alone, with the scores that it gives them among others."""
        others = set(range(self.outputs)) - set(rows)
        self.drop(torch.tensor(sorted(others), dtype=torch.long))
        return self

    @property
    def features(self) -> int:
        """How wide the features are that it takes: of several views, as many times as wide."""
        return self.means.shape[1]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many classes it knows."""

    def forward(self, features: Tensor) -> Tensor:
        scores = self.scores(self.lift(_wide(features)))
        if self.offset:
            novel = torch.arange(scores.shape[1], device=scores.device) >= self.base
            scores = scores + self.offset * novel.to(scores.dtype)
        return scores.to(features.dtype)


class RowHead(ClassHead):
    """A head whose rows are points: the mean of each class, in some way or other."""

    rows: Tensor

    def __init__(self, width: int, classes: int, offset: float = 0.0):
        super().__init__(width, offset)
        self.register_buffer("rows", torch.zeros(classes, width))

    def fix(self, moments: Moments, within: Tensor | None) -> None:
        self.rows = self.rows.new_zeros(0, self.rows.shape[1])

    def add(self, moments: Moments) -> None:
        self.rows = torch.cat([self.rows, self.row(moments).to(self.rows)])

    def row(self, moments: Moments) -> Tensor:
        return moments.means

    def replace(self, rows: list[int], moments: Moments) -> None:
        self.rows = self.rows.clone().index_copy_(0, torch.tensor(rows), self.row(moments).to(self.rows))

    def keep_rows(self, rows: Tensor) -> None:
        self.rows = self.rows[rows]

    @property
    def outputs(self) -> int:
        return len(self.rows)

    def scores(self, lifted: Tensor) -> Tensor:
        return -squared_distances(lifted, self.rows)


class Nearest(RowHead):
    """The nearest mean of features as they are, by one metric or the other."""

    def __init__(self, width: int, classes: int, metric: Metric, offset: float = 0.0):
        super().__init__(width, classes, offset)
        self.metric = metric

    def scores(self, lifted: Tensor) -> Tensor:
        if self.metric == "euclidean":
            return super().scores(lifted)
        return products(F.normalize(lifted, dim=1), F.normalize(self.rows, dim=1))


class Normalised(RowHead):
    """The smallest angle to the mean of features of length one, as the released code has it on TOPIC's splits."""

    def lift(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1)

    def row(self, moments: Moments) -> Tensor:
        return F.normalize(moments.means, dim=1)

    def scores(self, lifted: Tensor) -> Tensor:
        return products(lifted, self.rows)


class Rooted(RowHead):
    """The nearest mean of features of which every number is rooted, its sign kept."""

    def __init__(self, width: int, classes: int, power: float, offset: float = 0.0):
        super().__init__(width, classes, offset)
        self.power = power

    def lift(self, features: Tensor) -> Tensor:
        return powered(features, self.power)


class Centred(RowHead):
    """The class mean with the smallest angle, seen from the middle of the classes of the first session."""

    middle: Tensor

    def __init__(self, width: int, classes: int, offset: float = 0.0):
        super().__init__(width, classes, offset)
        self.register_buffer("middle", torch.zeros(width))

    def fix(self, moments: Moments, within: Tensor | None) -> None:
        super().fix(moments, within)
        self.middle = moments.means.mean(0).to(self.middle)

    def row(self, moments: Moments) -> Tensor:
        return F.normalize(moments.means - self.middle.to(moments.means), dim=1)

    def scores(self, lifted: Tensor) -> Tensor:
        return products(F.normalize(lifted - self.middle, dim=1), self.rows)


class Calibrated(RowHead):
    """TEEN: the direction of a new class is drawn towards those classes of the first session that are like it."""

    def __init__(self, width: int, classes: int, pull: float, sharpness: float, offset: float = 0.0):
        super().__init__(width, classes, offset)
        self.pull, self.sharpness = pull, sharpness

    def row(self, moments: Moments) -> Tensor:
        own = F.normalize(moments.means, dim=1)
        if not len(self.rows):
            return own
        known = self.rows[: int(self.base)].to(own)
        alike = torch.softmax(self.sharpness * own @ known.T, dim=1)
        return F.normalize((1 - self.pull) * own + self.pull * F.normalize(alike @ known, dim=1), dim=1)

    def scores(self, lifted: Tensor) -> Tensor:
        return products(F.normalize(lifted, dim=1), self.rows)


class Discriminant(RowHead):
    """LDA: the nearest mean where images of any class spread by one in every direction."""

    scatters = True
    middle: Tensor
    whitening: Tensor

    def __init__(self, width: int, classes: int, power: float, shrinkage: float, offset: float = 0.0):
        super().__init__(width, classes, offset)
        self.power, self.shrinkage = power, shrinkage
        self.register_buffer("middle", torch.zeros(width))
        self.register_buffer("whitening", torch.eye(width))

    def lift(self, features: Tensor) -> Tensor:
        return powered(features, self.power)

    def fix(self, moments: Moments, within: Tensor | None) -> None:
        super().fix(moments, within)
        assert within is not None
        self.middle = moments.means.mean(0).to(self.middle)
        self.whitening = whitening(shrunk(within, self.shrinkage)).to(self.whitening)

    def row(self, moments: Moments) -> Tensor:
        return (moments.means - self.middle.to(moments.means)) @ self.whitening.to(moments.means)

    def scores(self, lifted: Tensor) -> Tensor:
        return -squared_distances((lifted - self.middle) @ self.whitening, self.rows) / 2


class BayesMeans(ClassHead):
    """The posterior of every class mean, and how likely an image is under it: classes of few images are less sure.

    The means of classes are a sample too: those of the first session say how far apart, psi, true means are in every
    direction, in units of the spread within classes. What a few images say is weighed against that.
    """

    scatters = True
    middle: Tensor
    directions: Tensor
    """[d, q], whole numbers; times `steps` it is P."""
    steps: Tensor
    psi: Tensor
    rows: Tensor
    """[classes, q], whole numbers; times `row_steps` they are the means of the classes, whitened."""
    row_steps: Tensor
    counts: Tensor

    def __init__(self, width: int, classes: int, settings: "Bayes"):
        super().__init__(width, settings.offset)
        self.settings = settings
        empty = {"middle": (width,), "directions": (width, 1), "steps": (1,), "psi": (1,), "row_steps": (1,)}
        for name, shape in empty.items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("rows", torch.zeros(classes, 1))
        self.register_buffer("counts", torch.ones(classes, dtype=torch.int32))

    def lift(self, features: Tensor) -> Tensor:
        return powered(features, self.settings.power)

    def fix(self, moments: Moments, within: Tensor | None) -> None:
        assert within is not None
        if len(moments.counts) < 2:
            raise InputError(
                "Bayes means learn from the classes of the first session how far apart classes are: two of them are "
                "the least. Give it more classes, or choose another of the heads."
            )
        whiten = whitening(shrunk(within, self.settings.shrinkage))
        psi, turn = torch.linalg.eigh(whiten.T @ moments.between() @ whiten)  # ascending
        psi, turn = psi.flip(0)[: self.settings.directions], turn.flip(1)[:, : self.settings.directions]
        kept = max(int((psi > LEAST_PSI).sum()), 1)
        self.middle = moments.means.mean(0).float()
        self.psi = psi[:kept].clamp_min(LEAST_PSI).float()
        self.directions, self.steps = self._rounded(whiten @ turn[:, :kept], headroom=1.0)
        placed = self._placed(moments)
        self.rows, self.row_steps = self._rounded(placed, headroom=self.settings.headroom)
        self.rows, self.counts = self.rows[:0], self.counts[:0]

    def add(self, moments: Moments) -> None:
        rows = self._whole(self._placed(moments), self.row_steps)
        self.rows = torch.cat([self.rows, rows])
        self.counts = torch.cat([self.counts, moments.counts.int()])

    def replace(self, rows: list[int], moments: Moments) -> None:
        at, own = torch.tensor(rows), self._whole(self._placed(moments), self.row_steps)
        self.rows = self.rows.clone().index_copy_(0, at, own)
        self.counts = self.counts.clone().index_copy_(0, at, moments.counts.int())

    def keep_rows(self, rows: Tensor) -> None:
        self.rows, self.counts = self.rows[rows], self.counts[rows]

    @property
    def outputs(self) -> int:
        return len(self.rows)

    def scores(self, lifted: Tensor) -> Tensor:
        t = (lifted - self.middle) @ (self.directions.to(lifted) * self.steps)
        prior = torch.arange(len(self.counts), device=t.device) >= self.base
        noise = 1 / self.counts.to(t).unsqueeze(1)  # 1/n
        psi = self.psi * torch.where(prior, self.settings.novel_prior, 1.0).to(t).unsqueeze(1)
        gain = psi / (psi + noise)  # g
        spread = 1 + gain * noise
        means = gain * (self.rows.to(t) * self.row_steps)
        return -(squared_distances(t, means, 1 / spread) + torch.log(spread).sum(1)) / 2

    def _placed(self, moments: Moments) -> Tensor:
        """The means of classes along the directions kept: x."""
        directions = self.directions.double() * self.steps.double()
        return (moments.means - self.middle.double()) @ directions

    def _rounded(self, values: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
        """Whole numbers of so many bits, and the step of each column; beyond the range there is `headroom`."""
        if self.settings.bits is None:
            return values.float(), torch.ones(values.shape[1])
        steps = headroom * values.abs().amax(0).clamp_min(torch.finfo(torch.float32).tiny) / self._largest
        return self._whole(values, steps.float()), steps.float()

    def _whole(self, values: Tensor, steps: Tensor) -> Tensor:
        if self.settings.bits is None:
            return values.float()
        nearest = (values / steps.double()).round().clamp(-self._largest, self._largest)
        return nearest.to(torch.int8 if self.settings.bits <= 8 else torch.int16)

    @property
    def _largest(self) -> int:
        assert self.settings.bits is not None
        return int(2 ** (self.settings.bits - 1)) - 1


class RandomRidge(ClassHead):
    """RanPAC: ridge regression on random features, every class with the same say."""

    scatters = balanced = True
    keeps_bits = False
    gram: Tensor
    targets: Tensor
    weight: Tensor
    drawn: Tensor

    def __init__(self, width: int, classes: int, settings: "Ridge"):
        super().__init__(width, settings.offset)
        self.penalty = settings.penalty
        drawn = torch.randn(width, settings.features, generator=generator(settings.seed, "random features"))
        self.register_buffer("drawn", drawn)
        self.register_buffer("gram", torch.zeros(settings.features, settings.features))
        self.register_buffer("targets", torch.zeros(classes, settings.features))
        self.register_buffer("weight", torch.zeros(classes, settings.features))

    def lift(self, features: Tensor) -> Tensor:
        return torch.relu(features @ self.drawn.to(features))

    def fix(self, moments: Moments, within: Tensor | None) -> None:
        self.gram, self.targets = torch.zeros_like(self.gram), self.targets[:0]

    def add(self, moments: Moments) -> None:
        assert moments.scatter is not None
        own = moments.scatter + moments.means.T @ moments.means
        self.gram = self.gram + own.to(self.gram)
        self.targets = torch.cat([self.targets, moments.means.to(self.targets)])
        self._solve()

    def replace(self, rows: list[int], moments: Moments) -> None:
        raise InputError(
            "a ridge has its classes in one matrix, out of which none can be taken to be learned again: use another of "
            "the heads, or no exemplars."
        )

    def keep_rows(self, rows: Tensor) -> None:
        raise InputError("a ridge has its classes in one matrix, out of which none can be taken again.")

    @property
    def outputs(self) -> int:
        return len(self.weight)

    def scores(self, lifted: Tensor) -> Tensor:
        return lifted @ self.weight.T.to(lifted)

    def _solve(self) -> None:
        gram = self.gram.double()
        level = self.penalty * gram.diagonal().mean().clamp_min(torch.finfo(torch.float32).tiny)
        gram.diagonal().add_(level)
        self.weight = torch.linalg.solve(gram, self.targets.double().T).T.to(self.weight).contiguous()


# by name, with what can be chosen


@dataclass(frozen=True)
class Chosen(ABC):
    """A kind of head and its settings: what a learner takes as `heads`."""

    @abstractmethod
    def __call__(self, features: int, task: Task) -> nn.Module: ...


@dataclass(frozen=True)
class ClassHeads(Chosen):
    """A kind of head that knows classes by their images."""

    offset: float = 0.0
    """Added to the scores of classes that are not of the first session."""
    form: ClassVar[Mapping[str, str]] = {"base": "", "means": "md", "rows": "cd"}
    """Its tensors and their sizes: d features, c classes, m none or c of them, other letters as they come."""

    def __post_init__(self) -> None:
        check_number("offset", self.offset)

    def misfit(self, tensors: Mapping[str, Tensor], features: int, classes: int) -> str | None:
        """What is wrong with the stored tensors of such a head, if anything is: nothing is built to find out."""
        if set(tensors) != set(self.form):
            return f"has {', '.join(sorted(self.form))}, not {', '.join(sorted(tensors))}"
        sizes: dict[str, int] = {"d": features, "c": classes, **self.sizes()}
        for name, letters in self.form.items():
            tensor = tensors[name]
            if tensor.dim() != len(letters) or tensor.is_complex() or tensor.dtype == torch.bool:
                return f"has a {name} of {tensor.dim()} dimensions and type {tensor.dtype}"
            for letter, size in zip(letters, tensor.shape, strict=True):
                if sizes.setdefault(letter, size) != size or (letter == "m" and size not in (0, classes)):
                    return f"has a {name} of shape {tuple(tensor.shape)} for {features} features and {classes} classes"
            if name not in EITHER and tensor.is_floating_point() == (name in WHOLE):
                return f"has a {name} of type {tensor.dtype}"
        if not 1 <= int(tensors["base"]) <= classes:
            return f"has {int(tensors['base'])} classes of a first session among {classes}"
        if "counts" in tensors and not bool((tensors["counts"] > 0).all()):
            return "has a class without an image"
        return None

    def sizes(self) -> dict[str, int]:
        """Sizes that are known beforehand, by their letters."""
        return {}


@dataclass(frozen=True)
class Means(ClassHeads):
    """What `euclidean` and `cosine` do, with an offset, and with scores that keep their bits."""

    metric: Metric = "euclidean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("metric", self.metric, *get_args(Metric))

    def __call__(self, features: int, task: Task) -> nn.Module:
        return Nearest(features, task.width, self.metric, self.offset)


@dataclass(frozen=True)
class NormalisedMeans(ClassHeads):
    def __call__(self, features: int, task: Task) -> nn.Module:
        return Normalised(features, task.width, self.offset)


@dataclass(frozen=True)
class RootedMeans(ClassHeads):
    power: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_power(self.power)

    def __call__(self, features: int, task: Task) -> nn.Module:
        return Rooted(features, task.width, self.power, self.offset)


@dataclass(frozen=True)
class CentredCosine(ClassHeads):
    form: ClassVar[Mapping[str, str]] = {**ClassHeads.form, "middle": "d"}

    def __call__(self, features: int, task: Task) -> nn.Module:
        return Centred(features, task.width, self.offset)


@dataclass(frozen=True)
class TEEN(ClassHeads):
    pull: float = 0.5
    sharpness: float = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("pull", self.pull)
        check_number("sharpness", self.sharpness, 0)

    def __call__(self, features: int, task: Task) -> nn.Module:
        return Calibrated(features, task.width, self.pull, self.sharpness, self.offset)


@dataclass(frozen=True)
class LDA(ClassHeads):
    power: float = 0.5
    shrinkage: float = 0.2
    within: Within = "train"
    form: ClassVar[Mapping[str, str]] = {**ClassHeads.form, "middle": "d", "whitening": "dd"}

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_power(self.power)
        _check_share("shrinkage", self.shrinkage)
        check_one_of("within", self.within, *get_args(Within))

    def __call__(self, features: int, task: Task) -> nn.Module:
        return Discriminant(features, task.width, self.power, self.shrinkage, self.offset)


@dataclass(frozen=True)
class Ridge(ClassHeads):
    features: int = 2000
    penalty: float = 1e-2
    """In units of the mean of the diagonal."""
    seed: int = 0
    form: ClassVar[Mapping[str, str]] = {
        "base": "",
        "means": "md",
        "drawn": "dr",
        "gram": "rr",
        "targets": "cr",
        "weight": "cr",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("features", self.features, 1)
        check_number("penalty", self.penalty, 0)
        check_seed(self.seed)

    def sizes(self) -> dict[str, int]:
        return {"r": self.features}

    def __call__(self, features: int, task: Task) -> nn.Module:
        return RandomRidge(features, task.width, self)


@dataclass(frozen=True)
class Bayes(ClassHeads):
    """p, a, q of the box; `bits` of what is stored (None: float32), and by how much rows may leave the range of the
    first session's; `novel_prior` times psi is how far apart classes are that the network never saw."""

    power: float = 0.5
    shrinkage: float = 0.5
    directions: int = 64
    bits: int | None = 8
    headroom: float = 2.0
    novel_prior: float = 1.0
    within: Within = "train"
    form: ClassVar[Mapping[str, str]] = {
        "base": "", "means": "md", "middle": "d", "directions": "dq", "steps": "q", "psi": "q", "rows": "cq",
        "row_steps": "q", "counts": "c",
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_power(self.power)
        _check_share("shrinkage", self.shrinkage)
        check_whole("directions", self.directions, 1)
        if self.bits is not None and check_whole("bits", self.bits, 2) > 16:
            raise InputError(f"bits is 2 to 16, or None for float32; got {self.bits}.")
        check_number("headroom", self.headroom, 1)
        check_number("novel_prior", self.novel_prior, LEAST_PSI)
        check_one_of("within", self.within, *get_args(Within))

    def misfit(self, tensors: Mapping[str, Tensor], features: int, classes: int) -> str | None:
        wrong = super().misfit(tensors, features, classes)
        if wrong is None and not (tensors["psi"] > 0).all():
            return "has classes that differ by nothing"
        return wrong

    def __call__(self, features: int, task: Task) -> nn.Module:
        return BayesMeans(features, task.width, self)


def _check_power(power: Any) -> None:
    if check_number("power", power, 0) > 1 or power == 0:
        raise InputError(f"power is in (0, 1]; got {power!r}.")


def _check_share(name: str, share: Any) -> None:
    if check_number(name, share, 0) > 1:
        raise InputError(f"{name} is in [0, 1]; got {share!r}.")


# arithmetic


def powered(features: Tensor, power: float) -> Tensor:
    """sign(v) |v|^p"""
    if power == 1.0:
        return features
    size: Tensor = features.abs()
    root = size.sqrt() if power == 0.5 else size.pow(power)
    return features.sign() * root


def shrunk(within: Tensor, shrinkage: float) -> Tensor:
    """S = (1 - a) W + a tr(W)/d I; where images of a class never differ, W says nothing, and S is I."""
    width = len(within)
    level = within.diagonal().mean()
    eye = torch.eye(width, dtype=within.dtype)
    if not float(level) > 0:
        return eye
    return (1 - shrinkage) * within + shrinkage * level * eye


def whitening(spread: Tensor) -> Tensor:
    """L with S^-1 = L L'. Directions in which nothing spreads have the least spread that numbers can tell from none."""
    values, vectors = torch.linalg.eigh(spread)
    least = values[-1] * len(values) * torch.finfo(torch.float32).eps
    made: Tensor = vectors / values.clamp_min(least).sqrt()
    return made


def squared_distances(points: Tensor, rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ w (t - x)^2 for every point and row. No product of matrices, whose last bits depend on how many rows there are;
    a part of the rows at a time."""
    return _by_rows(points, rows, weights, lambda point, row: (point - row).square())


def products(points: Tensor, rows: Tensor) -> Tensor:
    """Σ t x for every point and row, each by itself."""
    return _by_rows(points, rows, None, torch.mul)


def _by_rows(points: Tensor, rows: Tensor, weights: Tensor | None, each: Any) -> Tensor:
    # an exported head takes batches of any size, so that it cannot ask how large one is
    at_once = len(rows) if torch.compiler.is_exporting() else max(1, AT_ONCE // max(1, points.numel()))
    found = []
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        values = each(points.unsqueeze(1), rows[part])
        found.append((values if weights is None else values * weights[part]).sum(2))
    return torch.cat(found, 1) if found else points.new_zeros(len(points), 0)


def _wide(features: Tensor) -> Tensor:
    return features if features.dtype in (torch.float32, torch.float64) else features.float()
