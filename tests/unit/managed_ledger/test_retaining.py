"""What holds a topic's data back, and what its end leaves on record."""

import asyncio

import pytest
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import start

from magnetar.bookie.api import EntryCorrupt
from magnetar.core.errors import MagnetarError, MetadataError, NotFound
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.metadata import LedgerState, decode, ledger_key
from magnetar.managed_ledger.entry_source import READERS_MAX
from magnetar.managed_ledger.errors import ManagedLedgerClosed
from magnetar.managed_ledger.managed_ledger import ManagedLedger


async def rolled(ledger: ManagedLedger, ledgers: int, entries: int = 2) -> list[int]:
    """Closed ledgers, and one that is open; their ids."""
    ids = []
    for _ in range(ledgers):
        ids.append((await publish(ledger, *[b"x"] * entries))[0])
        await ledger.roll_over()
    ids.append((await publish(ledger, b"newest"))[0])
    return ids


def left(ledger: ManagedLedger) -> list[int]:
    return [info.ledger_id for info in ledger.ledgers]


async def test_one_trim_at_a_time_is_under_way_and_the_next_comes_after_it() -> None:
    stage = Stage()
    asked, go = 0, asyncio.Event()

    async def confirm(name: str) -> None:
        nonlocal asked
        assert name == NAME
        asked += 1
        await go.wait()

    factory = stage.factory(confirm=confirm)
    ledger = await factory.open(NAME)
    ids = await rolled(ledger, 2)
    ledger.set_retention(0, 0)
    for _ in range(5):
        await turns(2)
        ledger.trim_soon()
    assert asked == 1
    assert left(ledger) == ids
    go.set()
    await turns(60)
    assert left(ledger) == ids[-1:]
    await ledger.roll_over()
    await turns(60)
    assert (asked, left(ledger)) == (2, [])


@pytest.mark.parametrize("which", ["confirm", "limit"])
async def test_ledgers_whose_retention_cannot_be_confirmed_are_kept_and_retried(which: str) -> None:
    stage = Stage()
    failing = True

    async def confirm(_name: str) -> None:
        if failing:
            raise MetadataError("the store is away")

    async def limit(_name: str, _created_ms: int) -> Position | None:
        await confirm("")
        return None

    hooks = {"confirm": confirm} if which == "confirm" else {"trim_limit": limit}
    factory = stage.factory(**hooks)
    ledger = await factory.open(NAME)
    ids = await rolled(ledger, 1)
    ledger.set_retention(0, 0)
    await turns(30)
    assert left(ledger) == ids
    with pytest.raises(MetadataError):
        await ledger.trim()
    assert ledger.has_to_trim
    failing = False
    ledger.trim_soon()
    await turns(60)
    assert left(ledger) == ids[1:]
    assert not ledger.has_to_trim


async def test_retention_goes_as_far_as_compaction_has_come() -> None:
    stage = Stage()
    limits: list[Position] = []

    async def limit(name: str, created_ms: int) -> Position | None:
        assert (name, created_ms) == (NAME, ledger.created_ms)
        return limits[-1]

    factory = stage.factory(trim_limit=limit)
    ledger = await factory.open(NAME)
    ids = await rolled(ledger, 3)
    limits.append(EARLIEST)
    await ledger.trim()
    assert left(ledger) == ids
    limits.append(Position(ids[1], 0))
    assert await ledger.trim_limit() == limits[-1]
    await ledger.trim()
    assert left(ledger) == ids[1:]
    limits.append(Position(ids[1], 1))
    await ledger.trim()
    assert left(ledger) == ids[2:]
    limits.append(LATEST)
    await ledger.trim()
    assert left(ledger) == ids[3:]


async def test_the_slowest_durable_cursor_holds_back_and_no_other() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    slow = await ledger.open_cursor("slow", initial=EARLIEST)
    await ledger.open_cursor("quick", initial=LATEST)
    ledger.new_non_durable_cursor("reader", EARLIEST)
    ids = await rolled(ledger, 2)
    (quick,) = [ledger.cursors["quick"]]
    quick.ack_cumulative(ledger.last_confirmed)
    await ledger.trim()
    assert left(ledger) == ids
    slow.ack_cumulative((ids[0], 0))
    await ledger.trim()
    assert left(ledger) == ids
    slow.ack_cumulative((ids[0], 1))
    await ledger.trim()
    assert left(ledger) == ids[1:]
    with pytest.raises(NotFound):
        await ledger.read_entry(Position(ids[0], 1))
    assert ledger.trimmed_to == (ids[0], 1)


