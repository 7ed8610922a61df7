"""Benchmarks: each one keeps the contract, and Permuted MNIST is made exactly as the published one."""

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils import shuffle
from torch import Tensor

import forgetfree as ff
from forgetfree.lab.benchmarks import BENCHMARKS, sources
from forgetfree.lab.benchmarks.permuted_mnist import mnist_permutations, permuted_mnist
from forgetfree.lab.benchmarks.stream import Benchmark, Exam, Splits, TasksOnDemand, TestSet, permuted, split
from forgetfree.testing import check_benchmark


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.usefixtures(
    "miniature_mnist", "miniature_fashion_mnist", "miniature_notmnist", "miniature_cifar10", "miniature_svhn",
    "miniature_cifar100", "miniature_omniglot", "miniature_tiny_imagenet", "miniature_fscil_splits",
    "miniature_mini_imagenet", "miniature_cub200",
)  # fmt: skip
def test_every_benchmark_keeps_the_contract(name: str) -> None:
    settings = {  # the miniatures have 26 characters and 15 classes
        "omniglot_rotation": {"tasks": 2},
        "tiny_imagenet": {"tasks": 3},
        "fscil_omniglot": {"base": 10, "ways": 2, "tasks": 4},
    }.get(name, {})
    check_benchmark(partial(BENCHMARKS[name], **settings))


# The contract notices what is broken


def honest(seed: int) -> Benchmark:
    draw = torch.Generator().manual_seed(seed)

    def data(count: int) -> tuple[Tensor, Tensor]:
        return torch.rand(count, 5, generator=draw), torch.arange(count) % 2

    tasks = tuple(ff.Task(f"task {t}", ("a", "b"), data(12), data(6)) for t in range(2))
    return Benchmark("honest", tasks, {task.name: TestSet(*data(6)) for task in tasks})


def test_a_benchmark_is_built_as_the_laboratory_builds_it(tmp_path: Path) -> None:
    calls: list[object] = []

    def of_a_data_root(*, seed: int, data_root: Path | None = None) -> Benchmark:
        calls.append(data_root)
        return honest(seed)

    check_benchmark(of_a_data_root, data_root=tmp_path)
    assert set(calls) == {tmp_path}
    calls.clear()
    check_benchmark(of_a_data_root)
    assert set(calls) == {None}
    check_benchmark(lambda number: honest(number))
    check_benchmark(lambda seed: honest(seed))


def test_a_test_set_may_be_called_by_its_earlier_name() -> None:
    assert Exam is TestSet
    assert not TestSet.__test__


def with_first(benchmark: Benchmark, test_set: TestSet | None = None, **changes: object) -> Benchmark:
    """The same benchmark with something else in its first task or test."""
    first, second = benchmark.tasks
    tests = benchmark.tests if test_set is None else {**benchmark.tests, first.name: test_set}
    return replace(benchmark, tasks=(replace(first, **changes), second), tests=tests)


def train_of(benchmark: Benchmark) -> tuple[Tensor, Tensor]:
    inputs, labels = benchmark.tasks[0].train
    return inputs.clone(), labels.clone()


def with_test_in_valid(seed: int) -> Benchmark:
    benchmark = honest(seed)
    test_set = benchmark.tests["task 0"]
    return with_first(benchmark, valid=(test_set.inputs, test_set.labels))


def with_one_training_sample_in_the_test(seed: int) -> Benchmark:
    benchmark = honest(seed)
    test_set = benchmark.tests["task 0"]
    inputs = torch.cat([train_of(benchmark)[0][:1], test_set.inputs[1:]])
    return with_first(benchmark, test_set=TestSet(inputs, test_set.labels))


def with_a_label_out_of_range(seed: int) -> Benchmark:
    inputs, labels = train_of(honest(seed))
    labels[3] = 2
    return with_first(honest(seed), train=(inputs, labels))


def without_a_class_in_the_test(seed: int) -> Benchmark:
    test_set = honest(seed).tests["task 0"]
    return with_first(honest(seed), test_set=TestSet(test_set.inputs, torch.zeros_like(test_set.labels)))


