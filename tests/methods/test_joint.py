"""Joint training and cRT: everything is trained together from the first weights, and nothing collected is lost."""

import functools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import forgetfree as ff
from forgetfree.archive import load, save
from forgetfree.errors import ForgetfreeError, InputError, TaskError
from forgetfree.few_shot.episodes import Balanced
from forgetfree.methods import CRT, NCM, Joint, joint
from forgetfree.methods.joint import together
from forgetfree.rng import generator
from forgetfree.testing import small_tasks

RECIPE = ff.Recipe(epochs=5, batch_size=24, lr=0.05)
AGAIN = ff.Recipe(epochs=3, batch_size=72, optimizer="sgd", lr=0.5)
BOTH = pytest.mark.parametrize("method", [Joint, CRT])


def backbone():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


def stream_of_sessions():
    """A large first session, then two with five images of each class, without validation data."""
    base, *few = small_tasks(3)

    def five(task):
        inputs, labels = task.train
        chosen = torch.cat([(labels == label).nonzero().squeeze(1)[:5] for label in range(len(task.classes))])
        return replace(task, train=(inputs[chosen], labels[chosen]), valid=None)

    return [base, *map(five, few)]


def held_out():
    """What was not trained on, with labels among all classes."""
    parts, start = [], 0
    for task in small_tasks(3):
        parts.append((task.valid[0], task.valid[1] + start))
        start += len(task.classes)
    return parts


def make(method, **settings):
    return method(backbone(), **{"recipe": RECIPE, **({"session": AGAIN} if method is CRT else {}), **settings})


def learned(method, count=3, **settings):
    learner = make(method, **settings)
    for task in stream_of_sessions()[:count]:
        learner.learn(task)
    learner.finish()
    return learner


def answers_of(learner):
    return learner.predict(torch.cat([inputs for inputs, _ in held_out()]))


@functools.cache
def straight(method):
    """What a learner answers that was never stopped."""
    return answers_of(learned(method))


@BOTH
@pytest.mark.parametrize("every", [False, True])
def test_old_and_new_classes_are_told_apart(method, every):
    learner = learned(method, every=every)
    assert learner.classes == tuple(name for task in small_tasks(3) for name in task.classes)
    assert list(learner.tasks) == ["task 0", "task 1", "task 2"]
    assert [known.classes for known in learner.tasks.values()] == [task.classes for task in small_tasks(3)]
    assert [known.position for known in learner.tasks.values()] == [0, 1, 2]
    for inputs, labels in held_out():
        assert (learner.predict(inputs).argmax(1) == labels).float().mean() > 0.7
    assert learner.verify()[0].ok


@BOTH
def test_sessions_are_collected_until_finish(method):
    base, second, third = stream_of_sessions()
    learner = make(method)
    learner.learn(base)
    before = learner.predict(base.train[0])
    learner.learn(second)
    learner.learn(third)
    assert list(learner.tasks) == ["task 0"]
    assert list(learner.waiting) == ["task 1", "task 2"]
    assert torch.equal(learner.predict(base.train[0]), before)
    assert before.shape[1] == len(base.classes)
    learner.finish()
    assert list(learner.tasks) == ["task 0", "task 1", "task 2"]
    assert not learner.waiting
    after = learner.predict(base.train[0])
    learner.finish()  # there is nothing more to do
    assert torch.equal(learner.predict(base.train[0]), after)


def test_sessions_may_come_after_finish():
    learner = learned(Joint, count=2)
    learner.learn(stream_of_sessions()[2])
    assert list(learner.tasks) == ["task 0", "task 1"]
    learner.finish()
    assert [(learner.predict(x).argmax(1) == y).float().mean() > 0.7 for x, y in held_out()] == [True] * 3


def test_with_every_a_session_can_be_asked_at_once():
    learner = make(Joint, every=True)
    for t, task in enumerate(stream_of_sessions()):
        learner.learn(task)
        assert len(learner.tasks) == t + 1
        assert not learner.waiting
        assert learner.predict(task.train[0]).shape[1] == len(learner.classes)


