"""A topic's log: appending, rolling over, reading, trimming, and what restarts leave of it."""

import asyncio

import msgspec
import pytest
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns

from magnetar.core.errors import Conflict, NotFound, TopicTerminated
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import MINUTE_MS, ManagedLedgerSettings
from magnetar.managed_ledger.stats import managed_ledger_stats

SMALL = ManagedLedgerSettings(rollover_entries_max=3, rollover_ms_min=0)


async def everything(ledger: ManagedLedger, *, bytes_max: int = 1 << 20) -> list[Entry]:
    """All entries, read from the bookie or the cache, as they come."""
    found: list[Entry] = []
    start = EARLIEST
    while some := await ledger.read(start, 4, bytes_max):
        found += some
        start = ledger.next_position(some[-1].position)
    return found


async def test_opening_an_idle_topic_writes_nothing() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    await ledger.open_cursor("sub")
    revision = await stage.store.revision()
    again = await stage.factory().open(NAME)
    await again.close()
    assert await stage.store.revision() == revision
    assert await stage.bookie.list_ledgers() == []
    assert again.last_confirmed == EARLIEST


async def test_groups_complete_in_order_and_are_read_back() -> None:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    appends = Appends()
    for number in range(10):
        ledger.append([b"%d-%d" % (number, part) for part in range(2)], appends)
    assert appends.results == []
    results = await appends.wait(10)
    assert [error for _, _, error in results] == [None] * 10
    places = [(ledger_id, first) for ledger_id, first, _ in results]
    assert places == sorted(places)
    # A group is never split, and a full ledger takes no more groups.
    assert [(info.entries, bool(info.closed_ms)) for info in ledger.ledgers] == [
        (4, True), (4, True), (4, True), (4, True), (4, False)
    ]  # fmt: skip
    found = await everything(ledger)
    assert [e.data for e in found] == [b"%d-%d" % (n, p) for n in range(10) for p in range(2)]
    assert [e.position for e in found[::2]] == [Position(*place) for place in places]
    assert ledger.last_confirmed == found[-1].position
    assert (ledger.entries_total, ledger.bytes_total) == (20, 60)


async def test_a_restart_changes_nothing_but_the_ledger() -> None:
    stage = Stage()
    first = stage.factory(SMALL)
    ledger = await first.open(NAME)
    for number in range(5):
        await publish(ledger, b"%d" % number)
    before, last = await everything(ledger), ledger.last_confirmed
    await first.abandon()
    ledger = await stage.factory(SMALL).open(NAME)
    assert ledger.last_confirmed == last
    assert await everything(ledger) == before
    assert (ledger.entries_total, ledger.bytes_total) == (5, 5)
    ledger_id, entry_id = await publish(ledger, b"after")
    assert (ledger_id, entry_id) > last
    assert entry_id == 0


async def test_concurrent_openers_get_the_same_instance() -> None:
    factory = Stage().factory()
    opened = await asyncio.gather(*(factory.open(NAME) for _ in range(5)))
    assert len({id(ledger) for ledger in opened}) == 1
    await opened[0].close()
    assert await factory.open(NAME) is not opened[0]


async def test_what_does_not_exist_is_not_created_unasked() -> None:
    factory = Stage().factory()
    with pytest.raises(NotFound):
        await factory.open(NAME, create=False)
    with pytest.raises(NotFound):
        await factory.info(NAME)
    with pytest.raises(NotFound):
        await factory.delete(NAME)
    assert not await factory.exists(NAME)
    await factory.open(NAME)
    await factory.open(NAME + "-2")
    assert await factory.exists(NAME)
    assert await factory.names("public/default/persistent/") == [NAME, NAME + "-2"]


async def test_ledgers_roll_over_by_age_and_not_before_the_minimum() -> None:
    stage = Stage()
    ledger = await stage.factory(ManagedLedgerSettings(rollover_entries_max=1)).open(NAME)
    first, _ = await publish(ledger, b"a")
    stage.clock.advance(10 * MINUTE_MS - 1)
    assert (await publish(ledger, b"b"))[0] == first
    stage.clock.advance(1)
    second, _ = await publish(ledger, b"c")
    assert second > first
    ledger = await stage.factory().open(NAME + "-2")
    first, _ = await publish(ledger, b"a")
    stage.clock.advance(240 * MINUTE_MS)
    assert (await publish(ledger, b"b"))[0] > first


async def test_ledgers_roll_over_by_size() -> None:
    settings = ManagedLedgerSettings(rollover_bytes_max=100, rollover_ms_min=0)
    ledger = await Stage().factory(settings).open(NAME)
    ids = [(await publish(ledger, bytes(60)))[0] for _ in range(4)]
    assert ids[0] == ids[1] < ids[2] == ids[3]


