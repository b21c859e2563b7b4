"""The state of each ledger in memory: fenced, deleted, last entries.

The first use of a ledger loads its state from the index (one RocksDB get, a few microseconds, once
per ledger and process). `dirty` contains the states whose record the next flush writes to the
index. For the event loop's thread; the flush gets copies of the records.

A state is evicted only if the index has all of it. Otherwise the next use would load an older
record: a ledger without its fence, or one that was deleted.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from magnetar.bookie.api import ID_END, BookieError, BookieReadOnly, LedgerFenced, NoSuchLedger
from magnetar.bookie.index.index import (
    FLAG_DELETED,
    FLAG_EMPTIED,
    FLAG_FENCED,
    Damage,
    Index,
    LedgerRecord,
)

STATES_KEPT_MAX: Final = 65_536


class LedgerState:
    """The state of one ledger."""

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
        """Whether an add, a fence or a delete of it was ever durable on this bookie."""
        self.fenced = False
        self.fence_durable = False
        self.deleted_ms = -1
        """Time of the deletion, set once the delete is durable; -1 if not deleted."""
        self.deleting: asyncio.Future[None] | None = None
        """A delete that is not durable yet; it already refuses adds and fences."""
        self.dropping = False
        """Its entries are being dropped, and adds are refused meanwhile."""
        self.emptied = False
        """Its entries were dropped: it counts as absent and stays fenced."""
        self.half_dropped = False
        """Dropping its entries failed: they may be gone, or reappear after a restart."""
        self.last_add_confirmed = -1
        self.last_entry = -1
        self.last_indexed = -1
        """The highest entry that may be in the index; higher ones are only in the write cache."""
        self.length_bytes = 0
        """Bytes of all entries; -1 after an add out of order, as counting is not worth it then."""
        self.pending = 0
        """Groups that are not durable yet."""
        self.unflushed = False
        """Whether entries were added since the last swap; the next flush writes this state too."""

    @property
    def deleted(self) -> bool:
        return self.deleted_ms >= 0

    def added(self, first: int, last: int, size: int, last_add_confirmed: int) -> None:
        """Records that a group became durable."""
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
        """Returns the error that refuses an add, None if adds are accepted."""
        if self.deleted or self.deleting is not None:
            return NoSuchLedger(f"ledger {self.ledger_id} was deleted")
        if self.dropping:
            return BookieReadOnly(f"the copy of ledger {self.ledger_id} is being dropped")
        if self.fenced and not recovery:
            return LedgerFenced(f"ledger {self.ledger_id} is fenced")
        return None

    @property
    def record(self) -> LedgerRecord:
        """The record to write to the index."""
        flags = FLAG_FENCED if self.fenced else 0
        if self.deleted:
            flags |= FLAG_DELETED
        elif self.emptied:
            flags |= FLAG_EMPTIED
        return LedgerRecord(
            self.last_add_confirmed, self.last_entry, self.length_bytes, self.deleted_ms, flags
        )

    def mark_emptied(self) -> None:
        """Records that its entries are durably deleted and its fence is durable."""
        self.exists, self.emptied, self.half_dropped = False, True, False
        self.fenced = self.fence_durable = True
        self.last_add_confirmed = self.last_entry = self.last_indexed = -1
        self.length_bytes = 0


class Ledgers:
    """The ledgers' states, loaded from the index on first use, and the recorded damage."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._states: dict[int, LedgerState] = {}
        self.dirty: dict[int, LedgerState] = {}
        self.flushing = False
        """Whether the index does not have all states yet that `take` returned."""
        self._forget_at = 0
        self.limbo_through = index.limbo_through
        self._damages: dict[int, list[Damage]] = {}
        for damage in index.damages():
            self._damages.setdefault(damage.ledger_id, []).append(damage)

    def get(self, ledger_id: int) -> LedgerState:
        """Returns the ledger's state, also of a ledger that does not exist."""
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
            # The damage may have contained a fence, so only recovery adds are accepted.
            state.fenced = True
        # Stored only now: if the read of the index fails, the next use has to read it again. A
        # blank state would lack a fence or a deletion.
        self._states[ledger_id] = state
        return state

    def _forget_idle(self) -> None:
        """Evicts idle states that the index has too.

        The next walk is due when the states have grown by half, so that a new ledger costs a
        bounded share of a walk, even if most ledgers are busy.
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
        """Records that the index has the states that `take` returned.

        A deleted ledger is hardly ever used again, so its state is evicted at once. A bookie with
        many short-lived ledgers therefore does not grow.
        """
        self.flushing = False
        self.forget(ledger_id for ledger_id in ledger_ids if ledger_id not in self.dirty)

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Evicts idle states of deleted ledgers."""
        for ledger_id in ledger_ids:
            state = self._states.get(ledger_id)
            if state is not None and state.deleted and not (state.pending or state.unflushed):
                del self._states[ledger_id]

    def is_limbo(self, ledger_id: int) -> bool:
        """Whether entries of the ledger may have been lost without a trace."""
        return ledger_id <= self.limbo_through

    def damage(self, ledger_id: int, first: int, last: int = -1) -> Damage | None:
        """Returns a damage record that covers an entry from `first` to `last`, if any."""
        last = max(first, last)
        for damage in self._damages.get(ledger_id, ()):
            if damage.first <= last and first <= damage.last:
                return damage
        return None

    @property
    def damaged_ranges(self) -> int:
        """The number of recorded damaged ranges."""
        return sum(map(len, self._damages.values()))

    def add_damage(self, damage: Damage) -> None:
        """Records damage that replay detected."""
        self._damages.setdefault(damage.ledger_id, []).append(damage)

    def set_limbo(self, through: int) -> None:
        """Puts all ledgers up to `through` in limbo: they may have lost entries and fences."""
        self.limbo_through = through
        for state in self._states.values():
            if state.ledger_id <= through:
                state.fenced = True

    def all_ids(self) -> set[int]:
        """Returns the ids of all ledgers with a state or a record, absent ones included."""
        return {ledger_id for ledger_id, _ in self._index.ledgers()} | set(self._states)

    def take(self, added: Iterable[int]) -> dict[int, LedgerState]:
        """Returns the states that the next flush writes: the dirty ones and those of `added`.

        No state is evicted until `flushing` is reset. If the index raises, nothing is taken.
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
        """Returns all ledgers that exist, ascending; `indexed` are those of the index."""
        ids = set(indexed)
        for ledger_id, state in self._states.items():
            if state.deleted or state.emptied:
                ids.discard(ledger_id)
            elif state.exists:
                ids.add(ledger_id)
        return sorted(ids)

    def indexed_ids(self) -> list[int]:
        """Returns the indexed ledgers that are neither deleted nor emptied. For any thread."""
        return [
            ledger_id
            for ledger_id, record in self._index.ledgers()
            if not record.flags & (FLAG_DELETED | FLAG_EMPTIED)
        ]

    def emptied_ids(self) -> list[int]:
        """Returns the indexed ledgers that were emptied. For any thread."""
        return [
            ledger_id for ledger_id, record in self._index.ledgers() if record.flags & FLAG_EMPTIED
        ]

    def still_emptied(self, indexed: list[int]) -> list[int]:
        """Filters `indexed`, emptied ledgers of the index, for those without adds since."""
        emptied: list[int] = []
        for ledger_id in indexed:
            state = self._states.get(ledger_id)  # without a state, the index is up to date
            if state is None or (state.emptied and not state.deleted):
                emptied.append(ledger_id)
        return emptied

    def forget_damage(self, ledger_id: int) -> None:
        """Removes the ledger's damage: the damaged entries were dropped."""
        self._damages.pop(ledger_id, None)
