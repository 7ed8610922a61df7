"""The console script: it calls the command line, or says in one sentence how to install what that needs."""

import sys

PACKAGES = (
    "typer", "rich", "sklearn", "PIL", "pooch", "requests", "matplotlib", "jinja2", "tomli_w", "filelock",
)  # fmt: skip
"""What the extra `lab` installs, by the names it is imported by."""


def main() -> None:
    try:
        from forgetfree.lab.cli import main as run

        run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        sys.stderr.write(
            f"forgetfree: the command line belongs to the laboratory, and its package {error.name} is not installed: "
            'pip install "forgetfree[lab]"\n'
        )
        raise SystemExit(2) from error