@BOTH
def test_the_first_session_is_the_dense_network_of_all(method, tmp_path):
    base = stream_of_sessions()[0]
    other, learner = NCM(backbone(), recipe=RECIPE), make(method)
    other.learn(base, checkpoint=tmp_path / "base.safetensors")
    seen = []
    learner.learn(base, checkpoint=tmp_path / "base.safetensors", progress=lambda now: seen.append(now.task))
    assert len([*tmp_path.iterdir()]) == (2 if method is CRT else 1)
    assert len(seen) == (AGAIN.epochs if method is CRT else 0)  # the network was read, not trained
    assert same(learner.network.weights, other.network.weights)


def test_a_killed_classifier_of_the_first_session_goes_on_and_others_have_their_own(tmp_path):
    class Stopped(Exception):
        pass

    def stop(now):
        seen.append(now.epoch)
        if len(seen) == RECIPE.epochs + 2:
            raise Stopped

    base, seen = stream_of_sessions()[0], []
    with pytest.raises(Stopped):
        make(CRT).learn(base, checkpoint=tmp_path / "base.safetensors", progress=stop)
    seen.clear()
    learner = make(CRT)
    learner.learn(base, checkpoint=tmp_path / "base.safetensors", progress=stop)
    assert seen == [AGAIN.epochs]  # two were finished
    assert torch.equal(learner.predict(base.train[0]), learned(CRT, 1).predict(base.train[0]))
    for changed in ({"draws": 2}, {"session": replace(AGAIN, lr=0.01)}):
        other = make(CRT, **changed)
        other.learn(base, checkpoint=tmp_path / "base.safetensors")
        assert torch.equal(other.predict(base.train[0]), learned(CRT, 1, **changed).predict(base.train[0]))
    assert len([*tmp_path.iterdir()]) == 4


def test_a_dense_network_with_another_classifier_is_another_base():
    assert make(Joint).base_name == make(CRT).base_name == NCM(backbone()).base_name
    assert make(CRT, heads=ff.heads.linear_head_without_bias).base_name == "dense-linear_without_bias"


def test_joint_training_starts_from_the_wrapped_weights():
    wrapped, learner = dict(backbone().named_parameters()), make(Joint)
    for task in stream_of_sessions():
        learner.learn(task)
    assert not any(torch.equal(value, wrapped[name]) for name, value in learner.network.weights.items())
    learner.recipe = replace(RECIPE, lr=0.0)
    learner.finish()
    assert all(torch.equal(value, wrapped[name]) for name, value in learner.network.weights.items())


def test_joint_training_has_no_recipe_of_sessions():
    other = learned(Joint, session=replace(RECIPE, lr=1e-4, epochs=1))
    assert torch.equal(answers_of(other), straight(Joint))
    assert len(other.tasks["task 2"].curves) == RECIPE.epochs


def test_joint_training_sees_all_data_in_one_order_of_classes():
    sessions = {task.name: task for task in stream_of_sessions()}
    mixed = together(sessions)
    inputs, labels = mixed.train
    assert torch.equal(inputs, torch.cat([task.train[0] for task in sessions.values()]))
    for name, start in zip(sessions, (0, 2, 5), strict=True):
        own = torch.isin(inputs, sessions[name].train[0]).all(1)
        assert torch.equal(labels[own], sessions[name].train[1] + start)
    assert mixed.name == "task 2"
    assert mixed.valid is None
    assert together({task.name: task for task in small_tasks(3)}).valid is not None


def test_all_sessions_are_augmented_as_the_first():
    counted = []

    def augment(inputs, chance):
        counted.append(len(inputs))
        return inputs

    base, second, _ = stream_of_sessions()
    learner = make(Joint)
    learner.learn(replace(base, augment=augment))
    learner.learn(second)
    counted.clear()
    learner.finish()
    assert sum(counted) == RECIPE.epochs * (len(base.train[1]) + len(second.train[1]))


