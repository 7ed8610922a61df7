"""The tables of documents, from rows that benches have stored and from stored runs.

    python -m bench.page

A document says which table it shows, and what stands below is written by this command:

    <!-- bench performance.json: select: exact selection in steady state, as a multiple of one abs pass -->
    <!-- bench: saved by codes -->
"""

import re
from pathlib import Path

from bench.beside import few_shot_cifar100, saved_by_codes
from bench.tables import Table, stored

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = tuple(ROOT / "docs" / name for name in ("performance.md", "results.md", "bayes-means.md"))
STORED = ROOT / "results" / "bench"
MADE = {"few-shot CIFAR-100 beside the paper": few_shot_cifar100, "saved by codes": saved_by_codes}
MARKED = re.compile(r"(<!-- bench(?: ([\w.-]+))?: (.+) -->\n)(?:\n(?:\*\*.+\*\*\n\n)?(?:\|.*\n)+\n.*\n)?")


def with_tables(text: str, folder: Path = STORED) -> str:
    """A document with all tables as they are stored; the line below a table is its note."""

    def table(file: str | None, title: str) -> Table:
        return stored(folder / file)[title] if file else MADE[title]()

    return MARKED.sub(lambda found: f"{found[1]}\n{table(found[2], found[3]).as_markdown()}", text)


def main() -> None:
    for document in DOCUMENTS:
        document.write_text(with_tables(document.read_text()))


if __name__ == "__main__":
    main()
