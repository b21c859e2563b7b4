"""A lock that was given up blocks no other holder, even if the store's answers were lost."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run

from magnetar.autorecovery.lease_lock import LeaseLock
from magnetar.autorecovery.records import UnderReplicated, lock_key, record_key
from magnetar.core.clock import Clock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import LeaseLost, MetadataUnavailable

KEY = lock_key(1)


class UnansweredLocks(MemoryStore):
    """Executes requests for the lock's key, but loses the next `lost` answers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.lost = 0
        self.late_s = 0.0
        """The next request for a lock gets no answer, and reaches the store after a delay."""
        self.landed = asyncio.Event()
        self.unanswered = asyncio.Event()

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        if key == KEY and self.late_s:
            late_s, self.late_s = self.late_s, 0.0
            late = self._late(late_s, super().put(key, value, expected=expected, lease_id=lease_id))
            self._on_its_way = asyncio.create_task(late)
            raise MetadataUnavailable("no answer came")
        revision = await super().put(key, value, expected=expected, lease_id=lease_id)
        self._answer(key)
        return revision

    async def _late(self, late_s: float, put: Coroutine[Any, Any, int]) -> None:
        if math.isinf(late_s):
            put.close()
            return
        await asyncio.sleep(late_s)
        await put
        self.landed.set()

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        deleted = await super().delete(key, expected=expected)
        self._answer(key)
        return deleted

    def _answer(self, key: str) -> None:
        if key == KEY and self.lost:
            self.lost -= 1
            self.unanswered.set()
            raise MetadataUnavailable("no answer came")


def with_locks(
    main: Callable[[UnansweredLocks, Callable[[], LeaseLock]], Awaitable[None]],
) -> None:
    """Runs the test with a store and the locks of one process."""

    async def session() -> None:
        stage = Stage()
        store = UnansweredLocks(stage.clock)
        lease = MetadataSession(store, LEASE_S, stage.clock, "holder")
        await lease.start()
        await main(store, lambda: LeaseLock(store, lease, KEY, "holder"))
        await lease.stop()
        await store.close()

    run(session)


def test_a_lock_whose_request_had_no_answer_is_released() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        store.lost, lock = 1, new()
        with pytest.raises(MetadataUnavailable):
            await lock.take()
        assert await store.get(KEY) is not None
        await lock.give_up()
        assert await store.get(KEY) is None

    with_locks(main)


def test_a_lock_whose_request_reaches_the_store_late_is_released() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        store.late_s, lock = 20.0, new()
        with pytest.raises(MetadataUnavailable):
            await lock.take()
        await lock.give_up()
        assert store.landed.is_set()
        assert await store.get(KEY) is None

    with_locks(main)


def test_giving_up_a_lock_does_not_wait_forever_for_a_lost_request() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        store.late_s, lock = math.inf, new()
        with pytest.raises(MetadataUnavailable):
            await lock.take()
        await lock.give_up()
        assert await new().take()

    with_locks(main)


def test_giving_up_a_lock_ends_once_the_lease_of_its_request_has_ended() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        store.late_s, lock = math.inf, new()
        with pytest.raises(MetadataUnavailable):
            await lock.take()
        former = lock._session.lease_id
        await store.revoke_lease(former)
        while True:
            with suppress(LeaseLost):
                if lock._session.lease_id != former:
                    break
            await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await lock.give_up()
        assert loop.time() == begun

    with_locks(main)


def test_a_release_that_was_not_answered_is_repeated() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        lock = new()
        assert await lock.take()
        store.lost = 1
        with pytest.raises(MetadataUnavailable):
            await lock.release()
        await lock.give_up()
        assert await store.get(KEY) is None
        assert await new().take()

    with_locks(main)


def test_a_lock_that_another_process_holds_is_not_released() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        await store.put(KEY, b"another")
        lock = new()
        assert not await lock.take()
        await lock.give_up()
        assert await store.get(KEY) is not None

    with_locks(main)


def test_a_node_leaves_no_lock_of_a_ledger_that_needs_no_repair() -> None:
    """The answer to the lock's request is lost, and the ledger leaves the list meanwhile."""

    async def main() -> None:
        stage = Stage("a", "b", "c")
        store = stage.store = UnansweredLocks(stage.clock)
        await stage.ledger(1, (0, "a b c"), last=5)
        store.lost = 1
        await stage.node()
        await store.put(record_key(1), encode(UnderReplicated(1, ("c",), 0)))
        await store.unanswered.wait()
        await store.delete(record_key(1))
        await asyncio.sleep(LEASE_S)
        assert await store.get(KEY) is None
        await stage.stop()

    run(main)
