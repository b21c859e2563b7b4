"""The acknowledgment state of a cursor. Pure; the number of ack holes is not capped.

- Every entry at or before `mark_delete` is acked; it advances through contiguous acks, also across
  ledgers.
- Individual acks beyond it: one Roaring bitmap of entry ids per ledger. A gap in them is an ack
  hole.
- Batch remains: for partly acked entries, the bits of the messages that are not acked.

Between calls: the entry after mark-delete is not acked; no bitmap is empty or holds an entry at or
before mark-delete; no entry with remains is acked. One exception: if entries after mark-delete were
trimmed, an artifact may have them, so only an ack of the consumer takes mark-delete past them: the
entry after them may be acked as an aborted one. Acks of entries that do not exist (trimmed,
never written) change nothing: clients send the ids, so they are only accepted within the index.

`fresh` collects the acks beyond mark-delete since the last `take_fresh`, so that logging the state
costs in proportion to the change. In-order acks cost one comparison of each kind and an assignment;
`_limit` is a lower bound of the last entry of mark-delete's ledger. An ack at `_limit` takes the
slow path: it may be the last entry, which means that the ledger is consumed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from magnetar.core.errors import TransactionConflict
from magnetar.core.ids import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.id_runs import run_count, run_end, runs
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.pending_acks import Part, PendingAcks, Txn, TxnAcks

ENTRY_ID_MAX: Final = 2**32 - 1
"""Bitmaps hold 32-bit ids; ledgers are rolled over long before."""
BATCH_MESSAGES_MAX: Final = 1 << 20
"""The largest batch size of a client that is believed; larger ones are ignored."""


class Fresh:
    """The acks beyond mark-delete since they were last taken."""

    __slots__ = ("batches", "holes", "pending")

    def __init__(self) -> None:
        self.holes: dict[int, BitMap] = {}
        self.batches: set[tuple[int, int]] = set()
        self.pending: Mapping[Txn, TxnAcks | None] = {}
        """The changed transactions; None for one that has ended."""


class AckState:
    """Mark-delete position, individual acks and batch remains of one cursor."""

    __slots__ = (
        "_batches",
        "_dirty",
        "_fresh",
        "_holes",
        "_holes_count",
        "_index",
        "_limit",
        "_md_entry",
        "_md_ledger",
        "_pending",
        "_tracked",
        "payload",
    )

    def __init__(self, index: LedgerIndex, mark_delete: Position, *, tracked: bool) -> None:
        self._index = index
        self._md_ledger, self._md_entry = mark_delete
        self._limit = -1
        self._holes: dict[int, BitMap] = {}
        self._holes_count = 0
        self._batches: dict[tuple[int, int], int] = {}
        self._pending: PendingAcks | None = None
        self._tracked = tracked
        self.payload: Callable[[], bytes] | None = None
        """Returns what the cursor's user stores with every write of the state; None: nothing."""
        self._fresh: Fresh | None = None
        self._dirty = False

    def _touched(self) -> None:
        """Called on the first change after `_dirty` was cleared."""
        self._dirty = True

    def _ledger_consumed(self) -> None:
        """Called when mark-delete reaches the end of a closed ledger."""

    def ack(self, ledger_id: int, entry_id: int) -> None:
        """Acks a whole entry."""
        if (
            entry_id == self._md_entry + 1
            and ledger_id == self._md_ledger
            and entry_id < self._limit
            and not self._holes
            and not self._batches
        ):
            self._md_entry = entry_id
            if not self._dirty:
                self._touched()
        else:
            self._ack_any(ledger_id, entry_id)

    def _ack_any(self, ledger_id: int, entry_id: int) -> None:
        md_ledger, md_entry = self._md_ledger, self._md_entry
        if ledger_id < md_ledger or (ledger_id == md_ledger and entry_id <= md_entry):
            return
        last = self._index.last_entry_of(ledger_id)
        if not 0 <= entry_id <= last:
            return
        if self._batches:
            self._batches.pop((ledger_id, entry_id), None)
        if ledger_id == md_ledger:
            self._limit = last
            follows = entry_id == md_entry + 1
        else:
            follows = entry_id == 0 and self._follows_end(ledger_id)
        if follows:
            self._advance(ledger_id, entry_id)
        else:
            holes = self._holes.get(ledger_id)
            if holes is None:
                self._holes[ledger_id] = BitMap((entry_id,))
            elif entry_id in holes:
                return
            else:
                holes.add(entry_id)
            self._holes_count += 1
            if self._tracked:
                fresh = self._changes().holes
                if ledger_id in fresh:
                    fresh[ledger_id].add(entry_id)
                else:
                    fresh[ledger_id] = BitMap((entry_id,))
            if (md_ledger, md_entry) < self._index.trimmed_to:
                self._advance_if_acked()  # over trimmed entries, to aborted ones before this one
        if not self._dirty:
            self._touched()

    def _follows_end(self, ledger_id: int) -> bool:
        """Whether this ledger's first entry directly follows mark-delete."""
        following = self._index.locate(self._md_ledger, self._md_entry + 1)
        return following is not None and following[0].ledger_id == ledger_id and following[1] == 0

    def ack_cumulative(self, position: Position | tuple[int, int]) -> None:
        """Acks every entry up to and including this one."""
        ledger_id, entry_id = position
        if (
            ledger_id == self._md_ledger
            and self._md_entry < entry_id < self._limit
            and not self._holes
            and not self._batches
        ):
            self._md_entry = entry_id
            if not self._dirty:
                self._touched()
            return
        index = self._index
        if (ledger_id, entry_id) > (index.last_ledger, index.last_entry):
            return
        # An entry before the first kept one was read from an artifact: its own position counts.
        ledger_id, entry_id = min(index.floor(ledger_id, entry_id), (ledger_id, entry_id))
        if (ledger_id, entry_id) <= (self._md_ledger, self._md_entry):
            return
        self._drop_holes(ledger_id, entry_id)
        self._drop_batches(ledger_id, entry_id)
        self._advance(ledger_id, entry_id)
        if not self._dirty:
            self._touched()

    def ack_batch(self, ledger_id: int, entry_id: int, remaining: int, batch_size: int) -> bool:
        """Acks some messages of an entry: the set bits of `remaining` are not acked yet.

        Combines with earlier acks of the entry. Returns whether the whole entry is acked now.
        """
        if self.is_acked(ledger_id, entry_id):
            return True
        if not 0 <= entry_id <= self._index.last_entry_of(ledger_id):
            return False
        key = (ledger_id, entry_id)
        before = self._batches.get(key)
        if before is not None:
            left = before & remaining
        elif 0 < batch_size <= BATCH_MESSAGES_MAX:
            whole = (1 << batch_size) - 1
            left = remaining & whole
            if left == whole:
                return False
        else:
            left = remaining  # old clients send no batch size; bits beyond the batch are 0
        if not left:
            self.ack(ledger_id, entry_id)
            return True
        if left != before:
            self._batches[key] = left
            if self._tracked:
                self._changes().batches.add(key)
            if not self._dirty:
                self._touched()
        return False

    def ack_batch_cumulative(
        self, position: Position | tuple[int, int], remaining: int, batch_size: int
    ) -> None:
        """Acks every entry before this one, and its messages except `remaining`."""
        ledger_id, entry_id = position
        if not 0 <= entry_id <= self._index.last_entry_of(ledger_id):
            return
        self.ack_cumulative(self._index.previous_position(ledger_id, entry_id))
        self.ack_batch(ledger_id, entry_id, remaining, batch_size)

    def ack_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Acks whole entries of one ledger, as far as they exist."""
        if self._add_entries(ledger_id, entries):
            self._advance_if_acked()

    def skip_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Acks aborted entries, which no consumer gets.

        Mark-delete does not pass trimmed entries on the way: an artifact may have them.
        """
        if self._add_entries(ledger_id, entries) and self.mark_delete >= self._index.trimmed_to:
            self._advance_if_acked()

    def _add_entries(self, ledger_id: int, entries: BitMap) -> bool:
        """Adds entries to those beyond mark-delete; returns whether one of them is new."""
        low = self._md_entry + 1 if ledger_id == self._md_ledger else 0
        last = self._index.last_entry_of(ledger_id)
        if ledger_id < self._md_ledger or last < low:
            return False
        added = entries & BitMap(range(low, last + 1))
        if (holes := self._holes.get(ledger_id)) is not None:
            added -= holes
        if not added:
            return False
        self._holes[ledger_id] = added if holes is None else holes | added
        self._holes_count += len(added)
        for key in [at for at in self._batches if at[0] == ledger_id and at[1] in added]:
            del self._batches[key]
        if self._tracked:
            fresh = self._changes().holes
            fresh[ledger_id] = fresh[ledger_id] | added if ledger_id in fresh else added.copy()
        if not self._dirty:
            self._touched()
        return True

    def skip_all_of(self, other: "AckState") -> None:
        """Acks every entry that `other`, the aborted entries of the same log, has acked."""
        end = other.mark_delete
        for info in self._index.infos if self.mark_delete < end else ():
            count = info.entries if info.ledger_id < end.ledger_id else end.entry_id + 1
            if info.ledger_id <= end.ledger_id and count > 0:  # an artifact may have earlier ones
                self.skip_entries(info.ledger_id, BitMap(range(count)))
        for ledger_id, entries in other.holes.items():
            self.skip_entries(ledger_id, entries)

    def forget_trimmed(self) -> None:
        """Drops the acks of ledgers before the first kept one."""
        first = self._index.first_position.ledger_id
        for ledger_id in [other for other in self._holes if other < first]:
            self._holes_count -= len(self._holes.pop(ledger_id))

    def _reset(self, mark_delete: Position) -> None:
        """Drops all acks beyond `mark_delete`, and moves there, back or forth."""
        self._md_ledger, self._md_entry = mark_delete
        self._limit = -1
        self._holes = {}
        self._holes_count = 0
        self._batches = {}
        self._pending = None
        self._fresh = None
        if not self._dirty:
            self._touched()

    def _advance(self, ledger_id: int, entry_id: int) -> None:
        """Moves mark-delete to this entry, and on through contiguous acks."""
        index, holes = self._index, self._holes
        while True:
            if (bitmap := holes.get(ledger_id)) is not None:
                entry_id = run_end(bitmap, entry_id)
                self._drop_up_to(ledger_id, entry_id)
            last = index.last_entry_of(ledger_id)
            if not holes or entry_id < last or (ledger_id, entry_id) < index.trimmed_to:
                break
            after = index.ledger_after(ledger_id)
            if after is None:
                break
            bitmap = holes.get(after.ledger_id)
            if bitmap is None or 0 not in bitmap:
                break
            ledger_id, entry_id = after.ledger_id, -1
        consumed = ledger_id != self._md_ledger
        self._md_ledger, self._md_entry, self._limit = ledger_id, entry_id, last
        if consumed or (entry_id == last and ledger_id != index.infos[-1].ledger_id):
            self._ledger_consumed()

    def _drop_up_to(self, ledger_id: int, entry_id: int) -> None:
        bitmap = self._holes[ledger_id]
        before = len(bitmap)
        bitmap.remove_range(0, entry_id + 1)
        self._holes_count -= before - len(bitmap)
        if not bitmap:
            del self._holes[ledger_id]

    def _drop_holes(self, ledger_id: int, entry_id: int) -> None:
        for other in [other for other in self._holes if other < ledger_id]:
            self._holes_count -= len(self._holes.pop(other))
        if ledger_id in self._holes:
            self._drop_up_to(ledger_id, entry_id)

    def _drop_batches(self, ledger_id: int, entry_id: int) -> None:
        if self._batches:
            upto = (ledger_id, entry_id)
            self._batches = {key: left for key, left in self._batches.items() if key > upto}

    @property
    def mark_delete(self) -> Position:
        return Position(self._md_ledger, self._md_entry)

    def is_acked(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the whole entry is acked."""
        if (ledger_id, entry_id) <= (self._md_ledger, self._md_entry):
            return True
        holes = self._holes.get(ledger_id)
        return holes is not None and 0 <= entry_id <= ENTRY_ID_MAX and entry_id in holes

    def remaining_batch(self, ledger_id: int, entry_id: int) -> int | None:
        """Returns the bits of a batch's messages that may be delivered; None for all.

        Those are neither acked nor pending in a transaction.
        """
        remaining = self._batches.get((ledger_id, entry_id)) if self._batches else None
        if self._pending is not None:
            return self._pending.left_of((ledger_id, entry_id), remaining)
        return remaining

    @property
    def pending(self) -> PendingAcks | None:
        """The acks of open transactions; None if there are none."""
        return self._pending

    def is_done(self, ledger_id: int, entry_id: int) -> bool:
        """Whether nothing of the entry may be delivered: it is acked, or pending."""
        if self.is_acked(ledger_id, entry_id):
            return True
        return self._pending is not None and (
            self._pending.withholds(ledger_id, entry_id)
            or self.remaining_batch(ledger_id, entry_id) == 0
        )

    def add_pending(self, txn: Txn, acks: Sequence[tuple[int, int, Part]], *, exact: bool) -> None:
        """Adds individual acks of a transaction: all of them, or none.

        Raises TransactionConflict for an ack of an entry or message that is acked (`Part.is_new`),
        or pending in another transaction, and TooManyRequests at a bound.
        """
        pending = PendingAcks() if self._pending is None else self._pending
        pending.check_room(txn, sum(1 for _, _, part in acks if part.left))
        for ledger_id, entry_id, part in acks:
            key = (ledger_id, entry_id)
            if not 0 <= entry_id <= self._index.last_entry_of(ledger_id) or self.is_acked(*key):
                raise self._acked_already(txn, key)
            remaining = self._batches.get(key)
            if remaining is not None and not part.is_new(remaining, exact=exact):
                raise self._acked_already(txn, key)
            if part.left:
                pending.check_part(txn, key, part)
            else:
                pending.check_entry(txn, key)
        self._pending = pending
        for ledger_id, entry_id, part in acks:
            if part.left:
                pending.add_part(txn, (ledger_id, entry_id), part)
            else:
                pending.add_entry(txn, (ledger_id, entry_id))
        if not self._dirty:
            self._touched()

    def add_pending_cumulative(self, txn: Txn, position: Position, part: Part) -> None:
        """Adds a cumulative ack of a transaction; raises as `add_pending` does."""
        pending = PendingAcks() if self._pending is None else self._pending
        pending.check_room(txn, 0)
        pending.check_cumulative(txn)
        if not self.mark_delete < position <= self._index.last_confirmed:
            raise self._acked_already(txn, position)
        pending.set_cumulative(txn, position, part)
        self._pending = pending
        if not self._dirty:
            self._touched()

    @staticmethod
    def _acked_already(txn: Txn, key: tuple[int, int]) -> TransactionConflict:
        return TransactionConflict(
            f"Ack of {key[0]}:{key[1]} by transaction ({txn[0]},{txn[1]}): it is acked already"
        )

    def end_pending(self, txn: Txn, *, commit: bool) -> TxnAcks | None:
        """Makes the acks of a transaction count, or drops them; returns them, None without any."""
        acks = None if self._pending is None else self._pending.end(txn)
        if acks is None or self._pending is None:
            return None
        if commit:
            for ledger_id, ids in acks.entries.items():
                self.ack_entries(ledger_id, ids)
            for (ledger_id, entry_id), part in acks.parts.items():
                self.ack_batch(ledger_id, entry_id, part.left, part.batch_size)
            if acks.cumulative is not None:
                position, part = acks.cumulative
                if part.left:
                    self.ack_batch_cumulative(position, part.left, part.batch_size)
                else:
                    self.ack_cumulative(position)
        if not self._tracked and not len(self._pending):
            self._pending = None
        if not self._dirty:
            self._touched()
        return acks

    def filter_unacked(self, entries: list[Entry]) -> list[Entry]:
        """Returns the entries that may be delivered, in order; the same list if all may.

        They are neither acked nor pending in a transaction.
        """
        if self._pending is not None:
            return [entry for entry in entries if not self.is_done(entry.ledger_id, entry.entry_id)]
        if not entries:
            return entries
        first = entries[0]
        after_md = first.ledger_id > self._md_ledger or (
            first.ledger_id == self._md_ledger and first.entry_id > self._md_entry
        )
        if not self._holes:
            if after_md:
                return entries
            mark = (self._md_ledger, self._md_entry)
            return [entry for entry in entries if (entry.ledger_id, entry.entry_id) > mark]
        ledger_id = first.ledger_id
        if after_md and entries[-1].ledger_id == ledger_id:
            holes = self._holes.get(ledger_id)
            if holes is None:
                return entries
            kept = [entry for entry in entries if entry.entry_id not in holes]
            return entries if len(kept) == len(entries) else kept
        return [entry for entry in entries if not self.is_acked(entry.ledger_id, entry.entry_id)]

    @property
    def backlog(self) -> int:
        """The number of unacked entries."""
        index = self._index
        return index.rank_end - index.rank(self._md_ledger, self._md_entry) - self._holes_count

    def unacked_up_to(self, position: Position | tuple[int, int]) -> int:
        """Returns the number of unacked entries at or before this position."""
        ledger_id, entry_id = position
        index = self._index
        passed = index.rank(ledger_id, entry_id) - index.rank(self._md_ledger, self._md_entry)
        if passed <= 0:
            return 0
        for other, bitmap in self._holes.items():
            if other < ledger_id:
                passed -= len(bitmap)
            elif other == ledger_id:
                passed -= bitmap.range_cardinality(0, min(entry_id, ENTRY_ID_MAX) + 1)
        return passed

    def mark_delete_after(self, position: Position | tuple[int, int]) -> Position:
        """Returns the mark-delete that `ack_cumulative(position)` would set; changes nothing."""
        index = self._index
        mark = Position(self._md_ledger, self._md_entry)
        if tuple(position) > (index.last_ledger, index.last_entry):
            return mark
        ledger_id, entry_id = index.floor(*position)
        if (ledger_id, entry_id) <= mark:
            return mark
        while True:
            if (bitmap := self._holes.get(ledger_id)) is not None:
                entry_id = run_end(bitmap, entry_id)
            after = index.ledger_after(ledger_id)
            if entry_id < index.last_entry_of(ledger_id) or after is None:
                break
            if (ledger_id, entry_id) < index.trimmed_to:
                break
            bitmap = self._holes.get(after.ledger_id)
            if bitmap is None or 0 not in bitmap:
                break
            ledger_id, entry_id = after.ledger_id, -1
        return Position(ledger_id, entry_id)

    @property
    def backlog_bytes_estimate(self) -> int:
        """An estimate of the backlog in bytes: acked entries count with the mean size."""
        beyond = self._index.bytes_after(self._md_ledger, self._md_entry)
        entries = self.backlog + self._holes_count
        return beyond * self.backlog // entries if entries else 0

    @property
    def oldest_unacked(self) -> Position | None:
        """The entry that mark-delete waits for, if it exists."""
        oldest = self._index.locate(self._md_ledger, self._md_entry + 1)
        return None if oldest is None else Position(oldest[0].ledger_id, oldest[1])

    @property
    def holes_count(self) -> int:
        """The number of acked entries beyond mark-delete."""
        return self._holes_count

    @property
    def ranges_count(self) -> int:
        """The number of runs of acked entries beyond mark-delete."""
        return sum(run_count(bitmap) for bitmap in self._holes.values())

    def ranges(self) -> Iterator[tuple[Position, Position]]:
        """Yields the acked runs beyond mark-delete, as (the position before the first, the last).

        Do not ack during the iteration.
        """
        for ledger_id in sorted(self._holes):
            for first, last in runs(self._holes[ledger_id]):
                yield Position(ledger_id, first - 1), Position(ledger_id, last)

    @property
    def holes(self) -> dict[int, BitMap]:
        """The acked entries beyond mark-delete, by ledger. Read-only."""
        return self._holes

    @property
    def batches(self) -> dict[tuple[int, int], int]:
        """The remains of partly acked entries, by (ledger, entry). Read-only."""
        return self._batches

    def restore(
        self,
        holes: dict[int, BitMap],
        batches: dict[tuple[int, int], int],
        pending: Mapping[Txn, TxnAcks] | None = None,
    ) -> None:
        """Adds a stored state to mark-delete, as far as its entries still exist."""
        if pending:
            self._pending = PendingAcks()
            self._pending.restore(pending)
        md_ledger, md_entry = self._md_ledger, self._md_entry
        for ledger_id, bitmap in holes.items():
            last = self._index.last_entry_of(ledger_id)
            low = md_entry + 1 if ledger_id == md_ledger else 0
            if ledger_id < md_ledger or last < low:
                continue
            kept = bitmap & BitMap(range(low, last + 1))
            if kept:
                self._holes[ledger_id] = kept
                self._holes_count += len(kept)
        for key, left in batches.items():
            if not self.is_acked(*key) and key[1] <= self._index.last_entry_of(key[0]):
                self._batches[key] = left
        # The next entry may be acked if ledgers were trimmed since. If mark-delete has not reached
        # the end of those, an artifact may have entries between: the next ack passes them.
        if self.mark_delete >= self._index.trimmed_to:
            self._advance_if_acked()

    def _advance_if_acked(self) -> None:
        if self._holes and (first := self.oldest_unacked) is not None and self.is_acked(*first):
            self._advance(first.ledger_id, first.entry_id)

    def take_fresh(self) -> Fresh:
        """Returns the acks beyond mark-delete since the last call. Clears `_dirty`."""
        fresh, self._fresh = self._fresh or Fresh(), None
        self._dirty = False
        if self._pending is not None:
            fresh.pending = self._pending.take_fresh()
            if not len(self._pending):
                self._pending = None
        return fresh

    def _changes(self) -> Fresh:
        if self._fresh is None:
            self._fresh = Fresh()
        return self._fresh
