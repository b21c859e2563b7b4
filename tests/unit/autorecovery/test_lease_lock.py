"""The lock: one holder at a time, and no write after its loss."""

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
    """A process and its lock."""

    def __init__(self, store: MemoryStore, token: str) -> None:
        self.view = View(store)
        self.session = MetadataSession(self.view, LEASE_S, LoopClock(), token)
        self.lock = LeaseLock(self.view, self.session, KEY, token)


def with_two(test: Callable[[MemoryStore, Holder, Holder], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        store = MemoryStore(LoopClock())
        first, second = Holder(store, "one"), Holder(store, "other")
        for holder in (first, second):
            await holder.session.start()
        await test(store, first, second)
        for holder in (first, second):
            await holder.session.stop()
        await store.close()

    run(main)


def test_a_lock_has_one_holder_at_a_time() -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        assert not first.lock.held
        with pytest.raises(LockLost):
            first.lock.check()
        assert await first.lock.take()
        assert not await second.lock.take()
        assert (first.lock.held, second.lock.held) == (True, False)
        record = await store.get(KEY)
        assert record is not None
        assert first.lock.check() == Check(KEY, record.revision)
        assert await first.lock.take(), "a lock that is already held can be taken again"
        assert first.lock.check() == Check(KEY, record.revision)
        await second.lock.release()
        assert await store.get(KEY) == record
        await first.lock.release()
        assert not first.lock.held
        await first.lock.release()
        assert await second.lock.take()
        await first.lock.release()
        assert await store.get(KEY) is not None

    with_two(test)


def test_a_lock_is_released_with_the_last_transaction() -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        await first.lock.take()
        await store.transact([first.lock.release_with(), Put("/done", b"")])
        first.lock.forget()
        assert not first.lock.held
        assert await second.lock.take()
        await first.lock.release()
        assert second.lock.held
        with pytest.raises(BadRevision):
            await store.transact([first.lock.release_with(), Put("/done", b"again")])

    with_two(test)


@pytest.mark.parametrize("landed", [True, False])
def test_a_lock_whose_request_was_not_answered_is_known_by_its_value(landed: bool) -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        first.view.unanswered = [landed]
        with pytest.raises(MetadataUnavailable):
            await first.lock.take()
        assert not first.lock.held
        assert await first.lock.take()
        assert first.lock.held
        await first.lock.release()
        assert await store.get(KEY) is None

    with_two(test)


def test_a_lock_is_not_held_beyond_its_lease() -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        await first.lock.take()
        first.view.renewing = False
        await asyncio.sleep(LEASE_S)
        assert not first.lock.held
        with pytest.raises(LockLost):
            first.lock.check()
        with pytest.raises(LeaseLost):
            await first.lock.take()
        assert await second.lock.take()
        first.view.renewing = True
        await asyncio.sleep(LEASE_S)
        assert first.session.valid
        assert not first.lock.held, "the session has another lease"
        await first.lock.release()
        assert await store.get(KEY) is not None

    with_two(test)


def test_a_lock_that_another_holder_has_taken_is_not_released() -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        await first.lock.take()
        await store.delete(KEY)
        await second.lock.take()
        await first.lock.release()
        assert await store.get(KEY) is not None
        assert not await first.lock.take()
        assert not first.lock.held

    with_two(test)
