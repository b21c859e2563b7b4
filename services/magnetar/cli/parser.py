"""The parser of the command line, and the width of its help.

argparse creates a formatter for every argument, and finds the terminal's width with `shutil`, whose
archive libraries take 0.3 MiB of each server.
"""

import argparse
import os
import sys
from typing import Any, Final

COLUMNS_DEFAULT: Final = 80
MARGIN_COLUMNS: Final = 2


class HelpFormatter(argparse.HelpFormatter):
    """Formats help for the width of the terminal."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, width=terminal_columns() - MARGIN_COLUMNS, **options)


class Parser(argparse.ArgumentParser):
    """A parser whose help fits the terminal; the parsers of its commands are of this class, too."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(**options)


def terminal_columns() -> int:
    """Returns COLUMNS of the environment, else the width of the terminal, else COLUMNS_DEFAULT."""
    try:
        columns = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        columns = 0
    if columns > 0:
        return columns
    if sys.__stdout__ is None:
        return COLUMNS_DEFAULT
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or COLUMNS_DEFAULT
    except (ValueError, OSError):
        return COLUMNS_DEFAULT  # the output is closed, or no terminal
