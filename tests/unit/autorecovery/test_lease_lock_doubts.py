"""A lock keeps nobody out once its holder has given it up, whatever the store answered."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run

from magnetar.autorecovery.lease_lock import LeaseLock
from magnetar.autorecovery.records import UnderReplicated, encode, lock_key, record_key
from magnetar.core.clock import Clock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataUnavailable

KEY = lock_key(1)


class UnansweredLocks(MemoryStore):
    """Does what a call of a lock's key asks, and loses the next `lost` answers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.lost = 0
        self.unanswered = asyncio.Event()

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        revision = await super().put(key, value, expected=expected, lease_id=lease_id)
        self._answer(key)
        return revision

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
    """Runs the test with a store, and locks of one process there."""

    async def session() -> None:
        stage = Stage()
        store = UnansweredLocks(stage.clock)
        lease = MetadataSession(store, LEASE_S, stage.clock, "holder")
        await lease.start()
        await main(store, lambda: LeaseLock(store, lease, KEY, "holder"))
        await lease.stop()
        await store.close()

    run(session)


def test_a_lock_whose_request_was_not_answered_is_given_up() -> None:
    async def main(store: UnansweredLocks, new: Callable[[], LeaseLock]) -> None:
        store.lost, lock = 1, new()
        with pytest.raises(MetadataUnavailable):
            await lock.take()
        assert await store.get(KEY) is not None
        await lock.give_up()
        assert await store.get(KEY) is None

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


def test_a_node_leaves_no_lock_of_a_ledger_that_needs_no_repair_any_more() -> None:
    """The answer of the lock's request is lost, and meanwhile the ledger leaves the list."""

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
