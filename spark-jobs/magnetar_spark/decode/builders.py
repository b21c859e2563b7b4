"""Columns under construction: of bytes, of numbers, of maps. Appended to in runs or one by one.

A run is what a batch of like messages gives: one array for all of them. What comes one by one
waits in a list until the next run, or the end. Null is the length -1, or NULL_NUMBER.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NULL: Final = -1
NULL_NUMBER: Final = -(1 << 63)

Numbers = NDArray[np.int64]
_NOTHING: Final = b""


class NumberColumn:
    """64-bit numbers."""

    __slots__ = ("_loose", "_parts")

    def __init__(self) -> None:
        self._parts: list[Numbers] = []
        self._loose: list[int] = []

    def add(self, value: int) -> None:
        self._loose.append(value)

    def extend(self, values: Iterable[int]) -> None:
        self._loose.extend(values)

    def run(self, values: Numbers) -> None:
        """As many as there are."""
        if self._loose:
            self._settle()
        self._parts.append(values)

    def same(self, value: int, count: int) -> None:
        """The value, `count` times."""
        self.run(np.full(count, value, np.int64))

    def _settle(self) -> None:
        self._parts.append(np.array(self._loose, np.int64))
        self._loose.clear()

    def take(self) -> Numbers:
        """All of them; the column is empty then."""
        if self._loose:
            self._settle()
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class BytesColumn:
    """Byte strings of any length, some of them null."""

    __slots__ = ("_data", "_lengths")

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._lengths = NumberColumn()

    def add(self, value: bytes | None) -> None:
        if value is None:
            self._lengths.add(NULL)
        else:
            self._data.append(value)
            self._lengths.add(len(value))

    def extend(self, values: Sequence[bytes]) -> None:
        """None of them null."""
        self._data.extend(values)
        self._lengths.extend(map(len, values))

    def extend_some(self, values: Sequence[bytes | None]) -> None:
        """Some of them, or all, null."""
        full = [value for value in values if value is not None]
        if len(full) == len(values):
            self.extend(full)
        elif not full:
            self.nulls(len(values))
        else:
            self._data.extend(full)
            self._lengths.extend([NULL if value is None else len(value) for value in values])

    def run(self, data: bytes, length: int, count: int) -> None:
        """`count` values of this length, one behind the other."""
        self._data.append(data)
        self._lengths.same(length, count)

    def nulls(self, count: int) -> None:
        self._lengths.same(NULL, count)

    def raw(self, data: bytes, lengths: Numbers) -> None:
        """Values of these lengths, none null, one behind the other."""
        self._data.append(data)
        self._lengths.run(lengths)

    def take(self, kind: pa.DataType) -> pa.Array:
        """As an Arrow array of binary or (what is UTF-8) text; the column is empty then."""
        lengths = self._lengths.take()
        data, self._data = self._data, []
        count = len(lengths)
        null = lengths < 0
        validity = None
        nulls = int(np.count_nonzero(null))
        if nulls == count:
            return pa.nulls(count, kind)
        if nulls:
            validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
            lengths = np.where(null, 0, lengths)
        joined = data[0] if len(data) == 1 else _NOTHING.join(data)
        return pa.Array.from_buffers(
            kind, count, [validity, _offsets(lengths), pa.py_buffer(joined)], nulls
        )


def _offsets(lengths: Numbers) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def _utf8(text: str | bytes) -> bytes:
    """The runtime hands out bytes for text that is not UTF-8."""
    return text.encode() if isinstance(text, str) else bytes(text)


class PropertiesColumn:
    """Maps of text to text, never null, mostly empty."""

    __slots__ = ("_counts", "_keys", "_values")

    def __init__(self) -> None:
        self._counts = NumberColumn()
        self._keys = BytesColumn()
        self._values = BytesColumn()

    def add(self, properties: Any) -> None:
        """What protobuf has as repeated KeyValue."""
        count = 0
        for each in properties:
            self._keys.add(_utf8(each.key))
            self._values.add(_utf8(each.value))
            count += 1
        self._counts.add(count)

    def empty(self, count: int) -> None:
        """`count` rows without any."""
        self._counts.same(0, count)

    def run(
        self, count: int, keys: bytes, key_lengths: Numbers, values: bytes, lengths: Numbers
    ) -> None:
        """Rows that all have as many properties, one behind the other."""
        self._counts.same(len(key_lengths) // count, count)
        self._keys.raw(keys, key_lengths)
        self._values.raw(values, lengths)

    def take(self, kind: pa.MapType) -> pa.Array:
        """As an Arrow array; the column is empty then."""
        counts = self._counts.take()
        offsets = pa.Array.from_buffers(pa.int32(), len(counts) + 1, [None, _offsets(counts)])
        return pa.MapArray.from_arrays(
            offsets, self._keys.take(pa.utf8()), self._values.take(pa.utf8()), type=kind
        )
