"""TensorBoard: the events of runs as its scalars, of finished runs and of those that go.

loss, valid_loss, valid_accuracy, lr    `all` over the epochs of the whole run, `task 01` over those of one task
accuracy                                `mean` of all tasks met, and `task 01`, after each task that was learned
capacity                                `formula`, `density`, after each task that was learned
plan                                    run.toml, as text
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgetfree.errors import FileError, InputError
from forgetfree.lab.following import Event, Follower, as_events
from forgetfree.lab.records import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

CURVES = ("loss", "valid_loss", "valid_accuracy", "lr")
SUFFIX = ".forgetfree"
"""Ends the names of our files: what an earlier mirror wrote of a run is written anew, not twice."""


def mirror(folders: Sequence[RunFolder], logs: Path) -> None:
    """Write the events of the runs so far below `logs`, for `tensorboard --logdir`."""
    made = Mirror(logs)
    made.update(folders)
    made.close()


class Mirror:
    """A folder of TensorBoard logs that follows runs: `update` writes what is new."""

    def __init__(self, logs: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(
                f"TensorBoard's files need its package, which cannot be imported ({error}): "
                "pip install 'forgetfree[tensorboard]'"
            ) from error
        self._writer = SummaryWriter
        self._logs = logs
        self._runs: dict[Path, _Mirrored] = {}

    def update(self, folders: Sequence[RunFolder]) -> None:
        """Write what is new in these runs, each in a folder of its own name."""
        for folder in folders:
            path = folder.path.resolve()
            if path not in self._runs:
                self._runs[path] = _Mirrored(folder, self._place(path), self._writer)
            self._runs[path].update()

    def close(self) -> None:
        """Let go of all files."""
        for run in self._runs.values():
            run.close()

    def _place(self, path: Path) -> Path:
        """Experiment and name of the run; with more of its path where another run is called so."""
        taken = {run.logs for run in self._runs.values()}
        for above in range(2, len(path.parts) + 1):
            place = self._logs.joinpath(*(part.strip("/\\:") or "root" for part in path.parts[-above:]))
            if place not in taken:
                return place
        raise InputError(f"{path} is mirrored already.")


class _Mirrored:
    """One run and its logs."""

    def __init__(self, folder: RunFolder, logs: Path, make: "type[SummaryWriter]"):
        self.logs = logs
        self._folder, self._make = folder, make
        self._follower = Follower(folder.path / "events.jsonl")
        self._writer: SummaryWriter | None = None
        self._begin()

    def update(self) -> None:
        finished = self._folder.finished
        news = self._follower.news()
        events = news.events
        if news.anew:
            self._begin()
        if finished and not events and not self._begun:
            events = as_events(self._folder.record(), (self._folder.path / "record.json").stat().st_mtime)
        for event in events:
            self._write(event)
        if self._writer is not None:
            self._writer.flush()
        if finished:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin(self) -> None:
        self.close()
        self._begun, self._position, self._epochs = False, 0, 0
        self._known: set[Any] = set()
        self._of_task: dict[int, int] = {}

    def _open(self) -> "SummaryWriter":
        if self._writer is None:
            if not self._begun:
                for file in self.logs.glob(f"events.out.tfevents.*{SUFFIX}"):
                    file.unlink(missing_ok=True)
            try:
                self._writer = self._make(str(self.logs), filename_suffix=SUFFIX)
            except OSError as error:
                raise FileError(f"cannot write TensorBoard files to {self.logs}: {error.strerror}.") from error
        return self._writer

    def _write(self, event: Event) -> None:
        writer = self._open()
        if not self._begun:
            plan = (self._folder.path / "run.toml").read_text()
            writer.add_text("plan", "\n".join(f"    {line}" for line in plan.splitlines()), 0, walltime=event["time"])
            self._begun = True
        if event["event"] == "task":
            self._position = event["position"]
        elif event["event"] == "epoch":
            self._epoch(writer, event)
        elif event["event"] == "tested":
            self._tested(writer, event)

    def _epoch(self, writer: "SummaryWriter", event: Event) -> None:
        # after a stop epochs since the last checkpoint are learned again, to the same bits
        same = (self._position, event["epoch"], *(event.get(name) for name in CURVES))
        if same in self._known:
            return
        self._known.add(same)
        self._epochs += 1
        self._of_task[self._position] = self._of_task.get(self._position, 0) + 1
        for name in CURVES:
            if event.get(name) is not None:
                value, at = event[name], event["time"]
                writer.add_scalar(f"{name}/all", value, self._epochs, walltime=at)
                own = f"{name}/task {self._position + 1:02}"
                writer.add_scalar(own, value, self._of_task[self._position], walltime=at)

    def _tested(self, writer: "SummaryWriter", event: Event) -> None:
        if ("tested", self._position) in self._known:  # tested again after a stop
            return
        self._known.add(("tested", self._position))
        after, at = self._position + 1, event["time"]
        known = {i: value for i, value in enumerate(event["accuracy"], 1) if value is not None}
        for i, value in known.items():
            writer.add_scalar(f"accuracy/task {i:02}", value, after, walltime=at)
        if len(known) == after:
            overall = event.get("overall")
            mean = sum(known.values()) / len(known) if overall is None else overall
            writer.add_scalar("accuracy/mean", mean, after, walltime=at)
        for name in ("formula", "density"):
            if event.get("footprint"):
                writer.add_scalar(f"capacity/{name}", event["footprint"][name], after, walltime=at)
