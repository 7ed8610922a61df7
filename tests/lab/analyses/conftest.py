"""A finished run that takes a second, for analyses to be tried on."""

from functools import cache

import pytest

from forgetfree.lab.analyses.subject import Subject
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The subject of a method on permutations of small digits; the same one whenever it is asked for."""
    out = tmp_path_factory.mktemp("runs")

    @cache
    def make(method, tasks=3):
        (short,) = plan("til/digits_permuted", methods=[method], scale="smoke", overrides={"benchmark.tasks": tasks})
        perform(short, out)
        return Subject(RunFolder(out / short.folder))

    return make
