"""Drains as records: what ends with them, and which disks are forgotten then."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from magnetar.autorecovery import drains
from magnetar.autorecovery.drains import Drain, DrainState, drain_key, encode
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.registration import (
    BookieRegistration,
    draining_key,
    known_key,
    registration_key,
)
from magnetar.bookie.registration import encode as encode_registration
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Check, Operation

PROVEN = ("old", "older")


async def stored(state: DrainState, registered: str) -> MemoryStore:
    """A bookie whose disks were proven, with those that are registered under its name now."""
    store = MemoryStore(SystemClock())
    incarnations = PROVEN if state is DrainState.REMOVABLE else ()
    drain = Drain("b", state, 1, incarnations=incarnations)
    await store.put(drain_key("b"), encode(drain))
    await store.put(draining_key("b"), b"1")
    for one in {*PROVEN, registered} - {""}:
        await store.put(known_key(BookieIdentity("b", one)), b"{}")
    await store.put(known_key(BookieIdentity("bb", "old")), b"{}")
    if registered:
        await register(store, registered)
    return store


async def register(store: MemoryStore, incarnation: str) -> None:
    registration = BookieRegistration("b", incarnation, "host", 1)
    await store.put(registration_key("b"), encode_registration(registration))


async def known(store: MemoryStore) -> set[str]:
    return set(await drains.known_incarnations(store, "b"))


@pytest.mark.parametrize(
    ("state", "registered", "left"),
    [
        (DrainState.REMOVABLE, "new", {"new"}),
        (DrainState.REMOVABLE, "old", {"old", "older"}),
        (DrainState.REMOVABLE, "", {"old", "older"}),
        (DrainState.REFUSED, "new", {"old", "older", "new"}),
        (DrainState.COPYING, "new", {"old", "older", "new"}),
    ],
)
async def test_only_disks_that_were_proven_and_replaced_are_forgotten(
    state: DrainState, registered: str, left: set[str]
) -> None:
    store = await stored(state, registered)
    assert await drains.cancel(store, "b")
    assert await known(store) == left
    assert await store.get(draining_key("b")) is None
    assert await drains.read(store, "b") is None
    assert await store.get(known_key(BookieIdentity("bb", "old"))) is not None
    assert not await drains.cancel(store, "b")
    await store.close()


async def test_disks_that_come_back_at_that_moment_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await stored(DrainState.REMOVABLE, "new")
    transact = MemoryStore.transact
    late = asyncio.Event()

    async def after_a_change(self: MemoryStore, operations: Sequence[Operation]) -> int:
        if not late.is_set() and any(isinstance(one, Check) for one in operations):
            late.set()
            await register(store, "old")
        return await transact(self, operations)

    monkeypatch.setattr(MemoryStore, "transact", after_a_change)
    assert await drains.cancel(store, "b")
    assert late.is_set()
    assert await known(store) == {"old", "older", "new"}
    await store.close()


async def test_records_of_before_name_no_disks() -> None:
    store = MemoryStore(SystemClock())
    plain = msgspec.json.encode({"bookieId": "b", "state": "removable", "requestedMs": 1})
    await store.put(drain_key("b"), plain)
    await register(store, "new")
    await store.put(known_key(BookieIdentity("b", "old")), b"{}")
    assert await drains.cancel(store, "b")
    assert await known(store) == {"old"}
    await store.close()


async def test_a_record_that_cannot_be_read_can_be_cancelled() -> None:
    store = MemoryStore(SystemClock())
    await store.put(drain_key("b"), b"\xff of a newer release")
    await store.put(draining_key("b"), b"1")
    assert await drains.cancel(store, "b")
    assert await store.get(drain_key("b")) is None
    assert await store.get(draining_key("b")) is None
    await store.close()
