"""Few-shot methods session by session (Figure 11 of the paper): overall accuracy, each method at its best capacity."""

from collections.abc import Sequence
from dataclasses import dataclass

from forgetfree.lab.paper import SUGGESTED_FSCIL, options
from forgetfree.lab.report.columns import accuracy
from forgetfree.lab.report.figures.comparison import (
    at_best,
    command,
    counted,
    in_legend,
    of_sessions,
    over_sessions,
)
from forgetfree.lab.report.figures.figure import Drawing, Missing, Run, Series, series
from forgetfree.lab.report.figures.ink import canvas, method_styles

TITLE = "Few-shot methods over sessions"


@dataclass(frozen=True)
class Line:
    """A method: overall accuracy after each session that was measured."""

    label: str
    method: str
    session: tuple[int, ...]
    """Counted from one; those that are not here were not measured."""
    accuracy: tuple[float, ...]
    spread: tuple[float, ...]
    """Its deviation over runs."""
    whole: bool
    """Whether every session was measured; methods that learn all sessions at once have no more than the ends."""


def measure(runs: Sequence[Run]) -> tuple[Line, ...]:
    """Each method at the capacity that reaches most at the end."""
    methods = at_best(series(of_sessions(runs)), accuracy)
    if len(methods) < 2:
        ask = command(runs[0], options(SUGGESTED_FSCIL))
        raise Missing(f"there is only {methods[0].label} to compare; make others with: {ask}")
    return tuple(map(_line, methods))


def _line(one: Series) -> Line:
    found = over_sessions(one, "overall")
    points = [(t + 1, *entry) for t, entry in enumerate(found) if entry is not None]
    session, reached, spread = zip(*points, strict=True)
    return Line(one.label, one.method, session, reached, spread, len(points) == len(found))


def draw(lines: tuple[Line, ...]) -> Drawing:
    drawing, (axes,) = canvas(width=7.2)
    for line, style in zip(lines, method_styles([line.method for line in lines]), strict=True):
        look = style | ({} if line.whole else {"linestyle": "none", "markersize": 7.0})
        reached, spread = ([100 * value for value in values] for values in (line.accuracy, line.spread))
        axes.plot(line.session, reached, label=in_legend(line.label), **look)
        if any(spread):
            axes.errorbar(
                line.session, reached, yerr=spread, fmt="none", ecolor=look["color"], elinewidth=0.8, capsize=2
            )
    counted(axes, max(line.session[-1] for line in lines))
    axes.set_xlabel("session")
    axes.set_ylabel("accuracy on all classes met, %")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawing


def words(lines: tuple[Line, ...]) -> str:
    steps = [line for line in lines if line.whole]
    apart = [line.label for line in lines if not line.whole]
    best = max(steps or lines, key=lambda line: line.accuracy[-1])
    text = (
        f"Overall accuracy over sessions for {len(lines)} methods and settings, each at the capacity that reaches "
        f"most; bars: deviation over runs. The highest that learns session by session is {best.label}: "
        f"{100 * best.accuracy[0]:.1f} % first, {100 * best.accuracy[-1]:.1f} % at the end."
    )
    return text + (f" Markers alone: {', '.join(apart)}, not measured after every session." if apart else "")
