"""The command line: words in, calls to the laboratory, tables out. No logic lives here.

What a command needs is imported when it is called: help, lists and completion answer without torch.
"""

import inspect as signatures
import io
import json
import logging
import pkgutil
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from forgetfree import __version__
from forgetfree.errors import FileError, ForgetfreeError, InputError, PluginError
from forgetfree.lab import completion
from forgetfree.lab.console import PlainConsole, bold, shown


class Command(TyperCommand):
    """A command whose flags are shown without a type: they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


def without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


app = typer.Typer(
    cls=Group,
    help="Any PyTorch module learns task after task and never forgets. Start with: forgetfree demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    cls=Group, help="The data sets: what there is, where it is, how to get it.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

DEMO = Path("forgetfree-demo")
"""Where the demo keeps its runs and its page."""

console = PlainConsole()
errors = PlainConsole(stderr=True)

Root = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of data sets; else $FORGETFREE_DATA, else a cache folder.")
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="For archives that cannot build their backbone: a function of your code that does, as package.module:make."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="package.module",
        help="A module with methods, benchmarks, backbones or experiments of your own; may be given several times.",
    ),
]
Experiment = Annotated[
    str,
    typer.Argument(
        help="As `forgetfree list` names it, or a file of your own that ends in .toml.",
        autocompletion=completion.experiments,
    ),
]
Scale = Annotated[
    str,
    typer.Option(help="smoke (seconds), cpu (minutes) or paper (as published).", autocompletion=completion.scales),
]


def main() -> None:
    """The console script. A letter that a terminal does not have is shown as a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


def command(
    *, example: str, on: typer.Typer = app, name: str | None = None, kept: Callable[..., str] = lambda **_: ""
) -> Callable[[Any], Any]:
    """A subcommand whose help ends with an example and whose errors are one sentence, with exit code 2.

    Every command takes --plugin, as `forgetfree` before it does. `kept` says what is left when it is interrupted, by
    what it was called with.
    """

    def register(function: Any) -> Any:
        @wraps(function)
        def call(context: typer.Context, plugin: list[str] | None = None, **arguments: Any) -> None:
            try:
                _plug_in([*(context.find_root().params.get("plugin") or []), *(plugin or [])])
                function(**arguments)
            except ForgetfreeError as error:
                _complain(error)
                raise typer.Exit(2) from error
            except KeyboardInterrupt as error:
                errors.print(f"interrupted. {kept(**arguments)}".strip(), highlight=False, soft_wrap=True)
                raise typer.Exit(130) from error

        also = {"context": (typer.Context, signatures.Parameter.empty), "plugin": (Plugins, None)}
        taken = signatures.signature(function)
        parameters = [
            signatures.Parameter(key, signatures.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for key, (kind, default) in also.items()
        ]
        keywords = [each.replace(kind=each.KEYWORD_ONLY) for each in taken.parameters.values()]
        vars(call)["__signature__"] = taken.replace(parameters=[*keywords, *parameters])
        call.__annotations__ = {**function.__annotations__, **{key: kind for key, (kind, _) in also.items()}}
        shown = "\n".join(f"[bold]{escape(line)}[/bold]" for line in example.splitlines())
        on.command(name, cls=Command, epilog=f"Example:\n{shown}")(call)
        return function

    return register


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more of what happens.")] = False,
    plugin: Plugins = None,
) -> None:
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)])
    if version:
        console.print(f"forgetfree {__version__}", highlight=False)
        raise typer.Exit


def _learned(out: Path, also: str = "") -> str:
    if not out.is_dir():
        return "Nothing was learned yet."
    return f"What was learned so far is in {out}. The same command{also} goes on."


def _to_resume(*paths: Path) -> str:
    return f", or {shlex.join(['forgetfree', 'resume', *map(str, paths)])},"


@command(example="forgetfree demo", kept=lambda out, **_: _learned(out))
def demo(
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the run folders and of the page, report.html.")] = DEMO,
) -> None:
    """Ten tasks, four methods, about a minute: see what forgetting is, and that WSN does not forget."""
    from forgetfree.lab.demo import demo

    words = [*(["--seed", str(seed)] if seed else []), *([] if out == DEMO else ["--out", str(out)])]
    demo(console, out, seed=seed, made_by=shlex.join(["forgetfree", "demo", *words]))


