"""Recipe: how one task is trained, as plain values: optimizer, rates and their schedule, batches, epochs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import nn

from forgetfree.batches import OURS
from forgetfree.errors import InputError
from forgetfree.forms import short
from forgetfree.modules import full_name
from forgetfree.training.schedules import SCHEDULES

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
LARGEST = 1 << 62
"""Of a whole number: what torch and floats can still hold."""
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
RECENT = ("average",)
"""Fields that are not told while they are None: digests of before do not have them."""
SchedulerFactory = Callable[[torch.optim.Optimizer], Any]
"""An optimizer → a scheduler of torch.optim.lr_scheduler, which is stepped after every epoch."""


@dataclass(frozen=True)
class Recipe:
    """How one task is trained."""

    epochs: int = 10
    batch_size: int = 64
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] | OptimizerFactory = "adam"
    """A name, or a function of the parameters, called once per task; lr, weight_decay and momentum are then unused."""
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    """For sgd and rmsprop."""
    patience: int | None = None
    """After so many epochs without a better validation loss, the learning rate is multiplied by `factor`."""
    factor: float = 0.5
    min_lr: float = 0.0
    """Learning of a task ends when the learning rate falls below this."""
    milestones: tuple[int, ...] = ()
    """After each of these epochs the learning rate is multiplied by `factor`."""
    schedule: Literal["cosine", "linear", "constant"] | SchedulerFactory | None = None
    """How the learning rate goes, step by step: by name (see `schedules`), or a torch scheduler by a factory."""
    warmup: float | None = None
    """The part of training, in [0, 1), in which a named schedule rises from zero."""
    groups: Mapping[str, Mapping[str, float]] | None = None
    """Other optimizer settings for some parts, as in {"head": {"lr": 0.1}, "scores": {"weight_decay": 0.0}}."""
    clip: float | None = None
    """Largest norm of the gradient of all parameters together."""
    accumulate: int = 1
    """Batches per optimizer step."""
    average: float | None = None
    """Judge and keep a running mean of the states after every epoch, in which those before count by this factor."""
    autocast: Literal["bfloat16"] | None = None
    """Train in low precision. Validation and answers always use the type of the weights."""
    carry_optimizer: bool = False
    """Start a task with the optimizer state that shared weights and scores had at the end of the task before."""
    eval_batch_size: int = 256
    loader: Mapping[str, Any] | None = None
    """Keywords for torch's DataLoader (num_workers, collate_fn, …), for tasks given as a Dataset."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("accumulate", 1), ("eval_batch_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
                raise InputError(f"Recipe({name}=…) is a whole number of at least {least}; got {short(value)}.")
        for name in ("lr", "weight_decay", "momentum", "factor", "min_lr", "clip"):
            value = getattr(self, name)
            number = isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)
            if not number and not (name == "clip" and value is None):
                raise InputError(f"Recipe({name}=…) is a number; got {short(value)}.")
        if not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            raise InputError(
                f"Recipe(optimizer=…) is one of {list(OPTIMIZERS)} or a function of the parameters; got "
                f"{self.optimizer!r}."
            )
        for name in ("lr", "weight_decay", "momentum", "min_lr"):
            if not getattr(self, name) >= 0:
                raise InputError(f"Recipe({name}=…) is a number of at least 0; got {getattr(self, name)!r}.")
        if not 0 < self.factor < 1:
            raise InputError(f"Recipe(factor=…) shrinks the learning rate, in (0, 1); got {self.factor!r}.")
        if self.patience is not None and (not isinstance(self.patience, int) or self.patience < 1):
            raise InputError(f"Recipe(patience=…) is None or a number of epochs of at least 1; got {self.patience!r}.")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if not all(isinstance(epoch, int) and epoch > 0 for epoch in self.milestones):
            raise InputError(f"Recipe(milestones=…) are numbers of epochs, from 1; got {self.milestones!r}.")
        self._check_schedule()
        if self.average is not None and not (isinstance(self.average, float) and 0 < self.average < 1):
            raise InputError(f"Recipe(average=…) is None or a fraction in (0, 1); got {short(self.average)}.")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"Recipe(clip=…) is None or a gradient norm above 0; got {self.clip!r}.")
        if self.autocast not in (None, "bfloat16"):
            raise InputError(f"Recipe(autocast=…) is None or 'bfloat16'; got {self.autocast!r}.")
        if not isinstance(self.carry_optimizer, bool):
            raise InputError(f"Recipe(carry_optimizer=…) is True or False; got {self.carry_optimizer!r}.")
        if self.groups is not None and not _are_groups(self.groups):
            raise InputError(
                f"Recipe(groups=…) has numbers by part and name, as in {{'head': {{'lr': 0.1}}}}; got {self.groups!r}."
            )
        if self.loader is not None and not isinstance(self.loader, Mapping):
            raise InputError(f"Recipe(loader=…) has keywords for torch's DataLoader; got {self.loader!r}.")
        clash = OURS & set(self.loader or {})
        if clash:
            raise InputError(f"Recipe(loader=…) cannot set {sorted(clash)}: batches and their order are the recipe's.")

    def _check_schedule(self) -> None:
        if self.schedule is not None and not callable(self.schedule) and self.schedule not in SCHEDULES:
            raise InputError(
                f"Recipe(schedule=…) is one of {list(SCHEDULES)}, or a function of the optimizer that gives a torch "
                f"scheduler; got {self.schedule!r}."
            )
        if self.schedule is not None and (self.patience is not None or self.milestones):
            raise InputError("Recipe(schedule=…) says how the learning rate goes: leave patience and milestones out.")
        if self.warmup is not None and (self.schedule not in SCHEDULES or not 0 <= self.warmup < 1):
            raise InputError(
                f"Recipe(warmup=…) is the part of training in which a schedule by name rises, in [0, 1); got "
                f"{self.warmup!r} with schedule={self.schedule!r}."
            )

    def build(self, named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer for one task, whose parameters have these names."""
        parameters: Any = self._grouped(named) if self.groups else list(named.values())
        if callable(self.optimizer):
            made = self.optimizer(parameters)
            if not all(hasattr(made, name) for name in ("step", "zero_grad", "param_groups", "state_dict")):
                raise InputError(f"Recipe(optimizer=…) must give a torch optimizer; it gave a {type(made).__name__}.")
            return made
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        match self.optimizer:
            case "adam":
                return _fused(torch.optim.Adam, parameters, common)
            case "adamw":
                return _fused(torch.optim.AdamW, parameters, common)
            case "sgd":
                # not fused: that kernel wants momentum for all parameters or none, and new ones join carried ones
                return torch.optim.SGD(parameters, momentum=self.momentum, **common)
            case _:
                return torch.optim.RMSprop(parameters, momentum=self.momentum, **common)

    def _grouped(self, named: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
        """The parameters by part, the most particular name first; what no name fits is a group of its own."""
        assert self.groups is not None
        left, grouped = dict(named), []
        for part in sorted(self.groups, key=len, reverse=True):
            chosen = [name for name in left if name == part or name.startswith(f"{part}.")]
            if not chosen:
                raise InputError(
                    f"Recipe(groups=…): no parameter that moves is in {part!r}; there are {', '.join(named)}."
                )
            grouped.append({"params": [left.pop(name) for name in chosen], **self.groups[part]})
        return [{"params": list(left.values())}, *grouped] if left else grouped

    def described(self) -> dict[str, Any]:
        """Every field as a plain value; functions by name."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_described(cls, described: Mapping[str, Any]) -> "Recipe":
        """The recipe again; one with functions in it can be read but not learned by."""
        settings, lost = dict(described), []
        if settings["optimizer"] not in OPTIMIZERS:
            lost.append(f"optimizer={settings.pop('optimizer')}")
        if settings.get("schedule") not in (None, *SCHEDULES):
            lost.append(f"schedule={settings.pop('schedule')}")
        if any(isinstance(value, str) for value in (settings["loader"] or {}).values()):
            lost.append(f"loader={settings.pop('loader')}")
        if not lost:
            return cls(**settings)

        def missing(_: Any) -> Any:
            raise InputError(
                f"the recipe had functions in it, which an archive cannot hold: {', '.join(lost)}. Pass it to load: "
                "load(path, recipe=…)."
            )

        return cls(**{**settings, "optimizer": missing})


def _are_groups(groups: Any) -> bool:
    """Whether these are settings of an optimizer, by the names of parts."""
    if not isinstance(groups, Mapping) or not all(isinstance(each, Mapping) for each in groups.values()):
        return False
    values = [value for each in groups.values() for value in each.values()]
    single = [one for value in values for one in (value if isinstance(value, list | tuple) else [value])]
    named = all(isinstance(name, str) for name in groups)
    return named and all(one is None or isinstance(one, int | float) for one in single)


def check_recipe(what: str, recipe: Recipe) -> Recipe:
    """`recipe` itself, if it is one."""
    if not isinstance(recipe, Recipe):
        raise InputError(f"{what} is a Recipe, as in Recipe(epochs=5, lr=0.01); got {recipe!r}.")
    return recipe


def is_recipe(name: str, recipe: Any) -> Recipe:
    """The rule of fields that are recipes."""
    return check_recipe(name, recipe)


def plain(value: Any) -> Any:
    """A setting as plain values; functions by name."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if callable(value):
        return full_name(value)
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__qualname__


def _fused(kind: Any, parameters: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """The optimizer as one kernel, five times faster on a CPU, where the device and the types allow it."""
    groups = parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
    fused = all(value.is_floating_point() for group in groups for value in group["params"])  # complex numbers are not
    try:
        return kind(parameters, fused=fused, **settings)  # type: ignore[no-any-return]
    except RuntimeError:
        return kind(parameters, **settings)  # type: ignore[no-any-return]
