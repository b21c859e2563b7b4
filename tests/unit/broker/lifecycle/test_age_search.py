"""Up to where messages are older than a time: drawn logs, against a search entry by entry."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.broker.lifecycle import expiry
from magnetar.broker.lifecycle.effect import RecordedTimes
from magnetar.broker.lifecycle.expiry import entry_time_ms, older_end, oldest_ms
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_source import EntrySource
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, with_broker_entry_metadata

UNREADABLE = b"\x0e\x01"
SMALL = ManagedLedgerSettings(rollover_entries_max=4, rollover_ms_min=0)
STEP_MS = 10


@dataclass(frozen=True, slots=True)
class Came:
    """One message of a drawn log."""

    after_ms: int
    """Since the one before it."""
    skew_ms: int | None
    """By how much its producer's clock is ahead; None: its time cannot be read."""


def message(time_ms: int) -> bytes:
    return build_entry(
        MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms), b"x"
    )


def data_of(came: Came, now_ms: int, *, stamped: bool) -> bytes:
    if came.skew_ms is None:
        return UNREADABLE
    data = message(now_ms + came.skew_ms)
    return with_broker_entry_metadata(data, now_ms) if stamped else data


async def log_of(history: list[Came], *, stamped: bool) -> tuple[ManagedLedger, list[Position]]:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    places = []
    for came in history:
        stage.clock.advance(came.after_ms)
        data = data_of(came, stage.clock.now_ms(), stamped=stamped)
        places.append(Position(*await publish(ledger, data)))
    stage.clock.advance(STEP_MS)
    return ledger, places


async def searched(
    ledger: ManagedLedger, places: list[Position], before_ms: int, after: Position
) -> Position | None:
    """The last of the head of `places` behind `after` of which each is older, one by one."""
    found = None
    for place in places:
        if place <= after:
            continue
        info = ledger.index.get(place.ledger_id)
        assert info is not None
        if not info.created_ms <= info.closed_ms < before_ms:
            time_ms = entry_time_ms((await ledger.read_entry(place)).data)
            if time_ms is None or time_ms >= before_ms or info.created_ms >= before_ms:
                break
        found = place
    return found


steps = st.integers(0, 4).map(lambda each: each * STEP_MS)
skews = st.one_of(st.just(0), st.just(0), st.integers(-3, 3).map(lambda each: each * STEP_MS))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.builds(Came, steps, st.just(0)), min_size=1, max_size=14),
    st.integers(-1, 60),
    st.integers(-1, 13),
    st.booleans(),
)
def test_where_clocks_agree_the_search_finds_the_last_that_is_older(
    history: list[Came], before: int, behind: int, stamped: bool
) -> None:
    async def run() -> None:
        ledger, places = await log_of(history, stamped=stamped)
        first_ms = ledger.ledgers[0].created_ms
        before_ms = first_ms + before * STEP_MS
        after = places[behind] if 0 <= behind < len(places) else EARLIEST
        expected = await searched(ledger, places, before_ms, after)
        assert await older_end(ledger, before_ms, after) == expected

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.builds(Came, steps, st.one_of(skews, skews, st.none())), min_size=1, max_size=14),
    st.integers(-1, 60),
    st.integers(-1, 13),
)
def test_whatever_producers_say_nothing_goes_that_is_not_older(
    history: list[Came], before: int, behind: int
) -> None:
    async def run() -> None:
        ledger, places = await log_of(history, stamped=False)
        before_ms = ledger.ledgers[0].created_ms + before * STEP_MS
        after = places[behind] if 0 <= behind < len(places) else EARLIEST
        most = await searched(ledger, places, before_ms, after)
        found = await older_end(ledger, before_ms, after)
        assert (found is None) is (most is None), "where one may go, one goes"
        assert found is None or most is None or found <= most

    asyncio.run(run())


def test_a_time_that_is_exactly_the_limit_is_not_older() -> None:
    async def run() -> None:
        for stamped in (True, False):
            ledger, places = await log_of([Came(STEP_MS, 0)] * 3, stamped=stamped)
            first_ms = ledger.ledgers[0].created_ms
            assert await older_end(ledger, first_ms) is None
            assert await older_end(ledger, first_ms + STEP_MS) == places[0]
            assert await older_end(ledger, first_ms + STEP_MS + 1) == places[1]
            assert await older_end(ledger, first_ms + STEP_MS, places[0]) is None

    asyncio.run(run())


PER_LEDGER = 4
OLD = Came(0, 0)
SAYS_OLD = Came(0, -10 * STEP_MS)
"""It came late, by a producer whose clock is behind."""


def test_a_ledger_that_is_too_young_holds_nothing_older_whatever_its_messages_say() -> None:
    async def run() -> None:
        history = [OLD] * PER_LEDGER + [Came(STEP_MS, -10 * STEP_MS)] + [SAYS_OLD] * 2
        ledger, places = await log_of(history, stamped=False)
        first, second = ledger.ledgers
        first.closed_ms = second.created_ms  # so that it is not passed as a whole
        assert await older_end(ledger, second.created_ms) == places[PER_LEDGER - 1]
        assert await older_end(ledger, second.created_ms, places[PER_LEDGER - 1]) is None

    asyncio.run(run())


def test_one_whose_time_cannot_be_read_stops_the_search_at_the_end_of_a_ledger_too() -> None:
    async def run() -> None:
        history = [OLD] * (PER_LEDGER - 1) + [Came(0, None)]
        history += [Came(STEP_MS, -10 * STEP_MS)] + [SAYS_OLD] * 6
        ledger, places = await log_of(history, stamped=False)
        first, second = ledger.ledgers[:2]
        first.closed_ms = second.created_ms
        assert await older_end(ledger, second.created_ms) == places[PER_LEDGER - 2]

    asyncio.run(run())