@command(example="forgetfree list", name="list")
def list_(as_json: AsJson = False) -> None:
    """What there is: experiments, methods, benchmarks, backbones; ours and those of plug-ins."""
    from forgetfree.lab.experiment.plugins import TABLES
    from forgetfree.registry import MethodEntry

    kinds = {kind: TABLES[kind].entries for kind in ("experiments", "methods", "benchmarks", "backbones")}
    methods = {name: each for name, each in kinds["methods"].items() if isinstance(each, MethodEntry)}
    badges = {name: each.badge for name, each in methods.items()}
    labels = {name: each.label or name for name, each in methods.items()}
    if as_json:
        titles = {kind: {name: each.title for name, each in entries.items()} for kind, entries in kinds.items()}
        sources = {kind: {name: each.source for name, each in entries.items()} for kind, entries in kinds.items()}
        told = {**titles, "labels": labels, "badges": badges, "sources": sources}
        _print_json(told)
        return
    for kind, entries in kinds.items():
        table = Table(title=kind, title_justify="left", show_header=False, box=None, pad_edge=False)
        for name, entry in entries.items():
            source = "" if entry.source == "forgetfree" else f" (from {entry.source})"
            of_method = [Text(shown(labels[name])), Text(badges[name], "dim")] if kind == "methods" else []
            table.add_row(bold(name), *of_method, Text.assemble(shown(entry.title), (shown(source), "dim")))
        console.print(table, "")


@command(example="forgetfree show til/permuted_mnist")
def show(
    experiment: Experiment,
    method: Annotated[
        str | None,
        typer.Option(help="Show the resolved settings of this method.", autocompletion=completion.methods),
    ] = None,
    scale: Scale = "cpu",
    as_json: AsJson = False,
) -> None:
    """An experiment: its file as it is, or with --method or --json the settings it resolves to."""
    from forgetfree.lab.experiment import describe

    if method is None and not as_json:
        sys.stdout.write(describe(experiment))
        return
    from forgetfree.lab.experiment import plan

    (resolved,) = plan(experiment, methods=[method] if method else [], scale=scale)
    if as_json:
        _print_json(resolved.as_toml())
    else:
        import tomli_w

        sys.stdout.write(tomli_w.dumps(resolved.as_toml()))


@command(
    example="forgetfree run til/digits_split --scale smoke\n"
    "forgetfree run til/digits_split --method wsn --method finetune \\\n--set wsn.capacity=0.05,0.3 --scale smoke",
    kept=lambda out, **_: _learned(out, _to_resume(out)),
)
def run(
    experiment: Experiment,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="May be given several times; default: the first that the experiment names.",
            autocompletion=completion.methods,
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting, as in recipe.epochs=3; several values mean a run with each, as in capacity=0.05,0.3. Of "
            "several methods one alone: wsn.capacity=0.05,0.3. What there is to set: forgetfree show EXPERIMENT "
            "--method NAME. May be given several times.",
            autocompletion=completion.settings,
        ),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="NUMBER", help="May be given several times; default: 0.")
    ] = None,
    scale: Scale = "cpu",
    out: Annotated[Path, typer.Option(help="Folder of run folders.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Runs at a time, each in its own process.")] = 1,
    threads: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="Threads of each run; part of what makes it repeatable.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it would cost; run nothing.")
    ] = False,
    data_root: Root = None,
) -> None:
    """Run an experiment. What is finished is not run again; what was interrupted goes on."""
    from forgetfree.lab.experiment import parse_overrides, plan
    from forgetfree.lab.running import cost_table, perform_all
    from forgetfree.lab.together import joined
    from forgetfree.training.team import team

    plans = plan(
        experiment, methods=method or [], scale=scale, seeds=seed or [0], overrides=parse_overrides(sets or []),
        threads=threads,
    )  # fmt: skip
    if dry_run:
        console.print(cost_table(plans, out, data_root, jobs))
        return
    with joined(jobs):
        ours = console if team().leads else PlainConsole(quiet=True)
        folders = perform_all(plans, out, ours, jobs=jobs, data_root=data_root)
        if team().leads:
            _finish(folders, out)


