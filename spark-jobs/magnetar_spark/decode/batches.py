"""The messages of a batch, found without parsing each by itself.

A batch is a run of `size:u32 SingleMessageMetadata payload`. Mostly the messages that follow each
other are alike: the same fields in the same order, each as long as before. Then all of them are
one table of bytes. So the head of one message is walked and a mask made of it: what must be equal
in the next (tags, lengths, the payload's size), what may differ (keys, text), and of numbers
only which byte ends them. One comparison shows how many messages are alike, and columns of the
table are the columns of the result.

Where there are fewer than ALIKE_MIN, ALIKE_TRIES times in one batch, the rest of the batch is
scanned message by message (`scan`). Heads with fields that neither knows are left to protobuf.
"""

from functools import partial
from typing import Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from magnetar.wire._pb.PulsarApi_pb2 import SingleMessageMetadata
from magnetar.wire.framing import METADATA_SIZE_BYTES, MalformedEntry
from magnetar_spark.decode.builders import NULL_NUMBER, Numbers, PropertiesColumn
from magnetar_spark.decode.rows import Rows
from magnetar_spark.decode.scan import add_scanned

ALIKE_MIN: Final = 8
ALIKE_TRIES: Final = 2

_PROPERTY: Final = 0x0A
_KEY: Final = 0x12
_PAYLOAD_SIZE: Final = 0x18
_COMPACTED_OUT: Final = 0x20
_EVENT_TIME: Final = 0x28
_KEY_BASE64: Final = 0x30
_ORDERING_KEY: Final = 0x3A
_SEQUENCE: Final = 0x40
_NULL_VALUE: Final = 0x48
_NULL_KEY: Final = 0x50
_EQUAL: Final = b"\xff"
_FREE: Final = b"\x00"
_MORE: Final = b"\x80"
_message_from = SingleMessageMetadata.FromString


class Span(NamedTuple):
    """Where a field's value is, from the head's first byte."""

    start: int
    end: int


class Head(NamedTuple):
    """One message's metadata, as far as it says what the next ones look like."""

    size: int
    payload_bytes: int
    key: Span | None
    ordering_key: Span | None
    event_time: Span | None
    sequence: Span | None
    properties: tuple[tuple[Span, Span], ...]
    null_value: bool
    mask: bytes


def add_batch(rows: Rows, plain: bytes, count: int) -> None:
    """Appends the batch's messages to the entry begun last; raises MalformedEntry."""
    at = index = tries = 0
    table = np.frombuffer(plain, np.uint8)
    while index < count and tries < ALIKE_TRIES:
        head = walked(plain, at)
        if head is None:
            break
        found = _alike(table[at:], head, count - index)
        if found < ALIKE_MIN and found < count - index:
            tries += 1
        if not found:
            break
        stride = head.size + head.payload_bytes
        _add_alike(rows, table[at : at + found * stride].reshape(found, stride), head, index)
        at += found * stride
        index += found
    if index < count:
        add_scanned(rows, plain, at, index, count, partial(_add_one, rows, plain))


def walked(plain: bytes, at: int) -> Head | None:
    """The head of the message at this offset; None where protobuf has to read it."""
    end = at + METADATA_SIZE_BYTES + int.from_bytes(plain[at : at + METADATA_SIZE_BYTES])
    if end > len(plain):
        return None
    pos = at + METADATA_SIZE_BYTES
    mask = [_EQUAL * METADATA_SIZE_BYTES]
    payload_bytes, null_value = -1, False
    spans: dict[int, Span] = {}
    properties: list[tuple[Span, Span]] = []
    while pos < end:
        tag = plain[pos]
        if tag in (_PAYLOAD_SIZE, _EVENT_TIME, _SEQUENCE):
            value, after = _varint(plain, pos + 1, end)
            if tag in spans or not after:
                return None
            spans[tag] = Span(pos + 1 - at, after - at)
            if tag == _PAYLOAD_SIZE:
                payload_bytes = value
                mask.append(_EQUAL * (after - pos))
            else:
                mask += (_EQUAL, _MORE * (after - pos - 1))
        elif tag in (_KEY, _ORDERING_KEY):
            size, start = _varint(plain, pos + 1, end)
            after = start + size
            if tag in spans or not start or after > end:
                return None
            spans[tag] = Span(start - at, after - at)
            mask += (_EQUAL * (start - pos), _FREE * size)
        elif tag == _PROPERTY:
            pair = _property(plain, pos, end)
            if pair is None:
                return None
            key, value_span, after = pair
            properties.append(
                (Span(key.start - at, key.end - at), Span(value_span.start - at, after - at))
            )
            mask += (
                _EQUAL * (key.start - pos),
                _FREE * (key.end - key.start),
                _EQUAL * (value_span.start - key.end),
                _FREE * (after - value_span.start),
            )
        elif tag == _NULL_VALUE and plain[pos + 1] <= 1 and pos + 1 < end:
            null_value, after = bool(plain[pos + 1]), pos + 2
            mask.append(_EQUAL * 2)
        else:
            return None
        pos = after
    if pos != end or payload_bytes < 0 or end + payload_bytes > len(plain):
        return None
    return Head(
        end - at,
        payload_bytes,
        spans.get(_KEY),
        spans.get(_ORDERING_KEY),
        spans.get(_EVENT_TIME),
        spans.get(_SEQUENCE),
        tuple(properties),
        null_value,
        b"".join(mask),
    )


