"""The records of drains: their end, and the disks that are forgotten with them."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.drains import Drain, DrainState, drain_key
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.registration import (
    BookieRegistration,
    draining_key,
    known_key,
    registration_key,
)
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_registration
from magnetar.metadata.store import Check, Operation

PROVEN = ("old", "older")


async def stored(state: DrainState, registered: str) -> MemoryStore:
    """A bookie whose disks were proven, and the disks that are registered under its id now."""
    store = MemoryStore(SystemClock())
    drain = Drain("b", state, 1, incarnations=PROVEN)
    await store.put(drain_key("b"), encode(drain))
    await store.put(draining_key("b"), b"1")
    for incarnation in {*PROVEN, registered} - {""}:
        await store.put(known_key(BookieIdentity("b", incarnation)), b"{}")
    await store.put(known_key(BookieIdentity("bb", "old")), b"{}")
    if registered:
        await register(store, registered)
    return store


async def register(store: MemoryStore, incarnation: str) -> None:
    registration = BookieRegistration("b", incarnation, "host", 1)
    await store.put(registration_key("b"), encode_registration(registration))


async def known_incarnations(store: MemoryStore) -> set[str]:
    return set(await drains.known_incarnations(store, "b"))


@pytest.mark.parametrize("ends", ["cancelled", "unmarked"])
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
    state: DrainState, registered: str, left: set[str], ends: str
) -> None:
    store = await stored(state, registered)
    if ends == "cancelled":
        assert await drains.cancel(store, "b")
    else:
        await store.delete(draining_key("b"))
        ((drain, revision),) = await drains.read_with_revisions(store)
        await drains.delete_unmarked(store, drain, revision)
    assert await known_incarnations(store) == left
    assert await store.get(draining_key("b")) is None
    assert await drains.read(store, "b") is None
    assert await store.get(known_key(BookieIdentity("bb", "old"))) is not None
    assert not await drains.cancel(store, "b")
    await store.close()


async def test_disks_that_return_at_the_same_moment_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await stored(DrainState.REMOVABLE, "new")
    transact = MemoryStore.transact
    late = asyncio.Event()

    async def after_a_change(self: MemoryStore, operations: Sequence[Operation]) -> int:
        if not late.is_set() and any(isinstance(operation, Check) for operation in operations):
            late.set()
            await register(store, "old")
        return await transact(self, operations)

    monkeypatch.setattr(MemoryStore, "transact", after_a_change)
    assert await drains.cancel(store, "b")
    assert late.is_set()
    assert await known_incarnations(store) == {"old", "older", "new"}
    await store.close()


async def test_records_of_older_releases_name_no_disks() -> None:
    store = MemoryStore(SystemClock())
    plain = msgspec.json.encode({"bookieId": "b", "state": "removable", "requestedMs": 1})
    await store.put(drain_key("b"), plain)
    await register(store, "new")
    await store.put(known_key(BookieIdentity("b", "old")), b"{}")
    assert await drains.cancel(store, "b")
    assert await known_incarnations(store) == {"old"}
    await store.close()


async def test_an_unreadable_drain_can_be_cancelled() -> None:
    store = MemoryStore(SystemClock())
    await store.put(drain_key("b"), b"\xff of a newer release")
    await store.put(draining_key("b"), b"1")
    assert await drains.cancel(store, "b")
    assert await store.get(drain_key("b")) is None
    assert await store.get(draining_key("b")) is None
    await store.close()
