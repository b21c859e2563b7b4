"""Protobuf's varints, for the frames that are built from templates."""

from typing import Final

_MASK64: Final = 2**64 - 1


def varint(value: int) -> bytes:
    """The canonical varint of a number; a negative one as its 64-bit two's complement."""
    value &= _MASK64
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


LOW_BITS: Final = 14
LOW_MASK: Final = (1 << LOW_BITS) - 1
LAST_PAIRS: Final = tuple(bytes((n & 0x7F | 0x80, n >> 7)) for n in range(LOW_MASK + 1))
"""Varints of two bytes: the numbers 128 to 16,383 (below that they would not be canonical)."""
LOW_PAIRS: Final = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(LOW_MASK + 1))
"""First two bytes of longer varints, by a number's low 14 bits; the varint of the rest follows."""


def split_tables(high: int) -> tuple[tuple[bytes, ...], bytes]:
    """For numbers from 128 on with `number >> LOW_BITS == high`: the table of their first two
    bytes, indexed by `number & LOW_MASK`, and the bytes that follow those."""
    return (LOW_PAIRS, varint(high)) if high else (LAST_PAIRS, b"")
