"""Messages to send: from arguments, from files, and from the lines of a file or of stdin.

A line is a value, `KEY DELIMITER VALUE`, or with `--json` an object as `magnetar consume --json`
prints it, so that messages can be copied from one topic to another.
"""

import argparse
import base64
import binascii
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from magnetar.cli.messages.blocking import read_chunk
from magnetar.cli.messages.errors import InputFailed

LINE_BYTES_MAX: Final = 256 << 20
"""A longer line is refused: its delimiter is probably wrong."""
STDIN: Final = "-"


class Item(msgspec.Struct, frozen=True):
    """A message to send."""

    value: bytes | None
    """None is a null value."""
    key: str | None = None
    key_bytes: bytes | None = None
    ordering_key: bytes | None = None
    properties: dict[str, str] = {}
    event_time_ms: int = 0
    deliver_at_ms: int = 0
    line: int = 0
    """Its number in the input; 0 if it comes from an argument or a file of its own."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `--json`; the names of fields are those that `consume --json` prints.

    From `topic` on, they are printed, and do not belong to a new message.
    """

    value: Any = msgspec.UNSET
    valueBase64: str | None = None
    key: str | None = None
    keyBase64: str | None = None
    orderingKeyBase64: str | None = None
    properties: dict[str, str] = {}
    eventTime: int = 0
    deliverAt: int = 0
    topic: Any = None
    id: Any = None
    publishTime: Any = None
    producer: Any = None
    sequenceId: Any = None
    redeliveries: Any = None
    schemaVersion: Any = None


def decoder(args: argparse.Namespace) -> Callable[[bytes, int], Item]:
    """Returns the function that turns a line and its number into a message."""
    if args.json:
        return json_item
    value = DECODINGS[args.input]

    def plain(line: bytes, number: int) -> Item:
        key: str | None = None
        key_bytes: bytes | None = None
        if args.key_delimiter is not None:
            head, separator, tail = line.partition(args.key_delimiter)
            if not separator:
                raise InputFailed(
                    f"line {number}: no {args.key_delimiter!r} between key and value "
                    "(--key-delimiter)"
                )
            line = tail
            key, key_bytes = key_of(head)
        if not line and args.null:
            return Item(None, key=key, key_bytes=key_bytes, line=number)
        return Item(_decoded(value, line, number), key=key, key_bytes=key_bytes, line=number)

    return plain


def key_of(data: bytes) -> tuple[str | None, bytes | None]:
    """Returns a key as text, or as bytes if it is not text."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, data


def _base64(data: bytes) -> bytes:
    return base64.b64decode(data, validate=True)


def _hex(data: bytes) -> bytes:
    return binascii.unhexlify(data.translate(None, b" :"))


DECODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "raw": bytes,
    "hex": _hex,
    "base64": _base64,
}


def _decoded(decode: Callable[[bytes], bytes], data: bytes, line: int) -> bytes:
    try:
        return decode(data)
    except ValueError as error:
        raise InputFailed(f"{f'line {line}' if line else 'the value'}: {error}") from None


def json_item(line: bytes, number: int) -> Item:
    """Returns the message of a JSON object; raises InputFailed that names the line and field."""
    try:
        given = msgspec.json.decode(line, type=_Document)
        if given.key is not None and given.keyBase64 is not None:
            raise InputFailed(f"line {number}: give key or keyBase64, not both")
        if given.value is not msgspec.UNSET and given.valueBase64 is not None:
            raise InputFailed(f"line {number}: give value or valueBase64, not both")
        if given.value is msgspec.UNSET and given.valueBase64 is None:
            raise InputFailed(
                f"line {number}: no value; null, a text, any JSON, or valueBase64 is one"
            )
        return Item(
            _json_value(given),
            given.key,
            None if given.keyBase64 is None else _base64(given.keyBase64.encode()),
            None if given.orderingKeyBase64 is None else _base64(given.orderingKeyBase64.encode()),
            given.properties,
            given.eventTime,
            given.deliverAt,
            number,
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputFailed(f"line {number}: {error}") from None


def _json_value(given: _Document) -> bytes | None:
    if given.valueBase64 is not None:
        return _base64(given.valueBase64.encode())
    if given.value is None:
        return None
    if isinstance(given.value, str):
        return given.value.encode()
    return msgspec.json.encode(given.value)


async def items(args: argparse.Namespace) -> AsyncIterator[Item]:
    """Yields the messages to send, in order. Raises InputFailed and OSError."""
    if args.message or args.file:
        for item in _given(args):
            yield item
        return
    decode = decoder(args)
    number = 0
    with _opened(args.lines or STDIN) as descriptor:
        async for line in lines(descriptor, args.delimiter):
            number += 1
            yield decode(line, number)


def _given(args: argparse.Namespace) -> Iterator[Item]:
    values = [
        _decoded(DECODINGS[args.input], text.encode(errors="surrogateescape"), 0)
        for text in args.message
    ]
    values += [Path(name).read_bytes() for name in args.file]
    for _ in range(args.count or 1):
        for value in values:
            yield Item(None if args.null and not value else value)


@contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STDIN:
        yield sys.stdin.fileno()
        return
    descriptor = os.open(name, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def lines(descriptor: int, delimiter: bytes) -> AsyncIterator[bytes]:
    """Yields what stands between delimiters; the last line needs none."""
    pending = bytearray()
    searched = 0
    while chunk := await read_chunk(descriptor):
        pending += chunk
        start = 0
        while (end := pending.find(delimiter, max(start, searched))) >= 0:
            yield bytes(pending[start:end])
            start = searched = end + len(delimiter)
        del pending[:start]
        searched = max(0, len(pending) - len(delimiter) + 1)
        if len(pending) > LINE_BYTES_MAX:
            raise InputFailed(f"a line is longer than {LINE_BYTES_MAX} bytes: check --delimiter")
    if pending:
        yield bytes(pending)
