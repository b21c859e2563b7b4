"""Builds Arrow columns of bytes, numbers and maps, from runs of values or from single values.

A run is one array for many messages of the same layout. Single values wait in a list until the next
run, or the end. Null is the length -1, or NULL_NUMBER. Values that are lines of a table are copied
only once, at the end.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NULL: Final = -1
NULL_NUMBER: Final = -(1 << 63)

Numbers = NDArray[np.int64]
Table = NDArray[np.uint8]
"""An array of two dimensions."""
_NOTHING: Final = b""


class NumberColumn:
    """A column of 64-bit numbers."""

    __slots__ = ("_loose", "_parts")

    def __init__(self) -> None:
        self._parts: list[Numbers] = []
        self._loose: list[int] = []

    def add(self, value: int) -> None:
        self._loose.append(value)

    def extend(self, values: Iterable[int]) -> None:
        self._loose.extend(values)

    def run(self, values: Numbers) -> None:
        """Appends an array of values."""
        if self._loose:
            self._settle()
        self._parts.append(values)

    def same(self, value: int, count: int) -> None:
        """Appends the value `count` times."""
        self.run(np.full(count, value, np.int64))

    def _settle(self) -> None:
        self._parts.append(np.array(self._loose, np.int64))
        self._loose.clear()

    def take(self) -> Numbers:
        """All values. Clears the column."""
        if self._loose:
            self._settle()
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class BytesColumn:
    """A column of byte strings of any length, or null."""

    __slots__ = ("_lengths", "_loose", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes | Table] = []
        self._loose: list[bytes] = []
        self._lengths = NumberColumn()

    def add(self, value: bytes | None) -> None:
        if value is None:
            self._lengths.add(NULL)
        else:
            self._loose.append(value)
            self._lengths.add(len(value))

    def extend(self, values: Sequence[bytes]) -> None:
        """Appends values, none of them null."""
        self._loose.extend(values)
        self._lengths.extend(map(len, values))

    def extend_some(self, values: Sequence[bytes | None]) -> None:
        """Appends values, any of them possibly null."""
        full = [value for value in values if value is not None]
        if len(full) == len(values):
            self.extend(full)
        elif not full:
            self.nulls(len(values))
        else:
            self._loose.extend(full)
            self._lengths.extend([NULL if value is None else len(value) for value in values])

    def tables(self, tables: Sequence[Table]) -> None:
        """Appends the lines of these tables, which have one width."""
        self._settle()
        self._parts += tables
        self._lengths.same(tables[0].shape[1], sum(map(len, tables)))

    def nulls(self, count: int) -> None:
        """Appends null `count` times."""
        self._lengths.same(NULL, count)

    def raw(self, data: bytes, lengths: Numbers) -> None:
        """Appends concatenated values of these lengths, none of them null."""
        self._loose.append(data)
        self._lengths.run(lengths)

    def _settle(self) -> None:
        loose = self._loose
        if loose:
            self._parts.append(loose[0] if len(loose) == 1 else _NOTHING.join(loose))
            self._loose = []

    def take(self, kind: pa.DataType) -> pa.Array:
        """The values as an Arrow array of binary or (if they are UTF-8) text. Clears the column."""
        lengths = self._lengths.take()
        self._settle()
        parts, self._parts = self._parts, []
        count = len(lengths)
        null = lengths < 0
        validity = None
        nulls = int(np.count_nonzero(null))
        if nulls == count:
            return pa.nulls(count, kind)
        if nulls:
            validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
            lengths = np.where(null, 0, lengths)
        offsets = _offsets(lengths)
        return pa.Array.from_buffers(
            kind, count, [validity, pa.py_buffer(offsets), _joined(parts, int(offsets[-1]))], nulls
        )


def _joined(parts: Sequence[bytes | Table], size_bytes: int) -> pa.Buffer:
    """All parts concatenated, in Arrow's memory, which is reused."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return pa.py_buffer(parts[0])
    buffer = pa.allocate_buffer(size_bytes)
    room = np.frombuffer(buffer, np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            room[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        else:
            room[at : at + part.size].reshape(part.shape)[:] = part
            at += part.size
    return buffer


def _offsets(lengths: Numbers) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _utf8(text: str | bytes) -> bytes:
    """Text as bytes: the protobuf runtime returns bytes if it is not UTF-8."""
    return text.encode() if isinstance(text, str) else bytes(text)


class PropertiesColumn:
    """A column of maps of text to text, never null, usually empty."""

    __slots__ = ("_counts", "_keys", "_values")

    def __init__(self) -> None:
        self._counts = NumberColumn()
        self._keys = BytesColumn()
        self._values = BytesColumn()

    def add(self, properties: Any) -> None:
        """Appends the map of a message: repeated KeyValue of protobuf."""
        count = 0
        for item in properties:
            self._keys.add(_utf8(item.key))
            self._values.add(_utf8(item.value))
            count += 1
        self._counts.add(count)

    def empty(self, count: int) -> None:
        """Appends `count` empty maps."""
        self._counts.same(0, count)

    def run(
        self, count: int, keys: bytes, key_lengths: Numbers, values: bytes, lengths: Numbers
    ) -> None:
        """Appends `count` maps of equal size, from concatenated keys and values."""
        self._counts.same(len(key_lengths) // count, count)
        self._keys.raw(keys, key_lengths)
        self._values.raw(values, lengths)

    def take(self, kind: pa.MapType) -> pa.Array:
        """The maps as an Arrow array. Clears the column."""
        counts = self._counts.take()
        offsets = pa.Array.from_buffers(
            pa.int32(), len(counts) + 1, [None, pa.py_buffer(_offsets(counts))]
        )
        return pa.MapArray.from_arrays(
            offsets, self._keys.take(pa.utf8()), self._values.take(pa.utf8()), type=kind
        )
