"""Reads a cursor's state back from the records of its ledger (`cursor_codec_v3`).

The state is the last record, the snapshot that it builds on, and the records between. A snapshot
without its last part was never acknowledged and is ignored. Any other damage is CursorCorrupt,
never an empty state. The reader determines the end of the ledger: a broker closes the ledger first
(`CursorLog.load`), an observer does not.
"""

from typing import Final

import msgspec
from pyroaring import BitMap

from magnetar.bookie.api import BookieError
from magnetar.core.ids import Position
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.cursor_codec_v1 import CodecError, RecordKind
from magnetar.managed_ledger.cursor_codec_v3 import CursorLogRecord, apply_pending, decode
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.managed_ledger.pending_acks import Txn, TxnAcks

LOAD_BYTES: Final = 4 << 20


class StoredState(msgspec.Struct):
    """A cursor state that was read back."""

    mark_delete: Position
    holes: dict[int, BitMap]
    batches: dict[tuple[int, int], int]
    pending: dict[Txn, TxnAcks] = {}
    """The acks of open transactions."""
    payload: bytes = b""


async def stored_state(key: str, reader: LedgerReader) -> StoredState:
    """Returns the state as of the reader's last record; `key` is the cursor's."""
    return await _Reading(key, reader).state()


def corrupt(key: str, ledger_id: int, entry_id: int, reason: str) -> CursorCorrupt:
    """Returns the error that names the cursor and the damaged entry."""
    return CursorCorrupt(f"cursor {key}: entry {entry_id} of cursor ledger {ledger_id}: {reason}")


class _Reading:
    """One pass over a cursor ledger."""

    def __init__(self, key: str, reader: LedgerReader) -> None:
        self._key = key
        self._reader = reader

    async def state(self) -> StoredState:
        first, last = await self._find()
        state: StoredState | None = None
        at = first
        while at <= last:
            for entry_id, data in await self._read(at, last):
                record = self._decode(entry_id, data)
                if record.base != first:
                    raise self._corrupt(entry_id, f"builds on entry {record.base}, not {first}")
                state = _applied(state, record)
                at = entry_id + 1
        if state is None:
            raise self._corrupt(last, "no snapshot")
        return state

    async def _find(self) -> tuple[int, int]:
        """Returns the first entry of the newest complete snapshot, and the last valid entry."""
        last = self._reader.last_entry
        while last >= 0:
            (entry, *_) = await self._read(last, last)
            record = self._decode(last, entry[1])
            if record.kind is RecordKind.DELTA or record.part == record.parts - 1:
                if not 0 <= record.base <= last:
                    raise self._corrupt(last, f"builds on entry {record.base}")
                return record.base, last
            last -= record.part + 1  # an incomplete snapshot
        raise self._corrupt(self._reader.last_entry, "no whole snapshot")

    async def _read(self, first: int, last: int) -> list[tuple[int, bytes]]:
        try:
            entries = await self._reader.read(first, last, bytes_max=LOAD_BYTES)
        except BookieError as error:
            raise self._corrupt(first, str(error)) from error
        return [(entry.entry_id, entry.data) for entry in entries]

    def _decode(self, entry_id: int, data: bytes) -> CursorLogRecord:
        try:
            return decode(data)
        except CodecError as error:
            raise self._corrupt(entry_id, str(error)) from error

    def _corrupt(self, entry_id: int, reason: str) -> CursorCorrupt:
        return corrupt(self._key, self._reader.ledger_id, entry_id, reason)


def _applied(state: StoredState | None, record: CursorLogRecord) -> StoredState:
    if state is None:
        state = StoredState(record.mark_delete, record.holes, record.batches)
        apply_pending(state.pending, record.pending)
        state.payload = record.payload
        return state
    state.mark_delete = record.mark_delete
    state.payload += record.payload
    for ledger_id, bitmap in record.holes.items():
        if ledger_id in state.holes:
            state.holes[ledger_id] |= bitmap
        else:
            state.holes[ledger_id] = bitmap
    state.batches.update(record.batches)
    apply_pending(state.pending, record.pending)
    return state
