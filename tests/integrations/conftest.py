"""What the tests of every framework begin with, and ask of its optimizer."""

from collections.abc import Callable

import pytest
import torch
from second_task import Started, parameters_of

import forgetfree as ff


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def seen() -> Callable[[ff.Session, torch.optim.Optimizer], None]:
    """Asserts that an optimizer got every parameter of a session, and nothing else."""

    def check(session: ff.Session, optimizer: torch.optim.Optimizer) -> None:
        found, there = parameters_of(optimizer), list(session.parameters())
        assert len(found) == len(there) > 0
        assert {id(value) for value in found} == {id(value) for value in there}

    return check
