"""A bookie in memory, for tests of the layers above.

It meets the contract of `bookie.api`; the same test suite runs over it and the real bookie. It also
completes adds on a later turn of the loop, so that callers cannot rely on an immediate callback.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from google_crc32c import value

from magnetar.bookie.api import (
    ID_END,
    BookieError,
    BookieIdentity,
    EntryProof,
    EntryProofs,
    LedgerEnd,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    OnAdded,
    ProofKind,
    StoredEntry,
)


@dataclass(slots=True)
class MemoryLedger:
    """The entries and state of one ledger."""

    entries: dict[int, bytes] = field(default_factory=dict)
    last_add_confirmed: int = -1
    fenced: bool = False


class MemoryBookie:
    """A `KeptBookie` without a disk."""

    def __init__(self, bookie_id: str = "memory", incarnation: str = "0") -> None:
        self._identity = BookieIdentity(bookie_id, incarnation)
        self._ledgers: dict[int, MemoryLedger] = {}
        self._deleted: set[int] = set()
        self._emptied: set[int] = set()

    @property
    def identity(self) -> BookieIdentity:
        return self._identity

    @property
    def writable(self) -> bool:
        return True

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        if not entries or len(entries) != len(entry_ids) or entry_ids[0] < 0:
            raise ValueError(f"{len(entries)} entries for {len(entry_ids)} ids from 0 on")
        if entry_ids[-1] >= ID_END:
            raise ValueError(f"entry ids above {ID_END - 1}")
        if not (0 <= ledger_id < ID_END and -1 <= last_add_confirmed < ID_END):
            raise ValueError(f"ledger {ledger_id} confirmed to {last_add_confirmed}: no such ids")
        if any(after <= before for before, after in pairwise(entry_ids)):
            raise ValueError("entry ids must ascend")
        error: BookieError | None = None
        if ledger_id in self._deleted:
            error = NoSuchLedger(f"ledger {ledger_id} was deleted")
        elif not recovery and self._is_fenced(ledger_id):
            error = LedgerFenced(f"ledger {ledger_id} is fenced")
        else:
            ledger = self._ledgers.setdefault(ledger_id, self._new(ledger_id))
            ledger.entries.update(zip(entry_ids, entries, strict=True))
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, last_add_confirmed)
        asyncio.get_running_loop().call_soon(on_added, error)

    def _is_fenced(self, ledger_id: int) -> bool:
        ledger = self._ledgers.get(ledger_id)
        return ledger_id in self._emptied or (ledger is not None and ledger.fenced)

    def _new(self, ledger_id: int) -> MemoryLedger:
        fenced = ledger_id in self._emptied
        self._emptied.discard(ledger_id)
        return MemoryLedger(fenced=fenced)

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        if fence:
            await self.ledger_end(ledger_id, fence=True)
        ledger = self._ledger(ledger_id)
        if first not in ledger.entries:
            raise NoSuchEntry(f"no entry {first} in ledger {ledger_id}")
        entries: list[StoredEntry] = []
        size = 0
        for entry_id in sorted(id_ for id_ in ledger.entries if first <= id_ <= last):
            data = ledger.entries[entry_id]
            size += len(data)
            if entries and size > bytes_max:
                break
            entries.append(StoredEntry(entry_id, data))
        return entries

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        ledger = self._ledger(ledger_id)
        last = min(last, first + count_max - 1)
        proofs = [
            EntryProof(id_, ProofKind.PRESENT, len(data), value(data))
            for id_, data in sorted(ledger.entries.items())
            if first <= id_ <= last
        ]
        return EntryProofs(proofs, last + 1)

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        if fence and ledger_id in self._emptied:
            return LedgerEnd(-1, -1, fenced=True, length_bytes=0)
        if fence and ledger_id not in self._deleted:
            self._ledgers.setdefault(ledger_id, MemoryLedger()).fenced = True
            # Earlier adds complete first.
            await asyncio.sleep(0)
        ledger = self._ledger(ledger_id)
        last_entry = max(ledger.entries, default=-1)
        length = sum(map(len, ledger.entries.values()))
        return LedgerEnd(ledger.last_add_confirmed, last_entry, ledger.fenced, length)

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        for ledger_id, entry_id in confirmed:
            ledger = self._ledgers.get(ledger_id)
            if ledger is not None and not ledger.fenced:
                ledger.last_add_confirmed = max(ledger.last_add_confirmed, entry_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        if self._ledgers.pop(ledger_id, None) is not None or ledger_id in self._emptied:
            self._emptied.discard(ledger_id)
            self._deleted.add(ledger_id)

    async def drop_copies(self, ledger_ids: Sequence[int]) -> list[int]:
        dropped = [id_ for id_ in ledger_ids if self._ledgers.pop(id_, None) is not None]
        self._emptied.update(dropped)
        return dropped

    async def list_emptied(self) -> list[int]:
        return sorted(self._emptied)

    async def list_ledgers(self) -> list[int]:
        return sorted(self._ledgers)

    async def close(self) -> None:
        self._ledgers.clear()

    def _ledger(self, ledger_id: int) -> MemoryLedger:
        if ledger_id not in self._ledgers:
            raise NoSuchLedger(f"no ledger {ledger_id} on bookie {self._identity.bookie_id}")
        return self._ledgers[ledger_id]
