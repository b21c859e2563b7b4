"""Version 3 of the records in a cursor ledger: version 1 with the acks of open transactions. Pure.

A record without such acks is written in version 1 or 2, so a cursor that never had some stays
readable for older releases. A cursor has a payload (version 2) or acks of transactions, never both.
Version 3 has this section before the CRC, little-endian:

    items u32 | each: kind u8, most u64, least u64, and by kind
        CLEAR       nothing: earlier acks of the transaction are dropped
        ENTRIES     ledger i64, size u32, Roaring bitmap of whole entries
        PART        ledger i64, entry i64, batch size u32, size u32, bits that are not acked
        CUMULATIVE  as PART; no bits: the whole entry

A delta has CLEAR and the whole state of each transaction that changed; only CLEAR if it ended. So
one record holds the end of a transaction together with the acks that it makes.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final

import google_crc32c
import msgspec
from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.managed_ledger import cursor_codec_v1 as v1
from magnetar.managed_ledger.cursor_codec_v1 import CodecError, RecordKind
from magnetar.managed_ledger.pending_acks import Part, Txn, TxnAcks

VERSION: Final = 3

_ITEM = struct.Struct("<BQQ")
_PART = struct.Struct("<qqII")


class ItemKind(IntEnum):
    """The kind of an item of the section."""

    CLEAR = 0
    ENTRIES = 1
    PART = 2
    CUMULATIVE = 3


class CursorLogRecord(msgspec.Struct):
    """A decoded record of any version."""

    kind: RecordKind
    part: int
    parts: int
    base: int
    mark_delete: Position
    holes: dict[int, BitMap]
    batches: dict[tuple[int, int], int]
    payload: bytes = b""
    """The record's piece of the payload."""
    pending: list[tuple[Txn, ItemKind, TxnAcks]] = []


def encode_delta(
    base: int,
    mark_delete: Position,
    holes: Mapping[int, BitMap],
    batches: Mapping[tuple[int, int], int],
    pending: Mapping[Txn, TxnAcks | None],
) -> bytes:
    """Returns one delta record, of version 1 if no transaction changed."""
    if not pending:
        return v1.encode_delta(base, mark_delete, holes, batches)
    items = [
        item
        for txn, acks in pending.items()
        for item in (_ITEM.pack(ItemKind.CLEAR, *txn), *(_items(txn, acks) if acks else ()))
    ]
    head = (RecordKind.DELTA, 0, 1, base, mark_delete)
    return _sealed(v1.body(VERSION, *head, v1.sets_of(holes), v1.remains_of(batches)), items)


def encode_snapshot(
    base: int,
    mark_delete: Position,
    holes: Mapping[int, BitMap],
    batches: Mapping[tuple[int, int], int],
    pending: Mapping[Txn, TxnAcks],
    *,
    payload: bytes = b"",
) -> list[bytes]:
    """Returns the whole state as consecutive records, of version 1 or 2 if nothing is pending.

    Raises ValueError if there are both a payload and pending acks.
    """
    if not pending:
        return v1.encode_snapshot(base, mark_delete, holes, batches, payload)
    if payload:
        raise ValueError("a cursor with a payload has no acks of transactions")
    parts: list[tuple[list[bytes], list[bytes], list[bytes]]] = [([], [], [])]
    room = v1.PART_BYTES
    all_items: Iterable[tuple[int, bytes]] = (
        *((0, item) for item in v1.sets_of(holes)),
        *((1, item) for item in v1.remains_of(batches)),
        *((2, item) for txn, acks in pending.items() for item in _items(txn, acks)),
    )
    for which, item in all_items:
        if len(item) > room and room < v1.PART_BYTES:
            parts.append(([], [], []))
            room = v1.PART_BYTES
        parts[-1][which].append(item)
        room -= len(item)
    count = len(parts)
    return [
        _sealed(
            v1.body(VERSION, RecordKind.SNAPSHOT, number, count, base, mark_delete, sets, remains),
            items,
        )
        for number, (sets, remains, items) in enumerate(parts)
    ]


def decode(data: bytes) -> CursorLogRecord:
    """Raises CodecError unless `data` is a whole, undamaged record of version 1, 2 or 3."""
    old, at = v1.decode_parts(data, versions=(v1.VERSION, v1.VERSION_WITH_PAYLOAD, VERSION))
    record = CursorLogRecord(
        *(old.kind, old.part, old.parts, old.base),
        *(old.mark_delete, old.holes, old.batches, old.payload),
    )
    if v1.version_of(data) == VERSION:
        try:
            record.pending, at = _read_items(data, at)
        except (struct.error, ValueError) as error:
            raise CodecError(f"malformed record: {error}") from error
    v1.check_end(data, at)
    return record


def apply_pending(
    state: dict[Txn, TxnAcks], items: Iterable[tuple[Txn, ItemKind, TxnAcks]]
) -> None:
    """Applies the items of a record to the acks by transaction."""
    for txn, kind, added in items:
        if kind is ItemKind.CLEAR:
            state.pop(txn, None)
            continue
        acks = state.setdefault(txn, TxnAcks())
        for ledger_id, ids in added.entries.items():
            acks.add_entries(ledger_id, ids)
        acks.parts.update(added.parts)
        acks.cumulative = added.cumulative or acks.cumulative


def _items(txn: Txn, acks: TxnAcks) -> Iterator[bytes]:
    for item in v1.sets_of(acks.entries):
        yield _ITEM.pack(ItemKind.ENTRIES, *txn) + item
    for (ledger_id, entry_id), part in sorted(acks.parts.items()):
        yield _ITEM.pack(ItemKind.PART, *txn) + _part(ledger_id, entry_id, part)
    if acks.cumulative is not None:
        position, part = acks.cumulative
        yield _ITEM.pack(ItemKind.CUMULATIVE, *txn) + _part(*position, part)


def _part(ledger_id: int, entry_id: int, part: Part) -> bytes:
    bits = part.left.to_bytes((part.left.bit_length() + 7) // 8, "little")
    return _PART.pack(ledger_id, entry_id, part.batch_size, len(bits)) + bits


def _sealed(body: bytes, items: list[bytes]) -> bytes:
    whole = b"".join((body, v1.COUNT.pack(len(items)), *items))
    return whole + v1.CRC.pack(google_crc32c.value(whole))


def _read_items(data: bytes, at: int) -> tuple[list[tuple[Txn, ItemKind, TxnAcks]], int]:
    (count,) = v1.COUNT.unpack_from(data, at)
    at += v1.COUNT.size
    items: list[tuple[Txn, ItemKind, TxnAcks]] = []
    for _ in range(count):
        number, most, least = _ITEM.unpack_from(data, at)
        at += _ITEM.size
        kind, acks = ItemKind(number), TxnAcks()
        if kind is ItemKind.ENTRIES:
            ledger_id, bitmap, at = v1.read_set(data, at)
            acks.entries[ledger_id] = bitmap
        elif kind is not ItemKind.CLEAR:
            ledger_id, entry_id, batch_size, size = _PART.unpack_from(data, at)
            at += _PART.size
            part = Part(int.from_bytes(v1.cut(data, at, size), "little"), batch_size)
            at += size
            if kind is ItemKind.PART:
                acks.parts[ledger_id, entry_id] = part
            else:
                acks.cumulative = Position(ledger_id, entry_id), part
        items.append(((most, least), kind, acks))
    return items, at
