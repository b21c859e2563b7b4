"""An opening that is paused until another owner has changed the topic's cursors."""

import asyncio
import logging

import pytest
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.test_guarded import Owner, acked

from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import cursor_key, cursors_prefix, decode_cursor
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Record


class PausedStore(MemoryStore):
    """Pauses the next read of a key, or list of a prefix, before the store serves it."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_at = ""
        self.paused = asyncio.Event()
        self.going_on = asyncio.Event()

    async def get(self, key: str) -> Record | None:
        await self._pause(key)
        return await super().get(key)

    async def list(self, prefix: str) -> list[Record]:
        await self._pause(prefix)
        return await super().list(prefix)

    async def _pause(self, at: str) -> None:
        if at == self.pauses_at:
            self.pauses_at = ""
            self.paused.set()
            await self.going_on.wait()


class Scene:
    """A topic with a cursor that has a cursor ledger. Its first owner crashed."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.store = self.store = PausedStore()

    async def prepare(self) -> None:
        factory, ledger = await self.open()
        await ledger.open_cursor("old", initial=EARLIEST)
        await publish(ledger, b"a")
        await acked(ledger)
        await factory.abandon()

    async def open(self) -> tuple[ManagedLedgerFactory, ManagedLedger]:
        """Opens the topic as a process that claims it now."""
        owner = Owner(self.store)
        await owner.claim()
        factory = self.stage.factory(guard=owner.guard)
        return factory, await factory.open(NAME)

    async def paused_at(self, key: str) -> "asyncio.Task[object]":
        """An opening that has claimed the topic and is paused at this read."""
        self.store.pauses_at = key
        opening = asyncio.ensure_future(self.open())
        await self.store.paused.wait()
        return opening

    async def cursor_ledger(self) -> int:
        key = cursor_key(NAME, "old")
        stored = await self.store.get(key)
        assert stored is not None
        return decode_cursor(key, stored.value).ledger_id


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


async def test_a_cursor_ledger_that_the_next_owner_deleted_breaks_no_cursor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    await scene.prepare()
    cursor_ledger = await scene.cursor_ledger()
    opening = await scene.paused_at(ledger_key(cursor_ledger))
    factory, ledger = await scene.open()
    ledger_id, _ = await publish(ledger, b"b")
    await acked(ledger)
    while cursor_ledger in await scene.stage.bookie.list_ledgers():
        await turns()
    scene.store.going_on.set()
    with pytest.raises(ManagedLedgerFenced):
        await opening
    assert not errors(caplog)
    await factory.abandon()
    _, again = await scene.open()
    assert again.cursors["old"].is_acked(ledger_id, 0)


async def test_a_cursor_that_the_next_owner_moved_beyond_the_read_log_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    await scene.prepare()
    opening = await scene.paused_at(cursors_prefix(NAME))
    factory, ledger = await scene.open()
    ledger_id, _ = await publish(ledger, b"b")
    ledger.cursors["old"].ack_cumulative(ledger.last_confirmed)
    await factory.close()
    scene.store.going_on.set()
    with pytest.raises(ManagedLedgerFenced):
        await opening
    assert not errors(caplog)
    _, again = await scene.open()
    assert again.cursors["old"].is_acked(ledger_id, 0)


async def test_what_a_failed_opening_still_reads_breaks_no_cursor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    await scene.prepare()
    cursor_ledger = await scene.cursor_ledger()
    unreadable = cursor_key(NAME, "zzz")
    await scene.store.put(unreadable, b"no cursor")
    opening = await scene.paused_at(ledger_key(cursor_ledger))
    with pytest.raises(MetadataError, match="zzz"):
        await opening
    await scene.store.delete(unreadable)
    factory, ledger = await scene.open()
    await publish(ledger, b"b")
    await acked(ledger)
    while cursor_ledger in await scene.stage.bookie.list_ledgers():
        await turns()
    scene.store.going_on.set()
    await turns(100)
    assert not errors(caplog)
    await factory.close()