@command(
    example="forgetfree resume runs", kept=lambda **_: "What was learned so far is kept. The same command goes on."
)
def resume(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or any folder above them.")],
    jobs: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Runs at a time, each in its own process.")] = 1,
    data_root: Root = None,
) -> None:
    """Go on with every run that is not finished."""
    from forgetfree.lab.experiment import Plan
    from forgetfree.lab.running import perform_all

    open_ones = [folder for folder in _runs(runs, to_run=True) if not folder.finished]
    if not open_ones:
        console.print("Everything is finished.")
        return
    for folder in open_ones:
        plan = Plan.from_toml(folder.plan())
        out = folder.path.parents[1]
        if (out / plan.folder).resolve() != folder.path.resolve():
            raise ForgetfreeError(
                f"{folder.path} was renamed or moved: its run.toml says {plan.folder}. Move it back to go on."
            )
    by_out: dict[Path, list[Any]] = {}
    for folder in open_ones:
        by_out.setdefault(folder.path.parents[1], []).append(Plan.from_toml(folder.plan()))
    for out, plans in by_out.items():
        _finish(perform_all(plans, out, console, jobs=jobs, data_root=data_root, named=True), out)


@command(example="forgetfree analyse runs", kept=lambda **_: "What was made is kept. The same command makes the rest.")
def analyse(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or any folder above them.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Some only, of {', '.join(completion.ANALYSES)}; may be given several times.",
            autocompletion=completion.analyses,
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Make those that are there anew.")] = False,
    data_root: Root = None,
) -> None:
    """Compute from archives what figures need beyond records; what is there is left alone."""
    from forgetfree.lab.analysing import analyse_all
    from forgetfree.lab.report.tables import finished

    made = analyse_all(finished(_runs(runs)), console, only=only or [], again=again, data_root=data_root)
    draw = shlex.join(["forgetfree", "report", *map(str, runs), "--figure", "all"])
    console.print(f"{len(made)} analyses made. Figures: {draw}", highlight=False, soft_wrap=True)


@command(
    example="forgetfree report runs\n"
    "forgetfree report runs --method wsn --column acc --column bwt\n"
    "forgetfree report runs --html report.html"
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or any folder above them.")],
    to: Annotated[Path | None, typer.Option(help="Folder for the files; default: the first RUNS.")] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="A table of the paper (1, 2 or 3), or of few-shot sessions (cifar100, mini_imagenet, cub200, omniglot "
            "or digits): its numbers and ours, in its layout. Or: sessions, where few-shot runs end; transfer, forward "
            "transfer in all its readings.",
            autocompletion=completion.tables,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Of cifar100, mini_imagenet and cub200: topic, drawn_shots or random; default: that of the runs, "
            "topic if they have several.",
        ),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            help="A figure by name, as SVG and PNG, for each benchmark among the runs; all: every one. There are "
            f"{', '.join(completion.FIGURES)}.",
            autocompletion=completion.figures,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="One page with everything: summary, tables, figures, every run.")
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="All figures as a Markdown page, the pictures beside it.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only runs of this method, and of a table its published rows; may be given several times.",
            autocompletion=completion.methods,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Of a table this column, by its heading or as the CSV file calls it; may be given several times, and "
            "columns stand in that order.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page of --html.")] = False,
) -> None:
    """Tables, figures and a page from finished runs.

    Without options it prints the table of all runs. Every table is also written as Markdown and LaTeX (booktabs).
    """
    from forgetfree.lab.report import choosing, contents, publishing

    kinds = {"--table": table, "--figure": figure, "--html": html, "--gallery": gallery}
    asked = [kind for kind, value in kinds.items() if value is not None]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} are asked for one at a time.")
    if show and html is None:
        raise InputError("--open opens the page of --html: say where it is to be written.")
    if to and (html or gallery):
        raise InputError(f"{asked[0]} is itself where to write, so leave --to out.")
    if column and any((figure, html, gallery)):
        raise InputError(f"--column chooses from a table, so leave it out with {asked[0]}.")
    contents.check_name(table, split)
    methods, target = method or [], to or runs[0]
    folders = _runs(runs)
    wanted = choosing.of_methods(folders, methods, published=contents.quoted(table))
    chosen = [word for name in methods for word in ("--method", name)]
    command = shlex.join(["forgetfree", "report", *map(str, runs), *chosen])
    if figure is not None:
        written = publishing.write_figures(figure, wanted, target, console)
    elif html is not None:
        written = publishing.write_page(wanted, html, command, made_by=f"{command} --html {shlex.quote(str(html))}")
    elif gallery is not None:
        written = publishing.write_gallery(wanted, gallery, command)
    else:
        written = publishing.write_table(table, split, folders, target, console, methods=methods, columns=column or [])
    waiting = [folder for folder in folders if not folder.finished]
    if waiting:
        go_on = shlex.join(["forgetfree", "resume", *map(str, runs)])
        console.print(f"{len(waiting)} of {len(folders)} runs are not finished: {go_on}", soft_wrap=True)
    for path in written:
        console.print(f"Written: {path}", highlight=False, soft_wrap=True)
    if show and html is not None:
        typer.launch(str(html.resolve()))


