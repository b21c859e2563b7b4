"""Rollover against crashes, failing bookies and second owners (features.md §4, rows 1, 5, 6)."""

import asyncio

import pytest
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns

from magnetar.bookie.api import BookieError
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import LEDGER_ID_KEY
from magnetar.managed_ledger.errors import (
    LedgerIdRegression,
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    TooManyPendingBytes,
)
from magnetar.managed_ledger.settings import ManagedLedgerSettings

SMALL = ManagedLedgerSettings(rollover_entries_max=2, rollover_ms_min=0)


async def data_of(stage: Stage) -> list[bytes]:
    """All entries, as a new owner finds them."""
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    found, start = [], EARLIEST
    while some := await ledger.read(start, 10, 1 << 20):
        found += [entry.data for entry in some]
        start = ledger.next_position(some[-1].position)
    await factory.abandon()
    return found


@pytest.mark.parametrize("steps", range(40))
async def test_a_crash_at_any_step_of_a_rollover_loses_nothing(steps: int) -> None:
    """apache/pulsar#12221: a rollover raced with a create, and a ledger with data was lost."""
    stage = Stage()
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    appends = Appends()
    groups = [[b"%d" % number] for number in range(7)]
    for group in groups:
        ledger.append(group, appends)
    await turns(steps)
    confirmed = sum(error is None for _, _, error in appends.results)
    await factory.abandon()
    found = await data_of(stage)
    assert found[:confirmed] == [group[0] for group in groups[:confirmed]]
    assert found == [group[0] for group in groups[: len(found)]]
    places = [(ledger_id, entry_id) for ledger_id, entry_id, error in appends.results if not error]
    again = await stage.factory(SMALL).open(NAME)
    assert again.last_confirmed >= max(places, default=EARLIEST)
    assert await publish(again, b"next") > again.previous_position(again.last_confirmed)


async def test_an_empty_newest_ledger_is_not_trusted_but_ended() -> None:
    """apache/pulsar#26074: the head ledger was closed while its owner kept it open."""
    stage = Stage()
    owner = await stage.factory().open(NAME)
    stage.bookie.hold = True
    appends = Appends()
    owner.append([b"on its way"], appends)
    await turns(20)
    other = await stage.factory().open(NAME)  # ends the ledger in which nothing was confirmed
    assert other.entries_total == 1
    stage.bookie.release()
    with pytest.raises(ManagedLedgerFenced):
        await publish(owner, b"would be lost")
    await publish(other, b"kept")
    assert await data_of(stage) == [b"on its way", b"kept"]


async def test_a_rollover_of_an_idle_fenced_ledger_ends() -> None:
    """It met the same error again and again without a pause, and took a core for itself."""
    stage = Stage()
    owner = await stage.factory().open(NAME)
    await publish(owner, b"one")
    other = await stage.factory().open(NAME)
    await publish(other, b"two")
    other.set_retention(0, 0)
    await other.trim()  # the first owner's ledger is deleted
    await turns(20)
    await asyncio.wait_for(owner.roll_over(), 20)
    assert owner.fenced
    assert await data_of(stage) == [b"two"]


async def test_a_second_owner_fences_the_first() -> None:
    stage = Stage()
    first = await stage.factory().open(NAME)
    await publish(first, b"a")
    factory = stage.factory()
    second = await factory.open(NAME)
    with pytest.raises(ManagedLedgerFenced):
        await publish(first, b"b")
    assert first.fenced
    with pytest.raises(ManagedLedgerFenced):
        await publish(first, b"c")
    await publish(second, b"d")
    assert await data_of(stage) == [b"a", b"d"]


async def test_of_two_idle_owners_the_first_to_write_stays() -> None:
    stage = Stage()
    one, two = await stage.factory().open(NAME), await stage.factory().open(NAME)
    await publish(two, b"two")
    with pytest.raises(ManagedLedgerFenced):
        await publish(one, b"one")
    with pytest.raises(ManagedLedgerFenced):
        await one.set_properties({"k": "one"})
    await two.set_properties({"k": "two"})
    assert await data_of(stage) == [b"two"]


async def test_an_owner_that_returns_opens_again() -> None:
    stage = Stage()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await publish(ledger, b"a")
    other = stage.factory()
    await publish(await other.open(NAME), b"b")
    with pytest.raises(ManagedLedgerFenced):
        await publish(ledger, b"lost race")
    again = await factory.open(NAME)
    assert again is not ledger
    ledger_id, entry_id = await publish(again, b"c")
    assert Position(ledger_id, entry_id) == again.last_confirmed
    assert await data_of(stage) == [b"a", b"b", b"c"]


async def test_a_counter_that_went_back_is_refused() -> None:
    """apache/pulsar#20094: message ids went back."""
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    for number in range(4):
        await publish(ledger, b"%d" % number)
    await ledger.close()
    await stage.store.put(LEDGER_ID_KEY, b"0")
    ledger = await stage.factory(SMALL).open(NAME)
    with pytest.raises(LedgerIdRegression):
        await publish(ledger, b"x")
    assert len(await stage.store.list("/ledgers/")) == 2


