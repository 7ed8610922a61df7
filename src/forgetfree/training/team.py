"""A team: processes that learn one task together, to the bits of one process.

A step is `recipe.accumulate` micro-batches. Of n processes the one with rank r computes those whose place in the step
is r modulo n; the places 0 … n-1 are a wave, n … 2n-1 the next. After a wave its gradients are added in the order of
their places, whoever computed them, so that the sum has the bits that one process gives it. All of them then take the
same step. Every process has the whole task, draws every batch, and computes its share.

Where something goes wrong in one process, all of them end with its sentence.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from forgetfree.errors import ForgetfreeError, LearningError

LONGEST = 4000
"""Bytes of a sentence that reaches the other processes."""
ABSENT, DONE, FAILED = 0.0, 1.0, 2.0
TOLD = (
    ForgetfreeError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, AssertionError, AttributeError,
)  # fmt: skip
"""Errors of a micro-batch that the others are told of; after any other they notice that a process has ended."""


class Team(Protocol):
    """Who computes what, and how what was computed becomes one."""

    rank: int
    size: int

    @property
    def leads(self) -> bool:
        """Whether this process writes files and says what happens."""

    def takes(self, place: int) -> bool:
        """Whether this process computes what is at this place."""

    def share(self, values: Sequence[float] | None, error: Exception | None = None) -> list[list[float]]:
        """What every process has to say, in the order of ranks; the error of any of them is raised in all."""

    def added(self, parameters: Sequence[nn.Parameter], present: Sequence[bool], total: "Total") -> None:
        """Add the gradients of a wave to the total; `present` says which processes computed something."""

    def settle(self, parameters: Sequence[nn.Parameter], total: "Total") -> None:
        """Give every process the total of a step, as the gradients of its parameters."""

    def gathered(self, tensors: Mapping[str, Tensor], present: Sequence[bool]) -> list[dict[str, Tensor]]:
        """These tensors of every process that computed something, in the order of ranks."""

    def content(self, read: Callable[[], bytes | None]) -> bytes | None:
        """What the leading process reads, in all of them."""

    def agree(self, digest: str, words: str) -> None:
        """Refuse to go on where this is not the same in all processes; `words` say what is wrong then."""


class Total:
    """The sum of gradients so far, of this process's part of them."""

    def __init__(self) -> None:
        self.parts: dict[torch.dtype, Tensor] = {}
        self.seen: list[bool] = []


class Alone:
    """One process: gradients add up where they are."""

    rank, size, leads = 0, 1, True

    def takes(self, place: int) -> bool:
        return True

    def share(self, values: Sequence[float] | None, error: Exception | None = None) -> list[list[float]]:
        if error is not None:
            raise error
        return [list(values or ())]

    def added(self, parameters: Sequence[nn.Parameter], present: Sequence[bool], total: Total) -> None:
        pass

    def settle(self, parameters: Sequence[nn.Parameter], total: Total) -> None:
        pass

    def gathered(self, tensors: Mapping[str, Tensor], present: Sequence[bool]) -> list[dict[str, Tensor]]:
        return [dict(tensors)]

    def content(self, read: Callable[[], bytes | None]) -> bytes | None:
        return read()

    def agree(self, digest: str, words: str) -> None:
        pass


