"""The contracts of learners, methods and benchmarks as checks, for us and for authors of their own.

    from forgetfree.testing import check_benchmark, check_learner, check_method
    check_method(MyMethod)                                                      # a class on TaskLearner, FewShotLearner
    check_method(lambda backbone, recipe: MyMethod(backbone, recipe=recipe, capacity=0.5))
    check_learner(lambda: MyLearner(torch.nn.Linear(8, 16), ...))               # anything that learns and answers
    check_benchmark(my_benchmark)

A learner is built again and again by the function, on a backbone that takes [batch, 8]; the benchmark with several
seeds. Each broken promise is an `AssertionError` whose text says which one.
"""

from forgetfree.testing.benchmark import Benchmark, check_benchmark
from forgetfree.testing.learner import check_learner, small_tasks
from forgetfree.testing.method import METHOD_CHECKS, check_method, small_backbone

__all__ = [
    "METHOD_CHECKS",
    "Benchmark",
    "check_benchmark",
    "check_learner",
    "check_method",
    "small_backbone",
    "small_tasks",
]
