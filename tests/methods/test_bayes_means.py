"""Bayes means: scores of old classes keep their bits, every session has its certificate and can be removed."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import forgetfree as ff
from few_shots import backbone, sessions
from forgetfree.class_heads import LDA, Bayes, Ridge
from forgetfree.contracts import LearnerState
from forgetfree.errors import ArchiveError, InputError, TaskError
from forgetfree.few_shot.abstaining import NO_ANSWER, calibrated
from forgetfree.few_shot.viewing import seen_in, views_of
from forgetfree.heads import HEADS, head_by_name, head_name
from forgetfree.methods import METHODS
from forgetfree.methods.bayes_means import BayesMeans

RECIPE = ff.Recipe(epochs=2, batch_size=32, lr=0.01)
BATCH = torch.randn(9, 8, generator=torch.Generator().manual_seed(3))


def taught(method="bayes_means", count=3, **given):
    tasks, tests = sessions(count)
    learner = METHODS[method](backbone(), recipe=RECIPE, **given)
    for task in tasks:
        learner.learn(task)
    return learner, tasks, tests


def drift(method, **given):
    """By how much the scores of the first session's classes moved after later ones."""
    tasks, _ = sessions(2)
    learner = METHODS[method](backbone(), recipe=RECIPE, **given)
    learner.learn(tasks[0])
    before = learner.predict(BATCH)
    for task in tasks[1:]:
        learner.learn(task)
    return float((learner.predict(BATCH)[:, : before.shape[1]] - before).abs().max())


@pytest.mark.parametrize("given", [{}, {"capacity": 0.3}, {"capacity": 0.3, "soft": True}, {"heads": LDA()}])
def test_scores_of_old_classes_keep_their_bits_on_any_network(given):
    assert drift("bayes_means", **given) == 0


def test_class_means_on_features_that_move_do_not_keep_them():
    assert drift("softnet", capacity=0.5, session=ff.Recipe(epochs=5, lr=0.1, optimizer="sgd")) > 0
    assert drift("softnet", capacity=0.5, heads=Bayes(), session=ff.Recipe(epochs=5, lr=0.1, optimizer="sgd")) > 0


def test_every_session_is_certified_by_the_scores_of_its_own_classes():
    learner, tasks, _ = taught()
    found = learner.verify()
    assert [each.task for each in found] == [task.name for task in tasks]
    assert all(each.ok and each.rule == "bit for bit" for each in found)
    head = learner.engine.heads._kept[tasks[-1].name]
    head.rows[len(tasks[0].classes)] += 1  # the first class of the second session
    learner.engine.forget_answers()
    assert [each.ok for each in learner.verify()] == [True, False, True, True]


def test_a_session_is_removed_to_the_bits_of_one_that_was_never_learned(tmp_path):
    learner, tasks, _ = taught()
    learner.remove(tasks[2].name)
    other, _, _ = taught(count=0)
    for task in (tasks[1], tasks[3]):
        other.learn(task)
    assert learner.classes == other.classes
    assert torch.equal(learner.predict(BATCH), other.predict(BATCH))
    assert all(each.ok for each in learner.verify())
    ff.save(learner, tmp_path / "some.ticket")
    again = ff.load(tmp_path / "some.ticket", backbone())
    assert torch.equal(again.predict(BATCH), other.predict(BATCH))
    again.learn(tasks[2])
    assert torch.equal(again.predict(BATCH)[:, : len(other.classes)], other.predict(BATCH))


def test_the_last_session_is_removed_too_and_the_first_is_not():
    learner, tasks, _ = taught()
    before = learner.predict(BATCH)
    learner.remove(tasks[3].name)
    assert torch.equal(learner.predict(BATCH), before[:, : len(learner.classes)])
    with pytest.raises(TaskError, match="it is the first"):
        learner.remove(tasks[0].name)
    with pytest.raises(TaskError, match="never learned"):
        learner.remove("never learned")
    assert list(learner.tasks) == [task.name for task in tasks[:3]]


def test_no_other_few_shot_method_removes_a_session():
    for method in ("ncm", "fsll"):
        learner, tasks, _ = taught(method, count=1)
        with pytest.raises(TaskError, match="cannot be removed"):
            learner.remove(tasks[1].name)


def test_heads_that_change_old_scores_are_refused():
    for heads in (Ridge(), HEADS["cosine"]):
        with pytest.raises(InputError, match=r"answers by class means|scores of old classes never change"):
            BayesMeans(backbone(), heads=heads)


def test_the_order_of_sessions_changes_no_bit():
    tasks, _ = sessions(3)
    learners = [BayesMeans(backbone(), recipe=RECIPE) for _ in range(2)]
    for learner, order in zip(learners, ((0, 1, 2, 3), (0, 3, 1, 2)), strict=True):
        for at in order:
            learner.learn(tasks[at])
    one, other = (learner.predict(BATCH) for learner in learners)
    places = [learners[1].classes.index(name) for name in learners[0].classes]
    assert torch.equal(one, other[:, places])


