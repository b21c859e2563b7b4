"""The acks of open transactions on one cursor. Pure.

A pending ack does not count as an ack, but its messages are not delivered: they are *withheld*.
Acks are whole entries (one Roaring bitmap per ledger), messages of a batch, or one cumulative ack.
The rules for conflicts are Pulsar's (`PendingAckHandleImpl`), except that a transaction may repeat
an ack of its own, because its client may not have received the first answer.

Bounds: TRANSACTIONS_MAX transactions and PARTS_MAX partly acked batches per cursor; whole entries
take about two bytes at most.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyroaring import BitMap

from magnetar.core.errors import TooManyRequests, TransactionConflict
from magnetar.core.ids import Position

TRANSACTIONS_MAX: Final = 100_000
PARTS_MAX: Final = 1_000_000

Txn = tuple[int, int]
EntryKey = tuple[int, int]


class Part(NamedTuple):
    """Messages of a batch: the set bits of `left` are not acked. `left` 0 is the whole entry."""

    left: int
    batch_size: int

    @property
    def named(self) -> int:
        """The bits of the acked messages."""
        return ((1 << self.batch_size) - 1) & ~self.left

    def is_new(self, remaining: int, *, exact: bool) -> bool:
        """Whether this acks what is left in `remaining`: all its messages, or at least one.

        Not `exact` are the acks of Go's client: they name every message of the batch that the
        client has acked so far, also in other transactions. Nor is an ack of a whole entry whose
        size the client has not named.
        """
        if not self.batch_size:
            return True
        new = remaining & self.named
        return new == self.named if exact else new != 0


class TxnAcks:
    """The pending acks of one transaction."""

    __slots__ = ("cumulative", "entries", "parts")

    def __init__(self) -> None:
        self.entries: dict[int, BitMap] = {}
        self.parts: dict[EntryKey, Part] = {}
        self.cumulative: tuple[Position, Part] | None = None

    def add_entries(self, ledger_id: int, ids: BitMap) -> None:
        """Adds whole entries."""
        held = self.entries.get(ledger_id)
        self.entries[ledger_id] = ids.copy() if held is None else held | ids

    @property
    def keys(self) -> Iterable[EntryKey]:
        """The entries with individual acks."""
        for ledger_id, ids in self.entries.items():
            for entry_id in ids:
                yield ledger_id, entry_id
        yield from self.parts


class PendingAcks:
    """The pending acks of a cursor, by transaction."""

    __slots__ = ("_cumulative_txn", "_entries", "_fresh", "_parts", "by_txn")

    def __init__(self) -> None:
        self.by_txn: dict[Txn, TxnAcks] = {}
        self._entries: dict[int, BitMap] = {}
        """The whole entries of all transactions."""
        self._parts: dict[EntryKey, dict[Txn, Part]] = {}
        self._cumulative_txn: Txn | None = None
        self._fresh: dict[Txn, None] = {}

    def __len__(self) -> int:
        return len(self.by_txn)

    # -- acks

    def check_room(self, txn: Txn, parts: int) -> None:
        """Raises TooManyRequests if that many more partly acked batches exceed a bound."""
        if parts and len(self._parts) + parts > PARTS_MAX:
            raise TooManyRequests(
                f"{PARTS_MAX} batches with acks of open transactions are the maximum: end some"
            )
        if txn not in self.by_txn and len(self.by_txn) >= TRANSACTIONS_MAX:
            raise TooManyRequests(
                f"{TRANSACTIONS_MAX} open transactions with acks of a subscription are the "
                "maximum: end some"
            )

    def check_entry(self, txn: Txn, key: EntryKey) -> None:
        """Raises TransactionConflict if another transaction has acked the entry or part of it."""
        own = self.by_txn.get(txn)
        ledger_id, entry_id = key
        if entry_id in self._entries.get(ledger_id, ()):
            if own is None or entry_id not in own.entries.get(ledger_id, ()):
                raise _conflict(txn, key)
        elif any(other != txn for other in self._parts.get(key, ())):
            raise _conflict(txn, key)

    def check_part(self, txn: Txn, key: EntryKey, part: Part) -> None:
        """Raises TransactionConflict if another transaction has acked one of the messages."""
        if key[1] in self._entries.get(key[0], ()):
            self.check_entry(txn, key)
        for other, held in self._parts.get(key, {}).items():
            if other != txn and held.named & part.named:
                raise _conflict(txn, key)

    def check_cumulative(self, txn: Txn) -> None:
        """Raises TransactionConflict while another transaction has a cumulative ack."""
        if self._cumulative_txn not in (None, txn):
            raise TransactionConflict(
                f"Cumulative ack of transaction ({txn[0]},{txn[1]}): another open transaction has "
                "a cumulative ack of this subscription"
            )

    def add_entry(self, txn: Txn, key: EntryKey) -> None:
        """Adds an ack of a whole entry; needs `check_entry`."""
        own = self._own(txn)
        ledger_id, entry_id = key
        own.add_entries(ledger_id, BitMap((entry_id,)))
        ids = self._entries.get(ledger_id)
        if ids is None:
            self._entries[ledger_id] = BitMap((entry_id,))
        else:
            ids.add(entry_id)
        if own.parts.pop(key, None) is not None:
            self._drop_part(txn, key)

    def add_part(self, txn: Txn, key: EntryKey, part: Part) -> None:
        """Adds an ack of messages of a batch; needs `check_part`."""
        if key[1] in self._entries.get(key[0], ()):
            return  # the transaction has acked the whole entry
        held = self._parts.get(key, {})
        own = self._own(txn)
        if (before := held.get(txn)) is not None:
            part = Part(before.left & part.left, max(before.batch_size, part.batch_size))
        own.parts[key] = part
        self._parts.setdefault(key, {})[txn] = part

    def set_cumulative(self, txn: Txn, position: Position, part: Part) -> None:
        """Acks everything up to the position, or that part of its batch; never moves back."""
        own = self._own(txn)
        if own.cumulative is not None and (position, -part.left) <= (
            own.cumulative[0],
            -own.cumulative[1].left,
        ):
            return
        own.cumulative = position, part
        self._cumulative_txn = txn

    def _own(self, txn: Txn) -> TxnAcks:
        self._fresh[txn] = None
        own = self.by_txn.get(txn)
        if own is None:
            own = self.by_txn[txn] = TxnAcks()
        return own

    def end(self, txn: Txn) -> TxnAcks | None:
        """Removes and returns the acks of a transaction; None if it has none."""
        own = self.by_txn.pop(txn, None)
        if own is None:
            return None
        self._fresh[txn] = None
        for ledger_id, ids in own.entries.items():
            self._entries[ledger_id] -= ids
            if not self._entries[ledger_id]:
                del self._entries[ledger_id]
        for key in own.parts:
            self._drop_part(txn, key)
        if self._cumulative_txn == txn:
            self._cumulative_txn = None
        return own

    def _drop_part(self, txn: Txn, key: EntryKey) -> None:
        del self._parts[key][txn]
        if not self._parts[key]:
            del self._parts[key]

    # -- delivery

    def withholds(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a whole entry is acked by one transaction."""
        if entry_id in self._entries.get(ledger_id, ()):
            return True
        if self._cumulative_txn is None:
            return False
        cumulative = self.by_txn[self._cumulative_txn].cumulative
        if cumulative is None:
            return False
        position, part = cumulative
        return (ledger_id, entry_id) < position or (
            (ledger_id, entry_id) == position and not part.left
        )

    def left_of(self, key: EntryKey, remaining: int | None) -> int | None:
        """Returns the bits of a batch that are neither acked nor pending; None for all of them.

        `remaining` are the bits that are not acked, None for all.
        """
        left = remaining
        parts: list[Part] = list(self._parts.get(key, {}).values())
        if self._cumulative_txn is not None:
            cumulative = self.by_txn[self._cumulative_txn].cumulative
            if cumulative is not None and cumulative[0] == key and cumulative[1].left:
                parts.append(cumulative[1])
        for part in parts:
            left = part.left if left is None else left & part.left
        return left

    # -- storage

    def take_fresh(self) -> Mapping[Txn, TxnAcks | None]:
        """Returns the transactions that changed since the last call; None: it ended."""
        fresh, self._fresh = self._fresh, {}
        return {txn: self.by_txn.get(txn) for txn in fresh}

    def restore(self, stored: Mapping[Txn, TxnAcks]) -> None:
        """Sets the state to a stored one."""
        for txn, acks in stored.items():
            self.by_txn[txn] = acks
            for ledger_id, ids in acks.entries.items():
                held = self._entries.get(ledger_id)
                self._entries[ledger_id] = ids.copy() if held is None else held | ids
            for key, part in acks.parts.items():
                self._parts.setdefault(key, {})[txn] = part
            if acks.cumulative is not None:
                self._cumulative_txn = txn


def _conflict(txn: Txn, key: EntryKey) -> TransactionConflict:
    return TransactionConflict(
        f"Ack of {key[0]}:{key[1]} by transaction ({txn[0]},{txn[1]}): another open transaction "
        "has acked it"
    )