class Processes:
    """The processes of torch.distributed's default group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # gloo takes tensors of a CPU, nccl those of a graphics card
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def takes(self, place: int) -> bool:
        return place % self.size == self.rank

    def share(self, values: Sequence[float] | None, error: Exception | None = None) -> list[list[float]]:
        status = FAILED if error is not None else ABSENT if values is None else DONE
        mine = torch.tensor([status, len(values or ()), *(values or ())], dtype=torch.float64)
        every = self._gather(mine)
        failed = [rank for rank, each in enumerate(every) if float(each[0]) == FAILED]
        if failed:
            self._raise(failed[0], error)
        return [each[2 : 2 + int(each[1])].tolist() if float(each[0]) == DONE else [] for each in every]

    def added(self, parameters: Sequence[nn.Parameter], present: Sequence[bool], total: Total) -> None:
        given = [parameter.grad is not None for parameter in parameters]
        told = self.share([float(each) for each in given])
        total.seen = [any(each) for each in zip(*told, *([total.seen] if total.seen else []), strict=True)]
        for kind, flat in self._flat(parameters).items():
            size = -(-flat.numel() // self.size)
            padded = nn.functional.pad(flat, (0, size * self.size - flat.numel()))
            rows = torch.empty_like(padded)
            self._call("all_to_all_single", rows, padded)
            for row, there in zip(rows.view(self.size, size), present, strict=True):
                if there:
                    total.parts[kind] = total.parts[kind] + row if kind in total.parts else row.clone()
        for parameter in parameters:
            parameter.grad = None

    def settle(self, parameters: Sequence[nn.Parameter], total: Total) -> None:
        for kind, part in total.parts.items():
            whole = torch.empty(part.numel() * self.size, dtype=kind, device=part.device)
            self._call("all_gather_into_tensor", whole, part)
            at = 0
            for parameter, seen in zip(parameters, total.seen, strict=True):
                if parameter.dtype == kind:
                    if seen:
                        mine = whole[at : at + parameter.numel()].view_as(parameter)
                        parameter.grad = mine.to(parameter.device).clone()
                    at += parameter.numel()

    def gathered(self, tensors: Mapping[str, Tensor], present: Sequence[bool]) -> list[dict[str, Tensor]]:
        found: list[dict[str, Tensor]] = [{} for _ in range(self.size)]
        for name, value in tensors.items():
            for rank, each in enumerate(self._gather(value.detach().contiguous())):
                found[rank][name] = each.to(value.device)
        return [each for each, there in zip(found, present, strict=True) if there]

    def content(self, read: Callable[[], bytes | None]) -> bytes | None:
        content, error = None, None
        if self.leads:
            try:
                content = read()
            except ForgetfreeError as failed:
                error = failed
        self.share([], error)
        length = torch.tensor([-1 if content is None else len(content)], device=self._device)
        self._call("broadcast", length, 0)
        if int(length) < 0:
            return None
        data = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if content is not None:
            data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        self._call("broadcast", data, 0)
        return data.cpu().numpy().tobytes()

    def agree(self, digest: str, words: str) -> None:
        hashed = hashlib.blake2b(digest.encode(), digest_size=24).digest()
        exact = [float(int.from_bytes(hashed[at : at + 6], "big")) for at in range(0, 24, 6)]
        every = self.share(exact)
        other = [rank for rank, each in enumerate(every) if each != every[0]]
        if other:
            raise LearningError(f"{words} Process {other[0]} of {self.size} differs from process 0.")

    def _flat(self, parameters: Sequence[nn.Parameter]) -> dict[torch.dtype, Tensor]:
        """Gradients one after another, by their type; zeros where there is none."""
        found: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found.setdefault(parameter.dtype, []).append(gradient.detach().reshape(-1).to(self._device))
        return {kind: torch.cat(parts) for kind, parts in found.items()}

    def _gather(self, mine: Tensor) -> list[Tensor]:
        sizes = [torch.zeros(1, dtype=torch.long, device=self._device) for _ in range(self.size)]
        self._call("all_gather", sizes, torch.tensor([mine.numel()], device=self._device))
        longest = max(int(size) for size in sizes)
        flat = nn.functional.pad(mine.reshape(-1).to(self._device), (0, longest - mine.numel()))
        every = [torch.empty_like(flat) for _ in range(self.size)]
        self._call("all_gather", every, flat)
        shaped = mine.dim() != 1
        return [
            each[: int(size)].view(mine.shape) if shaped else each[: int(size)].cpu()
            for each, size in zip(every, sizes, strict=True)
        ]

    def _raise(self, rank: int, error: Exception | None) -> None:
        said = f"{error}".encode()[:LONGEST] if error is not None else b""
        length = torch.tensor([len(said)], device=self._device)
        self._call("broadcast", length, rank)
        data = torch.zeros(int(length), dtype=torch.uint8, device=self._device)
        if rank == self.rank:
            data.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
        self._call("broadcast", data, rank)
        if error is not None and rank == self.rank:
            raise error
        raise LearningError(f"process {rank} of {self.size}: {data.cpu().numpy().tobytes().decode(errors='replace')}")

    def _call(self, name: str, *tensors: Any) -> None:
        try:
            getattr(self._dist, name)(*tensors)
        except RuntimeError as error:
            raise LearningError(
                "another process of this run has ended, or cannot be reached any more. The learner is as it was "
                "before; start the run again, and it goes on at the last finished epoch. torch says: "
                + str(error).split("\n")[0]
            ) from error


ALONE = Alone()


def team() -> Team:
    """The processes that learn together with this one: those of torch.distributed, where it is in use."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    return Processes()
