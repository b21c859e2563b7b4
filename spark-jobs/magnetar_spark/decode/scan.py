"""Decodes messages of a batch one by one, with a hand-written scan of their heads.

For messages without a common layout. It reads key, payload size, event time and sequence id in the
order in which protobuf writes them. A head with any other field is left to protobuf; the scan
continues after it. Parsing a head by protobuf costs three times as much.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from magnetar_spark.decode.builders import NULL_NUMBER
from magnetar_spark.decode.rows import Rows

_size_at: Final = Struct(">I").unpack_from

AddOne = Callable[[int, int], int]
"""Appends the message at an offset, with its index, by other means; returns the next offset."""


def add_scanned(  # noqa: C901 - one loop without calls: half of the time would go into them
    rows: Rows, plain: bytes, at: int, index: int, count: int, other: AddOne
) -> None:
    """Appends the messages from `index` to `count` - 1; the first is at offset `at`."""
    total = len(plain)
    while index < count:
        first = index
        values: list[bytes] = []
        keys: list[bytes | None] = []
        times: list[int] = []
        sequences: list[int] = []
        try:
            while index < count and at + 4 < total:
                pos = at + 4
                end = pos + _size_at(plain, at)[0]
                if end >= total or end == pos:
                    break  # also for the last message of a batch with an empty payload
                key, time, sequence = None, NULL_NUMBER, 0
                tag = plain[pos]
                if tag == 0x12:
                    length = plain[pos + 1]
                    start = pos + 2
                    pos = start + length
                    if length > 0x7F or pos >= end:
                        break
                    key = plain[start:pos]
                    tag = plain[pos]
                if tag != 0x18:
                    break
                size = plain[pos + 1]
                pos += 2
                if size > 0x7F:
                    more = plain[pos]
                    size += (more << 7) - 0x80
                    pos += 1
                    if more > 0x7F:
                        more = plain[pos]
                        size += (more << 14) - 0x4000
                        pos += 1
                        if more > 0x7F:
                            break
                if pos < end and plain[pos] == 0x28:
                    time, pos = _varint(plain, pos + 1, end)
                    time = time or NULL_NUMBER
                if pos < end and plain[pos] == 0x40:
                    sequence, pos = _varint(plain, pos + 1, end)
                after = end + size
                if pos != end or after > total:
                    break
                values.append(plain[end:after])
                keys.append(key)
                times.append(time)
                sequences.append(sequence)
                at = after
                index += 1
        except IndexError:
            pass  # a head that ends within a number: protobuf reports the error
        if values:
            _append(rows, first, values, keys, times, sequences)
        if index < count:
            at = other(at, index)
            index += 1


def _varint(plain: bytes, pos: int, end: int) -> tuple[int, int]:
    """The number and the offset after it; an offset beyond `end` if it is cut off or negative."""
    value = plain[pos] if pos < end else 0x80
    if value < 0x80:
        return value, pos + 1
    value -= 0x80
    shift = 7
    while True:
        pos += 1
        if pos >= end or shift > 56:
            return 0, end + 1
        byte = plain[pos]
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos + 1
        shift += 7


def _append(
    rows: Rows,
    first: int,
    values: list[bytes],
    keys: list[bytes | None],
    times: list[int],
    sequences: list[int],
) -> None:
    count = len(values)
    rows.settle()
    rows.in_entry += count
    if rows.batch_index is not None:
        rows.batch_index.extend(range(first, first + count))
    if rows.value is not None:
        rows.value.extend(values)
    if rows.key is not None:
        rows.key.extend_some(keys)
    if rows.ordering_key is not None:
        rows.ordering_key.nulls(count)
    if rows.event_time is not None:
        rows.event_time.extend(times)
    if rows.sequence is not None:
        rows.sequence.extend(sequences)
    if rows.properties is not None:
        rows.properties.empty(count)
