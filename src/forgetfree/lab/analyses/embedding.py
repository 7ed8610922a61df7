"""Embedding (Figure 14 of the paper): where the features of a network put test images of some classes, in a plane.

Shown are even-numbered base classes and the classes of the second session, numbered in the order they were met. The
network is that of the archive, after all sessions; the paper's is that after the second.

t-SNE puts near what is near, and says nothing of distances. So the silhouette, from -1 to 1, is measured in the
features themselves: how much closer an image is to its own class than to the next one.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.experiment import Plan
from forgetfree.lab.paper import SUBNETWORKS
from forgetfree.rng import derive

MOST_CLASSES = 30
"""Base classes that are shown, the first ones of even number: as many as in the paper, which has 60."""
MOST_IMAGES = 20
"""Test images of each class, evenly spread over their order."""
PERPLEXITY = 30.0
"""How many neighbours an image has; fewer where there are few images."""
BATCH = 256


def applies(plan: Plan) -> bool:
    return plan.method in SUBNETWORKS and plan.settings["benchmark"].get("tasks", 1) > 1


def analyse(subject: Subject, advance: Advance) -> Mapping[str, Any]:
    """`x`, `y`, `class`, `novel`: one for each image; `silhouette`: the mean over all, base and novel images."""
    from sklearn.manifold import TSNE  # half a second, and only needed here
    from sklearn.metrics import silhouette_samples

    inputs, classes, novel = chosen(subject)
    backbone = subject.learner.task_modules(subject.record.tasks[-1])["backbone"].eval()
    with torch.no_grad():
        features = torch.cat([backbone(part) for part in torch.split(inputs, BATCH)]).double().numpy()
    advance(0.3)
    metric = subject.plan.settings["method"]["heads"]  # that of the nearest class mean
    silhouettes = torch.from_numpy(silhouette_samples(features, classes.numpy(), metric=metric))
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    seed = derive(subject.plan.seed, "t-SNE") % 2**32
    placed = TSNE(perplexity=perplexity, metric=metric, init="pca", random_state=seed).fit_transform(features)
    advance(1.0)
    return {
        "x": [round(float(value), 2) for value in placed[:, 0]],
        "y": [round(float(value), 2) for value in placed[:, 1]],
        "class": classes.tolist(),
        "novel": [int(value) for value in novel],
        "sessions": len(subject.record.tasks),
        "silhouette": {
            "all": round(float(silhouettes.mean()), 5),
            "base": round(float(silhouettes[~novel].mean()), 5),
            "novel": round(float(silhouettes[novel].mean()), 5),
        },
    }


def chosen(subject: Subject) -> tuple[Tensor, Tensor, Tensor]:
    """The test images to show, the number of the class of each, and whether that is of the second session."""
    base, second = subject.record.tasks[:2]
    met = subject.record.sessions["classes"][0]
    inputs, labels, novel = [], [], []
    for name, numbers in ((base, range(0, met, 2)[:MOST_CLASSES]), (second, range(met, met + _ways(subject)))):
        test_set, first = subject.benchmark.tests[name], 0 if name == base else met
        for number in numbers:
            found = (test_set.labels == number - first).nonzero()[:, 0]
            count = min(len(found), MOST_IMAGES)
            some = found[torch.arange(count) * len(found) // count]
            inputs.append(test_set.inputs[some])
            labels += [number] * count
            novel += [name == second] * count
    return torch.cat(inputs), torch.tensor(labels), torch.tensor(novel)


def _ways(subject: Subject) -> int:
    """How many classes the second session brought."""
    return int(subject.record.sessions["classes"][1])