async def test_a_cursor_that_cannot_be_read_holds_everything_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await ledger.roll_over()
    await publish(ledger, b"x")
    assert cursor.log is not None
    harmed = cursor.log.ledger_id
    await ledger.close()
    read = stage.bookie.read_entries

    async def fails(ledger_id: int, first: int, last: int, **more):
        if ledger_id == harmed:
            raise EntryCorrupt("CRC", "log", 7)
        return await read(ledger_id, first, last, **more)

    monkeypatch.setattr(stage.bookie, "read_entries", fails)
    again = await stage.factory().open(NAME)
    assert set(again.broken_cursors) == {"sub"}
    again.set_retention(0, 0)
    await again.trim()
    assert left(again)[0] == ledger_id
    assert not again.has_to_trim
    await again.delete_cursor("sub")
    await turns(60)
    assert ledger_id not in left(again)


async def test_a_time_of_closing_in_the_future_begins_now() -> None:
    """A clock that was ahead would keep the ledger, and all later ones, for ever."""
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    ids = await rolled(ledger, 1)
    ledger.ledgers[0].closed_ms += 10 * 365 * 86_400_000
    stage.clock.advance(5000)
    ledger.set_retention(-1, 1000)
    await ledger.trim()
    assert left(ledger) == ids
    assert ledger.ledgers[0].closed_ms <= stage.clock.now_ms()
    stage.clock.advance(1000)
    await ledger.trim()
    assert left(ledger) == ids[1:]


async def test_without_retention_there_is_nothing_to_trim() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    assert not ledger.has_to_trim
    await rolled(ledger, 1)
    assert not ledger.has_to_trim
    ledger.trim_soon()
    await turns(30)
    assert len(left(ledger)) == 2
    await ledger.close()
    await ledger.trim()  # one that is closed does nothing
    assert len(left(ledger)) == 2


async def test_truncation_deletes_all_and_cursors_continue_behind_it() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    ids = await rolled(ledger, 2)
    ledger.set_retention(-1, -1)
    await ledger.truncate()
    assert left(ledger) == []
    assert (cursor.backlog, cursor.mark_delete) == (0, (ids[-1], 0))
    assert cursor.read_position > ledger.last_confirmed
    after, first = await publish(ledger, b"x")
    assert after > ids[-1]
    assert cursor.backlog == 1
    assert [entry.data for entry in await ledger.read(cursor.read_position, 9, 99)] == [b"x"]
    await ledger.close()
    assert first == 0
    with pytest.raises(ManagedLedgerClosed):
        await ledger.truncate()


async def test_a_closed_topics_ledgers_are_ended() -> None:
    """Its next owner need not recover them."""
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    assert cursor.log is not None
    await ledger.close()
    for ended in (ledger_id, cursor.log.ledger_id):
        record = await stage.store.get(ledger_key(ended))
        assert record is not None
        assert decode(record.key, record.value).state is LedgerState.CLOSED
    with pytest.raises(ManagedLedgerClosed):
        await ledger.terminate()
    with pytest.raises(ManagedLedgerClosed):
        await ledger.roll_over()
    await ledger.close()


async def test_opening_and_closing_what_is_idle_writes_nothing() -> None:
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    cursor.ack_cumulative((ledger_id, 3))
    await factory.close()
    again = stage.factory()
    await again.open(NAME)
    await again.close()  # its record says now where the newest ledger ended
    before = await stage.store.revision()
    third = stage.factory()
    ledger = await third.open(NAME)
    assert ledger.cursors["sub"].mark_delete == (ledger_id, 3)
    assert await stage.store.revision() == before
    await third.close()
    assert await stage.store.revision() == before


async def test_a_topic_that_cannot_write_its_cursors_is_closed_all_the_same() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    other = await ledger.open_cursor("other", initial=EARLIEST)
    for one in (cursor, other):
        one.ack(ledger_id, 3)
    stage.bookie.refuse = lambda _ledger, _ids: True
    stage.bookie.read_only = True
    await ledger.close()
    assert (cursor.state, other.state, ledger.state) == ("Closed", "Closed", "Closed")
    assert factory.opened == {}
    stage.bookie.refuse = lambda _ledger, _ids: False
    stage.bookie.read_only = False
    again = await stage.factory().open(NAME)
    assert again.entries_total == 20
    assert again.cursors["sub"].backlog == 20