async def test_a_failed_add_is_made_good_in_the_next_ledger() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    first, _ = await publish(ledger, b"a")
    stage.bookie.refuse = lambda ledger_id, ids: ledger_id == first and 1 in ids
    appends = Appends()
    for data in (b"b", b"c", b"d"):
        ledger.append([data], appends)
    results = await appends.wait(3)
    assert [(place > first, entry, error) for place, entry, error in results] == [
        (True, 0, None), (True, 1, None), (True, 2, None)
    ]  # fmt: skip
    assert await data_of(stage) == [b"a", b"b", b"c", b"d"]


async def test_what_failed_comes_before_what_waited() -> None:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    first, _ = await publish(ledger, b"a")
    stage.bookie.refuse = lambda ledger_id, _ids: ledger_id == first
    appends = Appends()
    for label, data in enumerate((b"b", b"c", b"d")):  # b fills the ledger, and is refused
        ledger.append([data], appends.labelled(label))
    results = await appends.wait(3)
    assert [(label, error) for label, _, error in results] == [(0, None), (1, None), (2, None)]
    assert await data_of(stage) == [b"a", b"b", b"c", b"d"]


async def test_an_empty_ledger_that_a_crash_left_goes() -> None:
    stage = Stage()
    factory = stage.factory(SMALL)
    ledger = await factory.open(NAME)
    last = Position(*await publish(ledger, b"a", b"b"))
    stage.bookie.refuse = lambda _ledger, _ids: True
    ledger.append([b"never stored"], Appends())
    while len(ledger.ledgers) < 2:
        await turns(1)
    await factory.abandon()
    stage.bookie.refuse = lambda _ledger, _ids: False
    ledger = await stage.factory(SMALL).open(NAME)
    assert [info.entries for info in ledger.ledgers] == [2]
    assert ledger.last_confirmed == (last.ledger_id, 1)
    await publish(ledger, b"c")
    await turns(20)
    assert len(await stage.store.list("/ledgers/")) == 2


async def test_a_bookie_that_takes_nothing_fails_everything_in_order() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    await publish(ledger, b"a")
    stage.bookie.refuse = lambda _ledger, _ids: True
    appends = Appends()
    for label, data in enumerate((b"b", b"c")):
        ledger.append([data], appends.labelled(label))
    results = await appends.wait(2)
    assert [label for label, _, _ in results] == [0, 1]
    assert all(isinstance(error, BookieError) for _, _, error in results)
    stage.bookie.refuse = lambda _ledger, _ids: False
    await publish(ledger, b"d")
    assert await data_of(stage) == [b"a", b"d"]
    await turns(20)
    assert len(await stage.bookie.list_ledgers()) <= 3


async def test_a_full_disk_fails_without_making_ledgers() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    stage.bookie.read_only = True
    revision = await stage.store.revision()
    for _ in range(3):
        with pytest.raises(BookieError, match="take adds"):
            await publish(ledger, b"x")
    assert await stage.store.revision() == revision
    stage.bookie.read_only = False
    await publish(ledger, b"y")


async def test_what_waits_for_a_ledger_is_bounded_and_refused_in_order() -> None:
    """What comes behind a refused group is refused with it, though it fitted: it may be of the same
    producer, which sends both again, and its messages would be stored in another order."""
    stage = Stage()
    ledger = await stage.factory(ManagedLedgerSettings(pending_bytes_max=100)).open(NAME)
    appends = Appends()
    for label, size in enumerate((60, 60, 30, 20)):
        ledger.append([bytes(size)], appends.labelled(label))
    assert appends.results == []
    while ledger.state != "LedgerOpened":
        await turns(1)
    ledger.append([b"behind them"], appends.labelled(4))
    results = await appends.wait(5)
    assert [(label, type(error)) for label, _, error in results] == [
        (0, type(None)), *((label, TooManyPendingBytes) for label in (1, 2, 3, 4))
    ]  # fmt: skip
    await publish(ledger, bytes(60))


async def test_closing_completes_what_was_appended() -> None:
    stage = Stage()
    ledger = await stage.factory(SMALL).open(NAME)
    appends = Appends()
    for number in range(5):
        ledger.append([b"%d" % number], appends)
    await ledger.close()
    assert [error for _, _, error in appends.results] == [None] * 5
    with pytest.raises(ManagedLedgerClosed):
        await publish(ledger, b"late")
    await ledger.close()
    assert await data_of(stage) == [b"0", b"1", b"2", b"3", b"4"]


async def test_abandoning_fails_what_is_on_its_way_once() -> None:
    stage = Stage()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await publish(ledger, b"a")
    stage.bookie.hold = True
    appends = Appends()
    ledger.append([b"b"], appends)
    await turns()
    await factory.abandon()
    stage.bookie.release()
    await turns()
    ((_, _, error),) = appends.results
    assert isinstance(error, ManagedLedgerClosed)


async def test_rolling_over_an_empty_ledger_deletes_it() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    stage.bookie.refuse = lambda _ledger, _ids: True
    with pytest.raises(BookieError):
        await publish(ledger, b"x")
    stage.bookie.refuse = lambda _ledger, _ids: False
    place = await publish(ledger, b"y")
    await turns(20)
    assert [info.ledger_id for info in ledger.ledgers] == [place[0]]
    assert await stage.bookie.list_ledgers() == [place[0]]
    assert len(await stage.store.list("/ledgers/")) == 1