async def test_listeners_hear_once_of_all_that_completed_together() -> None:
    ledger = await Stage().factory().open(NAME)
    heard: list[Position] = []

    def listener() -> None:
        heard.append(ledger.last_confirmed)

    ledger.add_append_listener(listener)
    appends = Appends()
    for _ in range(3):
        ledger.append([b"x"], appends)
    await appends.wait(3)
    await turns()
    assert [position.entry_id for position in heard] == [2]
    ledger.remove_append_listener(listener)
    await publish(ledger, b"y")
    await turns()
    assert len(heard) == 1


async def test_tailing_readers_never_touch_the_bookie() -> None:
    stage = Stage()
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub")
    for number in range(8):
        await publish(ledger, b"%d" % number)
    seen: list[bytes] = []
    while found := ledger.read_cached(cursor.read_position, 2, 1000):
        seen += [entry.data for entry in found]
        cursor.read_position = Position(found[-1].ledger_id, found[-1].entry_id + 1)
    assert found == []
    assert seen == [b"%d" % number for number in range(8)]
    assert factory.cache.misses == 0


async def test_nobody_reads_so_nothing_is_cached() -> None:
    factory = Stage().factory()
    ledger = await factory.open(NAME)
    await publish(ledger, b"a")
    assert factory.cache.size_bytes == 0
    assert ledger.read_cached(EARLIEST, 1, 1) is None
    cursor = await ledger.open_cursor("late", initial=EARLIEST)
    await publish(ledger, b"b")
    assert [e.data for e in ledger.read_cached(ledger.last_confirmed, 9, 99) or ()] == [b"b"]
    assert ledger.read_cached(cursor.read_position, 9, 99) is None
    assert [e.data for e in await ledger.read(cursor.read_position, 9, 99)] == [b"a", b"b"]


async def test_positions_and_single_entries() -> None:
    ledger = await Stage().factory(SMALL).open(NAME)
    places = [Position(*await publish(ledger, b"%d" % number)) for number in range(5)]
    assert (await ledger.read_entry(places[3])).data == b"3"
    for missing in (Position(places[0].ledger_id, 3), Position(99, 0), ledger.first_position):
        with pytest.raises(NotFound):
            await ledger.read_entry(missing)
    assert ledger.next_position(places[2]) == places[3]
    assert ledger.previous_position(places[3]) == places[2]
    assert ledger.next_position(ledger.first_position) == places[0]
    assert ledger.entries_between(places[0], places[4]) == 4
    assert ledger.entries_between(ledger.first_position, LATEST) == 5
    assert ledger.entries_between(places[4], places[0]) == 0


@pytest.mark.parametrize("count", [0, 1, 2, 7])
async def test_find_by_a_monotone_predicate(count: int) -> None:
    ledger = await Stage().factory(SMALL).open(NAME)
    places = [Position(*await publish(ledger, b"%d" % number)) for number in range(count)]
    for limit in range(-1, count + 1):
        found = await ledger.find_by(lambda data, limit=limit: int(data) <= limit)  # type: ignore[misc]
        expected = [place for number, place in enumerate(places) if number <= limit]
        assert found == (expected[-1] if expected else None)


async def test_consumed_ledgers_are_trimmed_and_positions_stay() -> None:
    stage = Stage()
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    ledger.set_retention(0, 0)
    slow, fast = await ledger.open_cursor("slow"), await ledger.open_cursor("fast")
    places = [Position(*await publish(ledger, b"%d" % number)) for number in range(9)]
    await ledger.roll_over()
    fast.ack_cumulative(places[8])
    await turns(20)
    assert len(ledger.ledgers) == 3
    slow.ack_cumulative(places[4])
    await turns(20)
    assert [info.ledger_id for info in ledger.ledgers] == [places[3].ledger_id, places[6].ledger_id]
    assert [e.data for e in await ledger.read(EARLIEST, 1, 10)] == [b"3"]
    assert slow.backlog == 4
    slow.ack_cumulative(places[8])
    await turns(20)
    assert ledger.ledgers == []
    assert ledger.last_confirmed == ledger.first_position == places[8]
    await factory.close()
    # Only what the cursors need is left on the bookie.
    ledger = await stage.factory(SMALL).open(NAME)
    assert ledger.last_confirmed == places[8]
    assert [cursor.backlog for cursor in ledger.cursors.values()] == [0, 0]
    assert await publish(ledger, b"x") > places[8]


async def test_without_retention_known_nothing_goes_by_itself() -> None:
    ledger = await Stage().factory(SMALL).open(NAME)
    for number in range(7):
        await publish(ledger, b"%d" % number)
    await turns(20)
    assert len(ledger.ledgers) == 3
    await ledger.trim()  # no durable cursor needs anything
    assert len(ledger.ledgers) == 1


@pytest.mark.parametrize(
    ("size_bytes", "time_ms", "age_ms", "kept"),
    [
        (0, 0, 0, 1),
        (-1, -1, 10**9, 4),
        (-1, 1000, 999, 4),
        (-1, 1000, 1000, 1),
        (40, -1, 10**9, 2),
        (70, 10**6, 0, 3),
        (10**9, 1000, 1000, 1),
    ],
)
async def test_retention_by_size_and_time(
    size_bytes: int, time_ms: int, age_ms: int, kept: int
) -> None:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    for _ in range(10):
        await publish(ledger, bytes(10))
    stage.clock.advance(age_ms)
    ledger.set_retention(size_bytes, time_ms)
    await ledger.trim()
    assert len(ledger.ledgers) == kept


