"""Your own modules: a small transformer with a padding mask, and an LSTM, each learns three tasks and forgets none.

Run it with `python examples/own_module.py`; it needs no data and takes a few seconds on one core.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import forgetfree as ff

WORDS, LENGTH, SAMPLES = 20, 12, 768
TRAIN, TEST = slice(0, 512), slice(512, SAMPLES)
RECIPE = ff.Recipe(epochs=6, batch_size=64, lr=1e-2)


class Reader(nn.Module):
    """A transformer encoder: words and a padding mask in, the mean of the encoded words out."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        encoded = self.encoder(self.embed(words), src_key_padding_mask=padding)
        return encoded.masked_fill(padding.unsqueeze(-1), 0).sum(1) / (~padding).sum(1, keepdim=True)


class Listener(nn.Module):
    """An LSTM over a sequence of four signals; its last hidden state out."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.lstm = nn.LSTM(4, width, batch_first=True)

    def forward(self, signals: Tensor) -> Tensor:
        return self.lstm(signals)[1][0][-1]


@dataclass
class Lesson:
    """A task to learn, and questions with answers that it does not see."""

    task: ff.Task
    questions: Tensor | dict[str, Tensor]
    answers: Tensor


def sentences(t: int) -> Lesson:
    """Which of two words, 2t+1 or 2t+2, is said in a sentence of one to twelve words? Inputs go by name."""
    draw = torch.Generator().manual_seed(t)
    words = torch.randint(10, WORDS, (SAMPLES, LENGTH), generator=draw)
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES,), generator=draw)
    labels = torch.randint(0, 2, (SAMPLES,), generator=draw)
    words[torch.arange(SAMPLES), (torch.rand(SAMPLES, generator=draw) * lengths).long()] = 2 * t + 1 + labels
    padding = torch.arange(LENGTH) >= lengths.unsqueeze(1)
    inputs = {"words": words * ~padding, "padding": padding}
    train, questions = ({name: value[part] for name, value in inputs.items()} for part in (TRAIN, TEST))
    return Lesson(ff.Task(f"word {t}", ("first", "second"), (train, labels[TRAIN])), questions, labels[TEST])


def sounds(t: int) -> Lesson:
    """Does signal t rise or fall?"""
    draw = torch.Generator().manual_seed(t)
    signals, labels = torch.randn(SAMPLES, LENGTH, 4, generator=draw), torch.arange(SAMPLES) % 2
    signals[:, :, t] += torch.linspace(-2, 2, LENGTH) * (1 - 2 * labels).unsqueeze(1)
    task = ff.Task(f"signal {t}", ("rises", "falls"), (signals[TRAIN], labels[TRAIN]))
    return Lesson(task, signals[TEST], labels[TEST])


def compare(learner: ff.WSN, lessons: list[Lesson], when_new: list[Tensor]) -> None:
    """Ask every task again what it was asked when it was new."""
    for lesson, before in zip(lessons, when_new, strict=True):
        now = learner.predict(lesson.questions, task=lesson.task.name)
        accuracy = float((now.argmax(1) == lesson.answers).float().mean())
        same = torch.equal(now, before)
        print(f"  {lesson.task.name}: accuracy {accuracy:.2f}; bit-equal to when it was new: {same}")
        if not same:
            raise SystemExit(f"{lesson.task.name} was forgotten")


def transformer() -> None:
    lessons, when_new = [sentences(t) for t in range(3)], []
    learner = ff.WSN(Reader(), capacity=0.3, recipe=RECIPE)
    for lesson in lessons:
        learner.learn(lesson.task)
        when_new.append(learner.predict(lesson.questions, task=lesson.task.name))
    compare(learner, lessons, when_new)


def lstm() -> None:
    lessons, when_new = [sounds(t) for t in range(3)], []
    learner = ff.WSN(Listener(), capacity=0.3, recipe=RECIPE)
    for lesson in lessons:
        learner.learn(lesson.task)
        when_new.append(learner.predict(lesson.questions, task=lesson.task.name))
    compare(learner, lessons, when_new)


if __name__ == "__main__":
    for example in (transformer, lstm):
        torch.manual_seed(0)  # the weights your module starts with are yours; all other chance is the learner's
        print(example.__name__)
        example()
