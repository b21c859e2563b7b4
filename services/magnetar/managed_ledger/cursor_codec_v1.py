"""Versions 1 and 2 of the records in a cursor ledger. Pure.

A record is one entry of the cursor ledger, little-endian:

    magic "MCUR" | version u8 | kind u8 | part u32 | parts u32 | base i64
    | mark-delete ledger i64, entry i64
    | sets u32   | each: ledger i64, size u32, Roaring bitmap (its portable format)
    | remains u32 | each: ledger i64, entry u32, size u32, bits little-endian
    | version 2 only: payload size u32, bytes
    | CRC-32C u32 of all before

A snapshot is the whole state, in `parts` consecutive records; it is valid once its last part is
written. A delta holds the changes since the record before. `base` is the entry at which the
snapshot starts that the record belongs to or builds on, so a reader needs the last record, the
snapshot that it names, and the records between. Acks at or before mark-delete are left out, as are
remains of acked entries; a later delta may make earlier ones redundant, and readers drop those.

The payload belongs to the cursor's user, for example the ids of deduplication. It is split over the
parts of a snapshot, and readers join the pieces. Only snapshots with a payload are version 2, so
that an older broker still reads all other cursors; a delta has none.

Bounds: a record aims at PART_BYTES; a large bitmap is split into windows to stay near it.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

import google_crc32c
import msgspec
from pyroaring import BitMap

from magnetar.core.ids import Position

MAGIC: Final = b"MCUR"
VERSION: Final = 1
VERSION_WITH_PAYLOAD: Final = 2
PART_BYTES: Final = 512 << 10
WINDOW_IDS: Final = 1 << 21
"""A bitmap of this many ids takes at most 256 KiB (a bit each) and some headers."""

_HEAD = struct.Struct("<4sBBIIqqq")
COUNT = struct.Struct("<I")
_SET = struct.Struct("<qI")
_REMAINS = struct.Struct("<qII")
CRC = struct.Struct("<I")


class RecordKind(IntEnum):
    """The kind of a record."""

    SNAPSHOT = 1
    DELTA = 2


class CodecError(ValueError):
    """The bytes are no valid record of this version; the message gives the reason."""


class CursorLogRecord(msgspec.Struct):
    """A decoded record: bitmaps by ledger, remains by (ledger, entry)."""

    kind: RecordKind
    part: int
    parts: int
    base: int
    mark_delete: Position
    holes: dict[int, BitMap]
    batches: dict[tuple[int, int], int]
    payload: bytes = b""
    """The record's piece of the payload."""


def encode_delta(
    base: int,
    mark_delete: Position,
    holes: Mapping[int, BitMap],
    batches: Mapping[tuple[int, int], int],
) -> bytes:
    """Returns one delta record. Its size is bounded by the acks of about one second."""
    head = (RecordKind.DELTA, 0, 1, base, mark_delete)
    return _sealed(body(VERSION, *head, sets_of(holes), remains_of(batches)))


def encode_snapshot(
    base: int,
    mark_delete: Position,
    holes: Mapping[int, BitMap],
    batches: Mapping[tuple[int, int], int],
    payload: bytes = b"",
) -> list[bytes]:
    """Returns the whole state as one or more consecutive records, starting at entry `base`."""
    parts: list[tuple[list[bytes], list[bytes]]] = [([], [])]
    room = PART_BYTES
    items: Iterable[tuple[int, bytes]] = (
        *((0, item) for item in sets_of(holes)),
        *((1, item) for item in remains_of(batches)),
    )
    for which, item in items:
        if len(item) > room and room < PART_BYTES:
            parts.append(([], []))
            room = PART_BYTES
        parts[-1][which].append(item)
        room -= len(item)
    pieces = [payload[at : at + PART_BYTES] for at in range(0, len(payload), PART_BYTES)]
    parts += [([], [])] * (len(pieces) - len(parts))
    pieces += [b""] * (len(parts) - len(pieces))
    head = (len(parts), base, mark_delete)
    return [
        _sealed(
            body(VERSION_WITH_PAYLOAD, RecordKind.SNAPSHOT, number, *head, sets, remains)
            + COUNT.pack(len(piece))
            + piece
            if piece
            else body(VERSION, RecordKind.SNAPSHOT, number, *head, sets, remains)
        )
        for number, ((sets, remains), piece) in enumerate(zip(parts, pieces, strict=True))
    ]


def decode(data: bytes) -> CursorLogRecord:
    """Raises CodecError unless `data` is a whole, undamaged record of version 1 or 2."""
    record, at = decode_parts(data, versions=(VERSION, VERSION_WITH_PAYLOAD))
    check_end(data, at)
    return record