@command(example="forgetfree watch runs")
def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or any folder above them.")],
    once: Annotated[bool, typer.Option("--once", help="Show how things stand, and end.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write what is seen for TensorBoard, into this folder.")
    ] = None,
) -> None:
    """Follow runs while they go: progress, accuracy so far, time left."""
    from forgetfree.lab.watching import watch

    watch(runs, console, once=once, tensorboard=tensorboard)


@command(example="forgetfree inspect memory.ticket")
def inspect(
    file: Annotated[Path, typer.Argument(help="An archive: forgetfree.save writes one, and a run its memory.ticket.")],
    as_json: AsJson = False,
) -> None:
    """What is in an archive: tasks, classes, weights new and reused, bytes of every part."""
    from forgetfree import archive
    from forgetfree.lab.report.archives import as_plain, as_tables

    found = archive.inspect(file)
    if as_json:
        _print_json(as_plain(found))
    else:
        console.print(*as_tables(found), sep="\n")


@command(example="forgetfree verify memory.ticket")
def verify(
    file: Annotated[Path, typer.Argument(help="An archive.")],
    backbone: Backbone = None,
    as_json: AsJson = False,
) -> None:
    """Put every task beside its certificate; exit code 0 if all hold, 1 if one does not, 2 if none can be checked."""
    from forgetfree import archive
    from forgetfree.lab.report.archives import verified, verified_table

    found = archive.verify(file, _backbone(backbone))
    if as_json:
        _print_json(verified(found))
    else:
        console.print(verified_table(found))
    if not found.ok:
        raise typer.Exit(1)


@command(example="forgetfree remove memory.ticket --task 'digits_split 4' --to smaller.ticket")
def remove(
    file: Annotated[Path, typer.Argument(help="An archive.")],
    task: Annotated[str, typer.Option(help="The task to forget.")],
    to: Annotated[Path | None, typer.Option(help="Write here.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Write over FILE.")] = False,
    backbone: Backbone = None,
) -> None:
    """Forget a task: nothing that only it used is in the archive that is written; all others keep their bits."""
    from forgetfree import archive

    if (to is not None) == in_place:
        raise InputError("where does the archive without the task go? Pass either --to FILE or --in-place.")
    before = archive.inspect(file)
    learner = archive.load(file, _backbone(backbone))
    learner.remove(task)
    rounded = before.rounded["dtype"] if before.rounded else None
    nbytes = archive.save(learner, to or file, resumable=before.resumable, dtype=rounded)
    console.print(
        f"{to or file}: {len(before.tasks) - 1} tasks, {nbytes:,} bytes ({before.nbytes:,} before).", highlight=False
    )


@command(example="forgetfree export memory.ticket --task 'digits_split 1' --to model.pt2")
def export(
    file: Annotated[Path, typer.Argument(help="An archive.")],
    task: Annotated[str, typer.Option(help="The task to export.")],
    to: Annotated[Path, typer.Option(help="A file ending in .onnx or .pt2.")],
    backbone: Backbone = None,
) -> None:
    """One task as a model of its own, for onnxruntime or torch.export; compared with the archive before it is done."""
    from forgetfree import archive
    from forgetfree.exporting import export as write

    made = write(archive.load(file, _backbone(backbone)), task, to)
    console.print(
        f"{made.path}: {made.bytes:,} bytes, answers at most {made.difference:.1e} apart (relative), in batches of "
        f"{', '.join(map(str, made.batch_sizes))}.",
        highlight=False,
    )


