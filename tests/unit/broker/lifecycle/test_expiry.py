"""Up to where messages are too old, and how little is read for that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.broker.lifecycle.expiry import (
    entry_time_ms,
    older_end,
    older_ledgers_end,
    oldest_ms,
)
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_source import EntrySource
from magnetar.managed_ledger.index import LedgerInfo
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, with_broker_entry_metadata

SMALL = ManagedLedgerSettings(rollover_entries_max=10, rollover_ms_min=0)


def message(time_ms: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms)
    return build_entry(metadata, b"x")


def test_the_brokers_time_is_before_the_producers() -> None:
    assert entry_time_ms(message(7)) == 7
    assert entry_time_ms(with_broker_entry_metadata(message(7), 9)) == 9
    assert entry_time_ms(with_broker_entry_metadata(message(7), None, 1)) == 7
    assert entry_time_ms(b"\x0e\x01") is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100), st.integers(0, 3))),
    st.integers(0, 100),
)
def test_only_whole_ledgers_at_the_head(rows: list[tuple[int, int, int]], before: int) -> None:
    infos = [
        LedgerInfo(number, created, entries=entries, closed_ms=closed)
        for number, (created, closed, entries) in enumerate(rows)
    ]
    end = older_ledgers_end(infos, before)
    passed = [info for info in infos if end is not None and info.ledger_id <= end.ledger_id]
    assert all(info.created_ms <= info.closed_ms < before for info in passed)
    if end is not None:
        assert end.entry_id == infos[end.ledger_id].entries - 1 >= 0


async def filled(count: int) -> tuple[ManagedLedger, list[Position], int]:
    """Messages 10 ms apart, ten a ledger; when the first one came."""
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    first_ms = stage.clock.now_ms()
    places = []
    for _ in range(count):
        places.append(Position(*await publish(ledger, message(stage.clock.now_ms()))))
        stage.clock.advance(10)
    return ledger, places, first_ms


async def test_the_last_that_is_older() -> None:
    ledger, places, first_ms = await filled(95)
    for before in (0, 1, 10, 11, 499, 500, 505, 940, 5_000):
        expected = places[(before + 9) // 10 - 1 : (before + 9) // 10] if before else []
        expected = expected or (places[-1:] if before else [])
        assert await older_end(ledger, first_ms + before) == (expected[0] if expected else None)
    assert await older_end(ledger, first_ms + 505, places[50]) is None
    assert await older_end(ledger, first_ms + 505, places[49]) == places[50]
    assert await oldest_ms(ledger, EARLIEST) == first_ms
    assert await oldest_ms(ledger, places[49]) == first_ms + 500
    assert await oldest_ms(ledger, places[-1]) is None


async def test_whole_ledgers_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, places, first_ms = await filled(100)
    await ledger.roll_over()
    reads: list[Position] = []
    read_entry = EntrySource.read_entry

    async def counted(source: EntrySource, position: Position) -> Entry:
        reads.append(position)
        return await read_entry(source, position)

    monkeypatch.setattr(EntrySource, "read_entry", counted)
    assert await older_end(ledger, first_ms + 10_000) == places[-1]
    assert reads == []
    assert await older_end(ledger, first_ms) is None
    assert len(reads) == 0  # the ledger was created then
    assert await older_end(ledger, first_ms + 10, places[0]) is None
    assert len(reads) == 1
    assert await older_end(ledger, first_ms + 505) == places[50]
    assert len(reads) < 10


def test_a_clock_that_went_back_expires_nothing_unread() -> None:
    info = LedgerInfo(1, 5_000, entries=3, closed_ms=10)
    assert older_ledgers_end([info], 100) is None


PRODUCER_BEHIND_MS = 10 * 365 * 86_400_000


async def test_a_producer_years_behind_takes_no_others_messages_along() -> None:
    """Bisection alone would land anywhere between the two producers' messages."""
    stage = Stage()
    ledger = await stage.factory(ManagedLedgerSettings()).open(NAME)
    places = []
    for number in range(100):
        behind_ms = PRODUCER_BEHIND_MS if number % 3 else 0
        data = message(stage.clock.now_ms() - behind_ms)
        places.append(Position(*await publish(ledger, data)))
        stage.clock.advance(1_000)
    # The last 60 arrived in the last minute; entry 42 is the first whose time shows it.
    assert await older_end(ledger, stage.clock.now_ms() - 60_000) == places[41]
    # A ledger that was created in that time holds nothing older, whatever its messages say.
    assert await older_end(ledger, stage.clock.now_ms() - 100_000) is None
    assert await oldest_ms(ledger, EARLIEST) == stage.clock.now_ms() - 100_000
    assert await oldest_ms(ledger, places[0]) == stage.clock.now_ms() - 100_000


async def test_the_brokers_time_is_believed_without_reading_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    ledger = await stage.factory(ManagedLedgerSettings()).open(NAME)
    places = []
    for _ in range(100):
        now_ms = stage.clock.now_ms()
        data = with_broker_entry_metadata(message(now_ms - PRODUCER_BEHIND_MS), now_ms)
        places.append(Position(*await publish(ledger, data)))
        stage.clock.advance(1_000)
    reads: list[int] = []
    read = EntrySource.read

    async def counted(source: EntrySource, start: Position, most: int, size: int) -> list[Entry]:
        found = await read(source, start, most, size)
        reads.append(len(found))
        return found

    monkeypatch.setattr(EntrySource, "read", counted)
    assert await older_end(ledger, stage.clock.now_ms() - 60_000) == places[39]
    assert sum(reads) < 12


async def test_a_message_of_the_future_holds_others_up_till_its_ledger_is_old() -> None:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    await publish(ledger, message(stage.clock.now_ms() + PRODUCER_BEHIND_MS))
    last = Position(*await publish(ledger, message(stage.clock.now_ms())))
    stage.clock.advance(50_000)
    assert await older_end(ledger, stage.clock.now_ms() - 10_000) is None
    await ledger.roll_over()
    assert await older_end(ledger, stage.clock.now_ms() - 10_000) is None
    stage.clock.advance(50_000)
    assert await older_end(ledger, stage.clock.now_ms() - 10_000) == last


async def test_what_is_not_proved_is_for_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.lifecycle.expiry.ENTRIES_PROVED_MAX", 30)
    monkeypatch.setattr("magnetar.broker.lifecycle.expiry.READ_ENTRIES_MAX", 20)
    ledger, places, first_ms = await filled(100)
    await ledger.roll_over()
    for info in ledger.ledgers:
        info.closed_ms = first_ms + 100_000  # so that no ledger is passed as a whole
    assert await older_end(ledger, first_ms + 2_000) == places[29]
    assert await older_end(ledger, first_ms + 2_000, places[29]) == places[59]
