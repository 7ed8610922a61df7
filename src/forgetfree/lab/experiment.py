"""Experiments: a TOML of the catalog, a method, a scale, a seed and overrides become a plan; a plan is performed.

The signature of what is built is the schema: the function in BENCHMARKS or BACKBONES, the constructor in METHODS, the
fields of Recipe, the keywords of the protocol. An unknown key is an error that lists the known ones.
"""

import difflib
import inspect
import itertools
import platform
import time
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

import forgetfree
from forgetfree.batches import batches, count_samples, repeated
from forgetfree.contracts import Learner
from forgetfree.errors import InputError
from forgetfree.heads import HEADS, linear_head
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.lab.protocols import fscil, til
from forgetfree.lab.records import Record, RunFolder
from forgetfree.methods import METHODS
from forgetfree.rng import derive, preserved_rng, seed_all, threads
from forgetfree.training import Progress, Recipe

CATALOG = resources.files("forgetfree.lab") / "catalog"
PROTOCOLS: dict[str, Callable[..., Record]] = {"til": til.run, "fscil": fscil.run}
GIVEN = {
    "benchmark": {"seed", "data_root"},
    "backbone": set(),
    "method": {"backbone", "recipe", "session", "seed", "device", "masked"},
    "recipe": set(),
    "session": set(),
    "protocol": {"learner", "benchmark", "dense", "checkpoints", "archive", "backbone", "base", "progress", "say"},
}
"""Arguments that come from the plan itself, never from a TOML or --set."""
RECIPES = ("recipe", "session")
"""Sections that are fields of a Recipe: how a task is trained, and how few-shot sessions after the first are."""
BACKBONE = "backbone.name"
"""The override that takes another backbone."""
REPEATED = ("draw", "tasks")
"""Settings of a few-shot benchmark that its first session does not depend on."""
PATIENCE = 5.0
"""Seconds: where ten steps take longer, fewer are timed."""


@dataclass(frozen=True)
class Plan:
    """One run, resolved: nothing is decided after this."""

    experiment: str
    """Scenario and name, as in til/permuted_mnist."""
    method: str
    scale: str
    seed: int
    settings: Mapping[str, Mapping[str, Any]]
    """Keyword arguments of benchmark, backbone, method, recipe and protocol; the first two with their `name`."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1

    @property
    def folder(self) -> Path:
        """Where it lives below the folder of run folders."""
        changes = [f"{key}={value}".replace("/", "_").replace(" ", "") for key, value in sorted(self.overrides.items())]
        return Path(self.experiment.replace("/", "-")) / "-".join(
            [self.method, *changes, self.scale, f"seed{self.seed}"]
        )

    def as_toml(self) -> dict[str, Any]:
        """The plan as plain tables; `from_toml` reads it back."""
        run = {
            "experiment": self.experiment,
            "method": self.method,
            "scale": self.scale,
            "seed": self.seed,
            "threads": self.threads,
        }
        sections = {section: _plain(self.settings[section]) for section in _sections(self.method)}
        return {"run": run, "overrides": _plain(self.overrides), **sections}

    @classmethod
    def from_toml(cls, content: Mapping[str, Any]) -> "Plan":
        method = content["run"]["method"]
        settings = {section: _checked(section, content[section], method) for section in _sections(method)}
        return cls(**content["run"], settings=settings, overrides=dict(content.get("overrides", {})))


def catalog() -> dict[str, str]:
    """Every experiment, name → title, in order of name."""
    return {name: str(_read(name)["title"]) for name in _names()}


def describe(experiment: str) -> str:
    """The TOML of an experiment, letter by letter."""
    return str(_file(experiment).read_text())


def plan(
    experiment: str,
    *,
    methods: Iterable[str] = (),
    scale: str = "cpu",
    seeds: Iterable[int] = (0,),
    overrides: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> list[Plan]:
    """All runs that the words ask for; a list among the overrides means one run for each of its values.

    The override `backbone.name` takes another backbone, with its own defaults; other overrides are then of that one.
    """
    content = _read(experiment)
    others = {key: value for key, value in (overrides or {}).items() if key != BACKBONE}
    given = (overrides or {}).get(BACKBONE)
    names = list(methods) or list(content["methods"])[:1]
    for name in names:
        _check_scenario(experiment, name)
        _known("method", name, content["methods"], f"of {experiment}")
    _known("scale", scale, content["scales"], f"of {experiment}")
    plans = []
    backbones = given if isinstance(given, list) else [given]
    for method, seed, backbone in itertools.product(names, seeds, backbones):
        settings, another = _resolve(content, method, scale, backbone), {} if backbone is None else {BACKBONE: backbone}
        for chosen in _sweep(settings, method, others):
            resolved = _override(settings, method, chosen)
            plans.append(Plan(experiment, method, scale, seed, resolved, {**another, **chosen}, threads))
    return plans


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`a.b=c` words as a mapping; values are read as TOML, then as text."""
    overrides: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise InputError(
                f"--set takes key=value, as in --set capacity=0.05 or --set recipe.epochs=3; got {word!r}."
            )
        overrides[key.strip()] = _value(text.strip())
    return overrides


