"""iCaRL: what it keeps, what its loss asks of old columns, and that it learns sessions to the same bits."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import forgetfree as ff
from few_shots import accuracies, assert_same, backbone, sessions
from forgetfree.batches import Batch
from forgetfree.classifiers import grown
from forgetfree.contracts import Task
from forgetfree.engine import Context
from forgetfree.errors import ForgetfreeError, InputError
from forgetfree.few_shot.exemplars import herding
from forgetfree.few_shot.prototypes import features_of
from forgetfree.heads import linear_head, nearest_direction
from forgetfree.methods.icarl import distilled_loss
from forgetfree.testing import small_tasks

ICaRL, NCM = ff.METHODS["icarl"], ff.METHODS["ncm"]
BASE = ff.Recipe(epochs=8, batch_size=16, lr=0.02)
SESSION = ff.Recipe(epochs=12, batch_size=16, optimizer="sgd", lr=0.1, momentum=0.9, milestones=(8,), factor=0.1)


def fresh(**settings):
    return ICaRL(backbone(), **{"recipe": BASE, "session": SESSION, "seed": 3, **settings})


def taught(tasks, **settings):
    learner = fresh(**settings)
    for task in tasks:
        learner.learn(task)
    return learner


def test_it_tells_old_and_new_classes_apart():
    tasks, tests = sessions()
    learner = taught(tasks)
    assert learner.classes == tuple(name for task in tasks for name in task.classes)
    assert min(accuracies(learner, tests)) > 0.6  # chance is 1 in 27
    with pytest.raises(ForgetfreeError, match="not asked by name"):
        learner.predict(tests[0][0], "session 0")


def test_small_sessions_with_validation_are_learned():
    tasks = small_tasks()
    learner = taught(tasks)
    assert min(accuracies(learner, [task.valid for task in tasks])) > 0.6


def test_herding_all_images_gives_all_and_their_mean():
    features = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    order = herding(features, 7)
    assert sorted(order) == list(range(7))
    best = (features - features.mean(0)).norm(dim=1).argmin()
    assert order[0] == int(best)
    assert herding(features, 3) == order[:3]  # the first ones are the best ones: a list is cut from the end


def test_kept_images_are_herded_by_the_network_as_it_is():
    (first, *_), _ = sessions()
    learner = taught([first], exemplars=3)
    inputs, labels = first.train
    context = Context(3, 0, learner.network.placement, BASE)
    features, _ = features_of(learner.task_modules("session 0")["backbone"], first, first.train, context)
    for label in (0, 11):
        own = labels == label
        assert torch.equal(learner.replay.kept[label], inputs[own][herding(features[own], 3)])


def test_means_of_old_classes_are_those_of_kept_images_seen_now():
    (first, second, *_), _ = sessions()
    learner = taught([first, second])
    means = learner.task_modules("session 1")["head"].means
    module = learner.task_modules("session 1")["backbone"]
    with torch.no_grad():
        torch.testing.assert_close(means[4], module(learner.replay.kept[4]).mean(0))
        torch.testing.assert_close(means[14], module(second.train[0][second.train[1] == 2]).mean(0))
    assert not torch.allclose(means[4], taught([first]).task_modules("session 0")["head"].means[4], atol=1e-3)


def test_with_cosine_heads_means_are_of_directions():
    (first, second, *_), _ = sessions()
    learner = taught([first, second], heads=nearest_direction)
    module, means = learner.task_modules("session 1").values()
    with torch.no_grad():
        seen = module(learner.replay.kept[0])
    torch.testing.assert_close(means.means[0], nn.functional.normalize(seen, dim=1).mean(0))


def test_old_columns_ask_for_nothing_at_the_old_network():
    said = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    outputs = torch.cat([said, torch.zeros(6, 2)], dim=1).requires_grad_()
    labels = torch.tensor([0, 1, 3, 4, 5, 5])
    distilled_loss(outputs, said, labels).backward()
    assert float(outputs.grad[:, :4].abs().max()) < 1e-8
    # σ(0) = 1/2: half a step towards one for the own class, away from it for the other
    torch.testing.assert_close(36 * outputs.grad[:, 4:].T[0], torch.tensor([0.5, 0.5, 0.5, -0.5, 0.5, 0.5]))


def test_a_session_starts_from_the_old_classifier_and_its_loss_is_the_distilled_one():
    (first, second, *_), _ = sessions()
    learner = taught([first])
    old = learner.classifier
    with learner.learning(second) as session:
        head = session.head
        assert head.weight.shape == (17, 16)
        assert torch.equal(head.weight[:12], old["weight"])
        assert torch.equal(head.bias[:12], old["bias"])
        assert len(session.task.train[1]) == 25 + 24
        assert int(session.task.train[1].min()) == 0
        session.eval()
        batch = Batch(*session.task.train)
        session.loss(batch).backward()
        assert float(head.weight.grad[:12].abs().max()) < 1e-8 < 1e-3 < float(head.weight.grad[12:].abs().max())
        assert {name.split(".")[0] for name in session.moving()} == {"network", "head"}


def test_a_classifier_grows_in_the_type_of_its_weights():
    old = nn.Linear(3, 2).double()
    head = grown(old, 3)
    assert torch.equal(head.weight[:2], old.weight)
    assert torch.equal(head.bias[:2], old.bias)
    assert head.weight.shape == (5, 3)
    assert head.bias.dtype == torch.double


def test_kept_images_and_classifier_are_counted():
    (first, second, *_), _ = sessions()
    learner = taught([first, second], exemplars=3)
    training = learner.memory().training
    images = [value for name, value in training.items() if name.startswith("exemplars.")]
    assert [tuple(value.shape) for value in images] == [(3, 8)] * 17
    assert training["classifier.weight"].shape == (17, 16)
    assert training["classifier.bias"].shape == (17,)


def test_the_same_seed_gives_the_same_bits_whatever_the_caller_draws():
    tasks, _ = sessions(count=2)
    one = taught(tasks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert_same(one, taught(tasks))
    assert not torch.equal(one.classifier["weight"], taught(tasks, seed=4).classifier["weight"])


def test_the_first_session_is_the_dense_network_that_ncm_learns(tmp_path):
    (first, second, *_), _ = sessions()
    path = tmp_path / "base"
    plain = NCM(backbone(), recipe=BASE, seed=3)
    plain.learn(first, checkpoint=path)
    learner, epochs = fresh(), []
    learner.learn(first, checkpoint=path, progress=epochs.append)
    assert not epochs  # all was there
    assert all(torch.equal(value, plain.memory().shared[name]) for name, value in learner.memory().shared.items())
    learner.learn(second)
    assert_same(learner, taught([first, second]))


def test_kept_images_come_from_any_dataset_with_a_length():
    class Images(Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data[1])

        def __getitem__(self, at):
            return self.data[0][at], int(self.data[1][at])

    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(8), 0

    (first, second, *_), _ = sessions()
    of_datasets = [Task(task.name, task.classes, Images(task.train)) for task in (first, second)]
    assert_same(taught(of_datasets), taught([first, second]))
    with pytest.raises(InputError, match="a Dataset with a length"):
        fresh().learn(Task("stream", ("a", "b"), Stream()))
    with pytest.raises(InputError, match="one tensor of inputs"):
        fresh().learn(Task("two", ("a", "b"), ((first.train[0], first.train[0]), first.train[1] % 2)))


def test_a_class_without_images_is_refused_by_its_name():
    (first, second, *_), _ = sessions()
    learner, (inputs, labels) = taught([first]), second.train
    some = labels != 3
    with pytest.raises(InputError, match="'lacking': no training image is of class '1/3'"):
        learner.learn(Task("lacking", second.classes, (inputs[some], labels[some])))
    assert list(learner.tasks) == ["session 0"]


def test_settings_that_cannot_be_are_refused():
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(InputError, match="exemplars"):
            ICaRL(backbone(), exemplars=wrong)
    with pytest.raises(InputError, match="answers by class means"):
        fresh(heads=linear_head)
