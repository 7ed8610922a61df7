"""Mutated checkpoints: refused in a sentence, or learning goes on; damage never changes what is learned."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import forgetfree as ff
from forgetfree.files import _digest, flatten, unflatten
from forgetfree.training.checkpoint import CHECKPOINT
from soak.archives import ITEMS, SIZES, answers, judge_refusal, same
from soak.mutants import damaged, mutated

BEFORE = Path(__file__).parents[1] / "before"
MORE = "one more"


@cache
def stored() -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(BEFORE / "answers.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["inputs"])


@cache
def originals() -> dict[str, bytes]:
    """Checkpoints of every method that trains by one phase."""
    files = sorted((BEFORE / "checkpoints").glob("*/task.safetensors"))
    found = {path.parent.name: path.read_bytes() for path in files}
    return {name: content for name, content in found.items() if name.rpartition("-")[0] in stored()[1]}


@cache
def learned(name: str) -> dict[str, Tensor]:
    """What is answered where learning went on undisturbed."""
    return _go_on(name, None)


def _go_on(name: str, path: Path | None) -> dict[str, Tensor]:
    archive = name.rpartition("-")[0]
    tensors, inputs = stored()
    kind = inputs[archive]
    learner = ff.load(BEFORE / "archives" / f"{archive}.ticket")
    task = ff.Task(MORE, ("new/0", "new/1"), (tensors[f"{MORE}/{kind}"], tensors[f"labels/{kind}"]))
    learner.learn(task, checkpoint=path)
    return answers(learner, tensors[f"probe/{kind}"])


def attempt(number: int, path: Path) -> str:
    """Go on from one mutant."""
    chance = random.Random(f"checkpoint {number}")
    name = chance.choice(list(originals()))
    again = bool(chance.randrange(4))
    content = _signed(originals()[name], chance) if again else damaged(originals()[name], chance)
    path.write_bytes(content)
    kind = "signed" if again else "raw"
    try:
        found = _go_on(name, path)
    except ff.ForgetfreeError as error:
        if isinstance(error, ff.FileError):
            judge_refusal(error, path)
        return f"{kind}, refused"
    if not again:
        assert same(found, learned(name)), "a damaged checkpoint was gone on from, to something else"
    return f"{kind}, gone on from"


def _signed(content: bytes, chance: random.Random) -> bytes:
    """One thing is not as it was, and the digest is right."""
    tensors: Any = dict(sorted(load_tensors(content).items()))  # which come in any order
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    tree = unflatten(json.loads(header["structure"]), tensors)
    structure: Any = None
    match chance.randrange(8):
        case 0:
            structure = mutated(json.loads(header["structure"]), chance)
        case 1 | 2:
            name = chance.choice(list(tensors))
            tensors[name] = _other(tensors[name], chance)
            structure = json.loads(header["structure"])
        case _:
            tree, tensors = mutated(tree, chance), {}
    try:
        text = json.dumps(flatten(tree, tensors) if structure is None else structure, skipkeys=True)
        known = {"kind": CHECKPOINT, "structure": text, "digest": _digest(text, tensors)}
        return bytes(save_tensors(tensors, known))
    except (UnicodeEncodeError, ValueError, ff.ForgetfreeError):  # what no file can hold
        return damaged(content, chance)


def _other(value: Tensor, chance: random.Random) -> Tensor:
    kind = str(value.dtype).removeprefix("torch.")
    match chance.randrange(4):
        case 0:
            return value.reshape(-1)
        case 1:
            return torch.full_like(value, float("nan")) if value.is_floating_point() else torch.full_like(value, 7)
        case 2:
            return torch.cat([value.reshape(-1)] * 2)
        case _:
            other = chance.choice(ITEMS[SIZES[kind]])
            return value.reshape(-1).to(getattr(torch, other)).view(value.shape)
