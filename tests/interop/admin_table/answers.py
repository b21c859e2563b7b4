"""Answers of `pulsar-admin` in a form in which those of two servers can be compared.

Addresses, ledger ids and times are replaced by names; documents are compared as JSON,
without regard to the order of keys. For a volatile document only its shape counts: keys, and types
of values.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Self

TEST_MODE_LINE = "Exit code is"
# Of an internal error of Pulsar; it changes with every release.
STACK_TRACE = "Stacktrace:"
MAX_TEXT_LENGTH = 600
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)?")
EPOCH_MS = re.compile(r"\b1[5-9]\d{11}\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered; the status is the last one, 0 without a request."""

    command: str
    status: int
    code: int
    output: object

    @classmethod
    def loaded(cls, document: dict[str, object]) -> Self:
        return cls(**document)  # type: ignore[arg-type]

    def document(self) -> dict[str, object]:
        return asdict(self)


def normalized(text: str, names: dict[str, str]) -> str:
    """Replaces what differs between two runs of one server."""
    for value, name in sorted(names.items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"(?<![\d.]){re.escape(value)}(?!\d)", name, text)
    return EPOCH_MS.sub("TIME", ISO_TIME.sub("TIME", text)).strip()


def shape(value: object) -> object:
    """Returns a document with the types of its values instead of them; null stays, as absent."""
    if isinstance(value, dict):
        return {key: shape(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if value is None or isinstance(value, bool):
        return type(value).__name__
    return "number" if isinstance(value, int | float) else "text"


def output(out: str, err: str, *, mode: str, names: dict[str, str]) -> object:
    """Returns what counts of a command's output; `mode` is the mark of its line."""
    if mode == "?":
        return None
    printed = "\n".join(line for line in out.splitlines() if TEST_MODE_LINE not in line)
    text = normalized(printed, names)
    try:
        document = json.loads(text)
    except ValueError:
        document = text
    if mode == "~" and not err.strip():
        return shape(document)
    failed = normalized(err, names).partition(STACK_TRACE)[0].strip()
    if failed:
        return [document, *failed[:MAX_TEXT_LENGTH].splitlines()]
    return document