def test_the_network_of_crt_is_that_of_joint_training_bit_for_bit():
    plain, crt = learned(Joint), learned(CRT)
    assert same(plain.network.weights, crt.network.weights)
    own = [learner.network.tickets["task 0"].own for learner in (plain, crt)]
    assert own[0]
    assert same(*own)
    assert not torch.equal(answers_of(plain), answers_of(crt))


def test_the_classifier_of_crt_is_drawn_small_and_its_bias_is_zero():
    head = learned(CRT, session=replace(AGAIN, lr=0.0)).task_modules("task 2")["head"]
    assert not head.bias.any()
    assert head.weight.mean().abs() < 3e-4
    assert 7e-4 < head.weight.std() < 1.3e-3
    first = learned(CRT, 1, session=replace(AGAIN, lr=0.0)).task_modules("task 0")["head"]
    assert not torch.equal(head.weight[:2], first.weight)


def test_the_released_schedule_of_crt_is_the_default():
    again = CRT(backbone()).session
    assert again is CRT.default_session
    assert (again.epochs, again.lr, again.milestones, again.factor) == (16, 0.1, (8, 12, 14), 0.5)


def test_an_epoch_of_crt_has_as_many_images_of_every_class():
    labels = torch.tensor([0] * 12 + [1] * 5 + [2] * 3)
    data = torch.arange(20.0), labels
    epoch = list(Balanced(data, 4, lambda: generator(0, "test")))
    assert len(epoch) == 3 * 12
    assert Counter(label for _, label in epoch) == {0: 12, 1: 12, 2: 12}
    turns = [epoch[at : at + 4] for at in range(0, len(epoch), 4)]
    assert all(len({label for _, label in turn}) == 1 for turn in turns)  # four images of a class in its turn
    for at in range(0, len(turns), 3):
        assert {turn[0][1] for turn in turns[at : at + 3]} == {0, 1, 2}  # and every class has one in a round
    counts = Counter(int(image) for image, _ in epoch)
    assert [counts[at] for at in range(12)] == [1] * 12  # an image comes again after all others of its class
    assert {counts[at] for at in range(12, 17)} == {2, 3}
    assert {counts[at] for at in range(17, 20)} == {4}


def test_passes_of_crt_differ_and_data_may_be_a_dataset():
    data = torch.arange(20.0), torch.arange(20) % 3
    numbers = iter([0, 1, 0])
    balanced = Balanced(TensorDataset(*data), 4, lambda: generator(next(numbers), "test"))
    first, second, third = ([int(image) for image, _ in balanced] for _ in range(3))
    assert first == third != second
    plain = Balanced(data, 4, lambda: generator(0, "test"))
    assert [int(image) for image, _ in plain] == first


def test_every_epoch_of_crt_has_its_own_draws(monkeypatch):
    asked = []
    monkeypatch.setattr(joint, "generator", lambda seed, *words: asked.append(words) or generator(seed, *words))
    learned(CRT, 2)
    assert asked == [
        (t, *words) for t in (0, 1) for words in [("classifier",), *(("balanced", e) for e in range(AGAIN.epochs))]
    ]


def test_crt_finds_a_rare_class_that_joint_training_drowns():
    draw = torch.Generator().manual_seed(0)
    many, few = torch.randn(60, 8, generator=draw), torch.randn(5, 8, generator=draw) + 1.5
    base = ff.Task("many", ("a", "b"), (torch.cat([many, many - 4]), torch.arange(2).repeat_interleave(60)))
    rare = ff.Task("few", ("c",), (few, torch.zeros(5, dtype=torch.long)))
    gentle, right = {"recipe": replace(RECIPE, lr=0.01)}, {}
    balanced = {"session": replace(AGAIN, epochs=12, batch_size=36, lr=0.1)}
    for learner in (make(Joint, **gentle), make(CRT, **gentle, **balanced)):
        learner.learn(base)
        learner.learn(rare)
        learner.finish()
        unseen = [torch.randn(200, 8, generator=generator(0, label)) + shift for label, shift in ((0, 0.0), (2, 1.5))]
        found = [float((learner.predict(unseen[i]).argmax(1) == label).float().mean()) for i, label in ((0, 0), (1, 2))]
        right[type(learner)] = found
    assert right[Joint][1] < 0.2
    assert min(right[CRT]) > 0.4


