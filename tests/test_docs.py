"""What the documents say is run: every Python block, all examples; and every name they mention exists."""

import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import forgetfree

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)")
NOT_RUN = re.compile(r"<!--\s*not run:\s*(?P<reason>\S.*?)\s*-->")


@dataclass(frozen=True)
class Block:
    code: str
    line: int
    """Of its first line of code, counted from one."""
    not_run: str | None
    """The reason, where a comment before the block says so."""


def python_blocks(text: str) -> list[Block]:
    """The Python blocks of a page, in order."""
    lines, blocks, i = text.splitlines(), [], 0
    while i < len(lines):
        fence = FENCE.match(lines[i])
        if not fence:
            i += 1
            continue
        indent, start = len(fence["indent"]), i + 1
        end = next((j for j in range(start, len(lines)) if lines[j].strip() == "```"), None)
        assert end is not None, f"the block that starts in line {i + 1} has no end"
        if fence["language"] in ("python", "py"):
            above = next((line for line in reversed(lines[:i]) if line.strip()), "")
            skipped = NOT_RUN.fullmatch(above.strip())
            code = "\n".join(line[indent:] for line in lines[start:end])
            blocks.append(Block(code, start + 1, skipped["reason"] if skipped else None))
        i = end + 1
    return blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": f"blocks of {page.name}"}
    ran = 0
    for block in python_blocks(page.read_text()):
        if block.not_run:
            continue
        shifted = "\n" * (block.line - 1) + block.code  # so that a traceback shows the line of the page
        exec(compile(shifted, str(page), "exec"), namespace)
        ran += 1
    if page.name in ("README.md", "api.md", "extending.md"):
        assert ran, f"{page.name} has no Python block that runs"


def test_most_blocks_run_and_each_of_the_others_says_why():
    blocks = [block for page in PAGES for block in python_blocks(page.read_text())]
    skipped = [block for block in blocks if block.not_run]
    assert len(blocks) - len(skipped) >= 25, f"only {len(blocks) - len(skipped)} blocks of {len(blocks)} run"
    assert len(skipped) <= 3, f"{len(skipped)} blocks are not run: {[block.not_run for block in skipped]}"


def test_blocks_are_found_where_they_are():
    text = "a\n```python\nx = 1\n```\n<!-- not run: takes a day -->\n\n```python\ny = 2\n```\n```text\nz\n```\n"
    assert python_blocks(text) == [Block("x = 1", 3, None), Block("y = 2", 8, "takes a day")]
    assert python_blocks("- a list\n  ```python\n  if x:\n      y\n  ```\n")[0].code == "if x:\n    y"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
    assert len(done.stdout.splitlines()) >= 4


def test_every_public_name_has_its_own_entry_in_the_api_page():
    headings = re.findall(r"^### (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(heading.replace("\\", "") for heading in headings) == sorted(forgetfree.__all__)


def test_extending_shows_the_method_of_the_example_letter_by_letter():
    example = (ROOT / "examples" / "own_method.py").read_text()
    shown = example[example.index("@learner\nclass LinearProbe") : example.index("\n\n\ndef make")]
    assert 10 <= len(shown.splitlines()) <= 30
    assert shown in (ROOT / "docs" / "extending.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_a_page_mentions_exists(page):
    for name in set(re.findall(r"`(forgetfree\.[\w.]+)(?:\(.*?\))?`", page.read_text())):
        assert _resolves(name), f"{page.name} mentions {name}, which does not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_of_a_page_leads_somewhere(page):
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_the_paper_map_names_everything_the_paper_counts():
    text = (ROOT / "docs" / "paper-map.md").read_text()
    for kind, count in {"Eq.": 12, "Algorithm": 2, "Table": 9, "Figure": 18}.items():
        found = {int(number) for number in re.findall(rf"^\| {re.escape(kind)} (\d+)\b", text, re.MULTILINE)}
        assert found == set(range(1, count + 1)), f"{kind} {sorted(found ^ set(range(1, count + 1)))}"


def test_the_paper_map_has_a_command_for_every_table_and_figure_and_leaves_none_of_ours_out():
    from forgetfree.lab.report.columns import TABLES
    from forgetfree.lab.report.contents import NAMES
    from forgetfree.lab.report.figures import FIGURES

    text = (ROOT / "docs" / "paper-map.md").read_text()
    known = {"figure": set(FIGURES), "table": set(NAMES)}
    for kind, number, row in re.findall(r"^\| (Table|Figure) (\d+) \|(.*)$", text, re.MULTILINE):
        commands = re.findall(r"`forgetfree (report|show) ([^`]+)`", row)
        assert commands, f"{kind} {number} has no command"
        named = re.findall(rf"--{kind.lower()} (\w+)", row)
        assert named or (kind, number) == ("Table", "6"), f"{kind} {number} names none of ours"
        assert set(named) <= known[kind.lower()], f"{kind} {number} names {named}"
    for kind, names in known.items():
        shown = set(re.findall(rf"forgetfree report runs --{kind} (\w+)", text))
        assert names - shown == set(), f"the map does not mention --{kind} {sorted(names - shown)}"
    assert set(TABLES) <= known["table"]


def test_every_run_a_page_shows_can_be_planned():
    from forgetfree.lab.experiment import catalog, parse_overrides, plan

    planned = 0
    for page in PAGES:
        for line in re.findall(r"^(?:\$ )?forgetfree run (.*)$", page.read_text(), re.MULTILINE):
            experiment, *words = shlex.split(line, comments=True)
            if experiment.endswith(".toml") or experiment in _experiments_of_the_package_on(page):
                continue  # the reader's own; tests/test_outside_package.py runs those of docs/extending.md
            options = list(zip(words[::2], words[1::2], strict=True))
            given = {flag: [value for key, value in options if key == flag] for flag, _ in options}
            plans = plan(
                experiment,
                methods=given.get("--method", []),
                scale=given.get("--scale", ["cpu"])[0],
                overrides=parse_overrides(given.get("--set", [])),
            )
            planned += len(plans)
        for experiment in re.findall(r"`forgetfree show (\S+?)`", page.read_text()):
            assert experiment in catalog(), f"{page.name} shows {experiment}, which does not exist"
    assert planned >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_a_page_names_is_taken_by_some_run(page):
    from forgetfree.lab.experiment import catalog, describe, parse_overrides, plan

    every = [(name, method) for name in catalog() for method in tomllib.loads(describe(name))["methods"]]

    def takes(experiment: str, method: str, word: str) -> bool:
        section, _, key = word.partition("=")[0].removeprefix(f"{method}.").rpartition(".")
        try:
            given = {} if word.endswith("…") else parse_overrides([word])
            settings = plan(experiment, methods=[method], overrides=given)[0].settings
        except forgetfree.ForgetfreeError:
            return False
        return any(key in values for name, values in settings.items() if name == section or not section)

    for word in sorted(set(re.findall(r"--set ([\w.]+=[^\s`]+)", page.read_text()))):
        assert any(takes(*run, word) for run in every), f"no run takes --set {word}"


def _experiments_of_the_package_on(page: Path) -> set[str]:
    """Experiments that a page brings itself, in a table of a package that it shows."""
    return set(re.findall(r'^ +"([\w/]+)": Entry\("\w+:experiments/', page.read_text(), re.MULTILINE))


def _resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        owner, _, field = name.rpartition(".")  # a field of a dataclass without a default is no attribute of it
        module, _, kind = owner.rpartition(".")
        try:
            return field in getattr(importlib.import_module(module), kind).__annotations__
        except (ImportError, AttributeError, ValueError):
            return False
    return True
