"""Texts of arguments: delimiters with escapes, times, positions, `NAME=VALUE` pairs.

The functions raise argparse.ArgumentTypeError, so argparse prints the reason with the option.
"""

import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Final, NamedTuple

from magnetar.core.relative_time import duration_s

_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ID: Final = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?(?::(-?\d+))?")
TIME_FORMS: Final = "now, 2026-11-28T12:00:00Z, milliseconds since 1970, or 10m for 10 minutes ago"
_MILLISECONDS_DIGITS_MIN: Final = 11
"""Fewer digits are refused, because they may be seconds: 10 digits are the seconds of today."""


class Position(NamedTuple):
    """Where a reader starts: `earliest`, `latest`, a message id, or a publish time."""

    kind: str
    """`earliest`, `latest`, `id` or `time`."""
    message_id: tuple[int, int, int, int] = (0, 0, -1, -1)
    """Ledger, entry, partition, batch index."""
    time_ms: int = 0


def unescape(text: str) -> bytes:
    r"""Returns the bytes of a delimiter: `\n`, `\t`, `\r`, `\0`, `\\` and `\xNN` are understood."""
    out = bytearray()
    at = 0
    for match in _ESCAPE.finditer(text):
        out += text[at : match.start()].encode()
        at = match.end()
        code = match[1]
        if len(code) == 3:
            out.append(int(code[1:], 16))
        elif code in _ESCAPES:
            out += _ESCAPES[code].encode()
        else:
            raise ArgumentTypeError(rf"\{code} is not one of \n, \r, \t, \0, \\ and \xNN")
    return bytes(out) + text[at:].encode()


def delimiter(text: str) -> bytes:
    """Returns the bytes of a delimiter, which is not empty."""
    data = unescape(text)
    if not data:
        raise ArgumentTypeError("a delimiter cannot be empty")
    return data


def pair(text: str) -> tuple[str, str]:
    """Splits `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def positive_int(text: str) -> int:
    """Returns a whole number above 0."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number greater than 0")
    return number


def positive_float(text: str) -> float:
    """Returns a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number greater than 0")
    return number


def time_ms(text: str) -> int:
    """Returns the milliseconds since 1970 of a time in one of TIME_FORMS."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    if text == "now":
        return now_ms
    if text.isdigit():
        if len(text) < _MILLISECONDS_DIGITS_MIN:
            raise ArgumentTypeError(
                f"{text!r} is too small for milliseconds since 1970; use {TIME_FORMS}"
            )
        return int(text)
    try:
        return now_ms - 1000 * duration_s(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time: use {TIME_FORMS}") from None
    return round(moment.timestamp() * 1000)  # without a zone, it is the local time


def position(text: str) -> Position:
    """Returns the position for `earliest`, `latest`, a message id, or a time."""
    if text in ("earliest", "latest"):
        return Position(text)
    match = _ID.fullmatch(text)
    if match is not None:
        ledger, entry, partition, batch = (int(part or -1) for part in match.groups())
        return Position("id", (ledger, entry, partition, batch))
    try:
        return Position("time", time_ms=time_ms(text))
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is not a position: use earliest, latest, a message id such as 12:0:-1, "
            f"or a time: {TIME_FORMS}"
        ) from None