@command(example="forgetfree data list", on=data_app, name="list")
def data_list(as_json: AsJson = False, data_root: Root = None) -> None:
    """The data sets, their size and licence, and which of their files are here."""
    from forgetfree.lab.benchmarks.sources import SOURCES
    from forgetfree.lab.benchmarks.sources import data_root as root_of

    root = root_of(data_root)
    entries: list[dict[str, Any]] = [
        {
            "name": name,
            "title": source.title,
            "megabytes": round(source.size / 1e6, 1),
            "here": sum((root / name / file).is_file() for file in source.files),
            "files": len(source.files),
            "licence": source.licence,
        }
        for name, source in SOURCES.items()
    ]
    if as_json:
        _print_json({"root": str(root), "sources": entries})
        return
    table = Table(caption=f"data root: {root}")
    for heading in ("name", "what", "size", "files here", "licence"):
        table.add_column(heading)
    for entry in entries:
        here = f"{entry['here']} of {entry['files']}"
        table.add_row(entry["name"], entry["title"], f"{entry['megabytes']} MB", here, entry["licence"])
    console.print(table)


@command(example="forgetfree data fetch mnist", on=data_app, name="fetch")
def data_fetch(
    names: Annotated[list[str] | None, typer.Argument(help="Which data sets; default: all.")] = None,
    data_root: Root = None,
) -> None:
    """Download the original files, checked by digest; what is here already is left alone."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from forgetfree.lab.benchmarks.sources import SOURCES, fetch

    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bars:
        shown: dict[str, Any] = {}

        def advance(file: str, so_far: int, total: int) -> None:
            if file not in shown:
                shown[file] = bars.add_task(file, total=total)
            bars.update(shown[file], completed=so_far)

        for name in names or list(SOURCES):
            files = fetch(name, data_root, advance)
            console.print(f"{name}: complete, {next(iter(files.values())).parent}", highlight=False)


@command(example="forgetfree data check mnist", on=data_app, name="check")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(help="Which data sets; default: all.")] = None,
    as_json: AsJson = False,
    data_root: Root = None,
) -> None:
    """Compute every digest anew and compare; exit code 1 if anything is missing or not the original."""
    from forgetfree.lab.benchmarks.sources import SOURCES, check

    found = {name: check(name, data_root) for name in names or list(SOURCES)}
    if as_json:
        plain = {name: {status.name: status.state for status in files} for name, files in found.items()}
        _print_json(plain)
    else:
        table = Table()
        for heading in ("data set", "file", "state", "place"):
            table.add_column(heading)
        for name, files in found.items():
            for status in files:
                rows = f" ({status.rows} samples)" if status.rows is not None else ""
                table.add_row(name, status.name, status.state + rows, str(status.path.parent))
        console.print(table)
    if any(status.state != "ok" for files in found.values() for status in files):
        raise typer.Exit(1)


def _print_json(told: Any) -> None:
    """For machines: what the terminal has no letters for is written by number."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(json.dumps(told, indent=1, ensure_ascii=not unicode) + "\n")


def _finish(folders: list[Path], out: Path) -> None:
    from forgetfree.lab.records import RunFolder
    from forgetfree.lab.report.tables import as_tables, rows

    console.print(*as_tables(rows([RunFolder(folder) for folder in folders]), console.width), sep="\n")
    console.print(f"Run folders: {out}", highlight=False)


def _backbone(place: str | None) -> Any:
    """What the function at `package.module:name` gives; imported because the user said so, never because a file did."""
    if place is None:
        return None
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(place)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"--backbone {place}: {error}. It names a function, as in package.module:make.") from error


def _plug_in(places: list[str]) -> None:
    """Load modules that the user names."""
    if places:
        from forgetfree.lab.experiment.plugins import load_plugins

        load_plugins(places)


def _runs(paths: list[Path], *, to_run: bool = False) -> list[Any]:
    """Run folders, with the plug-ins they were run with loaded.

    Whoever only looks at runs does not import a module of the current folder because a file says so, and can do
    without; what is `to_run` needs them.
    """
    from forgetfree.lab.experiment.plugins import load_plugins
    from forgetfree.lab.records import find_runs, readable

    folders = find_runs(paths)
    if not to_run:
        folders, unreadable = readable(folders)
        for why in unreadable:
            _complain(FileError(f"{why} The run is left out."))
        if not folders:
            raise FileError(f"no run at or below {', '.join(map(str, paths))} can be read.")
    for place in sorted({place for folder in folders for place in folder.plugins}):
        try:
            load_plugins([place], here=to_run)
        except PluginError as error:
            if to_run:
                raise
            logging.getLogger(__name__).warning("%s To see its runs with what it says of them, name it here.", error)
    return folders


def _complain(error: ForgetfreeError) -> None:
    said = str(error).replace("load(path, backbone)", "--backbone package.module:make")
    message = Text.assemble(("forgetfree:", "red"), f" {shown(said)}")
    errors.print(message, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
