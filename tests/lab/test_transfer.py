"""Forward transfer: guesses before learning, tickets on other tasks, and noise that never reaches an answer."""

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.lab.benchmarks.digits import digits_split
from forgetfree.lab.benchmarks.stream import Benchmark, TestSet
from forgetfree.lab.metrics import forward_transfer
from forgetfree.lab.protocols.til import run
from forgetfree.lab.protocols.transfer import ALL_IMAGES_UP_TO, MOST_IMAGES
from forgetfree.testing import small_tasks

RECIPE = ff.Recipe(epochs=2, batch_size=32, lr=0.01)


def backbone(inputs=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU())


def measured(method="wsn", benchmark=None, inputs=64, **settings):
    network = backbone(inputs)
    learner = ff.METHODS[method](network, recipe=RECIPE, seed=3, **settings)
    benchmark = benchmark or digits_split(seed=0)
    return learner, run(learner, benchmark, dense=3360, backbone=network)


def test_forward_transfer_by_hand():
    before, random = [None, 0.5, 0.25], [0.5, 0.1, 0.05]
    assert forward_transfer(before, random) == pytest.approx((0.4 + 0.2) / 2)
    assert forward_transfer(before, random, over="T") == pytest.approx((0.4 + 0.2) / 3)
    assert forward_transfer([None, 0.5, None], random) is None
    assert forward_transfer([None], [0.5]) is None


def test_a_guess_before_learning_is_the_ticket_of_the_task_before_through_the_head_learning_starts_from():
    _, record = measured(capacity=0.3)
    plain = record.transfer["matrix"]["untrained"]
    guesses = record.transfer["guesses"]
    assert guesses[0] is None
    assert guesses[1:] == [plain[i - 1][i] for i in range(1, len(guesses))]


def test_a_ticket_on_its_own_task_through_its_own_head_is_what_the_task_answers():
    _, record = measured(capacity=0.3)
    trained = record.transfer["matrix"]["trained"]
    assert [trained[i][i] for i in range(len(trained))] == record.accuracy[-1]


def test_random_networks_are_near_chance_and_the_same_for_every_method():
    _, wsn = measured(capacity=0.3)
    _, finetune = measured("finetune")
    assert wsn.transfer["random"] == finetune.transfer["random"]
    assert all(0.2 < value < 0.8 for value in wsn.transfer["random"])  # two classes
    assert len({*wsn.transfer["random"]}) > 1


def test_a_learner_that_forgets_has_guesses_only_and_one_that_collects_nothing():
    _, record = measured("finetune")
    assert set(record.transfer) == {"random", "guesses"}
    assert record.fwt is not None
    assert record.fwt == forward_transfer(record.transfer["guesses"], record.transfer["random"])
    _, record = measured("multitask")
    assert record.transfer == {}
    assert record.fwt is None


def test_noise_changes_guesses_and_the_noisy_matrices_and_nothing_else():
    _, plain = measured(capacity=0.1)
    _, noisy = measured(capacity=0.1, background_noise=0.9)
    assert noisy.accuracy == plain.accuracy
    assert noisy.different == 0
    assert noisy.transfer["guesses"] == plain.transfer["guesses"]
    assert noisy.transfer["noisy_guesses"] != plain.transfer["guesses"]
    for kind in ("untrained", "trained"):
        assert noisy.transfer["matrix"][kind] == plain.transfer["matrix"][kind]
        assert noisy.transfer["matrix"][f"{kind}, noisy"] != plain.transfer["matrix"][kind]
    assert noisy.transfer["noisy_accuracy"] != noisy.accuracy[-1]


def test_answers_with_noise_are_forgotten_and_that_is_why_predict_never_uses_it():
    first, second, _ = small_tasks()
    learner = ff.WSN(backbone(8), capacity=0.3, background_noise=1e-3, recipe=RECIPE)
    inputs = first.valid[0]

    def soft():
        parts = learner.zero_shot_modules(first.name)
        return parts["head"](parts["backbone"](inputs))

    learner.learn(first)
    answers, softly = learner.predict(inputs, first.name), soft()
    assert torch.equal(softly, soft())  # the noise is drawn once for a task
    assert 0 < float((softly - answers).abs().max()) < 0.1
    learner.learn(second)
    assert torch.equal(learner.predict(inputs, first.name), answers)
    assert not torch.equal(soft(), softly)  # it multiplies weights that the second task moved
    assert all(verified.ok for verified in learner.verify())


def test_noise_lies_on_the_zeros_of_the_ticket_only_and_below_its_limit():
    task = small_tasks()[0]
    learner = ff.WSN(backbone(8), capacity=0.3, background_noise=1e-2, recipe=RECIPE)
    learner.learn(task)
    plain, soft = learner.task_modules(task.name)["backbone"], learner.zero_shot_modules(task.name)["backbone"]
    ticket = learner.memory().tickets[task.name]
    for name, weight in plain.named_parameters():
        if name in ticket.masks:
            mask, other = ticket.mask(name), soft.get_parameter(name)
            assert torch.equal(other[mask], weight[mask])
            ratio = (other / learner.network.weights[name])[~mask]
            assert bool((ratio > 0).any())
            assert 0 <= float(ratio.min()) < float(ratio.max()) < 1.01e-2


def test_the_noise_survives_an_archive(tmp_path):
    task, following, _ = small_tasks()
    learner = ff.WSN(backbone(8), capacity=0.3, background_noise=1e-2, recipe=RECIPE)
    learner.learn(task)
    ff.save(learner, tmp_path / "a.ticket", resumable=True)
    again = ff.load(tmp_path / "a.ticket", backbone=backbone(8))
    assert torch.equal(again.zero_shot(following.train[0], following), learner.zero_shot(following.train[0], following))


@pytest.mark.parametrize("noise", [-0.1, 1.0, 7])
def test_noise_that_is_no_fraction_is_refused(noise):
    with pytest.raises(ff.InputError, match="background_noise"):
        ff.WSN(backbone(8), capacity=0.3, background_noise=noise)


def test_guessing_needs_something_learned_and_a_task_that_is_not():
    task, following, _ = small_tasks()
    learner = ff.WSN(backbone(8), capacity=0.3, recipe=RECIPE)
    with pytest.raises(ff.TaskError, match="nothing is learned"):
        learner.zero_shot(task.train[0], task)
    learner.learn(task)
    with pytest.raises(ff.TaskError, match="predict"):
        learner.zero_shot(task.train[0], task)
    assert learner.zero_shot(following.train[0], following).shape == (len(following.train[1]), following.width)
    assert list(learner.tasks) == [task.name]


def test_beyond_twenty_tasks_a_matrix_is_measured_on_few_images_of_each():
    tasks = small_tasks(ALL_IMAGES_UP_TO + 1, samples=8)
    tests = {task.name: TestSet(task.valid[0].repeat(20, 1), task.valid[1].repeat(20)) for task in tasks}
    _, record = measured(benchmark=Benchmark("many", tasks, tests), inputs=8, capacity=0.1)
    assert record.transfer["images"] == MOST_IMAGES
    cells = [cell for row in record.transfer["matrix"]["untrained"] for cell in row]
    assert len(cells) == 21 * 21
    assert all(abs(cell * MOST_IMAGES - round(cell * MOST_IMAGES)) < 1e-9 for cell in cells)


def test_some_samples_are_spread_over_all():
    test_set = TestSet(torch.arange(100)[:, None], torch.arange(100) // 10)
    assert test_set.some(None) is test_set.some(100) is test_set
    assert test_set.some(50).labels.bincount().tolist() == [5] * 10
    assert len(test_set.some(7).labels) == 7
