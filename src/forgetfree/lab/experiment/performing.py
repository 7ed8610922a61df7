"""Performing a plan: what it names is built, its protocol learns and tests, and its run folder keeps what came out."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forgetfree.contracts import Learner
from forgetfree.heads import head_by_name
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.lab.experiment.planning import Plan
from forgetfree.lab.experiment.provenance import check_same_data, provenance
from forgetfree.lab.experiment.schema import PROTOCOLS, RECIPES
from forgetfree.lab.protocols.contracts import base_name_of
from forgetfree.lab.records import Record, RunFolder
from forgetfree.methods import METHODS
from forgetfree.rng import derive, preserved_rng, seed_all, threads
from forgetfree.training import Progress, Recipe
from forgetfree.training.team import team

REPEATED = ("draw", "tasks", "augment_sessions")
"""Settings of a few-shot benchmark that its first session does not depend on."""
FINISHED, OPEN = b"finished", b"open"
SINCE: Mapping[str, Mapping[str, Any]] = {"fscil_omniglot": {"augmentation": "none"}}
"""Settings that a benchmark did not always have: as usual, they change nothing."""
UNTOLD = ("schedule", "warmup", "groups", "average")
"""Fields of a recipe that recipes of before do not have: where nothing is said there, they change nothing."""


def perform(
    plan: Plan,
    out: Path,
    *,
    data_root: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Record:
    """Run a plan in its folder, or go on where it stopped; a finished one is only read.

    Of several processes that learn together the first has the folder; the others write nothing.
    """
    folder, leads = RunFolder(out / plan.folder), team().leads

    def look() -> bytes:
        if folder.started:
            folder.check(_identity(plan), _identity(Plan.from_toml(folder.plan())))
        return FINISHED if folder.finished else OPEN

    if team().content(look) == FINISHED:
        return folder.record() if leads else Record(tasks=[])
    benchmark, learner, backbone = build(plan, data_root)  # before anything is written: most mistakes show here
    dense = sum(parameter.numel() for parameter in backbone.parameters())
    with ExitStack() as held:

        def begin() -> bytes:
            held.enter_context(folder.locked())
            origin = provenance(benchmark)
            if folder.started:
                check_same_data(folder.versions().get("data"), str(origin["data"]), folder.path)
            folder.start(plan.as_toml(), origin)
            return OPEN

        team().content(begin)
        stage = [0, 1]  # which task of how many

        def tell(event: dict[str, Any]) -> None:
            if event["event"] == "task":
                stage[:] = event["position"], event["tasks"]
            if leads:
                folder.say(event)
            say(event)

        def watch(step: Progress) -> None:
            if step.finished and leads:
                done = (stage[0] + step.epoch / step.epochs) / stage[1]
                numbers = {key: getattr(step, key) for key in ("epoch", "loss", "valid_loss", "valid_accuracy", "lr")}
                folder.say({"event": "epoch", "task": step.task, "done": done, **numbers})
            if progress:
                progress(step)

        with threads(plan.threads):
            tell({"event": "start"})
            scenario = METHODS.entry(plan.method).scenario
            own: dict[str, Any] = {"backbone": backbone}
            if scenario == "fscil":
                base = base_name_of(learner)
                own = {} if base is None else {"base": out / "bases" / f"{base}-{_base_of(plan)}.safetensors"}
            record = PROTOCOLS[scenario](
                learner, benchmark, dense=dense, checkpoints=folder.checkpoints, progress=watch, say=tell,
                archive=folder.archive if leads else None, **own, **plan.settings["protocol"],
            )  # fmt: skip
        if leads:
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
    return benchmark, *build_learner(plan)


def build_learner(plan: Plan) -> tuple[Learner, nn.Module]:
    """The learner, and the network that it wraps."""
    settings = {key: dict(value) for key, value in plan.settings.items()}
    cpu = torch.device("cpu")
    with preserved_rng(cpu):
        seed_all(cpu, plan.seed, "backbone")
        backbone = BACKBONES[settings["backbone"].pop("name")](**settings["backbone"])
    if "heads" in settings["method"]:
        settings["method"]["heads"] = head_by_name(settings["method"]["heads"])
    recipes = {section: Recipe(**settings[section]) for section in RECIPES if section in settings}
    learner: Learner = METHODS[plan.method](backbone, seed=plan.seed, **recipes, **settings["method"])
    return learner, backbone


def _identity(plan: Plan) -> dict[str, Any]:
    """What makes two plans the same run: not how a plug-in was found."""
    return replace(plan, plugins=()).as_toml()


def _base_of(plan: Plan) -> str:
    """A digest of all that the network of the first session depends on, its method apart."""
    settings = {
        section: dict(sorted(plan.settings[section].items())) for section in ("benchmark", "backbone", "recipe")
    }
    for key in REPEATED:
        settings["benchmark"].pop(key, None)
    for key, usual in {"hidden": 0, **SINCE.get(settings["benchmark"]["name"], {})}.items():
        if settings["benchmark"].get(key) == usual:  # so that networks of before are found
            del settings["benchmark"][key]
    for key in UNTOLD:
        if settings["recipe"].get(key) is None:
            settings["recipe"].pop(key, None)
    return f"{derive(plan.seed, plan.threads, repr(settings)) >> 31:08x}"
