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
# A terminated topic answers with its last position, in a ledger that nothing else names.
TERMINATED_AT = re.compile(r"terminated at -?\d+:-?\d+:-?\d+")
SERVLET = re.compile(r"ServletContainer-[0-9a-f]+")
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
    text = EPOCH_MS.sub("TIME", ISO_TIME.sub("TIME", text))
    text = SERVLET.sub("ServletContainer", TERMINATED_AT.sub("terminated at $POSITION", text))
    for value, name in sorted(names.items(), key=lambda item: -len(item[0])):
        end = r"(?!\d)" if value[-1].isdigit() else ""
        text = re.sub(rf"(?<![\d.-]){re.escape(value)}{end}", name, text)
    return text.strip()


def document(value: object, names: dict[str, str]) -> object:
    """Returns a parsed document, normalized; lists of texts are sets in Java, without an order."""
    if isinstance(value, dict):
        return {normalized(key, names): _field(key, value[key], names) for key in value}
    if isinstance(value, list):
        found = [document(each, names) for each in value]
        texts = [each for each in found if isinstance(each, str)]
        return sorted(texts) if len(texts) == len(found) else found
    if isinstance(value, bool) or value is None:
        return value
    text = normalized(str(value), names)
    return value if text == str(value) else text


def _field(key: str, value: object, names: dict[str, str]) -> object:
    """Returns a field's value; servers number their ledgers, and only -1 means something."""
    if key == "ledgerId" and isinstance(value, int) and value >= 0:
        return "$LEDGER"
    return document(value, names)


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
    if mode in ("?", "!"):
        return None
    printed = "\n".join(line for line in out.splitlines() if TEST_MODE_LINE not in line)
    try:
        found = json.loads(printed)
    except ValueError:
        found = normalized(printed, names)
    if mode == "~" and not err.strip():
        return shape(found)
    shown = document(found, names)
    failed = normalized(err, names).partition(STACK_TRACE)[0].strip()
    if failed:
        return [shown, *failed[:MAX_TEXT_LENGTH].splitlines()]
    return shown
