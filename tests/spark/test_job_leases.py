"""The key that marks a job as running exists exactly while the job runs."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.lease_wrapper import LeaseWrapper
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.flaky_store import LoopClock

from magnetar.compaction import records as compaction
from magnetar.jobs.compaction import swap
from magnetar.jobs.offload import lease as offload_lease
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Lease, MetadataStore, MetadataUnavailable
from magnetar.offload import records as offload

JOB = "a" * 32
Living = Callable[[MetadataStore, str], AbstractAsyncContextManager[object]]
BOTH = pytest.mark.parametrize(
    ("living", "key", "lease_s"),
    [
        (offload_lease.job_lease, offload.job_key(JOB), offload_lease.LEASE_S),
        (swap.job_lease, compaction.job_key(JOB), swap.LEASE_S),
    ],
    ids=["offload", "compact"],
)


class Leases(MemoryStore):
    """Records its leases; while `away`, it grants and renews none."""

    def __init__(self) -> None:
        super().__init__(LoopClock())
        self.granted: list[Lease] = []
        self.away = False
        self.grants = True
        self.renewed = 0

    async def grant_lease(self, ttl_s: float) -> Lease:
        self.answer()
        if not self.grants:
            raise MetadataUnavailable("not now")
        self.granted.append(lease := Noted(self, await super().grant_lease(ttl_s)))
        return lease

    def answer(self) -> None:
        if self.away:
            raise MetadataUnavailable("away")


class Noted(LeaseWrapper):
    """A lease of `Leases`."""

    def __init__(self, store: Leases, lease: Lease) -> None:
        super().__init__(lease)
        self._store = store

    async def keep_alive(self) -> None:
        self._store.answer()
        await self._lease.keep_alive()
        self._store.renewed += 1

    async def revoke(self) -> None:
        self._store.answer()
        await self._lease.revoke()


@BOTH
def test_the_key_is_there_while_the_job_is_and_goes_with_it(
    living: Living, key: str, lease_s: float
) -> None:
    async def job() -> None:
        store = Leases()
        before = asyncio.all_tasks()
        async with living(store, JOB):
            for _ in range(5):
                assert await store.get(key) is not None
                await asyncio.sleep(lease_s)
            assert store.renewed >= 5 * 3 - 1
        assert await store.get(key) is None
        assert asyncio.all_tasks() == before
        assert len(store.granted) == 1

    virtual(job())


@BOTH
def test_the_key_goes_with_a_job_that_fails(living: Living, key: str, lease_s: float) -> None:
    async def job() -> None:
        store = Leases()
        before = asyncio.all_tasks()
        with pytest.raises(ValueError, match="no"):
            async with living(store, JOB):
                raise ValueError("no")
        assert await store.get(key) is None
        assert asyncio.all_tasks() == before
        assert lease_s > 0

    virtual(job())


@BOTH
def test_a_store_that_is_away_for_less_than_the_lease_costs_the_job_nothing(
    living: Living, key: str, lease_s: float
) -> None:
    async def job() -> None:
        store = Leases()
        before = asyncio.all_tasks()
        async with living(store, JOB):
            store.away = True
            await asyncio.sleep(lease_s * 0.6)
            store.away = False
            await asyncio.sleep(lease_s)
            assert await store.get(key) is not None
            store.away = True  # even if the lease cannot be released
        assert asyncio.all_tasks() == before
        store.away = False
        assert len(store.granted) == 1

    virtual(job())


def test_an_offload_whose_lease_is_lost_lives_on_under_a_new_one() -> None:
    async def job() -> None:
        store, key = Leases(), offload.job_key(JOB)
        async with offload_lease.job_lease(store, JOB):
            await store.granted[0].revoke()
            assert await store.get(key) is None
            await asyncio.sleep(offload_lease.LEASE_S)
            assert await store.get(key) is not None
            assert len(store.granted) == 2
            # It is not granted at once: the next renewal tries again.
            await store.granted[1].revoke()
            store.grants = False
            await asyncio.sleep(offload_lease.LEASE_S)
            store.grants = True
            await asyncio.sleep(offload_lease.LEASE_S)
            assert await store.get(key) is not None
            assert len(store.granted) == 3
        assert await store.get(key) is None

    virtual(job())


def test_a_compaction_whose_lease_is_lost_continues_without_one() -> None:
    """Another job may clean up its attempt; the commit detects that."""

    async def job() -> None:
        store, key = Leases(), compaction.job_key(JOB)
        async with swap.job_lease(store, JOB) as lease:
            await lease.revoke()
            await asyncio.sleep(3 * swap.LEASE_S)
            assert await store.get(key) is None
        assert len(store.granted) == 1

    virtual(job())