async def test_non_durable_cursors_hold_nothing() -> None:
    ledger = await Stage().factory(SMALL).open(NAME)
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    places = [Position(*await publish(ledger, b"%d" % number)) for number in range(4)]
    assert reader.backlog == 4
    await ledger.trim()
    assert reader.backlog == 1
    assert [e.data for e in await ledger.read(reader.read_position, 9, 99)] == [b"3"]
    reader.ack(*places[3])
    assert reader.backlog == 0
    with pytest.raises(Conflict):
        await ledger.open_cursor("reader")


async def test_truncate_deletes_what_is_readable_now() -> None:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    ledger.set_retention(-1, -1)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    for number in range(5):
        await publish(ledger, b"%d" % number)
    await ledger.truncate()
    assert (ledger.entries_total, cursor.backlog) == (0, 0)
    place = await publish(ledger, b"new")
    assert [e.position for e in await ledger.read(cursor.read_position, 9, 99)] == [place]


async def test_a_terminated_log_stays_so() -> None:
    stage = Stage()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    last = Position(*await publish(ledger, b"last"))
    assert await ledger.terminate() == await ledger.terminate() == last
    with pytest.raises(TopicTerminated):
        await publish(ledger, b"more")
    await factory.close()
    ledger = await stage.factory().open(NAME)
    assert ledger.terminated
    assert ledger.terminated_at == last
    with pytest.raises(TopicTerminated):
        await publish(ledger, b"more")
    assert [e.data for e in await everything(ledger)] == [b"last"]


async def test_properties_survive() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    await asyncio.gather(ledger.set_properties({"a": "1"}), ledger.set_properties({"b": "2"}))
    await ledger.delete_property("a")
    assert (await stage.factory().open(NAME)).properties == {"b": "2"}


async def test_deletion_leaves_nothing_and_ids_continue() -> None:
    stage = Stage()
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    places = [Position(*await publish(ledger, b"%d" % number)) for number in range(5)]
    cursor.ack(*places[2])
    await cursor.flush()
    await factory.delete(NAME)
    assert await stage.bookie.list_ledgers() == []
    assert [record.key for record in await stage.store.list("/")] == ["/ledger-id"]
    ledger = await factory.open(NAME)
    assert ledger.cursors == {}
    assert await publish(ledger, b"new") > places[4]


@pytest.mark.parametrize("steps", range(1, 16, 2))
async def test_an_interrupted_deletion_is_finished(steps: int) -> None:
    stage = Stage()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await ledger.open_cursor("sub")
    await publish(ledger, b"old")
    await ledger.close()
    deleting = asyncio.ensure_future(factory.delete(NAME))
    await turns(steps)
    deleting.cancel()
    other = stage.factory()
    whole = await other.exists(NAME)
    assert await other.names("") == ([NAME] if whole else [])
    ledger = await other.open(NAME)
    assert (ledger.entries_total, len(ledger.cursors)) == ((1, 1) if whole else (0, 0))
    if not whole:
        assert await stage.bookie.list_ledgers() == []


async def test_info_and_stats_say_what_is_there() -> None:
    stage = Stage()
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("a/b", initial=EARLIEST, properties={"k": "v"})
    places = [Position(*await publish(ledger, bytes(10))) for _ in range(5)]
    for place in (places[0], places[2], places[4]):
        cursor.ack(*place)
    cursor.read_position = ledger.next_position(places[4])
    await cursor.flush()
    stats = msgspec.to_builtins(managed_ledger_stats(ledger))
    first, second = places[0].ledger_id, places[3].ledger_id
    assert stats["entriesAddedCounter"] == stats["numberOfEntries"] == 5
    assert (stats["totalSize"], stats["currentLedgerEntries"]) == (50, 2)
    assert stats["lastConfirmedEntry"] == f"{second}:1"
    assert (stats["state"], stats["waitingCursorsCount"]) == ("LedgerOpened", 1)
    assert [item["entries"] for item in stats["ledgers"]] == [3, 2]
    shown = stats["cursors"]["a/b"]
    assert shown["markDeletePosition"] == f"{first}:0"
    assert shown["individuallyDeletedMessages"] == (
        f"[({first}:1..{first}:2],({second}:0..{second}:1]]"
    )
    assert shown["totalNonContiguousDeletedMessagesRange"] == 2
    assert shown["messagesConsumedCounter"] == 3
    assert shown["numberOfEntriesSinceFirstNotAckedMessage"] == 4
    assert (shown["state"], shown["properties"]) == ("Open", {})  # clients read numbers there
    info = await factory.info(NAME)
    assert [item.ledger_id for item in info.record.ledgers] == [first, second]
    assert info.cursors["a/b"].ledger_id == shown["cursorLedger"]
