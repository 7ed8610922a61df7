"""The tour: wrap a module, learn three tasks, answer, save, verify, remove one, hand one on. Takes a few seconds.

python examples/three_tasks.py
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import forgetfree as ff


def backbone() -> nn.Module:
    """Any module will do: inputs → features."""
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 100), nn.ReLU())


def main(folder: Path) -> None:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)

    # wrap: each task may use a tenth of the weights of every layer
    torch.manual_seed(0)
    learner = ff.WSN(backbone(), capacity=0.1, recipe=ff.Recipe(epochs=8, lr=3e-3))

    # learn: three tasks, one after another; labels are positions in the classes
    tests = {}
    for name, classes in {"zero to two": (0, 1, 2), "three to five": (3, 4, 5), "six to nine": (6, 7, 8, 9)}.items():
        mine = torch.isin(labels, torch.tensor(classes))
        inputs, targets = images[mine], labels[mine] - classes[0]
        learner.learn(ff.Task(name, classes, (inputs[100:], targets[100:])))
        tests[name] = inputs[:100], targets[:100]

    # predict: by the name of the task, or with a name for every row
    first = {name: learner.predict(inputs, task=name) for name, (inputs, _) in tests.items()}
    for name, (_, targets) in tests.items():
        print(f"{name}: {(first[name].argmax(1) == targets).float().mean():.0%} right")
    print(f"capacity left: {learner.remaining_capacity().tasks} more tasks before a layer is full")

    # save and verify: one small file; every task is put beside the certificate it got when it was learned
    archive = folder / "digits.ticket"
    dense = 4 * sum(parameter.numel() for parameter in backbone().parameters())
    print(f"saved: {ff.save(learner, archive):,} bytes (one dense network: {dense:,})")
    assert ff.verify(archive, backbone()).ok

    # load: a backbone of your own is passed in, of the same shape
    again = ff.load(archive, backbone())
    assert all(torch.equal(again.predict(inputs, task=name), first[name]) for name, (inputs, _) in tests.items())

    # remove: what only this task used is gone; the others keep every bit
    again.remove("three to five")
    assert torch.equal(again.predict(tests["six to nine"][0], task="six to nine"), first["six to nine"])
    print(f"left: {', '.join(again.tasks)}")

    # hand one on: a plain module without forgetfree in it, or a file for other runtimes
    module = ff.extract(again, "six to nine")
    assert torch.equal(module(tests["six to nine"][0]), first["six to nine"])
    made = ff.export(again, "six to nine", folder / "six to nine.pt2")
    print(f"exported: {made.bytes:,} bytes, answers at most {made.difference:.0e} apart")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