def _varint(plain: bytes, pos: int, end: int) -> tuple[int, int]:
    """The number and where it ends; (0, 0) where it does not."""
    value = shift = 0
    while pos < end and shift < 64:
        byte = plain[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    return 0, 0


def _property(plain: bytes, pos: int, end: int) -> tuple[Span, Span, int] | None:
    """Key, value and end of a KeyValue that has one of each, in that order."""
    size, inner = _varint(plain, pos + 1, end)
    after = inner + size
    if not inner or after > end or inner == after or plain[inner] != 0x0A:
        return None
    size, start = _varint(plain, inner + 1, after)
    if not start or start + size >= after or plain[start + size] != 0x12:
        return None
    key = Span(start, start + size)
    size, start = _varint(plain, key.end + 1, after)
    if not start or start + size != after:
        return None
    return key, Span(start, after), after


def _alike(table: NDArray[np.uint8], head: Head, count: int) -> int:
    """How many of the next `count` messages are as this head says, itself included."""
    stride = head.size + head.payload_bytes
    fit = min(count, len(table) // stride)
    heads = table[: fit * stride].reshape(fit, stride)[:, : head.size]
    mask = np.frombuffer(head.mask, np.uint8)
    different = (((heads ^ heads[0]) & mask) != 0).any(axis=1)
    first = int(different.argmax())
    return first if different[first] else fit


def _add_alike(rows: Rows, table: NDArray[np.uint8], head: Head, index: int) -> None:
    """Messages that are alike, one to a line of the table."""
    count = len(table)

    def column(span: Span) -> bytes:
        return table[:, span.start : span.end].tobytes()

    rows.in_entry += count
    rows.batch_index.run(np.arange(index, index + count, dtype=np.int64))
    if head.null_value:
        rows.value.nulls(count)
    else:
        payload = Span(head.size, table.shape[1])
        rows.value.run(column(payload), head.payload_bytes, count)
    for builder, span in ((rows.key, head.key), (rows.ordering_key, head.ordering_key)):
        if builder is not None:
            if span is None:
                builder.nulls(count)
            else:
                builder.run(column(span), span.end - span.start, count)
    if rows.event_time is not None:
        rows.event_time.run(_event_times(table, head.event_time))
    if rows.sequence is not None:
        rows.sequence.run(_numbers(table, head.sequence, 0))
    if rows.properties is not None:
        _add_properties(rows.properties, table, head)


def _add_properties(properties: PropertiesColumn, table: NDArray[np.uint8], head: Head) -> None:
    count = len(table)
    if not head.properties:
        properties.empty(count)
        return
    keys = np.concatenate([table[:, k.start : k.end] for k, _ in head.properties], axis=1)
    values = np.concatenate([table[:, v.start : v.end] for _, v in head.properties], axis=1)
    key_lengths = np.array([k.end - k.start for k, _ in head.properties], np.int64)
    lengths = np.array([v.end - v.start for _, v in head.properties], np.int64)
    properties.run(
        count,
        keys.tobytes(),
        np.tile(key_lengths, count),
        values.tobytes(),
        np.tile(lengths, count),
    )


def _numbers(table: NDArray[np.uint8], span: Span | None, absent: int) -> Numbers:
    """The varints in these columns of the table."""
    if span is None:
        return np.full(len(table), absent, np.int64)
    total = (table[:, span.start] & 0x7F).astype(np.int64)
    for step, column in enumerate(range(span.start + 1, span.end), 1):
        total |= (table[:, column] & 0x7F).astype(np.int64) << (7 * step)
    return total


def _event_times(table: NDArray[np.uint8], span: Span | None) -> Numbers:
    times = _numbers(table, span, 0)
    return np.where(times == 0, NULL_NUMBER, times)


def _add_one(rows: Rows, plain: bytes, at: int, index: int) -> int:
    """One message, by protobuf; where the next one begins."""
    start = at + METADATA_SIZE_BYTES
    end = start + int.from_bytes(plain[at:start])
    if end > len(plain) or start > len(plain):
        raise MalformedEntry("The batch ends within the metadata of a message")
    try:
        message = _message_from(plain[start:end])
    except DecodeError as error:
        raise MalformedEntry("The metadata of a message cannot be parsed") from error
    after = end + message.payload_size
    if not end <= after <= len(plain):
        raise MalformedEntry("The batch ends within a message")
    if not message.compacted_out:
        rows.add_message(message, None if message.null_value else plain[end:after], index)
    return after
