"""Drawing: the figures that finished runs allow, for each benchmark and scale by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib import rc_context

from forgetfree.errors import ForgetfreeError, InputError
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import Run, stream, views
from forgetfree.lab.report.figures import FIGURES
from forgetfree.lab.report.figures.figure import SHARED_BY_GROUP, Drawing, Missing
from forgetfree.lab.report.figures.ink import STYLE
from forgetfree.lab.report.tables import finished


@dataclass(frozen=True)
class Group:
    """Finished runs that may stand in one figure: of one benchmark, backbone and scale."""

    experiment: str
    scale: str
    details: str
    """What sets it apart from others of this experiment and scale: the split of few-shot classes, and the like."""
    runs: Sequence[Run]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, [self.experiment, self.details, f"scale {self.scale}"]))

    @property
    def slug(self) -> str:
        """The title as part of a file name."""
        parts = filter(None, [self.experiment.replace("/", "-"), self.details, self.scale])
        return "-".join(parts).replace(" ", "_").replace("/", "_")


@dataclass(frozen=True)
class Drawn:
    """A figure of one group."""

    name: str
    group: Group
    title: str
    arrays: Any
    drawing: Drawing
    words: str

    @property
    def file(self) -> str:
        """What its files are called, without an ending."""
        return f"{self.name}-{self.group.slug}"


def groups(folders: Sequence[RunFolder]) -> list[Group]:
    """Finished runs by what must be alike for a figure to compare them."""
    found: dict[tuple[str, str, str, str], list[Run]] = {}
    for folder in finished(folders):
        for run in views(folder):
            plan = run.plan
            details = {
                key: value for key, value in plan.get("overrides", {}).items() if key.startswith(SHARED_BY_GROUP)
            }
            details.pop("benchmark.draw", None)
            words = " ".join(f"{key.partition('.')[2]}={value}" for key, value in sorted(details.items()))
            alike = repr((sorted(stream(run).items()), sorted(plan["backbone"].items())))
            found.setdefault((plan["run"]["experiment"], plan["run"]["scale"], words, alike), []).append(run)
    made: list[Group] = []
    for (experiment, scale, words, _), runs in found.items():
        known = {group.slug for group in made}
        group = Group(experiment, scale, words, runs)
        while group.slug in known:  # alike in words, such as runs of another version of the catalog
            group = replace(group, details=f"{group.details} again".strip())
        made.append(group)
    return made


def drawn(name: str, group: Group) -> Drawn:
    """One figure of one group; Missing where its runs do not have what it needs."""
    figure = FIGURES[name]
    try:
        arrays = figure.measure(group.runs)
        with rc_context(STYLE):
            return Drawn(name, group, figure.TITLE, arrays, figure.draw(arrays), figure.words(arrays))
    except ForgetfreeError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # analyses have many forms: what one of them should have had shows here
        folders = ", ".join(str(run.folder.path) for run in group.runs)
        raise Missing(
            f"what is stored cannot be drawn ({type(error).__name__}: {error}). Make the analyses anew: forgetfree "
            f"analyse --again {folders}"
        ) from error


def figures(name: str, folders: Sequence[RunFolder]) -> list[Drawn]:
    """A figure for every group that allows it; an error that says what is missing where none does."""
    if name not in FIGURES:
        raise InputError(f"there is no figure {name!r}. There are: {', '.join(FIGURES)}.")
    made, missing = [], []
    for group in groups(folders):
        try:
            made.append(drawn(name, group))
        except Missing as error:
            missing.append(f"{group.title}: {error}")
    if not made:
        raise InputError(f"figure {name} cannot be drawn from these runs.\n" + "\n".join(f"  {why}" for why in missing))
    return made


def allowed(group: Group) -> Iterator[Drawn]:
    """Every figure that the runs of a group allow."""
    for name in FIGURES:
        try:
            yield drawn(name, group)
        except Missing:
            continue
