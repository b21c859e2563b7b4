"""A key that one process holds: nothing is written under it that the store would not accept."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.brokers import View
from tests.unit.autorecovery.stage import LEASE_S, LoopClock, run

from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import BadRevision, Check, LeaseLost, MetadataUnavailable, Put

KEY = "/lock"


class Holder:
    """One process with the lock."""

    def __init__(self, store: MemoryStore, token: str) -> None:
        self.view = View(store)
        self.session = MetadataSession(self.view, LEASE_S, LoopClock(), token)
        self.lock = LeaseLock(self.view, self.session, KEY, token)


def with_two(test: Callable[[MemoryStore, Holder, Holder], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        store = MemoryStore(LoopClock())
        one, other = Holder(store, "one"), Holder(store, "other")
        for each in (one, other):
            await each.session.start()
        await test(store, one, other)
        for each in (one, other):
            await each.session.stop()
        await store.close()

    run(main)


def test_one_at_a_time_holds_it() -> None:
    async def test(store: MemoryStore, one: Holder, other: Holder) -> None:
        assert not one.lock.held
        with pytest.raises(LockLost):
            one.lock.check()
        assert await one.lock.take()
        assert not await other.lock.take()
        assert (one.lock.held, other.lock.held) == (True, False)
        record = await store.get(KEY)
        assert record is not None
        assert one.lock.check() == Check(KEY, record.revision)
        assert await one.lock.take(), "what is held already is taken again"
        assert one.lock.check() == Check(KEY, record.revision)
        await other.lock.release()
        assert await store.get(KEY) == record
        await one.lock.release()
        assert not one.lock.held
        await one.lock.release()
        assert await other.lock.take()
        await one.lock.release()
        assert await store.get(KEY) is not None

    with_two(test)


def test_a_lock_goes_with_the_last_transaction() -> None:
    async def test(store: MemoryStore, one: Holder, other: Holder) -> None:
        await one.lock.take()
        await store.transact([one.lock.release_with(), Put("/done", b"")])
        one.lock.forget()
        assert not one.lock.held
        assert await other.lock.take()
        await one.lock.release()
        assert other.lock.held
        with pytest.raises(BadRevision):
            await store.transact([one.lock.release_with(), Put("/done", b"again")])

    with_two(test)


@pytest.mark.parametrize("landed", [True, False])
def test_a_lock_whose_request_was_not_answered_is_known_by_its_value(landed: bool) -> None:
    async def test(store: MemoryStore, one: Holder, other: Holder) -> None:
        one.view.unanswered = [landed]
        with pytest.raises(MetadataUnavailable):
            await one.lock.take()
        assert not one.lock.held
        assert await one.lock.take()
        assert one.lock.held
        await one.lock.release()
        assert await store.get(KEY) is None

    with_two(test)


def test_a_lock_is_not_held_beyond_its_lease() -> None:
    async def test(store: MemoryStore, one: Holder, other: Holder) -> None:
        await one.lock.take()
        one.view.renewing = False
        await asyncio.sleep(LEASE_S)
        assert not one.lock.held
        with pytest.raises(LockLost):
            one.lock.check()
        with pytest.raises(LeaseLost):
            await one.lock.take()
        assert await other.lock.take()
        one.view.renewing = True
        await asyncio.sleep(LEASE_S)
        assert one.session.valid
        assert not one.lock.held, "its lease is another one"
        await one.lock.release()
        assert await store.get(KEY) is not None

    with_two(test)


def test_a_lock_that_went_to_another_is_not_released() -> None:
    async def test(store: MemoryStore, one: Holder, other: Holder) -> None:
        await one.lock.take()
        await store.delete(KEY)
        await other.lock.take()
        await one.lock.release()
        assert await store.get(KEY) is not None
        assert not await one.lock.take()
        assert not one.lock.held

    with_two(test)
