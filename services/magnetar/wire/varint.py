"""Protobuf's varints, for the frames that are built from templates."""

from functools import cache
from typing import Final

_MASK64: Final = 2**64 - 1
_SHORT: Final = tuple(bytes((number,)) for number in range(0x80))


def varint(value: int) -> bytes:
    """Returns the canonical varint; of a negative number, that of its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= _MASK64
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


LOW_BITS: Final = 14
LOW_MASK: Final = (1 << LOW_BITS) - 1


@cache
def _pairs(more: int) -> tuple[bytes, ...]:
    """Returns the first two bytes of a varint, by the low 14 bits of its number.

    Built on first use; 1 MiB. With 0 for `more` they are the whole varint of 128 to 16,383 (below
    that they would not be canonical); with 0x80 the varint of the rest follows.
    """
    return tuple(bytes((n & 0x7F | 0x80, n >> 7 | more)) for n in range(LOW_MASK + 1))


def split_tables(high: int) -> tuple[tuple[bytes, ...], bytes]:
    """Returns the tables for numbers from 128 on with `number >> LOW_BITS == high`.

    The first has their first two bytes, by `number & LOW_MASK`; the second the bytes after those.
    """
    return (_pairs(0x80), varint(high)) if high else (_pairs(0), b"")
