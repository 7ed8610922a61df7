"""How much of the methods is algorithm: code lines of `src/forgetfree/methods/*.py` by what they are for.

python -m bench.shares

A code line is one that is not blank, no comment and no docstring. Each is of one kind, the first that fits:

    imports         import and from … import, with all their lines
    storage         functions that an archive, a device or a count of memory asks for: to_state, from_state, memory,
                    plain, on, to, check_storable, __deepcopy__
    declarations    what a class says of itself: decorators, class lines, fields (the constructor of a method) and
                    class attributes, with all lines of their values
    algorithm       everything else: what is learned, by which loss, what is kept, what answers, what is refused, and
                    the constants of a paper at the top of a file

A part of a method, such as the model of a session, has a constructor of its own. It is counted as algorithm, since it
says what the session sees; how many of its lines only hand arguments on (its signature, super().__init__(…),
self.name = name) is shown beside, for whoever would count them otherwise. `__init__.py`, the table, is no method.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench.tables import WIDTH, Table

METHODS = Path(__file__).resolve().parents[1] / "src" / "forgetfree" / "methods"
KINDS = ("imports", "storage", "declarations", "algorithm")
STORAGE = {"to_state", "from_state", "memory", "plain", "on", "to", "check_storable", "__deepcopy__"}


def sources() -> dict[str, str]:
    """The files of all methods."""
    return {path.stem: path.read_text() for path in sorted(METHODS.glob("*.py")) if path.name != "__init__.py"}


def shares() -> dict[str, Counter[str]]:
    """Code lines of every method file, by kind."""
    return {name: Counter(kinds(source).values()) for name, source in sources().items()}


def algorithm_share() -> float:
    """The part of all code lines that is algorithm."""
    total: Counter[str] = sum(shares().values(), Counter())
    return total["algorithm"] / total.total()


def kinds(source: str) -> dict[int, str]:
    """The kind of every code line, by its number."""
    tree = ast.parse(source)
    marked = dict(_marked(tree))
    return {line: marked.get(line, "algorithm") for line in sorted(code_lines(source))}


def code_lines(source: str) -> set[int]:
    """The numbers of all lines with code on them; a text that stands alone is a docstring."""
    tree = ast.parse(source)
    texts = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in _lines(node)
    }
    without = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {n for t in tokens if t.type not in without for n in range(t.start[0], t.end[0] + 1)} - texts


def _marked(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every line that is no algorithm, with its kind; what is said later of a line holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from ((line, "declarations") for each in node.decorator_list for line in _lines(each))
        if isinstance(node, ast.ClassDef):
            yield node.lineno, "declarations"
            for field in node.body:
                if isinstance(field, ast.Assign | ast.AnnAssign):
                    yield from ((line, "declarations") for line in _lines(field))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in STORAGE:
            yield from ((line, "storage") for line in _lines(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((line, "imports") for line in _lines(node))


def handed_on(source: str) -> int:
    """How many lines of constructors do nothing but hand arguments on."""
    lines = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for line in [
            *range(node.lineno, node.body[0].lineno),
            *(line for statement in node.body if _hands_on(statement) for line in _lines(statement)),
        ]
    }
    return len(lines & code_lines(source))


def _hands_on(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return ast.unparse(statement).startswith("super().__init__(")
    plain = (ast.Attribute, ast.Name, ast.Tuple, ast.Constant)
    return isinstance(statement, ast.Assign) and all(
        isinstance(part, plain) for part in ast.walk(statement.value) if isinstance(part, ast.expr)
    )


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def table() -> Table:
    """A row for each file, and one for all."""
    found, constructors = shares(), {name: handed_on(source) for name, source in sources().items()}
    rows = [_row(name, counts, constructors[name]) for name, counts in found.items()]
    rows.append(_row("all", sum(found.values(), Counter()), sum(constructors.values())))
    return Table("methods: how much of them is algorithm", rows, "code lines; handed on: a part of those of algorithm")


def _row(name: str, counts: Counter[str], handed: int) -> dict[str, str | int | float]:
    share = round(100 * counts["algorithm"] / counts.total(), 1)
    by_kind = {kind: counts[kind] for kind in KINDS}
    return {"method": name, "lines": counts.total(), **by_kind, "handed on": handed, "algorithm, %": share}


if __name__ == "__main__":
    console = Console()
    table().show(console if console.is_terminal else Console(width=WIDTH))
    print(__doc__.split("\n\n", 2)[2])
