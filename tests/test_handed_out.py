"""What a learner hands out is a copy: whoever writes into it moves no learned answer."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.modules import named_tensors
from forgetfree.testing import small_backbone, small_tasks
from forgetfree.testing.method import QUICK

OURS = "forgetfree"
PLAIN = (str, int, float, bool, type(None), type, torch.device, torch.dtype, torch.Size, torch.Generator)
WITH_EFFECT = (
    "learn",
    "learning",
    "finish",
    "remove",
    "to",
    "renew",
    "refill",
    "forget",
    "keep",
    "commit",
    "start",
    "keep_only",
    "removing",
    "certify",
)


def learned(method: str) -> Any:
    kind = ff.METHODS[method]
    usual = {"capacity": 0.5, "session": QUICK, "exemplars": 2}
    chosen = {name: value for name, value in usual.items() if name in inspect.signature(kind).parameters}
    learner = kind(small_backbone(), recipe=QUICK if method not in ("hat", "gpm") else None, **chosen)
    for task in small_tasks()[:2]:
        learner.learn(task)
    if hasattr(learner, "finish"):
        learner.finish()
    return learner


def answers(learner: Any) -> list[Tensor]:
    inputs = small_tasks()[0].train[0]
    if learner.scenario == "fscil":
        return [learner.predict(inputs)]
    return [learner.predict(inputs, name) for name in learner.tasks]


def handed_out(value: Any, path: str, met: set[int], task: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that public names lead to, methods without arguments and those of a task called on the way."""
    if id(value) in met or isinstance(value, PLAIN):
        return
    met.add(id(value))
    kept_alive.append(value)  # or another value could have the same id
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module) and type(value).__module__.partition(".")[0] != OURS:
        yield from ((f"{path}.{name}", tensor) for name, tensor in named_tensors(value))
    elif isinstance(value, Mapping):
        for key in value:
            yield from handed_out(value[key], f"{path}[{key!r}]", met, task)
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield from handed_out(item, f"{path}[{number}]", met, task)
    elif type(value).__module__.partition(".")[0] == OURS:
        yield from of_ours(value, path, met, task)


def of_ours(value: Any, path: str, met: set[int], task: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", tensor) for name, tensor in named_tensors(value))
        return
    names = [name for name in dir(value) if not name.startswith("_")]
    if is_dataclass(value):
        names += [field.name for field in fields(value) if field.name not in names]
    for name in names:
        found = getattr(value, name, None)
        if inspect.ismethod(found) and name not in WITH_EFFECT and found.__self__ is value:
            found = result_of(found, task)
        yield from handed_out(found, f"{path}.{name}", met, task)


def result_of(method: Any, task: str) -> Any:
    """What a method gives that takes nothing, or the name of a task; anything else is not called."""
    needed = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if len(needed) > 1 or (needed and needed[0].name not in ("task", "name")):
        return None
    try:
        return method(task) if needed else method()
    except (ff.ForgetfreeError, KeyError, TypeError, AttributeError, AssertionError, StopIteration):
        return None


kept_alive: list[Any] = []


@pytest.mark.parametrize("method", ff.METHODS)
def test_writing_into_what_was_handed_out_moves_no_answer(method: str) -> None:
    learner = learned(method)
    before = answers(learner)
    verified = [known.ok for known in learner.verify()]
    found = dict(handed_out(learner, "learner", set(), next(iter(learner.tasks))))
    kept_alive.clear()
    assert any(".memory.shared" in path for path in found)
    assert any(".network." in path for path in found)
    with torch.no_grad():
        for tensor in found.values():
            if not tensor.is_meta:
                tensor.data.copy_(torch.full((), 3).to(tensor.dtype).expand(tensor.shape))
    learner.engine.forget_answers()
    for one, other in zip(answers(learner), before, strict=True):
        assert torch.equal(one, other)
    assert [known.ok for known in learner.verify()] == verified
