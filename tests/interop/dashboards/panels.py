"""The panels of `panels.txt`, and their expressions as Grafana sends them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PANELS: Final = Path(__file__).parent / "panels.txt"
VARIABLE: Final = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a board, `owner/name`; boards have several panels of one title."""

    board: str
    title: str
    expressions: tuple[str, ...]


def panels() -> list[Panel]:
    """All panels of the file, in its order."""
    return list(_parsed(PANELS.read_text().splitlines()))


def _parsed(lines: list[str]) -> Iterator[Panel]:
    board, title = "", ""
    expressions: list[str] = []
    for line in [*(line for line in lines if line and not line.startswith("#")), "== "]:
        mark, _, rest = line.partition(" ")
        if mark not in ("==", "--"):
            expressions.append(line)
            continue
        if expressions:
            yield Panel(board, title, tuple(expressions))
            expressions = []
        if mark == "==":
            board = rest
        else:
            title = rest


def substituted(expression: str, variables: dict[str, str]) -> str:
    """The expression with the values that a person has chosen on the board, as Grafana does it.

    `$$instance`, a mistake of some boards, becomes a dollar sign before the value. Raises KeyError
    for a variable without a value.
    """
    return VARIABLE.sub(lambda found: variables[found[1]], expression)
