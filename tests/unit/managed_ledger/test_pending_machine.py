"""Random acks in and out of transactions, ends, seeks and crashes, against a model of bits.

The model keeps the messages of each entry that are not acked, and those that each transaction has
acked. Acks are flushed, as clients wait for the answer, so a crash loses none of them.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.core.errors import TransactionConflict
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger import cursor_log
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.pending_acks import Part
from magnetar.managed_ledger.settings import ManagedLedgerSettings

ALL = 0b111
"""Each entry is a batch of three messages."""
TXNS = [(0, 1), (0, 2), (3, 1 << 63)]
BOUNDS = (cursor_log.LEDGER_BYTES_MIN, cursor_log.DELTAS_BYTES_MIN)

Result = TypeVar("Result")

choices = st.integers(0, 10_000)
txns = st.sampled_from(TXNS)
parts = st.integers(0, ALL - 1)
"""What an ack leaves of a batch: at least one message is acked."""


class PendingMachine(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stage = Stage()
        self.left: dict[Position, int] = {}
        self.pending: dict[tuple[int, int], dict[Position, int]] = {}
        self.upto: tuple[tuple[int, int], Position, int] | None = None
        """The cumulative ack: its transaction, its entry, and the messages of that entry that it
        leaves."""
        self.factory: ManagedLedgerFactory
        self.ledger: ManagedLedger
        self.cursor: Cursor

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        cursor_log.LEDGER_BYTES_MIN, cursor_log.DELTAS_BYTES_MIN = BOUNDS  # type: ignore[misc]
        self.run(self.factory.abandon())
        self.run(self.stage.bookie.close())
        self.runner.close()

    async def open(self) -> None:
        self.factory = self.stage.factory(
            ManagedLedgerSettings(rollover_entries_max=4, rollover_ms_min=0)
        )
        self.ledger = await self.factory.open(NAME)
        self.cursor = await self.ledger.open_cursor("sub", initial=EARLIEST)

    @initialize(small=st.booleans())
    def begin(self, small: bool) -> None:
        cursor_log.LEDGER_BYTES_MIN = 300 if small else 4 << 20  # type: ignore[misc]
        cursor_log.DELTAS_BYTES_MIN = 150 if small else 256 << 10  # type: ignore[misc]
        self.run(self.open())
        for _ in range(4):
            self.append(2)

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        ledger_id, first = self.run(publish(self.ledger, *[b"entry"] * count))
        for entry_id in range(first, first + count):
            self.left[Position(ledger_id, entry_id)] = ALL

    def place(self, choice: int) -> Position:
        places = sorted(self.left)
        return places[choice % len(places)]

    # -- plain acks

    @rule(choice=choices, leaves=parts)
    def ack(self, choice: int, leaves: int) -> None:
        place = self.place(choice)

        async def act() -> None:
            if leaves:
                self.cursor.ack_batch(*place, leaves, 3)
            else:
                self.cursor.ack(*place)
            await self.cursor.flush()

        self.run(act())
        self.left[place] &= leaves

    @rule(choice=choices)
    def ack_cumulative(self, choice: int) -> None:
        place = self.place(choice)

        async def act() -> None:
            self.cursor.ack_cumulative(place)
            await self.cursor.flush()

        self.run(act())
        self.left.update((other, 0) for other in self.left if other <= place)

    # -- transactions

    def conflict(self, txn: tuple[int, int], place: Position, leaves: int, exact: bool) -> bool:
        named = ALL & ~leaves
        new = self.left[place] & named
        if not new or (exact and leaves and new != named):
            return True
        others = [held.get(place, 0) for other, held in self.pending.items() if other != txn]
        return any(bits & named for bits in others)

    @rule(
        txn=txns,
        acks=st.lists(st.tuples(choices, parts), min_size=1, max_size=4),
        exact=st.booleans(),
    )
    def ack_in_txn(self, txn: tuple[int, int], acks: list[tuple[int, int]], exact: bool) -> None:
        places = [(self.place(choice), leaves) for choice, leaves in acks]
        expected = any(self.conflict(txn, place, leaves, exact) for place, leaves in places)

        async def act() -> None:
            self.cursor.add_pending(
                txn,
                [(*place, Part(leaves, 3 if leaves else 0)) for place, leaves in places],
                exact=exact,
            )
            await self.cursor.flush()

        try:
            self.run(act())
        except TransactionConflict:
            assert expected
            return
        assert not expected
        held = self.pending.setdefault(txn, {})
        for place, leaves in places:
            held[place] = held.get(place, 0) | (ALL & ~leaves)

    @rule(txn=txns, choice=choices, leaves=parts)
    def ack_cumulative_in_txn(self, txn: tuple[int, int], choice: int, leaves: int) -> None:
        place = self.place(choice)
        expected = (self.upto is not None and self.upto[0] != txn) or (
            place <= self.cursor.mark_delete
        )

        async def act() -> None:
            self.cursor.add_pending_cumulative(txn, place, Part(leaves, 3 if leaves else 0))
            await self.cursor.flush()

        try:
            self.run(act())
        except TransactionConflict:
            assert expected
            return
        assert not expected
        before = None if self.upto is None else self.upto[1:]
        if before is None or (place, -leaves) > (before[0], -before[1]):
            self.upto = txn, place, leaves
        self.pending.setdefault(txn, {})

    @rule(txn=txns, commit=st.booleans())
    def end(self, txn: tuple[int, int], commit: bool) -> None:
        async def act() -> bool:
            found = self.cursor.end_pending(txn, commit=commit) is not None
            await self.cursor.flush()
            return found

        assert self.run(act()) == (txn in self.pending)
        for place, bits in self.pending.pop(txn, {}).items():
            if commit:
                self.left[place] &= ~bits
        if self.upto is not None and self.upto[0] == txn:
            _, upto, leaves = self.upto
            self.upto = None
            if commit:
                self.left.update((other, 0) for other in self.left if other < upto)
                self.left[upto] &= leaves

    # -- moves and crashes

    @rule(choice=choices)
    def seek(self, choice: int) -> None:
        place = self.place(choice)
        self.run(self.cursor.reset(place))
        for other in self.left:
            self.left[other] = 0 if other < place else ALL
        self.pending.clear()
        self.upto = None

    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        self.run(self.factory.abandon() if crash else self.factory.close())
        self.run(self.open())

    # -- what must hold

    def deliverable(self, place: Position) -> int:
        bits = self.left[place]
        for held in self.pending.values():
            bits &= ~held.get(place, 0)
        if self.upto is not None:
            _, upto, leaves = self.upto
            if place < upto:
                bits = 0
            elif place == upto:
                bits &= leaves
        return bits

    @invariant()
    def delivers_what_is_neither_acked_nor_pending(self) -> None:
        if not hasattr(self, "cursor"):
            return
        for place, bits in self.left.items():
            expected = self.deliverable(place)
            assert self.cursor.is_done(*place) == (not expected), (place, bin(expected))
            assert self.cursor.is_acked(*place) == (not bits)
            if expected:
                remaining = self.cursor.remaining_batch(*place)
                assert (ALL if remaining is None else remaining) == expected
        assert self.cursor.backlog == sum(1 for bits in self.left.values() if bits)
        held = self.cursor.pending
        assert sorted(() if held is None else held.by_txn) == sorted(self.pending)


TestPendingMachine = PendingMachine.TestCase
TestPendingMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