def with_a_nan(seed: int) -> Benchmark:
    inputs, labels = train_of(honest(seed))
    inputs[0, 0] = torch.nan
    return with_first(honest(seed), train=(inputs, labels))


def with_another_shape(seed: int) -> Benchmark:
    inputs, labels = train_of(honest(seed))
    return with_first(honest(seed), train=(inputs[:, :4], labels))


def without_labels_for_all(seed: int) -> Benchmark:
    inputs, labels = train_of(honest(seed))
    return with_first(honest(seed), train=(inputs, labels[:-1]))


def with_a_test_in_the_task(seed: int) -> Benchmark:
    class Telling(ff.Task):
        test = "all you need to know"

    benchmark = honest(seed)
    first, second = benchmark.tasks
    return replace(benchmark, tasks=(Telling(first.name, first.classes, first.train, first.valid), second))


def with_chance_from_outside(seed: int) -> Benchmark:
    inputs, labels = train_of(honest(seed))
    with torch.random.fork_rng():
        return with_first(honest(seed), train=(torch.rand_like(inputs), labels))


def with_global_chance(seed: int) -> Benchmark:
    torch.rand(1)
    return honest(seed)


def with_another_task_each_time(seed: int) -> Benchmark:
    benchmark = honest(seed)
    inputs, labels = train_of(benchmark)
    calls = iter(range(1000))

    def make(t: int) -> ff.Task:
        return replace(benchmark.tasks[t], train=(inputs + next(calls), labels))

    return replace(benchmark, tasks=TasksOnDemand(benchmark.names, make))


def with_a_name_of_its_own(seed: int) -> Benchmark:
    benchmark = honest(seed)
    tasks = TasksOnDemand(benchmark.names, lambda t: replace(benchmark.tasks[t], name=f"other {t}"))
    return replace(benchmark, tasks=tasks)


def with_names_twice(seed: int) -> Benchmark:
    benchmark = honest(seed)
    return replace(benchmark, tasks=TasksOnDemand(benchmark.names, lambda t: benchmark.tasks[0]))


BROKEN: list[tuple[Callable[[int], Benchmark], str]] = [
    (with_test_in_valid, "test and valid of 'task 0' are not disjoint: 6 samples of 6"),
    (with_one_training_sample_in_the_test, "train and test of 'task 0' are not disjoint: 1 samples of 6"),
    (with_a_label_out_of_range, r"labels \[2\] are out of range"),
    (without_a_class_in_the_test, r"test of 'task 0' lacks the classes \[1\]"),
    (with_a_nan, "not finite"),
    (with_another_shape, "not of one shape"),
    (without_labels_for_all, "12 inputs and 11 labels"),
    (with_a_test_in_the_task, "carries a test"),
    (with_chance_from_outside, "the same seed gave another benchmark"),
    (with_global_chance, "moved the caller's random state"),
    (with_another_task_each_time, "not the same twice"),
    (with_a_name_of_its_own, "tests are for"),
    (with_names_twice, "not unique"),
    (lambda seed: honest(0), "another seed gave the same benchmark"),
    (lambda seed: Benchmark("empty", (), {}), "at least one task"),
]


def test_an_honest_benchmark_passes() -> None:
    check_benchmark(honest)


