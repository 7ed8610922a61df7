"""Running plans: one after another in this process, or several at a time, each in a process of its own."""

import concurrent.futures
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from forgetfree.errors import ForgetfreeError
from forgetfree.lab.display import Display
from forgetfree.lab.experiment import Plan, estimate, load_plugins, perform
from forgetfree.lab.following import Followed
from forgetfree.lab.records import RunFolder
from forgetfree.training.team import team


def perform_all(
    plans: list[Plan],
    out: Path,
    console: Console,
    *,
    jobs: int = 1,
    data_root: Path | None = None,
    named: bool = False,
) -> list[Path]:
    """Run every plan; the run folders, in order. What is finished already is said and left alone.

    A run that fails does not stop the others: what was wrong with which is said at the end; `named` says which even
    where it was all of them.
    """
    folders = [out / plan.folder for plan in plans]
    waiting = []
    finished = team().content(lambda: bytes(RunFolder(folder).finished for folder in folders)) or b""
    for plan, folder, done in zip(plans, folders, finished, strict=True):
        if done:
            perform(plan, out)  # checks that the folder is of this very plan
            console.print(f"finished already: {folder}", highlight=False)
        else:
            waiting.append(plan)
    failed: dict[Path, ForgetfreeError] = {}
    if jobs == 1 or len(waiting) <= 1:
        with Display(console) as display:
            for plan in waiting:
                display.start(plan.folder.name)
                try:
                    perform(plan, out, data_root=data_root, progress=display.step, say=display.say)
                except ForgetfreeError as error:
                    failed[out / plan.folder] = error
    else:
        failed = _in_processes(waiting, out, console, jobs, data_root)
    if failed:
        raise _as_one(failed, len(waiting), named)
    return folders


def _as_one(failed: Mapping[Path, ForgetfreeError], tried: int, named: bool) -> ForgetfreeError:
    """What was wrong, each said once, and with which runs; where it was the same with all of them, just that."""
    words: dict[str, list[str]] = {}
    for folder, error in failed.items():
        words.setdefault(str(error), []).append(str(folder))
    if len(words) == 1 and len(failed) == tried and not named:
        return next(iter(failed.values()))
    told = [f"{', '.join(folders)}: {text}" for text, folders in words.items()]
    others = "" if len(failed) == tried else ", the others are finished"
    return ForgetfreeError(f"{len(failed)} of {tried} runs failed{others}.\n" + "\n".join(told))


def cost_table(plans: list[Plan], out: Path, data_root: Path | None, jobs: int) -> Table:
    """What would be run, and an estimate of its cost from timing a few steps of each."""
    table = Table(
        caption="Time: that of learning, estimated from a few steps now, on this machine and as if nothing else ran on "
        "it; testing and start-up apart. At most: training may stop early."
    )
    for heading in ("run folder", "tasks", "steps", "time", "state"):
        table.add_column(heading, justify="left" if heading in ("run folder", "state") else "right")
    total, most = 0.0, False
    for plan in plans:
        cost = estimate(plan, data_root)
        folder = RunFolder(out / plan.folder)
        done = folder.finished
        state = "finished already" if done else "to go on" if folder.started else "new"
        total += 0.0 if done else cost.seconds
        most = most or cost.at_most
        time = f"{'at most ' if cost.at_most else ''}{_minutes(cost.seconds)}"
        table.add_row(str(plan.folder), str(cost.tasks), f"{cost.steps:,}", time, state)
    table.add_section()
    whole = f"{'at most ' if most else ''}{_minutes(total / min(jobs, max(1, len(plans))))}"
    table.add_row(f"all, {jobs} at a time", "", "", whole, "")
    return table


def _in_processes(
    plans: list[Plan], out: Path, console: Console, jobs: int, data_root: Path | None
) -> dict[Path, ForgetfreeError]:
    """Run the plans; those that failed."""
    failed: dict[Path, ForgetfreeError] = {}
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context)
    with pool, Display(console) as display:
        display.start(f"{len(plans)} runs")
        followed = [Followed(RunFolder(out / plan.folder)) for plan in plans]
        running = {pool.submit(_perform_alone, plan, out, data_root): plan for plan in plans}
        done: set[concurrent.futures.Future[None]] = set()
        try:
            while len(done) < len(running):
                finished, _ = concurrent.futures.wait(running, timeout=1.0, return_when="FIRST_COMPLETED")
                for future in finished - done:
                    error = future.exception()
                    if isinstance(error, ForgetfreeError):
                        failed[out / running[future].folder] = error
                        continue
                    future.result()
                    console.print(f"finished: {out / running[future].folder}", highlight=False)
                done |= finished
                for run in followed:
                    run.look()
                display.overall([1.0 if run.state == "finished" else run.story.done for run in followed])
                time.sleep(0.2)
        except BaseException:
            for process in pool._processes.values():
                process.terminate()
            raise
    return failed


def _perform_alone(plan: Plan, out: Path, data_root: Path | None) -> None:
    load_plugins(plan.plugins)  # a new process knows of none
    perform(plan, out, data_root=data_root)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