def test_settings_of_a_head_are_written_in_its_name():
    made = head_by_name("bayes(directions=32, bits=None)")
    assert made == Bayes(directions=32, bits=None)
    assert head_name(made) == "bayes(directions=32, bits=None)"
    assert head_name(Bayes()) == "bayes"
    for wrong, words in (
        ("bayes(direction=3)", "no 'direction'"), ("bayes(3)", "written as"), ("bayes(directions=0)", "directions"),
        ("bayes(bits=1)", "bits"), ("bayes(bits=40)", "bits"), ("lda(shrinkage=2)", "shrinkage"),
        ("lda(within='test')", "within"), ("teen(pull=-1)", "pull"), ("rooted(power=0)", "power"),
        ("bayes(power='a')", "power"), ("ridge(features=0)", "features"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            head_by_name(wrong)
    assert head_by_name("bayes(" + "(" * 1000) is None
    assert head_by_name("euclidean(a=1)") is None


WRONG = {
    "a tensor missing": lambda head: head.pop("psi"),
    "a tensor too much": lambda head: head.update(more=torch.zeros(1)),
    "rows of too few classes": lambda head: head.update(rows=head["rows"][:-1]),
    "other directions": lambda head: head.update(psi=torch.cat([head["psi"], head["psi"]])),
    "a psi of zero": lambda head: head.update(psi=torch.zeros_like(head["psi"])),
    "no image": lambda head: head.update(counts=torch.zeros_like(head["counts"])),
    "counts that are no whole numbers": lambda head: head.update(counts=head["counts"].float()),
    "a first session of all and one": lambda head: head.update(base=torch.tensor(1000)),
    "features of another width": lambda head: head.update(middle=torch.zeros(3)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_head_that_does_not_fit_is_refused_when_it_is_read(wrong, tmp_path, monkeypatch):
    learner, tasks, _ = taught(count=1)
    stored = learner.to_state()
    heads = {name: dict(tensors) for name, tensors in stored.memory.heads.items()}
    WRONG[wrong](heads[tasks[-1].name])
    broken = replace(stored, memory=replace(stored.memory, heads=heads))
    assert isinstance(broken, LearnerState)
    monkeypatch.setattr(BayesMeans, "to_state", lambda self, resumable=False: broken)
    ff.save(learner, tmp_path / "wrong.ticket")
    with pytest.raises(ArchiveError, match="the head of task"):
        ff.load(tmp_path / "wrong.ticket", backbone())


def test_answers_are_withheld_where_nothing_known_is_likely():
    learner, tasks, tests = taught()
    seen, images, labels = 0, [], []
    for task, (inputs, own) in zip(tasks, tests, strict=True):
        images, labels, seen = [*images, inputs], [*labels, own + seen], seen + len(task.classes)
    scores, truth = learner.predict(torch.cat(images)), torch.cat(labels)
    some = learner.abstention(torch.cat(images), truth, error=0.01)
    given = some.answers(scores)
    answered = given != NO_ANSWER
    assert float(answered.float().mean()) == pytest.approx(some.answered)
    assert float((given[answered] != truth[answered]).float().mean()) == pytest.approx(some.error)
    assert some.error <= 0.01
    assert some.error_of_all == pytest.approx(float((scores.argmax(1) != truth).float().mean()))
    nowhere = learner.predict(50 + torch.randn(40, 8))
    assert int((some.answers(nowhere) != NO_ANSWER).sum()) == 0
    assert "wrong" in str(some)


def test_a_threshold_takes_all_images_of_one_score_or_none():
    scores = torch.tensor([[3.0, 0.0], [2.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    some = calibrated(scores, torch.tensor([0, 0, 1, 0]), error=0.2)
    assert (some.threshold, some.answered, some.error) == (3.0, 0.25, 0.0)
    assert calibrated(scores, torch.tensor([0, 0, 1, 0]), error=0.25).answered == 1
    with pytest.raises(InputError, match="no threshold"):
        calibrated(scores, torch.tensor([1, 1, 1, 1]), error=0.1)
    with pytest.raises(InputError, match="error"):
        calibrated(scores, torch.tensor([0, 0, 1, 0]), error=1.5)
    with pytest.raises(InputError, match="images"):
        calibrated(scores, torch.tensor([0]), error=0.1)


@pytest.mark.parametrize(("views", "count"), [("one", 1), ("mirrored", 2), ("rotations", 4), ("shifts", 5)])
def test_views_of_an_image_stand_side_by_side(views, count):
    images = torch.randn(3, 1, 8, 8)
    seen = views_of(images, views)
    assert len(seen) == count
    assert torch.equal(seen[0], images)
    network = nn.Flatten()
    assert torch.equal(seen_in(views, network)(images), torch.cat([network(view) for view in seen], 1))


def test_views_are_of_images():
    with pytest.raises(InputError, match="views are of images"):
        views_of(BATCH, "mirrored")
    with pytest.raises(InputError, match="square"):
        views_of(torch.zeros(2, 1, 4, 6), "rotations")


@pytest.mark.parametrize("views", ["one", "rotations", "shifts"])
def test_answers_over_views_come_back_from_an_archive(views, tmp_path):
    draw = torch.Generator().manual_seed(0)
    base, few, asked = (torch.randn(count, 1, 6, 6, generator=draw) for count in (40, 6, 5))

    def network():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))

    learner = BayesMeans(network(), recipe=RECIPE, views=views, heads=Bayes(directions=12))
    learner.learn(ff.Task("base", tuple("abcd"), (base, torch.arange(40) % 4)))
    learner.learn(ff.Task("more", tuple("ef"), (few, torch.arange(6) % 2)))
    ff.save(learner, tmp_path / "some.ticket")
    again = ff.load(tmp_path / "some.ticket", network())
    assert torch.equal(again.predict(asked), learner.predict(asked))
    assert [each.ok for each in again.verify()] == [True, True]
    assert ff.inspect(tmp_path / "some.ticket").tasks