def decode_parts(data: bytes, *, versions: Sequence[int]) -> tuple[CursorLogRecord, int]:
    """Returns the fields of versions 1 and 2, and the offset behind them. Raises CodecError."""
    if len(data) < _HEAD.size + 2 * COUNT.size + CRC.size:
        raise CodecError(f"{len(data)} bytes are too few for a cursor record")
    magic, version, kind, part, parts, base, ledger_id, entry_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"not a cursor record: it begins with {magic.hex()}")
    (crc,) = CRC.unpack_from(data, len(data) - CRC.size)
    actual = google_crc32c.value(data[: -CRC.size])
    if crc != actual:
        raise CodecError(f"CRC-32C is {actual:08x}, the record says {crc:08x}")
    if version not in versions:
        raise CodecError(f"version {version} is none of {', '.join(map(str, versions))}")
    try:
        record_kind = RecordKind(kind)
        holes, at = _read_sets(data, _HEAD.size)
        batches, at = _read_remains(data, at)
        payload = b""
        if version == VERSION_WITH_PAYLOAD:
            (size,) = COUNT.unpack_from(data, at)
            at += COUNT.size
            payload = cut(data, at, size)
            at += size
    except (struct.error, ValueError) as error:
        raise CodecError(f"malformed record: {error}") from error
    if part >= parts:
        raise CodecError(f"malformed record: part {part} of {parts}")
    mark_delete = Position(ledger_id, entry_id)
    record = CursorLogRecord(record_kind, part, parts, base, mark_delete, holes, batches, payload)
    return record, at


def version_of(data: bytes) -> int:
    """Returns the version of a record that `decode_parts` has accepted."""
    return data[len(MAGIC)]


def check_end(data: bytes, at: int) -> None:
    """Raises CodecError unless the fields of a record end at its checksum."""
    if at != len(data) - CRC.size:
        raise CodecError(f"malformed record: {len(data) - at} bytes left")


def sets_of(bitmaps: Mapping[int, BitMap]) -> list[bytes]:
    """Returns the items of bitmaps by ledger."""
    return [item for ledger in sorted(bitmaps) for item in _sets(ledger, bitmaps[ledger])]


def remains_of(batches: Mapping[tuple[int, int], int]) -> list[bytes]:
    """Returns the items of partly acked entries."""
    return [_remains(key, left) for key, left in sorted(batches.items())]


def _sets(ledger_id: int, bitmap: BitMap) -> Iterator[bytes]:
    """Yields the bitmap in windows that bound the size of each item."""
    top = bitmap.max()
    low = bitmap.min() // WINDOW_IDS * WINDOW_IDS
    while low <= top:
        if top - low < WINDOW_IDS and bitmap.min() >= low:
            window = bitmap
        else:
            window = bitmap & BitMap(range(low, low + WINDOW_IDS))
        if window:
            data = window.serialize()
            yield _SET.pack(ledger_id, len(data)) + data
        low += WINDOW_IDS


def _remains(key: tuple[int, int], left: int) -> bytes:
    ledger_id, entry_id = key
    bits = left.to_bytes((left.bit_length() + 7) // 8, "little")
    return _REMAINS.pack(ledger_id, entry_id, len(bits)) + bits


def body(
    version: int,
    kind: RecordKind,
    part: int,
    parts: int,
    base: int,
    mark_delete: Position,
    sets: list[bytes],
    remains: list[bytes],
) -> bytes:
    """Returns the fields of version 1, without the checksum."""
    return b"".join(
        (
            _HEAD.pack(MAGIC, version, kind, part, parts, base, *mark_delete),
            COUNT.pack(len(sets)),
            *sets,
            COUNT.pack(len(remains)),
            *remains,
        )
    )


def _sealed(fields: bytes) -> bytes:
    return fields + CRC.pack(google_crc32c.value(fields))


def _read_sets(data: bytes, at: int) -> tuple[dict[int, BitMap], int]:
    holes: dict[int, BitMap] = {}
    (count,) = COUNT.unpack_from(data, at)
    at += COUNT.size
    for _ in range(count):
        ledger_id, bitmap, at = read_set(data, at)
        if ledger_id in holes:
            holes[ledger_id] |= bitmap
        else:
            holes[ledger_id] = bitmap
    return holes, at


def read_set(data: bytes, at: int) -> tuple[int, BitMap, int]:
    """Returns the ledger and bitmap of one set, and the offset behind it."""
    ledger_id, size = _SET.unpack_from(data, at)
    at += _SET.size
    return ledger_id, BitMap.deserialize(cut(data, at, size)), at + size


def _read_remains(data: bytes, at: int) -> tuple[dict[tuple[int, int], int], int]:
    batches: dict[tuple[int, int], int] = {}
    (count,) = COUNT.unpack_from(data, at)
    at += COUNT.size
    for _ in range(count):
        ledger_id, entry_id, size = _REMAINS.unpack_from(data, at)
        at += _REMAINS.size
        batches[ledger_id, entry_id] = int.from_bytes(cut(data, at, size), "little")
        at += size
    return batches, at


def cut(data: bytes, at: int, size: int) -> bytes:
    """Returns `size` bytes at `at`; raises ValueError if they reach into the checksum."""
    if at + size > len(data) - CRC.size:
        raise ValueError(f"{size} bytes at {at} go beyond the record")
    return data[at : at + size]