@pytest.mark.parametrize(("make", "words"), BROKEN)
def test_a_broken_promise_is_named(make: Callable[[int], Benchmark], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_benchmark(make)


def test_a_stated_fraction_of_duplicates_is_allowed() -> None:
    check_benchmark(with_one_training_sample_in_the_test, duplicates=0.2)
    with pytest.raises(AssertionError, match="not disjoint"):
        check_benchmark(with_one_training_sample_in_the_test, duplicates=0.1)


def test_a_benchmark_may_give_its_data_as_datasets() -> None:
    def make(seed: int) -> Benchmark:
        benchmark = honest(seed)
        tasks = tuple(
            replace(
                task,
                train=torch.utils.data.TensorDataset(*task.train),
                valid=torch.utils.data.TensorDataset(*task.valid),
            )
            for task in benchmark.tasks
        )
        return replace(benchmark, tasks=tasks)

    check_benchmark(make)


# Streams


def small_splits() -> Splits:
    draw = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[Tensor, Tensor]:
        return torch.randint(256, (count, 6), generator=draw).to(torch.uint8), torch.arange(count) % 4

    return Splits(part(16), part(8), part(12), prepare=lambda images: images / 255)


def test_tasks_are_made_when_asked_for_and_not_held() -> None:
    benchmark = permuted("small", small_splits(), [torch.randperm(6) for _ in range(3)], 4)
    task = benchmark.tasks[1]
    held = weakref.ref(task.train[0])
    del task
    assert held() is None
    test_set = benchmark.tests["small 2"]
    held = weakref.ref(test_set.inputs)
    del test_set
    assert held() is None


def test_a_stream_is_a_sequence_of_tasks_and_a_mapping_of_tests() -> None:
    benchmark = permuted("small", small_splits(), [torch.randperm(6) for _ in range(3)], 4)
    names = ["small 1", "small 2", "small 3"]
    assert benchmark.names == tuple(names)
    assert len(benchmark.tasks) == len(benchmark.tests) == 3
    assert [task.name for task in benchmark.tasks] == list(benchmark.tests) == names
    assert benchmark.tasks[-1].name == "small 3"
    assert [task.name for task in benchmark.tasks[1:]] == names[1:]
    assert [task.name for task in benchmark.tasks[::-1]] == names[::-1]
    assert "small 2" in benchmark.tests
    assert "small 4" not in benchmark.tests
    with pytest.raises(IndexError):
        benchmark.tasks[3]
    with pytest.raises(KeyError):
        benchmark.tests["small 4"]


def test_permuted_inputs_are_the_prepared_images_in_another_order() -> None:
    splits, order = small_splits(), torch.tensor([3, 1, 5, 0, 2, 4])
    benchmark = permuted("small", splits, [order], 4)
    (task,) = benchmark.tasks
    test_set = benchmark.tests[task.name]
    pairs = [(task.train, splits.train), (task.valid, splits.valid), ((test_set.inputs, test_set.labels), splits.test)]
    for (inputs, labels), (images, expected) in pairs:
        assert torch.equal(inputs, (images / 255)[:, order])
        assert torch.equal(labels, expected)


def test_split_labels_are_positions_in_the_group() -> None:
    splits = small_splits()
    benchmark = split("small", splits, [(2, 0), (3, 1)])
    first = benchmark.tasks[0]
    assert first.classes == (2, 0)
    chosen = (splits.train[1] == 2) | (splits.train[1] == 0)
    assert torch.equal(first.train[0], splits.train[0][chosen] / 255)
    assert [first.classes[label] for label in first.train[1].tolist()] == splits.train[1][chosen].tolist()


def test_tests_for_other_tasks_are_refused() -> None:
    benchmark = honest(0)
    with pytest.raises(ff.InputError, match="tests are for"):
        replace(benchmark, tests={"somebody else's": TestSet(torch.zeros(1, 5), torch.zeros(1))})
    with pytest.raises(ff.InputError, match="tests are for"):
        replace(benchmark, tasks=TasksOnDemand(["one", "two"], lambda t: benchmark.tasks[t]))


# Permuted MNIST


def published_permutation(seed: int, task: int) -> np.ndarray:
    """In the words of the released code, on an array of pixels."""
    numbers = shuffle(np.arange(10), random_state=seed)
    return shuffle(np.arange(784), random_state=numbers[task] * 100 + task)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_permutations_are_the_published_ones(seed: int) -> None:
    permutations = mnist_permutations(10, seed)
    for t, order in enumerate(permutations):
        assert np.array_equal(order.numpy(), published_permutation(seed, t))
    assert len({tuple(order.tolist()) for order in permutations}) == 10
    assert tuple(range(784)) not in {tuple(order.tolist()) for order in permutations}


def test_fewer_tasks_are_the_first_ones_and_more_follow_the_same_rule() -> None:
    for few, all_ten in zip(mnist_permutations(3, 1), mnist_permutations(10, 1), strict=False):
        assert torch.equal(few, all_ten)
    assert len({tuple(order.tolist()) for order in mnist_permutations(100, 1)}) == 100
    for wrong in (0, 101):
        with pytest.raises(ff.InputError, match="1 to 100 tasks"):
            mnist_permutations(wrong, 1)


def test_images_are_normalised_permuted_and_split_as_published(miniature_mnist: Path) -> None:
    benchmark = permuted_mnist(seed=1)
    images, labels, test, test_labels = sources.mnist()
    # the released code's words: to a tensor, minus the mean, by the deviation, then flat and shuffled
    mean, deviation = torch.tensor([0.1307]), torch.tensor([0.3081])
    ready = images.float().div(255).sub(mean).div(deviation).flatten(1)
    ready_test = test.float().div(255).sub(mean).div(deviation).flatten(1)
    assert len(benchmark.tasks) == 10
    assert dict(benchmark.notes) == {}
    for t, task in enumerate(benchmark.tasks):
        order = torch.from_numpy(published_permutation(1, t))
        test_set = benchmark.tests[task.name]
        assert task.classes == tuple(range(10))
        assert torch.equal(task.train[0], ready[30:][:, order])
        assert torch.equal(task.train[1], labels[30:].long())
        assert torch.equal(task.valid[0], ready[:30][:, order])
        assert torch.equal(task.valid[1], labels[:30].long())
        assert torch.equal(test_set.inputs, ready_test[:, order])
        assert torch.equal(test_set.labels, test_labels.long())


def test_a_limit_takes_the_first_images_of_each_part_and_says_so(miniature_mnist: Path) -> None:
    whole, part = permuted_mnist(tasks=2), permuted_mnist(tasks=2, limit=20)
    assert "20" in str(part.notes["subset"])
    for all_of_it, task in zip(whole.tasks, part.tasks, strict=True):
        for full, limited in ((all_of_it.train, task.train), (all_of_it.valid, task.valid)):
            assert torch.equal(full[0][:20], limited[0])
            assert torch.equal(full[1][:20], limited[1])
        assert torch.equal(whole.tests[task.name].inputs[:20], part.tests[task.name].inputs)
    with pytest.raises(ff.InputError, match="limit"):
        permuted_mnist(limit=0)


def test_the_data_root_can_be_given(miniature_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "nothing here"))
    with pytest.raises(ff.DataError, match="forgetfree data fetch mnist"):
        permuted_mnist()
    assert len(permuted_mnist(data_root=miniature_mnist).tasks) == 10


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get(sources.ENVIRONMENT), reason="needs a data root in FORGETFREE_DATA")
def test_real_mnist_is_what_the_benchmark_is_made_of() -> None:
    assert {status.state for status in sources.check("mnist")} == {"ok"}
    images, labels, test, test_labels = sources.mnist()
    assert images.shape == (60_000, 28, 28)
    assert test.shape == (10_000, 28, 28)
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert images[0, 5, 12:24].tolist() == [3, 18, 18, 18, 126, 136, 175, 26, 166, 255, 247, 127]
    scaled = images.double() / 255
    assert float(scaled.mean()) == pytest.approx(0.1307, abs=5e-5)
    assert float(scaled.std()) == pytest.approx(0.3081, abs=5e-5)

    benchmark = permuted_mnist(seed=1)
    assert len(benchmark.tasks) == 10
    for t in (0, 9):
        task, order = benchmark.tasks[t], published_permutation(1, t)
        test_set = benchmark.tests[task.name]
        assert [len(task.train[1]), len(task.valid[1]), len(test_set.labels)] == [54_000, 6_000, 10_000]
        for (inputs, answers), raw, expected in (
            (task.valid, images[0], labels[0]),
            (task.train, images[6_000], labels[6_000]),
            ((test_set.inputs, test_set.labels), test[0], test_labels[0]),
        ):
            by_hand = (raw.flatten().numpy()[order].astype(np.float32) / np.float32(255) - np.float32(0.1307)) / (
                np.float32(0.3081)
            )
            assert np.array_equal(inputs[0].numpy(), by_hand)
            assert answers[0] == expected
    check_benchmark(lambda seed: permuted_mnist(seed=seed, tasks=2))
