"""Histories as JSON lines: a header with the version, then one event per line.

Several clients write one file each, and `read` merges them by time. A client that is killed may
leave half a line at the end of its file; `read` ignores it.
"""

import json
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Self, TextIO, get_args

from tests.history.events import Event, Kind, Outcome, Position, known_at

VERSION: Final = 1
_TYPES: Final[dict[str, type[Any]]] = {one.__name__: one for one in get_args(Event)}
_NAMES: Final = {
    one: tuple(field.name for field in fields(one))  # the order of the constructor
    for one in _TYPES.values()
}
_ENUMS: Final[dict[str, type[Any]]] = {"kind": Kind, "outcome": Outcome, "position": Position}


class Malformed(Exception):
    """The file is no history of this version."""


def encode(event: Event) -> str:
    """Returns the event's line, without the newline."""
    kind = type(event)
    values = [getattr(event, name) for name in _NAMES[kind]]
    return json.dumps([kind.__name__, *values], separators=(",", ":"))


def decode(line: str) -> Event:
    name, *values = json.loads(line)
    kind = _TYPES[name]
    # A history of an older client may lack the last fields, which have defaults then.
    for index, (field, value) in enumerate(zip(_NAMES[kind], values, strict=False)):
        if field in _ENUMS:
            values[index] = _ENUMS[field](value)
        elif field in ("id", "to") and value is not None:
            values[index] = tuple(value)
        elif field == "ids":
            values[index] = tuple(map(tuple, value))
        elif isinstance(value, str):
            values[index] = sys.intern(value)  # a million events name few things
    event: Event = kind(*values)
    return event


class Writer:
    """Appends events to a file, from any thread, without buffering."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._output: TextIO = path.open("w")
        self._output.write(json.dumps({"history": VERSION}) + "\n")
        self._output.flush()

    def write(self, event: Event) -> None:
        line = encode(event) + "\n"
        with self._lock:
            self._output.write(line)
            self._output.flush()

    def close(self) -> None:
        with self._lock:
            self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write(path: Path, events: Iterable[Event]) -> None:
    """Writes a whole history."""
    with path.open("w") as output:
        output.write(json.dumps({"history": VERSION}) + "\n")
        output.writelines(encode(event) + "\n" for event in events)


def read(*paths: Path) -> list[Event]:
    """Returns the events of all files by time. Raises Malformed."""
    events: list[Event] = []
    for path in paths:
        events.extend(_read(path))
    events.sort(key=known_at)
    return events


def _read(path: Path) -> Iterator[Event]:
    with path.open() as lines:
        try:
            version = json.loads(next(lines))["history"]
        except (StopIteration, ValueError, KeyError, TypeError) as error:
            raise Malformed(f"{path} has no header of a history") from error
        if version != VERSION:
            raise Malformed(f"{path} is of version {version}, this checker reads {VERSION}")
        for number, line in enumerate(lines, 2):
            if not line.endswith("\n"):
                return
            try:
                yield decode(line)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise Malformed(f"{path}:{number} is not an event: {error}") from error