def perform(
    plan: Plan,
    out: Path,
    *,
    data_root: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Record:
    """Run a plan in its folder, or go on where it stopped; a finished one is only read."""
    folder = RunFolder(out / plan.folder)
    if folder.started:
        folder.check(plan.as_toml(), Plan.from_toml(folder.plan()).as_toml())
        if folder.finished:
            return folder.record()
    benchmark, learner, backbone = build(plan, data_root)  # before anything is written: most mistakes show here
    dense = sum(parameter.numel() for parameter in backbone.parameters())
    with folder.locked():
        folder.start(plan.as_toml(), versions())
        stage = [0, 1]  # which task of how many

        def tell(event: dict[str, Any]) -> None:
            if event["event"] == "task":
                stage[:] = event["position"], event["tasks"]
            folder.say(event)
            say(event)

        def watch(step: Progress) -> None:
            if step.finished:
                done = (stage[0] + step.epoch / step.epochs) / stage[1]
                numbers = {key: getattr(step, key) for key in ("epoch", "loss", "valid_loss", "valid_accuracy", "lr")}
                folder.say({"event": "epoch", "task": step.task, "done": done, **numbers})
            if progress:
                progress(step)

        with threads(plan.threads):
            tell({"event": "start"})
            scenario = METHODS[plan.method].scenario
            own: dict[str, Any] = {"backbone": backbone}
            if scenario == "fscil":
                own = {"base": out / "bases" / f"{typing.cast(Any, learner).base}-{_base_of(plan)}.safetensors"}
            record = PROTOCOLS[scenario](
                learner, benchmark, dense=dense, checkpoints=folder.checkpoints, archive=folder.archive, progress=watch,
                say=tell, **own, **plan.settings["protocol"],
            )  # fmt: skip
        folder.save(record)
        tell({"event": "finish"})
        return record


def build(plan: Plan, data_root: Path | None = None) -> tuple[Benchmark, Learner, nn.Module]:
    """The benchmark, the learner and the network that it wraps."""
    settings = {key: dict(value) for key, value in plan.settings.items()}
    make_benchmark = BENCHMARKS[settings["benchmark"].pop("name")]
    if "data_root" in inspect.signature(make_benchmark).parameters:
        settings["benchmark"]["data_root"] = data_root
    benchmark = make_benchmark(seed=plan.seed, **settings["benchmark"])
    if "session" in settings:
        init = settings["backbone"].get("init")
        start = f"pretrained, from {Path(init).name}" if init else "from scratch"
        benchmark = replace(benchmark, notes={**benchmark.notes, "weights": start})
    cpu = torch.device("cpu")
    with preserved_rng(cpu):
        seed_all(cpu, plan.seed, "backbone")
        backbone = BACKBONES[settings["backbone"].pop("name")](**settings["backbone"])
    settings["method"]["heads"] = HEADS[settings["method"]["heads"]]
    recipes = {section: Recipe(**settings[section]) for section in RECIPES if section in settings}
    learner: Learner = METHODS[plan.method](backbone, seed=plan.seed, **recipes, **settings["method"])
    return benchmark, learner, backbone


def estimate(plan: Plan, data_root: Path | None = None) -> dict[str, float]:
    """What a plan will cost: training steps, and seconds by timing a few of them (testing and start-up apart)."""
    benchmark, learner, _ = build(plan, data_root)
    sizes = [count_samples(task.train) for task in benchmark.tasks]
    recipes = [Recipe(**plan.settings[section]) for section in RECIPES if section in plan.settings]
    followed = [*recipes, *recipes[-1:] * len(sizes)][: len(sizes)]
    each = [recipe.epochs * -(-size // recipe.batch_size) for recipe, size in zip(followed, sizes, strict=True)]
    if len(recipes) > 1 and hasattr(learner, "finish"):  # few-shot sessions that are trained together at the end
        each[1:] = [recipes[0].epochs * -(-sum(sizes) // recipes[0].batch_size)]
    counts = (10, 110) if _timed(plan, data_root, 10) < PATIENCE else (2, 12)
    few, more = (min(_timed(plan, data_root, count) for _ in range(2)) for count in counts)
    steps = sum(each)
    return {"tasks": len(sizes), "steps": steps, "seconds": steps * max(more - few, 0.0) / (counts[1] - counts[0])}


def _timed(plan: Plan, data_root: Path | None, steps: int) -> float:
    """Seconds to learn so many batches of the first task."""
    short = {**plan.settings, "recipe": {**plan.settings["recipe"], "epochs": 1}}
    benchmark, learner, _ = build(replace(plan, settings=short), data_root)
    samples = steps * int(short["recipe"].get("batch_size", Recipe.batch_size))
    first = benchmark.tasks[0]
    (batch,) = batches(first, repeated(first.train, samples), samples)
    some = first.classes[:samples]  # every class has a sample, however few there are
    labels = torch.arange(samples) % len(some)
    train = (batch.inputs, labels if first.classifies else batch.labels)
    started = time.monotonic()
    with threads(plan.threads):
        learner.learn(replace(first, classes=some, train=train, valid=None))
        if finish := getattr(learner, "finish", None):
            finish()
    return time.monotonic() - started


def versions() -> dict[str, str]:
    """What the numbers of a run may depend on."""
    return {
        "forgetfree": forgetfree.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def known_keys(section: str, name: str = "") -> dict[str, Any]:
    """The settings a section takes, key → annotation, read off the signature of what it builds."""
    target = _built_by(section, name)
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    return {key: hints.get(key, Any) for key in _parameters(section, target)}


def _defaults(section: str, name: str) -> dict[str, Any]:
    """Every setting that has a default, so that a plan says everything that was in force."""
    parameters = _parameters(section, _built_by(section, name)).items()
    defaults = {key: value.default for key, value in parameters if value.default is not inspect.Parameter.empty}
    if "heads" in defaults:
        made = defaults["heads"] or linear_head
        defaults["heads"] = next(name for name, known in HEADS.items() if known is made)
    return defaults


def _parameters(section: str, target: Any) -> dict[str, inspect.Parameter]:
    every = inspect.signature(target).parameters
    return {key: value for key, value in every.items() if key not in GIVEN[section] and key != "cache_bytes"}


def _built_by(section: str, name: str) -> Any:
    """What a section's settings are the arguments of."""
    tables: dict[str, Mapping[str, Any]] = {
        "benchmark": BENCHMARKS,
        "backbone": BACKBONES,
        "method": METHODS,
        "protocol": PROTOCOLS,
    }
    return Recipe if section in RECIPES else tables[section][name]


def _sections(method: str) -> list[str]:
    """The sections of a plan: few-shot sessions after the first have a recipe of their own."""
    return [section for section in GIVEN if section != "session" or METHODS[method].scenario == "fscil"]


def _check_scenario(experiment: str, method: str) -> None:
    """Refuse a method that learns in another way than the experiment asks for."""
    wanted = experiment.partition("/")[0]
    if method not in METHODS or METHODS[method].scenario == wanted:
        return
    kinds = {"til": "task by task (til)", "fscil": "in few-shot sessions (fscil)"}
    able = [name for name, made in METHODS.items() if made.scenario == wanted]
    noise = "Its noise behind a ticket is --method wsn --set background_noise=1e-3. "
    hint = noise if method == "softnet" else ""
    raise InputError(
        f"{method} learns {kinds[METHODS[method].scenario]}; {experiment} is learned {kinds[wanted]}. {hint}"
        f"There are: {', '.join(able)}."
    )


def _base_of(plan: Plan) -> str:
    """A digest of all that the network of the first session depends on, its method apart."""
    settings = {
        section: dict(sorted(plan.settings[section].items())) for section in ("benchmark", "backbone", "recipe")
    }
    for key in REPEATED:
        settings["benchmark"].pop(key, None)
    return f"{derive(plan.seed, plan.threads, repr(settings)) >> 31:08x}"


def _resolve(content: Mapping[str, Any], method: str, scale: str, backbone: str | None) -> dict[str, dict[str, Any]]:
    """Settings from the general to the particular: experiment, scale, method, method at this scale; then a backbone.

    What the section `method` says is for all methods."""
    general, particular = content["methods"][method], content["scales"][scale].get("methods", {}).get(method, {})
    settings: dict[str, dict[str, Any]] = {}
    for section in _sections(method):
        layers = [content.get(section, {}), content["scales"][scale].get(section, {})]
        if section == "backbone" and backbone is not None:
            layers += [{"name": backbone}]
        if section in RECIPES:
            layers += [general.get(section, {}), particular.get(section, {})]
        if section == "method":
            layers = [
                {key: value for key, value in layer.items() if key not in RECIPES}
                for layer in (content.get("method", {}), general, particular)
            ]
        settings[section] = {}
        for layer in layers:
            # settings are of what they were written for: another backbone starts anew
            another = "name" in layer and layer["name"] != settings[section].get("name")
            settings[section] = {**({} if another else settings[section]), **layer}
    return {section: _checked(section, values, method) for section, values in settings.items()}


def _checked(section: str, values: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The values in the types that the signature asks for, with the defaults of what is not said."""
    named = section in ("benchmark", "backbone")
    if named:
        table: Mapping[str, Any] = BENCHMARKS if section == "benchmark" else BACKBONES
        _known(section, str(values.get("name")), table)
    name = str(values["name"]) if named else method if section == "method" else METHODS[method].scenario
    keys, checked = known_keys(section, name), _defaults(section, name)
    for key, value in values.items():
        if named and key == "name":
            checked[key] = value
            continue
        _known("key", key, keys, f"of {section} {values.get('name', method if section == 'method' else '')}".rstrip())
        checked[key] = _converted(f"{section}.{key}", value, keys[key])
    return checked


def _sweep(
    settings: Mapping[str, Mapping[str, Any]], method: str, overrides: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One set of overrides for every combination of listed values; a key that takes a list keeps it whole."""
    choices = []
    for key, value in overrides.items():
        section, short = _section_of(settings, method, key)
        keys = known_keys(section, _name_of(settings, section, method))
        many = isinstance(value, list) and not _takes_list(keys[short])
        full = short if section == "method" else f"{section}.{short}"
        choices.append([(full, item) for item in (value if many else [value])])
    return [dict(combination) for combination in itertools.product(*choices)]


def _override(
    settings: Mapping[str, Mapping[str, Any]], method: str, overrides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    resolved = {section: dict(values) for section, values in settings.items()}
    for key, value in overrides.items():
        section, short = _section_of(settings, method, key)
        known = {name: known_keys(name, _name_of(settings, name, method)) for name in settings}
        others = [f"{name}.{short}" for name in known if name not in (section, *RECIPES) and short in known[name]]
        try:
            resolved[section][short] = _converted(key, value, known[section][short])
        except InputError as error:
            hint = f" Another setting of that name is {' or '.join(others)}." if others else ""
            raise InputError(f"{error}{hint}") from None
    return resolved


def _section_of(settings: Mapping[str, Mapping[str, Any]], method: str, key: str) -> tuple[str, str]:
    """Where an override belongs: `recipe.epochs` says so itself, `capacity` is looked for."""
    known = {section: known_keys(section, _name_of(settings, section, method)) for section in settings}
    section, dot, short = key.partition(".")
    if dot and section in known:
        _known("key", short, known[section], f"of {section}")
        return section, short
    homes = [section for section in known if key in known[section]]
    if "method" in homes:
        return "method", key
    if homes == list(RECIPES):
        homes = homes[:1]  # of two recipes the first is meant; session.epochs says the other
    if len(homes) != 1:
        every = {
            full: None
            for section in known
            for full in (known[section] if section == "method" else _prefixed(section, known))
        }
        _known("setting", key, every, f"for --set with method {method}")
    return homes[0], key


def _prefixed(section: str, known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{section}.{key}" for key in (["name"] if section == "backbone" else []) + [*known[section]]]


def _name_of(settings: Mapping[str, Mapping[str, Any]], section: str, method: str) -> str:
    if section == "method":
        return method
    return str(settings[section]["name"]) if section in ("benchmark", "backbone") else METHODS[method].scenario


def _converted(key: str, value: Any, annotation: Any) -> Any:
    """`value` as the annotation wants it: none, tuples, whole numbers for fractions; an error says what it takes."""
    if key.rpartition(".")[2] == "heads":
        _known("head", str(value), HEADS)
        return value
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    if value in ("none", None) and types.NoneType in options:
        return None
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is typing.Literal:
            if value in typing.get_args(option):
                return value
        elif origin in (tuple, list):
            if isinstance(value, list | tuple):
                return tuple(value)
        elif origin is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        elif origin is bool or isinstance(value, bool):
            if origin is bool and isinstance(value, bool):
                return value
        elif inspect.isclass(origin) and isinstance(value, origin):
            return value
    raise InputError(f"{key} takes {_readable(annotation)}; got {value!r}.")


def _takes_list(annotation: Any) -> bool:
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return any((typing.get_origin(option) or option) in (tuple, list) for option in options)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _readable(annotation: Any) -> str:
    if _is_union(annotation):
        return " or ".join(_readable(option) for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(annotation)))
    return {
        "NoneType": "none",
        "float": "a number",
        "int": "a whole number",
        "str": "a text",
        "bool": "true or false",
    }.get(getattr(annotation, "__name__", ""), str(annotation))


def _known(kind: str, name: str, names: Iterable[str], where: str = "") -> None:
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    near += [full for full in names if full.endswith(f".{name}") and full not in near]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"there is no {kind} {name!r}{' ' + where if where else ''}.{hint} There are: {', '.join(names)}.")


def _names() -> list[str]:
    return sorted(
        f"{scenario.name}/{file.name.removesuffix('.toml')}"
        for scenario in CATALOG.iterdir()
        if scenario.is_dir()
        for file in scenario.iterdir()
        if file.name.endswith(".toml")
    )


def _file(experiment: str) -> Any:
    _known("experiment", experiment, _names())
    return CATALOG / f"{experiment}.toml"


def _read(experiment: str) -> dict[str, Any]:
    return tomllib.loads(_file(experiment).read_text())


def _value(text: str) -> Any:
    for attempt in (text, f"[{text}]" if "," in text else text):
        try:
            return tomllib.loads(f"value = {attempt}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    words = text.split(",")
    return words if len(words) > 1 and all(word.isidentifier() for word in words) else text


def _plain(value: Any) -> Any:
    """As TOML can say it: tuples are lists, None is the text "none"."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return "none" if value is None else value
