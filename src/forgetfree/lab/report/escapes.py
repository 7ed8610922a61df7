"""Escapes: any text, printed letter by letter, in LaTeX and in Markdown. Names come from others."""

import unicodedata

GREEK = (
    "alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu",
    "xi", "mathit{o}", "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "varphi", "chi", "psi", "omega",
)  # fmt: skip
"""In the order of their numbers, from U+03B1."""
LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "%&_#${}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "`": r"\`{}",
    "<": r"$<$",
    ">": r"$>$",
    "*": r"$^\ast$",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\N{NO-BREAK SPACE}": "~",
    **{chr(0x3B1 + number): f"$\\{name}$" for number, name in enumerate(GREEK)},
}
LATIN = "\u024f"
"""The last letter that LaTeX knows without further packages."""
MARKDOWN = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " "})


def latex(text: str) -> str:
    """Text as LaTeX prints it; a letter that it has no type for by its number, as in U+4E2D."""
    return "".join(LATEX.get(letter) or _printed(letter) for letter in text)


def markdown(text: str) -> str:
    """Text for a cell of a table."""
    return text.translate(MARKDOWN).replace("](", "]\\(")


def _printed(letter: str) -> str:
    if letter.isspace() or not letter.isprintable():
        return " "
    known = letter.isascii() or (letter <= LATIN and unicodedata.category(letter).startswith("L"))
    return letter if known else f"U+{ord(letter):04X}"
