"""What a learner hands out: copies, so that whoever writes into them moves nothing that is learned."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from forgetfree.contracts import LearnerState, Memory, TaskRecord
from forgetfree.errors import InputError
from forgetfree.tickets import PackedMask, Ticket

Value = TypeVar("Value")


class Copies(Mapping[str, Value]):
    """A mapping whose values are copied as they are taken out; to ask which names it has copies nothing."""

    def __init__(self, values: Mapping[str, Value], copied: Callable[[Value], Value]):
        self._values, self._copied = values, copied

    def __getitem__(self, name: str) -> Value:
        return self._copied(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return repr(dict(self._values))


def copy_tensor(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def copy_ticket(ticket: Ticket) -> Ticket:
    masks = {name: PackedMask(mask.bits.clone(), mask.shape) for name, mask in ticket.masks.items()}
    return Ticket(masks, copy_tree(ticket.own))


def copy_record(known: TaskRecord) -> TaskRecord:
    certificate = known.certificate
    if certificate is None or certificate.answers is None:
        return known
    return replace(known, certificate=replace(certificate, answers=certificate.answers.clone()))


def copy_memory(memory: Memory) -> Memory:
    return Memory(
        copy_tree(memory.shared),
        {name: PackedMask(mask.bits.clone(), mask.shape) for name, mask in memory.used.items()},
        copy_tree(memory.common),
        {name: copy_ticket(ticket) for name, ticket in memory.tickets.items()},
        copy_tree(memory.heads),
        copy_tree(memory.extras),
        copy_tree(memory.training),
    )


def copy_state(state: LearnerState) -> LearnerState:
    """Another learner may be made of the copy; the module in it is nobody's but the state's."""
    learned = {name: copy_record(known) for name, known in state.learned.items()}
    return replace(state, memory=copy_memory(state.memory), learned=learned, training=copy_tree(state.training))


def share_learner(learner: Any) -> Any:
    """Another name for all that the learner has, for `copy.copy`."""
    twin = object.__new__(type(learner))
    vars(twin).update(vars(learner))
    return twin


def copy_learner(learner: Any, memo: dict[int, Any]) -> Any:
    """A learner of its own, for `copy.deepcopy`."""
    twin = memo[id(learner)] = object.__new__(type(learner))
    vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(learner).items()})
    return twin


def refuse_pickling(learner: Any, protocol: Any) -> Any:
    """Say how a learner is stored; `copy.copy` and `copy.deepcopy` do not come here."""
    raise InputError(
        f"a {type(learner).__name__} is not pickled: forgetfree.save(learner, path) stores it in a small file, and "
        "forgetfree.load(path) reads it. To another process, give the path."
    )


def copy_tree(tree: Any) -> Any:
    """Mappings, lists and tuples of tensors and plain values, with tensors of their own."""
    if isinstance(tree, Tensor):
        return copy_tensor(tree)
    if isinstance(tree, Mapping):
        return {name: copy_tree(item) for name, item in tree.items()}
    return type(tree)(map(copy_tree, tree)) if type(tree) in (list, tuple) else tree
