"""What a bookie knows of each ledger in memory: fenced, deleted, its ends.

A state is made on a ledger's first use, from the index where it is there (one RocksDB get, some
microseconds, once per ledger and process), and kept. `dirty` holds those whose record must go to
the index with the next flush. For the event loop's thread; the flush reads what it is handed.

A state is dropped from memory only if the index holds all of it. Otherwise the next use would load
an older record: a ledger without its fence, or one that was deleted.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from magnetar.bookie.api import ID_END, BookieError, BookieReadOnly, LedgerFenced, NoSuchLedger
from magnetar.bookie.index import (
    FLAG_DELETED,
    FLAG_EMPTIED,
    FLAG_FENCED,
    Damage,
    Index,
    LedgerRecord,
)

STATES_KEPT_MAX: Final = 65_536


class LedgerState:
    """One ledger."""

    __slots__ = (
        "deleted_ms",
        "deleting",
        "dropping",
        "emptied",
        "exists",
        "fence_durable",
        "fenced",
        "half_dropped",
        "last_add_confirmed",
        "last_entry",
        "last_indexed",
        "ledger_id",
        "length_bytes",
        "pending",
        "unflushed",
    )

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.exists = False
        """Whether anything of it was ever made durable here."""
        self.fenced = False
        self.fence_durable = False
        self.deleted_ms = -1
        """When it was deleted; set once the delete is durable."""
        self.deleting: asyncio.Future[None] | None = None
        """A delete that is not durable yet: adds and fences are refused already."""
        self.dropping = False
        """Its entries are being dropped: no add is taken until that is over."""
        self.emptied = False
        """Its entries were dropped: it does not exist here, and stays fenced."""
        self.half_dropped = False
        """Dropping its entries failed: they may be gone, or come back with a restart."""
        self.last_add_confirmed = -1
        self.last_entry = -1
        self.last_indexed = -1
        """The highest entry that the index may name; what is above is in the write cache only."""
        self.length_bytes = 0
        """Bytes of all entries; -1 once some came again or late, and it is not worth counting."""
        self.pending = 0
        """Groups on their way to the disk."""
        self.unflushed = False
        """Whether entries were added since the last swap; the next flush takes this state too."""

    @property
    def deleted(self) -> bool:
        return self.deleted_ms >= 0

    def added(self, first: int, last: int, size: int, last_add_confirmed: int) -> None:
        """A group became durable."""
        self.exists = self.unflushed = True
        self.emptied = False
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
        if first > self.last_entry:
            if self.length_bytes >= 0:
                self.length_bytes += size
        else:
            self.length_bytes = -1
        if last > self.last_entry:
            self.last_entry = last

    def refusal(self, *, recovery: bool) -> BookieError | None:
        """Why an add is not taken."""
        if self.deleted or self.deleting is not None:
            return NoSuchLedger(f"ledger {self.ledger_id} was deleted")
        if self.dropping:
            return BookieReadOnly(f"the copy of ledger {self.ledger_id} is being dropped")
        if self.fenced and not recovery:
            return LedgerFenced(f"ledger {self.ledger_id} is fenced")
        return None

    @property
    def record(self) -> LedgerRecord:
        """As it goes to the index."""
        flags = FLAG_FENCED if self.fenced else 0
        if self.deleted:
            flags |= FLAG_DELETED
        elif self.emptied:
            flags |= FLAG_EMPTIED
        return LedgerRecord(
            self.last_add_confirmed, self.last_entry, self.length_bytes, self.deleted_ms, flags
        )

    def emptied_now(self) -> None:
        """Its entries are durably gone, and its fence durably kept."""
        self.exists, self.emptied, self.half_dropped = False, True, False
        self.fenced = self.fence_durable = True
        self.last_add_confirmed = self.last_entry = self.last_indexed = -1
        self.length_bytes = 0


class Ledgers:
    """See the module."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._states: dict[int, LedgerState] = {}
        self.dirty: dict[int, LedgerState] = {}
        self.flushing = False
        """Whether states taken for a flush are not in the index yet."""
        self._forget_at = 0
        self.limbo_through = index.limbo_through
        self._damages: dict[int, list[Damage]] = {}
        for damage in index.damages():
            self._damages.setdefault(damage.ledger_id, []).append(damage)

    def get(self, ledger_id: int) -> LedgerState:
        """The ledger's state, whether it exists or not."""
        state = self._states.get(ledger_id)
        return state if state is not None else self._load(ledger_id)

    def _load(self, ledger_id: int) -> LedgerState:
        if not 0 <= ledger_id < ID_END:
            raise ValueError(f"no ledger id: {ledger_id}")
        if len(self._states) >= STATES_KEPT_MAX and len(self._states) >= self._forget_at:
            self._forget_idle()
        state = LedgerState(ledger_id)
        record = self._index.ledger(ledger_id)
        if record is not None:
            state.emptied = bool(record.flags & FLAG_EMPTIED)
            state.exists = not state.emptied
            state.fenced = state.fence_durable = bool(record.flags & FLAG_FENCED)
            state.deleted_ms = record.deleted_ms
            state.length_bytes = record.length_bytes
            state.last_add_confirmed = record.last_add_confirmed
            state.last_entry = state.last_indexed = record.last_entry
        if ledger_id <= self.limbo_through:
            # A fence may have been lost with what was damaged: only a recovery may add here.
            state.fenced = True
        # Last of all: after a read of the index that fails, the next use reads it again. A blank
        # state in its place would know no fence and no deletion.
        self._states[ledger_id] = state
        return state

    def _forget_idle(self) -> None:
        """Drops states that the index has too and that nothing is under way for.

        The next walk comes when the states have grown by half, so that a new ledger costs a bounded
        share of a walk, however many ledgers are busy.
        """
        if self.flushing:
            return
        self._states = {
            ledger_id: state
            for ledger_id, state in self._states.items()
            if state.pending or state.unflushed or ledger_id in self.dirty
        }
        self._forget_at = len(self._states) + len(self._states) // 2

    def flushed(self, ledger_ids: Iterable[int]) -> None:
        """The index has what `take` handed out.

        A deleted ledger is hardly ever asked for again, so its state leaves memory at once: a
        bookie whose ledgers come and go keeps its size.
        """
        self.flushing = False
        self.forget(ledger_id for ledger_id in ledger_ids if ledger_id not in self.dirty)

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Drops states of deleted ledgers that nothing is under way for."""
        for ledger_id in ledger_ids:
            state = self._states.get(ledger_id)
            if state is not None and state.deleted and not (state.pending or state.unflushed):
                del self._states[ledger_id]

    def is_limbo(self, ledger_id: int) -> bool:
        """Whether entries of the ledger may have been lost without a trace."""
        return ledger_id <= self.limbo_through

    def damage(self, ledger_id: int, first: int, last: int = -1) -> Damage | None:
        """A damage that took the entry `first`, or one of those up to `last`."""
        last = max(first, last)
        for damage in self._damages.get(ledger_id, ()):
            if damage.first <= last and first <= damage.last:
                return damage
        return None

    @property
    def damaged_ranges(self) -> int:
        """How many ranges of entries are on record as damaged."""
        return sum(map(len, self._damages.values()))

    def add_damage(self, damage: Damage) -> None:
        """Notes damage found at replay."""
        self._damages.setdefault(damage.ledger_id, []).append(damage)

    def set_limbo(self, through: int) -> None:
        """All ledgers up to `through` may have lost entries and fences."""
        self.limbo_through = through
        for state in self._states.values():
            if state.ledger_id <= through:
                state.fenced = True

    def known_ids(self) -> set[int]:
        """Every ledger that was ever heard of here."""
        return {ledger_id for ledger_id, _ in self._index.ledgers()} | set(self._states)

    def take(self, added: Iterable[int]) -> dict[int, LedgerState]:
        """The states that the next flush puts into the index: dirty ones, and those of `added`.

        Until `flushing` is reset, no state is forgotten. Raises what the index raises, and then
        takes nothing.
        """
        states = dict(self.dirty)
        self.flushing = True
        try:
            for ledger_id in added:
                if ledger_id not in states:
                    states[ledger_id] = self.get(ledger_id)
        except BaseException:
            self.flushing = False
            raise
        self.dirty = {}
        for state in states.values():
            state.unflushed = False
        return states

    def ids(self, indexed: list[int]) -> list[int]:
        """All ledgers that exist, ascending; `indexed` are those that the index has."""
        found = set(indexed)
        for ledger_id, state in self._states.items():
            if state.deleted or state.emptied:
                found.discard(ledger_id)
            elif state.exists:
                found.add(ledger_id)
        return sorted(found)

    def indexed_ids(self) -> list[int]:
        """Ledgers in the index that are neither deleted nor emptied. For any thread."""
        return [
            ledger_id
            for ledger_id, record in self._index.ledgers()
            if not record.flags & (FLAG_DELETED | FLAG_EMPTIED)
        ]

    def emptied_ids(self) -> list[int]:
        """Ledgers in the index that were emptied. For any thread."""
        return [
            ledger_id for ledger_id, record in self._index.ledgers() if record.flags & FLAG_EMPTIED
        ]

    def still_emptied(self, indexed: list[int]) -> list[int]:
        """Those of `indexed`, which the index has as emptied, that nothing was added to since."""
        found: list[int] = []
        for ledger_id in indexed:
            state = self._states.get(ledger_id)  # nothing newer than the index where there is none
            if state is None or (state.emptied and not state.deleted):
                found.append(ledger_id)
        return found

    def forget_damage(self, ledger_id: int) -> None:
        """The entries that were damaged are dropped."""
        self._damages.pop(ledger_id, None)
