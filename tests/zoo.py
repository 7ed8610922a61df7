"""The zoo: one tiny backbone of every kind that must never forget, each from its inputs to [batch, features]."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.contracts import Inputs

CLASSES = 3
TIL, FSCIL = ([name for name, made in ff.METHODS.items() if made.scenario == scenario] for scenario in ("til", "fscil"))
"""Methods that learn task by task, and those of few-shot sessions."""
WORDS, LENGTH = 11, 6


@dataclass(frozen=True)
class Entry:
    """A backbone, always built with the same weights, and its inputs for n samples."""

    kind: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Inputs]

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.kind()

    def inputs(self, count: int, seed: int = 0) -> Inputs:
        return self.draw(count, torch.Generator().manual_seed(seed))

    def task(self, name: str, count: int = 24, seed: int = 0) -> ff.Task:
        labels = torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))
        return ff.Task(name, tuple(range(CLASSES)), (self.inputs(count, seed), labels))


class Residual(nn.Module):
    """One block used twice in a row, and registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.again = self.block

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images)
        hidden = torch.relu(hidden + self.block(hidden))
        hidden = torch.relu(hidden + self.again(hidden))
        return hidden.flatten(2).mean(2)


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]):
        super().__init__()
        self.layer = layer(4, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.layer(sequence)[0][:, -1]


class Encoder(nn.Module):
    """A transformer encoder over words, of which some are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=12, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        hidden = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        return hidden.masked_fill(padding.unsqueeze(2), 0).sum(1) / (~padding).sum(1, keepdim=True)


class Tied(nn.Module):
    """Words in and words out by one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.mix = nn.Linear(8, 8)
        self.words = nn.Linear(8, WORDS)
        self.words.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.words(torch.tanh(self.mix(self.embedding(tokens).mean(1))))


class Counting(nn.Module):
    """Counts its calls, in training and in use, in place and by assignment; what it answers depends on the count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("assigned", torch.zeros((), dtype=torch.long))

    def forward(self, rows: Tensor) -> Tensor:
        self.in_place += 1
        self.assigned = self.assigned + 1
        return torch.tanh(self.layer(rows)) * (1 + self.in_place / 8) + self.assigned / 16


def _rows(count: int, chance: torch.Generator) -> Tensor:
    return torch.randn(count, 6, generator=chance)


def _images(count: int, chance: torch.Generator) -> Tensor:
    return torch.randn(count, 1, 6, 6, generator=chance)


def _sequences(count: int, chance: torch.Generator) -> Tensor:
    return torch.randn(count, LENGTH, 4, generator=chance)


def _tokens(count: int, chance: torch.Generator) -> Tensor:
    return torch.randint(1, WORDS, (count, LENGTH), generator=chance)


def _padded(count: int, chance: torch.Generator) -> dict[str, Tensor]:
    lengths = torch.randint(2, LENGTH + 1, (count, 1), generator=chance)
    padding = torch.arange(LENGTH) >= lengths
    return {"tokens": _tokens(count, chance).masked_fill(padding, 0), "padding": padding}


ZOO: dict[str, Entry] = {
    "mlp with dropout": Entry(
        lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 8), nn.Tanh()), _rows
    ),
    "cnn with batch norm": Entry(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.Flatten()
        ),
        _images,
    ),
    "residual, a module twice": Entry(Residual, _images),
    "grouped and transposed convolution": Entry(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(4, 4, 2, groups=2),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2),
            nn.Flatten(),
        ),
        _images,
    ),
    "lstm": Entry(lambda: Recurrent(nn.LSTM), _sequences),
    "gru": Entry(lambda: Recurrent(nn.GRU), _sequences),
    "transformer encoder": Entry(Encoder, _padded),
    "tied weight": Entry(Tied, _tokens),
    "counting": Entry(Counting, _rows),
}


def on_every_backbone(methods: list[str], *, method: str = "wsn", kind: str = "cnn with batch norm") -> list[Any]:
    """(method, kind of backbone): every method on one backbone and one method on all of them; other pairs are slow."""
    quick = [(one, other) for one in methods for other in ZOO if one == method or other == kind]
    slow = [(one, other) for one in methods for other in ZOO if (one, other) not in quick]
    return [*quick, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in slow)]
