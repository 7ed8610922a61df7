"""The table of benches: name → function that measures and gives rows."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import imports

BENCHES = {"import": imports.measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ratios, measured in one run.")
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    unknown = [name for name in words.names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    results = {}
    for name in words.names or BENCHES:
        rows = results[name] = BENCHES[name]()
        table = Table(title=name, title_justify="left")
        for heading in rows[0]:
            table.add_column(heading)
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console().print(table)
    if words.json:
        words.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