@BOTH
def test_the_same_seed_gives_the_same_bits_whatever_the_callers_random_state(method):
    learner = make(method)
    torch.manual_seed(1)
    for task in stream_of_sessions():
        state = torch.get_rng_state()
        learner.learn(task)
        assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    learner.finish()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(answers_of(learner), straight(method))
    assert not torch.equal(answers_of(learned(method, seed=1)), straight(method))


@BOTH
def test_an_archive_answers_bit_for_bit_and_does_not_learn(method, tmp_path):
    learner = learned(method)
    save(learner, tmp_path / "a.ticket")
    again = load(tmp_path / "a.ticket", backbone())
    assert type(again) is method
    assert list(again.tasks) == list(learner.tasks)
    assert again.classes == learner.classes
    assert torch.equal(answers_of(again), answers_of(learner))
    assert all(entry.ok for entry in again.verify())
    with pytest.raises(TaskError, match="without the data of task 0, task 1, task 2"):
        again.learn(small_tasks(4)[3])
    again.finish()
    assert not again.memory().training


@pytest.mark.parametrize(("method", "stop"), [(Joint, 1), (Joint, 2), (CRT, 2), (CRT, 3)])
def test_learning_goes_on_from_a_resumable_archive_to_the_same_bits(method, stop, tmp_path):
    learner = make(method)
    for task in stream_of_sessions()[:stop]:
        learner.learn(task)
    save(learner, tmp_path / "a.ticket", resumable=True)  # what is collected is in it too
    other = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    again = load(tmp_path / "a.ticket", other)
    assert list(again.waiting) == list(learner.waiting)
    for task in stream_of_sessions()[stop:]:
        again.learn(task)
    again.finish()
    assert torch.equal(answers_of(again), straight(method))


def test_an_archive_without_data_refuses_to_lose_what_is_collected(tmp_path):
    learner = make(Joint)
    for task in stream_of_sessions():
        learner.learn(task)
    with pytest.raises(TaskError, match="task 1, task 2: collected but not trained"):
        save(learner, tmp_path / "a.ticket")
    learner = make(Joint)
    learner.learn(replace(stream_of_sessions()[0], augment=lambda inputs, chance: inputs))
    save(learner, tmp_path / "a.ticket")
    with pytest.raises(InputError, match="cannot hold"):
        save(learner, tmp_path / "a.ticket", resumable=True)


@BOTH
def test_all_data_met_is_counted_as_training_memory(method):
    base, second, _third = stream_of_sessions()
    learner = make(method)
    assert not learner.memory().training
    learner.learn(base)
    learner.learn(second)
    held = learner.memory().training
    images = sum(value.numel() for name, value in held.items() if name.endswith("inputs"))
    assert images == 8 * (48 + 48 + 15)  # to train, to validate, and five of each of three classes
    assert sum(value.numel() for name, value in held.items() if name.startswith("wrapped")) == 8 * 32 + 32 * 16
    as_dataset = make(method)
    as_dataset.learn(replace(base, train=TensorDataset(*base.train)))
    as_dataset.learn(second)
    assert {k: v.shape for k, v in as_dataset.memory().training.items()} == {k: v.shape for k, v in held.items()}


