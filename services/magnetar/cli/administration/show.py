"""Prints results of administration: aligned columns for people, JSON for programs."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.cli.messages.summary import size_text

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Returns the lines of a table; numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [
        bool(rows)
        and all(
            isinstance(row[index], int | float) and not isinstance(row[index], bool) for row in rows
        )
        for index in range(len(columns))
    ]
    lines = [list(columns), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return plain(str(value))


def plain(text: str) -> str:
    """Returns a text without control characters, so that no name moves the cursor."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def rows(
    args: argparse.Namespace,
    document: Any,
    columns: Sequence[str],
    lines: Sequence[Sequence[object]],
) -> None:
    """Prints a document, or its table."""
    if args.json:
        print(json.dumps(document))
        return
    for line in table(columns, lines):
        print(line)


def names(args: argparse.Namespace, document: Sequence[str]) -> None:
    """Prints names, one per line."""
    if args.json:
        print(json.dumps(document))
        return
    for name in document:
        print(plain(name))


def fields(args: argparse.Namespace, document: Any, shown: Mapping[str, object]) -> None:
    """Prints a document, or names with their values."""
    if args.json:
        print(json.dumps(document))
        return
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = json.dumps(value) if isinstance(value, dict | list) else _cell(value)
        print(f"{name.ljust(width)}  {text}".rstrip())


def size(value: object) -> str:
    """Returns bytes with a unit; empty for none."""
    return size_text(value) if isinstance(value, int | float) and value >= 0 else ""
