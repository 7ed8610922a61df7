"""Training a session by its phases, one after another, each with its recipe, random streams and checkpoint."""

from pathlib import Path
from typing import Any, Protocol

from forgetfree.rng import derive
from forgetfree.training.loop import ProgressCallback, fit
from forgetfree.training.recipe import Recipe
from forgetfree.training.session import Session


class Record(Protocol):
    """Where a learner stands."""

    seed: int
    optimizer: Any

    @property
    def position(self) -> int: ...


def train(
    session: Session,
    recipe: Recipe,
    record: Record,
    checkpoint: Path | str | None = None,
    progress: ProgressCallback | None = None,
    *,
    mark: str = "",
) -> None:
    """Train the session by the recipe, in as many phases as its model has, and keep its best state.

    A later phase has a checkpoint of its own, whose name ends with that of the phase, and the `mark` where the first
    phase's file is shared with learners that go on in another way.
    """
    if next(session.parameters(), None) is None:
        session.keep("as it was: nothing is trained")
        return
    path, done = Path(checkpoint) if checkpoint is not None else None, None
    for phase in session.model.phases(recipe):
        if phase.begin is not None:
            phase.begin(session)
            session.settle()
        name = "-".join(filter(None, [phase.name, mark])) if phase.name else ""
        fitted = fit(
            session,
            phase.recipe,
            seed=derive(record.seed, phase.name) if phase.name else record.seed,
            position=record.position,
            carried={} if phase.name else record.optimizer,
            checkpoint=path.with_name(f"{path.stem}-{name}{path.suffix}") if path and name else path,
            progress=progress,
        )
        done = fitted if done is None else fitted.after(done)
    assert done is not None
    session.keep(done.selection, done)