async def test_bytes_of_reads_count_as_hit_or_missed() -> None:
    ledger = await (factory := Stage().factory()).open(NAME)
    await ledger.open_cursor("sub", initial=EARLIEST)
    ids = await rolled(ledger, 2, entries=1)
    cache, first = factory.cache, Position(ids[0], 0)
    read = await ledger.read(first, 9, 99)
    size = sum(len(entry.data) for entry in read)
    assert (cache.hit_bytes, cache.missed_bytes) == (size, 0)
    for run in list(ledger._source._runs.values()):
        cache.forget(run)
    assert await ledger.read(first, 9, 99) == read
    assert (cache.hit_bytes, cache.missed_bytes) == (size, size)


async def test_reads_count_as_hits_or_misses_and_readers_are_few() -> None:
    stage = Stage()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await ledger.open_cursor("sub", initial=EARLIEST)
    ids = await rolled(ledger, READERS_MAX + 3, entries=1)
    cache = factory.cache
    assert (cache.hits, cache.misses) == (0, 0)
    assert ledger.read_cached(Position(ids[0], 0), 9, 99)
    assert (cache.hits, cache.misses) == (1, 0)
    assert ledger.read_cached(Position(ids[0], 1), 9, 99)  # the next ledger's first entry
    assert (cache.hits, cache.misses) == (2, 0)
    assert ledger.read_cached(ledger.next_position(ledger.last_confirmed), 9, 99) == []
    assert (cache.hits, cache.misses) == (2, 0)
    for run in list(ledger._source._runs.values()):
        cache.forget(run)
    ledger._source.sweep()
    assert ledger._source._runs == {}
    assert ledger.read_cached(Position(ids[0], 0), 9, 99) is None
    assert (cache.hits, cache.misses) == (2, 1)
    opened: list[int] = []
    client_open = ledger._context.ledgers.open

    async def counted(ledger_id: int, *, recover: bool):
        opened.append(ledger_id)
        assert not recover
        return await client_open(ledger_id, recover=recover)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger._context.ledgers, "open", counted)
        for ledger_id in ids:
            for _ in range(2):
                (entry,) = await ledger.read(Position(ledger_id, 0), 9, 99)
                assert entry.ledger_id == ledger_id
        assert opened == ids[:-1]  # each once; the newest is read from its writer
        assert list(ledger._source._readers) == ids[-READERS_MAX - 1 : -1]
        await ledger.read(Position(ids[0], 0), 9, 99)
        assert opened == [*ids[:-1], ids[0]]


async def test_a_read_is_of_one_ledger_within_its_bounds_and_skips_what_is_gone() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    ids = await rolled(ledger, 2, entries=4)
    read = ledger.read
    assert [e.entry_id for e in await read(Position(ids[0], 1), 2, 99)] == [1, 2]
    assert [e.entry_id for e in await read(Position(ids[0], 1), 9, 99)] == [1, 2, 3]
    assert [e.entry_id for e in await read(Position(ids[0], 1), 9, 2)] == [1, 2]
    assert [e.position for e in await read(Position(ids[0], 4), 1, 0)] == [(ids[1], 0)]
    assert await read(ledger.next_position(ledger.last_confirmed), 9, 99) == []
    for outside in ((ids[0], 4), (ids[0], -1), (0, 0), (ids[2], 1)):
        with pytest.raises(NotFound):
            await ledger.read_entry(Position(*outside))
    assert (await ledger.read_entry(Position(ids[2], 0))).data == b"newest"
    await ledger.trim()
    assert [e.position for e in await read(Position(ids[0], 0), 1, 0)] == [(ids[2], 0)]


async def test_a_ledger_that_is_trimmed_while_it_is_read_is_skipped() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    ids = await rolled(ledger, 1)
    client_open = ledger._context.ledgers.open

    async def trimmed(ledger_id: int, *, recover: bool):
        await ledger.trim()
        await turns(60)
        return await client_open(ledger_id, recover=recover)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger._context.ledgers, "open", trimmed)
        found = await ledger.read(Position(ids[0], 0), 9, 99)
    assert [entry.data for entry in found] == [b"newest"]


async def test_a_ledger_that_is_lost_is_not_skipped() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    ids = await rolled(ledger, 1)
    await stage.bookie.delete_ledger(ids[0])
    with pytest.raises(MagnetarError):
        await ledger.read(Position(ids[0], 0), 9, 99)
    await ledger._context.ledgers.delete(ids[0])
    with pytest.raises(MagnetarError):
        await ledger.read(Position(ids[0], 0), 9, 99)