@BOTH
def test_a_dataset_and_tensors_are_mixed(method):
    class Numbers(TensorDataset):
        def __getitem__(self, at):
            inputs, label = super().__getitem__(at)
            return inputs, int(label)

    base, second, third = stream_of_sessions()
    learner = make(method)
    learner.learn(replace(base, train=TensorDataset(*base.train)))
    learner.learn(second)
    learner.learn(replace(third, train=Numbers(*third.train)))
    learner.finish()
    assert [(learner.predict(x).argmax(1) == y).float().mean() > 0.7 for x, y in held_out()] == [True] * 3


@pytest.mark.parametrize(("method", "after"), [(Joint, 2), (CRT, 2), (CRT, RECIPE.epochs + 2)])
def test_an_error_in_the_middle_leaves_everything_as_it_was(method, after, tmp_path):
    class Stopped(Exception):
        pass

    learner = make(method)
    for task in stream_of_sessions():
        learner.learn(task)
    before, weights = answers_of(learner), dict(learner.network.weights)
    seen = []

    def stop(now):
        seen.append(now)
        if len(seen) == after:
            raise Stopped

    with pytest.raises(Stopped):
        learner.finish(checkpoint=tmp_path / "last.safetensors", progress=stop)
    assert torch.equal(answers_of(learner), before)
    assert same(learner.network.weights, weights)
    assert list(learner.tasks) == ["task 0"]
    assert list(learner.waiting) == ["task 1", "task 2"]
    learner.finish(checkpoint=tmp_path / "last.safetensors")  # goes on where it was stopped
    names = {"last-joint.safetensors"} | ({"last-classifier.safetensors"} if method is CRT else set())
    assert {path.name for path in tmp_path.iterdir()} == names
    assert torch.equal(answers_of(learner), straight(method))


def test_what_cannot_be_mixed_is_refused_when_it_comes():
    base, second, third = stream_of_sessions()
    learner = make(Joint)
    with pytest.raises(TaskError, match="nothing to finish"):
        learner.finish()
    learner.learn(base)
    learner.learn(second)
    refused = {
        "collected already": replace(third, name="task 1"),
        "is learned already": replace(third, name="task 0"),
        "which was met before": replace(third, classes=(*third.classes[:-1], base.classes[0])),
        "which 'task 1' has already": replace(third, classes=(*third.classes[:-1], second.classes[0])),
        "not finite": replace(third, train=(third.train[0] / 0, third.train[1])),
        "inputs are alike": replace(third, train=(third.train[0][:, :5], third.train[1])),
        "out of range": replace(third, train=(third.train[0], third.train[1] + 9)),
        "one tensor": replace(third, train=((third.train[0],), third.train[1])),
    }
    for words, task in refused.items():
        with pytest.raises(ForgetfreeError, match=words):
            learner.learn(task)
        assert list(learner.tasks) == ["task 0"]
        assert list(learner.waiting) == ["task 1"]


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="every"):
        Joint(backbone(), every="yes")
    with pytest.raises(InputError, match="draws"):
        CRT(backbone(), draws=0)
    with pytest.raises(InputError, match="linear classifier"):
        make(CRT, heads=lambda width, task: nn.Sequential(nn.Linear(width, task.width)))
    with pytest.raises(InputError, match="a Prototypes learns nothing"):
        make(Joint, heads=ff.heads.nearest_mean)
    learner = learned(Joint, 1)
    with pytest.raises(InputError, match="one recipe for all sessions"):
        learner.learn(stream_of_sessions()[1], recipe=AGAIN)
    assert not learner.waiting


def test_a_session_can_be_trained_in_a_loop_of_ones_own():
    base, second, third = stream_of_sessions()
    learner = make(Joint)
    learner.learn(base)
    learner.learn(second)
    with learner.learning(third) as session:
        assert len(session.task.train[1]) == sum(len(task.train[1]) for task in (base, second, third))
    assert list(learner.waiting) == ["task 1"]  # it was left without keep()
    with learner.learning(third) as session:
        session.keep()
    assert list(learner.tasks) == ["task 0", "task 1", "task 2"]
    assert not learner.waiting


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)
