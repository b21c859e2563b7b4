"""A group's limiters on several brokers: shares, reports and their end."""

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.unit.broker.ownership.stage import LoopClock, in_virtual_time, settle

from magnetar.broker.rates.group_limits import REPORT_INTERVAL_S, GroupLimits
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.rates.resource_groups import (
    EQUAL_SHARE,
    LIMITS,
    USAGE_PREFIX,
    with_group,
    without_group,
)
from magnetar.core.tasks import TaskSet
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession

TTL_S = 600.0


@dataclass
class Brokers:
    """Brokers with group limits over one store, in the loop's time."""

    store: MemoryStore = field(default_factory=MemoryStore)
    tasks: TaskSet = field(default_factory=lambda: TaskSet("test"))
    sessions: list[MetadataSession] = field(default_factory=list)

    async def add(self, broker_id: str) -> GroupLimits:
        clock = LoopClock()
        self.store._leases.clock = clock
        session = MetadataSession(self.store, TTL_S, clock, broker_id)
        await session.start()
        self.sessions.append(session)
        limits = GroupLimits(self.store, clock, broker_id, session)
        self.tasks.start(limits.run(), "follow")
        await limits.ready()
        self.tasks.start(limits.run_reports(), "report")
        await settle()
        return limits

    async def define(self, **rates: int) -> None:
        await LIMITS.change(self.store, lambda stored: with_group(stored, "g", rates))
        await settle()

    async def reports(self) -> set[str]:
        records = await self.store.list(USAGE_PREFIX)
        return {record.key.removeprefix(USAGE_PREFIX) for record in records}

    async def __aenter__(self) -> "Brokers":
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self.sessions:
            await session.stop()
        await self.tasks.stop()
        await self.store.close()


def only(limits: GroupLimits) -> RateLimiter:
    (limiter,) = limits.publishing("g")
    return limiter


@in_virtual_time
async def test_the_only_broker_has_the_whole_rate() -> None:
    async with Brokers() as brokers:
        one = await brokers.add("a")
        assert one.publishing("g") == one.dispatching("g") == () == one.publishing("")
        await brokers.define(publish_rate_in_msgs=100)
        assert one.dispatching("g") == (), "only what is limited has a limiter"
        assert only(one).limits == (100, -1)
        assert await brokers.reports() == set(), "nothing is reported before it is used"
        only(one).take(10, 1_000)
        await settle()
        assert await brokers.reports() == {"a"}
        assert only(one).limits == (100, -1)


@in_virtual_time
async def test_shares_of_brokers_that_use_a_group_add_up_to_its_rate() -> None:
    async with Brokers() as brokers:
        one, two = await brokers.add("a"), await brokers.add("b")
        await brokers.define(publish_rate_in_msgs=100)
        only(one).take(10, 0)
        await settle()
        assert only(one).limits[0] == 100
        assert only(two).limits[0] == pytest.approx(100 * EQUAL_SHARE / 2), "until it reports"
        only(two).take(30, 0)
        await settle()
        assert only(one).limits[0] + only(two).limits[0] == pytest.approx(100)
        assert only(two).limits[0] > only(one).limits[0]
        for _ in range(20):
            for limits in (one, two):
                limiter = only(limits)
                limiter.take(1_000, 0)
                assert not limiter.may_go()
                limiter.wait(lambda: None)
            await asyncio.sleep(REPORT_INTERVAL_S)
            assert only(one).limits[0] + only(two).limits[0] == pytest.approx(100)
        assert only(one).limits[0] == pytest.approx(50, rel=0.2), "both want more than all of it"


@in_virtual_time
async def test_a_broker_that_stops_to_use_a_group_or_dies_leaves_its_share() -> None:
    async with Brokers() as brokers:
        one, two, three = [await brokers.add(name) for name in "abc"]
        await brokers.define(publish_rate_in_bytes=1_000)
        for limits in (one, two, three):
            only(limits).take(1, 10)
        await settle()
        assert await brokers.reports() == {"a", "b", "c"}
        await brokers.sessions[2].stop()
        await settle()
        assert await brokers.reports() == {"a", "b"}
        for _ in range(3):
            only(one).take(1, 10)
            await asyncio.sleep(REPORT_INTERVAL_S)
        assert await brokers.reports() == {"a"}
        assert only(one).limits == (-1, 1_000)
        only(two).take(1, 10)
        await settle()
        assert await brokers.reports() == {"a", "b"}, "it counts again at once"


@in_virtual_time
async def test_changed_and_deleted_groups_apply_and_waiters_are_called() -> None:
    async with Brokers() as brokers:
        one = await brokers.add("a")
        changes: list[str] = []
        one.on_change = lambda: changes.append("changed")
        await brokers.define(publish_rate_in_msgs=1, dispatch_rate_in_msgs=4)
        limiter = only(one)
        limiter.take(1_000, 0)
        called = asyncio.Event()
        limiter.wait(called.set)
        await brokers.define(publish_rate_in_msgs=10)
        assert limiter.limits[0] == 10
        assert len(changes) == 2
        await LIMITS.change(brokers.store, lambda stored: without_group(stored, "g"))
        await called.wait()
        assert one.publishing("g") == one.dispatching("g") == ()
        assert len(changes) == 3


@in_virtual_time
async def test_an_unreadable_record_leaves_the_former_limits() -> None:
    async with Brokers() as brokers:
        one = await brokers.add("a")
        await brokers.define(publish_rate_in_msgs=10)
        limiter = only(one)
        await brokers.store.put(LIMITS.key, b'{"version":2}')
        await brokers.store.put(USAGE_PREFIX + "b", b"{")
        await settle()
        assert only(one) is limiter
        assert limiter.limits[0] == 10
