"""Summary: what finished runs found, in words. Did anything forget, how big is it, who wins, and on what it rests."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forgetfree.lab import chance, legend
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import Run, accuracy, coded, dense_weights
from forgetfree.lab.report.drawing import Group
from forgetfree.lab.report.figures.figure import Series, series
from forgetfree.lab.report.published import title


@dataclass(frozen=True)
class Answer:
    """A question that a reader has, and what the runs say: sentences, then one of its own for each group."""

    question: str
    sentences: tuple[str, ...] = ()
    by_group: tuple[tuple[str, str], ...] = ()
    """(title of the group, sentences)."""


@dataclass(frozen=True)
class Number:
    """A number to be seen first, and what it counts."""

    text: str
    counts: str


@dataclass(frozen=True)
class _Counted:
    """How many earlier answers were asked again, and how many were other ones."""

    runs: Sequence[Run]

    @property
    def compared(self) -> int:
        return sum(run.record.compared for run in self.runs)

    @property
    def different(self) -> int:
        return sum(run.record.different for run in self.runs)

    @property
    def names(self) -> str:
        return ", ".join(dict.fromkeys(title(run.method) for run in self.runs))


def answers(groups: Sequence[Group], folders: Sequence[RunFolder]) -> list[Answer]:
    """Every question with its answer; `folders` are all that were named, also those that are not finished."""
    return [
        Answer("Did anything forget?", (*_forgotten(groups), *_archived(groups))),
        Answer("How big is it?", (SIZES,), _for_each(groups, _size)),
        Answer("Who wins?", (RANKS,), _for_each(groups, _winner)),
        Answer("What does this rest on?", tuple(_basis(groups, folders))),
    ]


def first_numbers(groups: Sequence[Group]) -> list[Number]:
    """A few numbers to be seen first."""
    safe, runs = _Counted(_forget_free(_own(groups))), _own(groups)
    stored = [run.record.archive for run in runs if run.record.archive]
    return [
        Number(f"{len(runs):,}", f"finished {_plural(len(runs), 'run')} in {_count(len(groups), 'comparison')}"),
        *(
            [Number(f"{safe.different:,}", f"of {safe.compared:,} earlier answers changed, by forget-free methods")]
            if safe.compared
            else []
        ),
        *(
            [
                Number(
                    f"{sum(bool(entry['verified']) for entry in stored):,}",
                    f"of {_count(len(stored), 'archive')} read back and verified",
                )
            ]
            if stored
            else []
        ),
    ]


def _forgotten(groups: Sequence[Group]) -> Iterable[str]:
    runs = _own(groups)
    measured = [run for run in runs if run.record.compared]
    safe = _Counted(_forget_free(measured))
    others = _Counted([run for run in measured if run not in safe.runs])
    if safe.compared:
        asked = f"{_count(len(safe.runs), 'run')} ({safe.names}) gave {safe.compared:,} earlier answers again"
        yield (
            f"Forget-free methods did not: {asked} after later tasks, and each was the same bit for bit."
            if not safe.different
            else f"Forget-free methods did, which they must not: {asked}, and {safe.different:,} of them "
            f"({_share(safe.different, safe.compared)}) were other ones."
        )
    if others.compared:
        kept = _Counted([run for run in others.runs if run.method in _unchanged(others.runs)])
        spared = f", none of them of {kept.names}" if kept.runs and others.different else ""
        yield (
            f"Other methods ({others.names}) promise nothing: {others.different:,} of {others.compared:,} earlier "
            f"answers ({_share(others.different, others.compared)}) changed{spared}."
        )
    silent = len(runs) - len(measured)
    if silent:
        yield (
            f"{_count(silent, 'run')} had no earlier answers to compare: few-shot sessions answer with one head that "
            "grows, and methods that learn all tasks at once have none."
        )


def _archived(groups: Sequence[Group]) -> Iterable[str]:
    runs = _own(groups)
    stored = [run for run in runs if run.record.archive]
    if not stored:
        yield "No run wrote an archive, so nothing is known of one."
        return
    failed = [run.folder.path.name for run in stored if not run.record.archive["verified"]]
    compared = sum(run.record.archive["compared"] for run in stored)
    different = sum(run.record.archive["different"] for run in stored)
    checked = (
        "all of them passed" if not failed else f"{_count(len(failed), 'archive')} did not pass: {', '.join(failed)}"
    )
    again = f" Of {compared:,} answers given by what was read, {different:,} differ." if compared else ""
    yield (
        f"{_count(len(stored), 'run')} wrote an archive, read it back and verified every task of it; {checked}.{again}"
    )
    if len(stored) < len(runs):
        yield f"{_count(len(runs) - len(stored), 'run')} wrote none."


SIZES = (
    "CAP is what the paper's formula charges for weights and masks; the archive is the file that was really written, "
    "heads included. Both where one dense float32 network is 100 %."
)


def _size(group: Group) -> str:
    found = series(group.runs)
    safe = [one for one in found if legend.entry(one.method).forget_free and not legend.entry(one.method).upper_bound]
    among, kind = (safe, "forget-free method") if safe else (found, "method")
    smallest = min(among, key=_memory)
    best = max(among, key=_accuracy)
    weights = round(dense_weights(group.runs[0].record.footprints[-1]))
    sentences = [f"One dense network has {weights:,} weights. Smallest {kind}: {_sized(smallest)}."]
    if best is not smallest:
        sentences.append(f"Most accurate {kind}: {_sized(best)}.")
    largest = max(found, key=_memory)
    if largest not in (smallest, best):
        sentences.append(f"Largest of all: {_sized(largest)}.")
    return " ".join(sentences)


def _sized(one: Series) -> str:
    written = _mean_of(one, lambda run: run.record.footprints[-1].get("written"))
    stored = _mean_of(one, lambda run: run.record.archive.get("bytes"))
    archive = "no archive" if written is None or stored is None else f"archive {_percent(written)} ({_bytes(stored)})"
    return f"{one.label}, CAP {_percent(_mean(one, coded))}, {archive}, accuracy {_percent(_accuracy(one))}"


RANKS = (
    "Each benchmark, backbone and scale by itself: the best setting of the best method against the best setting of any "
    "other. A gap counts where it is larger than both deviations over seeds."
)


def _winner(group: Group) -> str:
    found = series(group.runs)
    competing = [one for one in found if not legend.entry(one.method).upper_bound]
    references = [one for one in found if legend.entry(one.method).upper_bound]
    best = max(competing or found, key=_accuracy)
    rivals = [one for one in competing if one.method != best.method]
    sentences = [f"{best.label} is the most accurate with {_reached(best)} over {_count(len(best.runs), 'run')}"]
    if rivals:
        sentences[0] += f", then {_against(best, max(rivals, key=_accuracy))}."
    else:
        sentences[0] += "; there is no other method to compare it with."
    if competing and references:
        sentences.append("For reference: " + ", ".join(f"{one.label} {_reached(one)}" for one in references) + ".")
    return " ".join(sentences)


def _against(best: Series, rival: Series) -> str:
    gap = 100 * (_accuracy(best) - _accuracy(rival))
    spreads = [_deviation(best), _deviation(rival)]
    text = f"{rival.label} with {_reached(rival)}. The gap of {gap:.2f} points"
    known = [100 * spread for spread in spreads if spread is not None]
    if len(known) < len(spreads):
        return f"{text} cannot be judged: a deviation needs more than one seed"
    if gap > max(known):
        return f"{text} exceeds the deviation over seeds"
    return f"{text} does not exceed the deviation over seeds, so neither is ahead"


def _basis(groups: Sequence[Group], folders: Sequence[RunFolder]) -> Iterable[str]:
    runs = _own(groups)
    counts = [len(one.runs) for group in groups for one in series(group.runs)]
    seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    scales: dict[str, int] = {}
    for run in runs:
        scales[run.plan["run"]["scale"]] = scales.get(run.plan["run"]["scale"], 0) + 1
    listed = ", ".join(f"{scale} ({_count(number, 'run')})" for scale, number in sorted(scales.items()))
    benchmarks = len({group.experiment for group in groups})
    yield (
        f"On {_count(len(runs), 'finished run')} of {_count(benchmarks, 'benchmark')}, "
        f"with {seeds} {'repetition' if max(counts) == 1 else 'repetitions'} of a setting (seeds, and for few shots "
        f"draws). Scales: {listed}."
    )
    if set(scales) - {"paper"}:
        yield "A scale other than paper is no rerun of the paper: published numbers beside it are for orientation only."
    if 1 in counts:
        yield f"{_count(counts.count(1), 'setting')} ran once, so nothing is known of chance there."
    stuck = [run for run in runs if chance.NOTE in run.record.notes]
    if stuck:
        methods = ", ".join(dict.fromkeys(title(run.method) for run in stuck))
        yield (
            f"In {_count(len(stuck), 'run')} of {methods} the training loss of some tasks never left that of guessing "
            "(†; which tasks, the notes say). Their accuracy shows a training that failed, not what the method can do."
        )
    waiting = sum(not folder.finished for folder in folders)
    if waiting:
        yield f"{_count(waiting, 'run')} not finished, and in no number here."


def _own(groups: Sequence[Group]) -> list[Run]:
    """Every run once, as the method that it was run with."""
    return [run for group in groups for run in group.runs if run.method == run.plan["run"]["method"]]


def _forget_free(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if legend.entry(run.method).forget_free]


def _unchanged(runs: Sequence[Run]) -> set[str]:
    return {run.method for run in runs} - {run.method for run in runs if run.record.different}


def _for_each(groups: Sequence[Group], sentence: Callable[[Group], str]) -> tuple[tuple[str, str], ...]:
    return tuple((group.title, sentence(group)) for group in groups)


def _memory(one: Series) -> float:
    """Of an archive where there is one, else by the formula."""
    written = _mean_of(one, lambda run: run.record.footprints[-1].get("written"))
    return _mean(one, coded) if written is None else written


def _accuracy(one: Series) -> float:
    return _mean(one, accuracy)


def _deviation(one: Series) -> float | None:
    return statistics.stdev(map(accuracy, one.runs)) if len(one.runs) > 1 else None


def _reached(one: Series) -> str:
    deviation = _deviation(one)
    return f"{100 * _accuracy(one):.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}") + " %"


def _mean(one: Series, value: Callable[[Run], float]) -> float:
    return statistics.mean(value(run) for run in one.runs)


def _mean_of(one: Series, value: Callable[[Run], float | None]) -> float | None:
    """The mean, if every run has a value."""
    known = [found for run in one.runs if (found := value(run)) is not None]
    return statistics.mean(known) if len(known) == len(one.runs) else None


def _share(part: int, whole: int) -> str:
    return "none" if not part else f"{max(100 * part / whole, 0.01):.2f} %"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _count(number: int, word: str) -> str:
    return f"{number:,} {_plural(number, word)}"


def _plural(number: int, word: str) -> str:
    return word if number == 1 else f"{word}s"
