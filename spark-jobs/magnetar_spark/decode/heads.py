"""Parses the head of a message in a batch, byte by byte. Pure.

A head is `size:u32 SingleMessageMetadata`. The result has the positions of its fields and a mask:
bytes that must be equal in a message of the same layout (tags, lengths, the payload's size), bytes
that may differ (keys, text), and in numbers only the bit that ends them.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from magnetar.wire.framing import METADATA_SIZE_BYTES

_PROPERTY: Final = 0x0A
_KEY: Final = 0x12
_PAYLOAD_SIZE: Final = 0x18
_COMPACTED_OUT: Final = 0x20
_EVENT_TIME: Final = 0x28
_ORDERING_KEY: Final = 0x3A
_SEQUENCE: Final = 0x40
_NULL_VALUE: Final = 0x48
_EQUAL: Final = b"\xff"
_FREE: Final = b"\x00"
_MORE: Final = b"\x80"


class Span(NamedTuple):
    """The position of a field's value, from the head's first byte."""

    start: int
    end: int


class Head(NamedTuple):
    """The layout of one message's metadata, by which messages of the same layout are recognized.

    `expected` is the head under the mask.
    """

    size: int
    payload_bytes: int
    key: Span | None
    ordering_key: Span | None
    event_time: Span | None
    sequence: Span | None
    properties: tuple[tuple[Span, Span], ...]
    null_value: bool
    mask: NDArray[np.uint8]
    expected: NDArray[np.uint8]

    @property
    def stride(self) -> int:
        """The distance from one message to the next, in bytes."""
        return self.size + self.payload_bytes


def walked(plain: bytes, at: int) -> Head | None:
    """The head of the message at this offset; None if only protobuf can read it."""
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
    bits = np.frombuffer(b"".join(mask), np.uint8)
    return Head(
        end - at,
        payload_bytes,
        spans.get(_KEY),
        spans.get(_ORDERING_KEY),
        spans.get(_EVENT_TIME),
        spans.get(_SEQUENCE),
        tuple(properties),
        null_value,
        bits,
        np.frombuffer(plain, np.uint8, end - at, at) & bits,
    )


def _varint(plain: bytes, pos: int, end: int) -> tuple[int, int]:
    """The number and the offset after it; (0, 0) if it is cut off."""
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
    """Key, value and end of a KeyValue that has both, in that order; None otherwise."""
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
