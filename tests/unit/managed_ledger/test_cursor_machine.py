"""Random acks, seeks, appends, trims and crashes, against a model that is a dict of bits.

The model keeps, for each entry, which of its messages are not acked: as this process knows it
(`left`), and as it was promised to be on disk at least (`promised`). After a crash each entry must
be somewhere between the two; from then on the model adopts the observed state.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.unit.ledger.stage import NAME, Stage, StageOn, publish, turns

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger import cursor_log
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import ManagedLedgerSettings

ALL = 0b111
"""Each entry is a batch of three messages."""

BOUNDS = (cursor_log.LEDGER_BYTES_MIN, cursor_log.DELTAS_BYTES_MIN)

Result = TypeVar("Result")


class CursorMachine(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stage: StageOn[Any] = Stage()
        self.left: dict[Position, int] = {}
        self.promised: dict[Position, int] = {}
        self.factory: ManagedLedgerFactory
        self.ledger: ManagedLedger
        self.cursor: Cursor

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(coroutine)

    def do(self, act: Callable[..., Result], *arguments: object) -> Result:
        """Calls what needs the loop to run, but does not wait."""

        async def call() -> Result:
            return act(*arguments)

        return self.run(call())

    def teardown(self) -> None:
        cursor_log.LEDGER_BYTES_MIN, cursor_log.DELTAS_BYTES_MIN = BOUNDS  # type: ignore[misc]
        self.run(self.factory.abandon())
        self.run(self.stage.bookie.close())
        self.runner.close()

    async def cut_power(self, seed: int) -> None:
        """What a crash does to the bookie: to one in memory, nothing."""

    async def open(self) -> None:
        self.factory = self.stage.factory(
            ManagedLedgerSettings(rollover_entries_max=4, rollover_ms_min=0)
        )
        self.ledger = await self.factory.open(NAME)
        self.cursor = await self.ledger.open_cursor("sub", initial=EARLIEST)

    @initialize(small=st.booleans())
    def begin(self, small: bool) -> None:
        # With small bounds, snapshots and rolls of the cursor ledger come all the time.
        cursor_log.LEDGER_BYTES_MIN = 300 if small else 4 << 20  # type: ignore[misc]
        cursor_log.DELTAS_BYTES_MIN = 150 if small else 256 << 10  # type: ignore[misc]
        self.run(self.open())
        for _ in range(5):
            self.append(2)

    # -- what happens

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        ledger_id, first = self.run(publish(self.ledger, *[b"entry"] * count))
        for entry_id in range(first, first + count):
            self.left[Position(ledger_id, entry_id)] = ALL
            self.promised[Position(ledger_id, entry_id)] = ALL

    def place(self, choice: int) -> Position:
        """One of the entries, or now and then a place where there is none."""
        places = sorted(self.left)
        if not places or choice % 13 == 12:
            return Position(choice % 7, choice)
        return places[choice % len(places)]

    choices = st.integers(0, 10_000)

    @rule(some=st.lists(choices, min_size=1, max_size=4), flush=st.booleans())
    def ack(self, some: list[int], flush: bool) -> None:
        places = [self.place(choice) for choice in some]
        for place in places:
            self.do(self.cursor.ack, *place)
        self.left.update((place, 0) for place in places if place in self.left)
        if flush:
            self.flush()

    @rule(choice=choices, remaining=st.integers(0, ALL), flush=st.booleans())
    def ack_batch(self, choice: int, remaining: int, flush: bool) -> None:
        place = self.place(choice)
        whole = self.do(self.cursor.ack_batch, *place, remaining, 3)
        if place in self.left:
            self.left[place] &= remaining
            assert whole == (not self.left[place])
        if flush:
            self.flush()

    @rule(choice=choices)
    def ack_cumulative(self, choice: int) -> None:
        place = self.place(choice)
        self.do(self.cursor.ack_cumulative, place)
        if place <= self.ledger.last_confirmed:  # else it is nobody's
            self.left.update((other, 0) for other in self.left if other <= place)

    @rule(choice=choices, remaining=st.integers(0, ALL))
    def ack_batch_cumulative(self, choice: int, remaining: int) -> None:
        place = self.place(choice)
        self.do(self.cursor.ack_batch_cumulative, place, remaining, 3)
        if place in self.left:
            self.left.update((other, 0) for other in self.left if other < place)
            self.left[place] &= remaining

    def flush(self) -> None:
        self.run(self.cursor.flush())
        self.promised = dict(self.left)

    @rule(choice=choices)
    def seek(self, choice: int) -> None:
        places = sorted(self.left)
        place = places[choice % len(places)] if places else EARLIEST
        self.run(self.cursor.reset(place))
        self.left = {other: 0 if other < place else ALL for other in self.left}
        self.promised = dict(self.left)
        if places:
            assert self.cursor.read_position == place

    @rule()
    def trim(self) -> None:
        self.run(self.ledger.trim())
        kept = {info.ledger_id for info in self.ledger.ledgers}
        gone = [place for place in self.left if place.ledger_id not in kept]
        assert not any(self.left[place] for place in gone)
        for place in gone:
            del self.left[place], self.promised[place]

    @rule(steps=st.integers(0, 12), waiting=st.booleans(), seed=st.integers(0, 1 << 16))
    def crash(self, steps: int, waiting: bool, seed: int) -> None:
        told: list[MagnetarError | None] = []

        async def crash() -> None:
            if waiting:
                self.cursor.when_durable(told.append)
            await turns(steps)
            await self.factory.abandon()
            await self.cut_power(seed)

        self.run(crash())
        if told == [None]:
            self.promised = dict(self.left)
        self.run(self.open())
        for place, left in self.left.items():
            found = self.found(place)
            assert found & left == left, "an ack that nobody made"
            assert found & ~self.promised[place] == 0, "an ack that was promised is gone"
        self.left = {place: self.found(place) for place in self.left}
        self.promised = dict(self.left)

    @rule()
    def restart(self) -> None:
        self.run(self.factory.close())
        self.promised = dict(self.left)
        self.run(self.open())

    # -- what must hold

    def found(self, place: Position) -> int:
        if self.cursor.is_acked(*place):
            return 0
        return self.cursor.remaining_batch(*place) or ALL

    @invariant()
    def acks_are_those_of_the_model(self) -> None:
        if not hasattr(self, "cursor"):
            return
        cursor, left = self.cursor, self.left
        assert self.ledger.entries_total == len(left), "entries are lost"
        assert {place: self.found(place) for place in left} == left
        assert cursor.backlog == sum(1 for bits in left.values() if bits)
        unacked = [place for place in sorted(left) if left[place]]
        beyond = [place for place in left if not left[place] and place > cursor.mark_delete]
        # If entries after a restored mark-delete were trimmed, it waits for the next ack there.
        if cursor.mark_delete >= self.ledger._index.trimmed_to:
            assert cursor.oldest_unacked == (unacked[0] if unacked else None)
            assert all(unacked and place > unacked[0] for place in beyond)
        assert cursor.holes_count == len(beyond)
        assert len(cursor.batches) == sum(1 for bits in left.values() if 0 < bits < ALL)
        ranges = list(cursor.ranges())
        assert len(ranges) == cursor.ranges_count
        spelled = [
            Position(last.ledger_id, entry_id)
            for after, last in ranges
            for entry_id in range(after.entry_id + 1, last.entry_id + 1)
        ]
        assert spelled == sorted(beyond)

    @precondition(lambda self: self.left)
    @rule(choice=choices)
    def read_and_filter(self, choice: int) -> None:
        place = self.place(choice)
        entries = self.run(self.ledger.read(place, 5, 1 << 20))
        kept = self.cursor.filter_unacked(entries)
        assert [e.position for e in kept] == [e.position for e in entries if self.left[e.position]]


class TestCursor(CursorMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
