"""How method files read: nothing said twice, no hook that calls the host, nothing common declared again; the shares."""

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import shares

from forgetfree.few_shot.learner import FewShotLearner
from forgetfree.task_incremental import TaskLearner

METHODS = Path(__file__).resolve().parents[1] / "src" / "forgetfree" / "methods"
FILES = sorted(path for path in METHODS.glob("*.py") if path.name != "__init__.py")
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
BLOCK = 6
HOOKS = {
    "start", "check", "view", "keep", "answer", "free", "forget", "zero_shot_backbone", "first", "later", "answers",
    "base_kind", "first_head", "accept", "session_task", "uses_all_weights", "check_storable",
}  # fmt: skip
COMMON = {
    "backbone", "recipe", "session", "heads", "masked", "own_from", "seed", "device", "cache_bytes", "sparse_answers",
}  # fmt: skip
STORAGE = {"to_state", "from_state", "memory"}
HOST = {name for host in (TaskLearner, FewShotLearner) for name, value in vars(host).items() if callable(value)} | {
    name for host in (TaskLearner, FewShotLearner) for name, v in vars(host).items() if isinstance(v, classmethod)
}


def test_enough_methods_and_hooks_are_looked_at():
    assert len(FILES) >= 17
    found = [name for file in FILES for _, name, _ in hooks(ast.parse(file.read_text()))]
    assert len(found) >= 50
    assert HOOKS <= HOST


def test_no_two_method_files_share_six_lines():
    where: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for file in FILES:
        for block in blocks(file.read_text()):
            where[block].add(file.name)
    shared = {block: files for block, files in where.items() if len(files) > 1}
    assert not shared, f"{next(iter(shared.values()))} share:\n" + "\n".join(next(iter(shared)))


@EACH
def test_a_hook_calls_nothing_that_its_host_does(file):
    assert list(calls_of_the_host(ast.parse(file.read_text()))) == []


@EACH
def test_a_method_declares_nothing_common_and_stores_nothing(file):
    assert list(said_again(ast.parse(file.read_text()))) == []


def test_three_quarters_of_the_methods_are_algorithm():
    assert shares.algorithm_share() >= 0.75


@pytest.mark.parametrize(("method", "most"), [("ncm", 25), ("wsn", 110)])
def test_a_simple_method_is_short(method, most):
    assert shares.shares()[method].total() <= most


# ---- the checks can fail

METHOD = '''
@learner
class Mine(TaskLearner):
    """Mine."""

    margin: float = 0.5

    def view(self, task, context):
        return Plain(self.network.trainable_view())

    def keep(self, session, context):
        self.helper(session)

    def helper(self, session):
        self.learn(session.task)
'''


def test_a_plain_method_has_no_fault():
    tree = ast.parse(METHOD)
    assert list(calls_of_the_host(tree)) == list(said_again(tree)) == []


@pytest.mark.parametrize(
    ("line", "into", "fault"),
    [
        ("self.helper(session)", "self.predict(session.task.train[0])", "Mine.keep calls self.predict"),
        ("self.helper(session)", "super().keep(session, context)", "Mine.keep calls super().keep"),
        ("self.helper(session)", "self.to_state()", "Mine.keep calls self.to_state"),
    ],
)
def test_a_hook_that_calls_its_host_would_be_seen(line, into, fault):
    assert list(calls_of_the_host(ast.parse(METHOD.replace(line, into)))) == [fault]


@pytest.mark.parametrize(
    ("line", "into", "fault"),
    [
        ("margin: float = 0.5", "seed: int = 0", "Mine.seed"),
        ("margin: float = 0.5", "device = None", "Mine.device"),
        ("def helper", "def memory", "Mine.memory"),
    ],
)
def test_what_is_said_again_would_be_seen(line, into, fault):
    assert list(said_again(ast.parse(METHOD.replace(line, into)))) == [fault]


def test_a_shared_block_is_seen_through_other_spaces_comments_and_docstrings():
    body = [f"value_{n} = compute({n})" for n in range(BLOCK)]
    one = "import torch\n\n\n" + "\n".join(body)
    other = "def f():\n    '''Words.'''\n" + "".join(f"    {line}  # why\n\n" for line in body)
    assert set(blocks(one)) & set(blocks(other))
    assert not set(blocks(one)) & set(blocks("\n".join(body[1:])))


def test_lines_are_counted_by_what_they_are_for():
    source = (
        "import torch\nfrom a import (\n    b,\n)\n\nSTEPS = 4\n\n\n@learner\nclass Mine(Host):\n    '''Words.'''\n\n"
        "    margin: float = max(\n        1, 2\n    )\n    # why\n\n    def memory(self):\n        return 1\n\n"
        "    def view(self):\n        '''Words\n        again.'''\n        return 2\n"
    )
    found = shares.kinds(source)
    assert [found.get(line) for line in (1, 2, 3, 4)] == ["imports"] * 4
    assert [found[line] for line in (6, 9, 10, 13, 14, 15)] == ["algorithm", *["declarations"] * 5]
    assert [found[line] for line in (18, 19, 21, 24)] == ["storage", "storage", "algorithm", "algorithm"]
    assert len(found) == 14


def test_the_table_of_shares_is_printed_with_what_each_kind_is():
    table = shares.table()
    assert [row["method"] for row in table.rows] == [*(file.stem for file in FILES), "all"]
    assert table.rows[-1]["lines"] == sum(row["lines"] for row in table.rows[:-1])
    assert all(kind in shares.__doc__ for kind in shares.KINDS)


def blocks(source: str) -> Iterator[tuple[str, ...]]:
    """Every six lines of code in a row, without spaces, comments, docstrings, imports and blank lines."""
    kept = shares.kinds(source)
    lines = source.splitlines()
    code = [re.sub(r"\s+", "", _without_comment(lines[n - 1])) for n, kind in kept.items() if kind != "imports"]
    yield from zip(*(itertools.islice(code, start, None) for start in range(BLOCK)), strict=False)


def _without_comment(line: str) -> str:
    return re.sub(r"\s{2}#.*$", "", line)


def hooks(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, str, ast.FunctionDef]]:
    """The hooks of every learner of a file."""
    for node in learners(tree):
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name in HOOKS:
                yield node, function.name, function


def learners(tree: ast.Module) -> Iterator[ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(each) == "learner" for each in node.decorator_list):
            yield node


def calls_of_the_host(tree: ast.Module) -> Iterator[str]:
    """Calls in hooks of what the host defines and the class, or the method it is built on, does not."""
    classes = {node.name: node for node in learners(tree)}

    def own(node: ast.ClassDef) -> set[str]:
        above = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        return names.union(*map(own, above))

    for node, name, function in hooks(tree):
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            of, called = ast.unparse(call.func.value), call.func.attr
            if of == "super()" or (of == "self" and called in HOST - own(node)):
                yield f"{node.name}.{name} calls {of}.{called}"


def said_again(tree: ast.Module) -> Iterator[str]:
    """What a learner declares or defines that its host has for all methods."""
    for node in learners(tree):
        for each in node.body:
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            names = {target.id for target in targets if isinstance(target, ast.Name)} & COMMON
            names |= {each.name} & STORAGE if isinstance(each, ast.FunctionDef) else set()
            yield from (f"{node.name}.{name}" for name in names)
