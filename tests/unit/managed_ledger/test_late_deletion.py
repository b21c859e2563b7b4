"""An owner is paused while it completes a deletion, and continues much later."""

import asyncio

import msgspec
import pytest
from tests.support.held_store import HeldStore, deletes
from tests.unit.ledger.stage import NAME, Stage, publish, turns

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.record import cursors_prefix, decode_managed_ledger, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import Record


class PausedStore(MemoryStore):
    """The first who lists cursors is paused before it does."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.paused = asyncio.Event()
        self.going_on = asyncio.Event()

    async def list(self, prefix: str) -> list[Record]:
        if self.armed and prefix == cursors_prefix(NAME):
            self.armed = False
            self.paused.set()
            await self.going_on.wait()
        return await super().list(prefix)


async def marked_deleted(stage: Stage) -> None:
    """A deletion that got no further than its mark."""
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await ledger.open_cursor("sub", initial=EARLIEST)
    await publish(ledger, b"old")
    await factory.close()
    key = managed_ledger_key(NAME)
    stored = await stage.store.get(key)
    assert stored is not None
    record = msgspec.structs.replace(decode_managed_ledger(key, stored.value), deleted=True)
    await stage.store.put(key, encode(record), expected=stored.revision)


@pytest.mark.parametrize("deleting", [True, False], ids=["deletes", "opens"])
async def test_what_was_created_again_meanwhile_is_left_alone(deleting: bool) -> None:
    stage = Stage()
    stage.store = store = PausedStore()
    await marked_deleted(stage)
    store.armed = True
    paused: ManagedLedgerFactory = stage.factory()
    late = asyncio.ensure_future(paused.delete(NAME) if deleting else paused.open(NAME))
    await store.paused.wait()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    ledger_id, _ = await publish(ledger, b"a", b"b", b"c")
    cursor.ack(ledger_id, 1)
    await cursor.flush()
    kept = await stage.bookie.list_ledgers()
    await factory.abandon()
    store.going_on.set()
    await asyncio.wait([late])
    if deleting:
        assert isinstance(late.exception(), MagnetarError | None)
    await turns(20)
    assert set(await stage.bookie.list_ledgers()) >= set(kept)
    again = await stage.factory().open(NAME)
    assert not again.broken_cursors
    assert again.cursors["sub"].is_acked(ledger_id, 1)
    assert again.entries_total == 3


@pytest.mark.parametrize("prefix", ["/offload-requests/", "/compaction-requests/"])
async def test_a_request_for_what_was_created_again_meanwhile_is_left_alone(prefix: str) -> None:
    """The next owner finished the deletion, and a client has requested a job since."""
    stage = Stage()
    stage.store = store = HeldStore()
    await marked_deleted(stage)
    held = store.hold(deletes(prefix))
    late = asyncio.ensure_future(stage.factory().delete(NAME))
    await held.reached.wait()
    factory = stage.factory()
    await publish(await factory.open(NAME), b"new")
    revision = await store.put(prefix + NAME, b"{}")
    held.go.set()
    await asyncio.wait([late])
    stored = await store.get(prefix + NAME)
    assert stored is not None
    assert stored.revision == revision
    await factory.close()
