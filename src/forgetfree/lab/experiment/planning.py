"""Plans: a TOML, a method, a scale, a seed and overrides, resolved; nothing is decided after this."""

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from forgetfree.errors import InputError
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.experiment import schema
from forgetfree.lab.experiment.experiments import HEADS, check_known, read
from forgetfree.lab.experiment.schema import RECIPES, checked, converted, known_keys, plain, sections
from forgetfree.lab.paper import SOFTNET
from forgetfree.methods import METHODS

BACKBONE = "backbone.name"
"""The override that takes another backbone."""
EVERY = ""
"""In place of a method: all of them."""

OF_METHODS = ("benchmark", *RECIPES)
"""Sections that an experiment may say for one method alone: [methods.icarl] benchmark = { augment_sessions = true }."""

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """One run, resolved: nothing is decided after this."""

    experiment: str
    """Scenario and name, as in til/permuted_mnist."""
    method: str
    scale: str
    seed: int
    settings: Settings
    """Keyword arguments of benchmark, backbone, method, recipe and protocol; the first two with their `name`."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """As they were written: a run folder is named by them."""
    threads: int = 1
    plugins: tuple[str, ...] = ()
    """Modules that brought its method, benchmark or backbone and were named by --plugin."""

    @property
    def folder(self) -> Path:
        """Where it lives below the folder of run folders."""
        changes = [f"{key}={value}".replace("/", "_").replace(" ", "") for key, value in sorted(self.overrides.items())]
        return Path(self.experiment.replace("/", "-")) / "-".join(
            [self.method, *changes, self.scale, f"seed{self.seed}"]
        )

    def as_toml(self) -> dict[str, Any]:
        """The plan as plain tables; `from_toml` reads it back."""
        run: dict[str, Any] = {
            "experiment": self.experiment,
            "method": self.method,
            "scale": self.scale,
            "seed": self.seed,
            "threads": self.threads,
        }
        if self.plugins:
            run["plugins"] = list(self.plugins)
        settings = {section: plain(self.settings[section]) for section in sections(self.method)}
        return {"run": run, "overrides": plain(self.overrides), **settings}

    @classmethod
    def from_toml(cls, content: Mapping[str, Any]) -> "Plan":
        """A plan that was written down; plug-ins that it names are loaded before."""
        run = {**content["run"], "plugins": tuple(content["run"].get("plugins", ()))}
        known = {each.name for each in fields(cls)} - {"settings", "overrides"}
        lacking = [key for key in ("experiment", "method", "scale", "seed") if key not in run]
        if lacking or not run.keys() <= known:
            raise InputError(
                f"the section [run] of a plan has {', '.join(sorted(known))}; "
                + (f"{lacking[0]} is missing." if lacking else f"{min(run.keys() - known)} is unknown.")
            )
        method = run["method"]
        METHODS.required(method)
        absent = [section for section in sections(method) if not isinstance(content.get(section), Mapping)]
        if absent:
            raise InputError(f"the plan of a run of {method} has a section [{absent[0]}], which is missing here.")
        settings = {section: checked(section, content[section], method, stored=True) for section in sections(method)}
        return cls(**run, settings=settings, overrides=dict(content.get("overrides", {})))


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

    `experiment` is a name of the catalog, or a file that ends in .toml. An override that begins with a method, as in
    `wsn.capacity`, is for that one alone. The override `backbone.name` takes another backbone, with its own defaults;
    other overrides are then of that one.
    """
    experiment, content = read(experiment)
    names = list(methods) or list(content["methods"])[:1]
    for name in names:
        _check_method(experiment, name, content["methods"])
    check_known("scale", scale, content["scales"], f"of {experiment}")
    said = _by_method(names, overrides or {})
    _check_shared({name: _resolve(content, name, scale, None) for name in names}, said[EVERY])
    plans = []
    for method, seed in itertools.product(names, list(seeds)):
        others = {**said[EVERY], **said[method]}
        given = others.pop(BACKBONE, None)
        for backbone in given if isinstance(given, list) else [given]:
            settings = _resolve(content, method, scale, backbone)
            another = {} if backbone is None else {BACKBONE: backbone}
            for chosen in _sweep(settings, method, others):
                resolved = _with_heads(_override(settings, method, chosen), content)
                _check_complete(resolved, method)
                used = _plugins(method, resolved)
                plans.append(Plan(experiment, method, scale, seed, resolved, {**another, **chosen}, threads, used))
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
        key, value = key.strip(), _value(text.strip())
        if key in overrides:
            both = ",".join(map(_written, (overrides[key], value)))
            raise InputError(f"{key} is set twice. For a run with each value give them together: --set {key}={both}")
        overrides[key] = value
    return overrides


