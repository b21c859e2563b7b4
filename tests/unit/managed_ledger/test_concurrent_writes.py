"""Writes of one topic at the same time, and its end in the middle of one."""

import asyncio
from contextlib import suppress

import pytest
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import start
from tests.unit.managed_ledger.test_former_instance import Scene
from tests.unit.managed_ledger.test_guarded import WRITES

from magnetar.core.errors import MetadataError, NotFound, TopicTerminated
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import LedgerState, decode, ledger_key
from magnetar.managed_ledger.errors import CursorClosed, TooManyPendingBytes
from magnetar.managed_ledger.record import cursor_key
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.store import MetadataUnavailable


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)


async def ended(stage: Stage, ledger_id: int) -> bool:
    """Whether the ledger's record says where it ended."""
    record = await stage.store.get(ledger_key(ledger_id))
    assert record is not None
    return decode(record.key, record.value).state is LedgerState.CLOSED


@pytest.mark.parametrize("first", WRITES)
async def test_writes_at_the_same_time_wait_for_one_another(first: str) -> None:
    """Each one expects the revision of the one before: out of turn, it would look like a fence."""
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    held = scene.store.hold(lambda operation: operation.key.startswith("/managed-ledgers"))
    writing = [asyncio.ensure_future(WRITES[first](ledger))]
    await held.reached.wait()
    others = [name for name in WRITES if name not in (first, "terminated")]
    writing += [asyncio.ensure_future(WRITES[name](ledger)) for name in others]
    await turns(30)
    held.go.set()
    for each in writing:
        # A write may come after the end of the topic or of the cursor that it is about.
        with suppress(TopicTerminated, CursorClosed):
            await each
    assert not ledger.fenced
    await ledger.set_properties({"last": "1"})
    assert not ledger.fenced
    await factory.close()
    again = await scene.reopened()
    assert again.properties == {"a": "1", "last": "1"}
    assert "new" in again.cursors
    assert "old" not in again.cursors
    assert not again.broken_cursors


# -- the end of an instance


async def test_a_topic_that_is_closed_while_its_ledger_is_being_made_ends_it() -> None:
    """Its next owner need not recover it."""
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    await ledger.roll_over()
    held = scene.store.hold(lambda operation: operation.key.startswith("/ledgers/"))
    appends = Appends()
    ledger.append([b"y"], appends)
    await held.reached.wait()
    closing = asyncio.ensure_future(ledger.close())
    await turns(30)
    assert (appends.results, closing.done()) == ([], False)
    held.go.set()
    await closing
    ((ledger_id, first, error),) = appends.results
    assert (first, error) == (0, None)
    assert await ended(scene.stage, ledger_id)
    await factory.close()


async def test_a_ledger_is_not_trimmed_before_it_has_ended() -> None:
    """What is on its way into it will be receipted."""
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack_cumulative((ledger_id, 19))
    stage.bookie.hold = True
    appends = Appends()
    ledger.append([b"on its way"], appends)
    rolling = asyncio.ensure_future(ledger.roll_over())
    await turns(30)
    await ledger.trim()
    await turns(30)
    stage.bookie.release()
    await rolling
    assert await appends.wait(1) == [(ledger_id, 20, None)]
    assert (await ledger.read_entry(Position(ledger_id, 20))).data == b"on its way"
    await factory.abandon()
    again = await stage.factory().open(NAME)
    assert (await again.read_entry(Position(ledger_id, 20))).data == b"on its way"


async def test_a_fenced_instance_that_closes_leaves_the_other_cursors_alone() -> None:
    """The next owner has read their records, and would take a change for another owner's."""
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    other = await ledger.open_cursor("zz", initial=EARLIEST)
    for each in (cursor, other):
        each.ack_cumulative((ledger_id, 5))
    record = await stage.store.get(cursor_key(NAME, "sub"))
    assert record is not None
    await stage.store.put(record.key, record.value)
    before = await stage.store.get(cursor_key(NAME, "zz"))
    await ledger.close()
    assert await stage.store.get(cursor_key(NAME, "zz")) == before
    assert (cursor.state, other.state) == ("Closed", "Closed")


async def test_a_cursor_that_has_ended_is_not_moved_by_a_seek() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    for each in (cursor, reader):
        each.ack_cumulative((ledger_id, 5))
    ledger.forget_cursor(reader)
    await ledger.delete_cursor("sub")
    for each in (cursor, reader):
        with pytest.raises(CursorClosed):
            await each.reset(EARLIEST)
        with pytest.raises(CursorClosed):
            await each.set_properties({"a": "1"})
        assert (each.mark_delete, dict(each.properties)) == ((ledger_id, 5), {})


async def test_an_entry_that_is_trimmed_while_it_is_read_is_not_found() -> None:
    """Rather than the next one in its place."""
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    ledger_id, _ = await publish(ledger, b"gone")
    await ledger.roll_over()
    await publish(ledger, b"next")
    client_open = ledger._context.ledgers.open

    async def trimmed(ledger_id: int, *, recover: bool):
        await ledger.trim()
        await turns(60)
        return await client_open(ledger_id, recover=recover)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger._context.ledgers, "open", trimmed)
        with pytest.raises(NotFound):
            await ledger.read_entry(Position(ledger_id, 0))


async def test_a_refusal_behind_a_group_that_fills_its_ledger_is_answered() -> None:
    stage = Stage()
    settings = ManagedLedgerSettings(
        rollover_entries_max=2, rollover_ms_min=0, pending_bytes_max=10
    )
    ledger = await stage.factory(settings).open(NAME)
    appends = Appends()
    ledger.append([b"four", b"four"], appends)
    ledger.append([b"too many by now"], appends)
    ledger.append([b"x"], appends)
    results = await appends.wait(3)
    errors = [type(error) for _, _, error in results]
    assert errors == [type(None), TooManyPendingBytes, TooManyPendingBytes]
    assert (ledger.pending_appends, ledger.entries_total) == (0, 2)
    assert await publish(ledger, b"x")


# -- the outcome of a write


async def test_a_write_that_may_have_landed_is_of_unknown_outcome_whatever_its_repetition_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    put, transact, attempts = scene.store.put, scene.store.transact, 0

    async def meets(doing, *given, **more) -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await doing(*given, **more)
            raise MetadataUnavailable("no answer came")
        raise MetadataError("too many requests")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "put", lambda *given, **more: meets(put, *given, **more))
        patch.setattr(scene.store, "transact", lambda *given: meets(transact, *given))
        with pytest.raises(MetadataUnavailable, match="too many requests"):
            await ledger.set_properties({"a": "1"})
    assert attempts == 2
    await ledger.set_properties({"b": "2"})
    assert not ledger.fenced
    assert ledger.properties == {"a": "1", "b": "2"}
    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "transact", lambda *given: meets(transact, *given))
        with pytest.raises(MetadataError, match="too many requests") as raised:
            await ledger.set_properties({"c": "3"})
    assert not isinstance(raised.value, MetadataUnavailable), "no attempt may have landed"
    await factory.close()


async def test_an_outline_says_that_it_is_not_exact_if_the_newest_ledger_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    await ledger.roll_over()
    await publish(ledger, b"newest")
    await stage.client().delete(ledger.ledgers[-1].ledger_id)
    found = await factory.outline(NAME)
    assert not found.exact
    assert found.index.entries == 20
    assert found.cursors["sub"].backlog == 20
    assert found.index.last_confirmed == (ledger_id, 19)