def test_a_ledger_that_was_made_by_a_clock_ahead_holds_up_nothing_behind_it() -> None:
    async def run() -> None:
        ledger, places = await log_of([OLD] * (PER_LEDGER + 2), stamped=False)
        first, second = ledger.ledgers
        before_ms = second.created_ms + STEP_MS
        first.created_ms = first.closed_ms = before_ms + 1
        assert await older_end(ledger, before_ms) is None
        assert await older_end(ledger, before_ms, places[PER_LEDGER - 1]) == places[-1]

    asyncio.run(run())


def test_a_ledger_that_was_closed_at_the_instant_it_was_made_is_passed_as_a_whole() -> None:
    infos = [LedgerInfo(1, 5, entries=3, closed_ms=5)]
    assert expiry.older_ledgers_end(infos, 6) == Position(1, 2)
    assert expiry.older_ledgers_end(infos, 5) is None


@pytest.mark.parametrize("stamped", [True, False])
def test_times_of_offloaded_files_count_only_where_no_broker_has_stamped_the_entries(
    stamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    find = EntrySource.find_by

    async def noted(source: EntrySource, predicate: Any, after: Position, at_ms: Any) -> Any:
        asked.append(at_ms)
        return await find(source, predicate, after, at_ms)

    monkeypatch.setattr(EntrySource, "find_by", noted)

    async def run() -> None:
        ledger, places = await log_of([Came(STEP_MS, 0)] * 3, stamped=stamped)
        before_ms = ledger.ledgers[0].created_ms + STEP_MS + 1
        assert await older_end(ledger, before_ms) == places[1]
        assert asked == [None if stamped else before_ms]

    asyncio.run(run())


@pytest.mark.parametrize("most", [2, 3, 4])
def test_a_round_proves_so_many_entries_and_the_next_one_continues(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "ENTRIES_PROVED_MAX", most)
    monkeypatch.setattr(expiry, "READ_ENTRIES_MAX", 2)
    read: list[int] = []

    async def run() -> None:
        ledger, places = await log_of([Came(0, 0)] * 7, stamped=False)
        before_ms = ledger.ledgers[0].created_ms + STEP_MS
        for info in ledger.ledgers:
            info.closed_ms = 0  # so that none is passed as a whole
        plain = EntrySource.read

        async def counted(
            source: EntrySource, start: Position, entries: int, size: int
        ) -> list[Entry]:
            assert entries <= 2
            read.append(entries)
            return await plain(source, start, entries, size)

        with monkeypatch.context() as patch:
            patch.setattr(EntrySource, "read", counted)
            assert await older_end(ledger, before_ms) == places[most - 1]
        assert await older_end(ledger, before_ms, places[most - 1]) == places[min(2 * most - 1, 6)]

    asyncio.run(run())


# -- the oldest


def test_the_oldest_message_came_while_its_ledger_was_open_whatever_its_producer_says() -> None:
    async def run() -> None:
        history = [Came(0, -(10**6)), *[Came(STEP_MS, 0)] * 3, Came(STEP_MS, 10**6), Came(0, None)]
        ledger, places = await log_of(history, stamped=False)
        first, second = ledger.ledgers
        assert await oldest_ms(ledger, EARLIEST) == first.created_ms
        assert await oldest_ms(ledger, places[0]) == first.created_ms + STEP_MS
        assert await oldest_ms(ledger, places[2]) == first.created_ms + 3 * STEP_MS
        # The open ledger's end is not known: a producer that is ahead is believed.
        assert await oldest_ms(ledger, places[3]) == second.created_ms + 10**6
        assert await oldest_ms(ledger, places[4]) is None, "its time cannot be read"
        assert await oldest_ms(ledger, places[5]) is None, "there is none"
        second.closed_ms = second.created_ms + STEP_MS
        assert await oldest_ms(ledger, places[3]) == second.closed_ms
        second.closed_ms = second.created_ms - 1  # by another clock
        assert await oldest_ms(ledger, places[3]) == second.created_ms

    asyncio.run(run())


def test_the_last_message_of_a_log_is_the_oldest_behind_the_one_before_it() -> None:
    async def run() -> None:
        ledger, places = await log_of([Came(STEP_MS, 0)] * 2, stamped=False)
        assert await oldest_ms(ledger, places[0]) == ledger.ledgers[0].created_ms + STEP_MS
        assert await oldest_ms(ledger, places[1]) is None

    asyncio.run(run())


# -- by records alone


def test_a_log_that_nobody_serves_is_judged_by_its_ledgers() -> None:
    async def run() -> None:
        index = LedgerIndex()
        for number, (created, closed) in enumerate(((10, 20), (20, 30), (30, 0))):
            index.add(LedgerInfo(number, created, entries=3, size_bytes=30, closed_ms=closed))
        times = RecordedTimes(index)
        assert await times.older_end(20, EARLIEST) is None
        assert await times.older_end(21, EARLIEST) == Position(0, 2)
        assert await times.older_end(31, EARLIEST) == Position(1, 2)
        assert await times.older_end(31, Position(1, 1)) == Position(1, 2)
        assert await times.older_end(31, Position(1, 2)) is None
        assert await times.oldest_ms(EARLIEST) == 20
        assert await times.oldest_ms(Position(0, 1)) == 20
        assert await times.oldest_ms(Position(0, 2)) == 30
        assert await times.oldest_ms(Position(1, 2)) is None, "its ledger is open"
        assert await times.oldest_ms(Position(2, 2)) is None, "there is none"

    asyncio.run(run())