def _by_method(names: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Method → overrides that name it, as in wsn.capacity, without its name; EVERY → those that name none."""
    said: dict[str, dict[str, Any]] = {name: {} for name in (EVERY, *names)}
    for key, value in overrides.items():
        owner, dot, rest = key.partition(".")
        if not dot or owner in schema.GIVEN or owner not in METHODS:
            said[EVERY][key] = value
        elif owner in names:
            said[owner][rest] = value
        else:
            raise InputError(
                f"--set {key}: {owner} is not among the methods of these runs, which are {', '.join(names)}. Leave it "
                f"out, or add --method {owner}."
            )
    return said


def _check_shared(settings: Mapping[str, Settings], overrides: Mapping[str, Any]) -> None:
    """Refuse a setting that some of the methods take and others do not, unless it names its method."""
    for key, value in overrides.items():
        taking = [method for method in settings if _takes(settings[method], method, key)]
        lacking = [method for method in settings if method not in taking]
        if taking and lacking:
            short = key.removeprefix("method.")
            words = " ".join(f"--set {method}.{short}={_written(value)}" for method in taking)
            raise InputError(f"{short} is a setting of {', '.join(taking)}, not of {', '.join(lacking)}: {words}")


def _takes(settings: Settings, method: str, key: str) -> bool:
    try:
        _section_of(settings, method, key)
    except InputError:
        return key == BACKBONE
    return True


def _written(value: Any) -> str:
    """A value as --set takes it."""
    if isinstance(value, list):
        return ",".join(map(_written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_method(experiment: str, method: str, named: Mapping[str, Any]) -> None:
    """Refuse a method that is not here, that the experiment has no settings for, or that learns in another way.

    A method of a plug-in needs no settings in our files: those it has no default for are given by --set.
    """
    wanted = experiment.partition("/")[0]
    ours = method not in METHODS or METHODS.entry(method).source == "forgetfree"
    if method in METHODS and METHODS.entry(method).scenario != wanted:
        kinds = {"til": "task by task (til)", "fscil": "in few-shot sessions (fscil)"}
        able = [name for name, entry in METHODS.entries.items() if entry.scenario == wanted]
        noise = "Its noise behind a ticket is --method wsn --set background_noise=1e-3. "
        hint = noise if method == SOFTNET else ""
        raise InputError(
            f"{method} learns {kinds[METHODS.entry(method).scenario]}; {experiment} is learned {kinds[wanted]}. {hint}"
            f"There are: {', '.join(able)}."
        )
    if ours:
        check_known("method", method, named, f"of {experiment}")
    METHODS.required(method)


def _resolve(content: Mapping[str, Any], method: str, scale: str, backbone: str | None) -> dict[str, dict[str, Any]]:
    """Settings from the general to the particular: experiment, scale, method, method at this scale; then a backbone.

    What the section `method` says is for all methods."""
    general = content["methods"].get(method, {})
    particular = content["scales"][scale].get("methods", {}).get(method, {})
    settings: dict[str, dict[str, Any]] = {}
    for section in sections(method):
        layers = [content.get(section, {}), content["scales"][scale].get(section, {})]
        if section == "backbone" and backbone is not None:
            layers += [{"name": backbone}]
        if section in OF_METHODS:
            layers += [general.get(section, {}), particular.get(section, {})]
        if section == "method":
            layers = [
                {key: value for key, value in layer.items() if key not in OF_METHODS}
                for layer in (content.get("method", {}), general, particular)
            ]
        settings[section] = {}
        for layer in layers:
            # settings are of what they were written for: another backbone starts anew
            another = "name" in layer and layer["name"] != settings[section].get("name")
            settings[section] = {**({} if another else settings[section]), **layer}
    return {section: checked(section, values, method) for section, values in settings.items()}


def _sweep(settings: Settings, method: str, overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One set of overrides for every combination of listed values; a key that takes a list keeps it whole."""
    choices: dict[str, list[Any]] = {}
    for key, value in overrides.items():
        section, short = _section_of(settings, method, key)
        many = isinstance(value, list) and not schema.takes_list(_accepted(settings, section, method)[short])
        choices[short if section == "method" else f"{section}.{short}"] = value if many else [value]
    return [dict(zip(choices, combination, strict=True)) for combination in itertools.product(*choices.values())]


def _override(settings: Settings, method: str, overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    resolved = {section: dict(values) for section, values in settings.items()}
    for key, value in overrides.items():
        section, short = _section_of(settings, method, key)
        known = {name: known_keys(name, _name_of(settings, name, method)) for name in settings}
        others = [f"{name}.{short}" for name in known if name not in (section, *RECIPES) and short in known[name]]
        now = schema.current_key(section, _name_of(settings, section, method), short)
        if now != short:
            schema.warn_renamed(short, now, f"--set {key}")
        try:
            resolved[section][now] = converted(key, value, known[section][now])
        except InputError as error:
            hint = f" Another setting of that name is {' or '.join(others)}." if others else ""
            raise InputError(f"{error}{hint}") from None
    return resolved


def _with_heads(settings: dict[str, dict[str, Any]], content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings with the heads that the experiment means by a name."""
    named, method = content.get(HEADS, {}), settings["method"]
    if method.get("heads") not in named:
        return settings
    meant = converted("heads", named[method["heads"]], str)
    return {**settings, "method": {**method, "heads": meant}}


def _section_of(settings: Settings, method: str, key: str) -> tuple[str, str]:
    """Where an override belongs: `recipe.epochs` says so itself, `capacity` is looked for."""
    known = {section: known_keys(section, _name_of(settings, section, method)) for section in settings}
    accepted = {section: _accepted(settings, section, method) for section in settings}
    section, dot, short = key.partition(".")
    if dot and section in known:
        if short not in accepted[section]:
            check_known("key", short, known[section], f"of {section}")
        return section, short
    homes = [section for section in accepted if key in accepted[section]]
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
        own = [f"{method}.{full}" for full in every] if dot else []
        check_known("setting", key, every, f"for --set with method {method}", unlisted=own)
    return homes[0], key


def _accepted(settings: Settings, section: str, method: str) -> dict[str, Any]:
    """Key → annotation, by earlier names too."""
    name = _name_of(settings, section, method)
    known = known_keys(section, name)
    return {**{old: known[new] for old, new in schema.renamed_keys(section, name).items()}, **known}


def _check_complete(settings: Settings, method: str) -> None:
    for section, values in settings.items():
        name = _name_of(settings, section, method)
        for key in schema.missing(section, name, values):
            full = key if section == "method" else f"{section}.{key}"
            raise InputError(f"{section} {name} needs {key}, which has no default: --set {full}=…")


def _plugins(method: str, settings: Settings) -> tuple[str, ...]:
    benchmark, backbone = settings["benchmark"]["name"], settings["backbone"]["name"]
    brought = (METHODS.plugin_of(method), BENCHMARKS.plugin_of(benchmark), BACKBONES.plugin_of(backbone))
    return tuple(sorted({place for place in brought if place is not None}))


def _prefixed(section: str, known: Settings) -> list[str]:
    return [f"{section}.{key}" for key in (["name"] if section == "backbone" else []) + [*known[section]]]


def _name_of(settings: Settings, section: str, method: str) -> str:
    if section == "method":
        return method
    return str(settings[section]["name"]) if section in ("benchmark", "backbone") else METHODS.entry(method).scenario


def _value(text: str) -> Any:
    for attempt in (text, f"[{text}]" if "," in text else text):
        try:
            return tomllib.loads(f"value = {attempt}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    words = text.split(",")
    return words if len(words) > 1 and all(word.isidentifier() for word in words) else text
