"""Clients that come and go leave nothing behind, and nothing that only the collector could find.

`core.garbage` sets what survives a long pass aside, so a component that still refers to itself
once it has closed is never freed. Here the collector is off: what a closed session, subscription,
producer or topic leaves is garbage that `gc.collect` finds, and this test names it.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.churn import churn_round

from magnetar.broker.service import BrokerService
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.core.garbage import garbage_policy
from magnetar.core.names import parse_topic
from magnetar.ledger.writer import LedgerWriter
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

AT_ONCE: Final = compose(BrokerSettings, failover_delay_ms=0)
"""Failover consumers are handed messages without a pause."""
ROUNDS: Final = 60
"""Meets each combination of subscription type and ending (3 * 4 * 5)."""
TOPICS: Final = 3
OF_THE_TEST_STORE: Final = {"Record", "WatchEvent", "MemoryLedger"}
"""The store and the bookie in memory keep their history; the real ones keep it on disk."""


@dataclass(frozen=True)
class Others:
    """What other tests of this process have left alive.

    It is held, because the collector would count as this test's what they let go meanwhile.
    """

    held: list[object]
    live: Counter[str]
    writers: list[LedgerWriter]


@pytest.fixture
def others() -> Iterator[Others]:
    """Switches the collector off; returns what is not of the test."""
    gc.collect()
    garbage_policy._closed.clear()  # what other tests have closed and still hold
    gc.disable()
    held = [each for each in gc.get_objects() if own_class(each)]
    yield Others(held, live(), watched_writers())
    held.clear()
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


def own_class(instance: object) -> str:
    """The name of the object's class if it is one of ours, else nothing."""
    kind = type(instance)
    return kind.__qualname__ if str(kind.__module__).startswith("magnetar.") else ""


def live() -> Counter[str]:
    """How many objects of our own there are, by class."""
    return Counter(name for name in map(own_class, gc.get_objects()) if name)


def garbage() -> Counter[str]:
    """What only the collector can free, of our own classes, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(name for name in map(own_class, gc.garbage) if name)
    gc.garbage.clear()
    return found


async def quiet(service: BrokerService) -> None:
    """Waits until every session has ended and its tasks with it."""
    async with asyncio.timeout(30):
        while service.sessions or garbage_policy.closed_alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def watched_writers() -> list[LedgerWriter]:
    """Ledger writers that have not reported their confirmed entries to the bookies yet."""
    writers = [each for each in gc.get_objects() if isinstance(each, LedgerWriter)]
    return [each for each in writers if each.lac_watched]


async def settled(service: BrokerService, others: Others) -> None:
    """Waits until what timers do for what stays is done, so that two counts can be compared.

    A cursor makes the ledger of its acks when it first writes them, which is some time after the
    acks; a ledger's writer is watched until it has told its bookies what is confirmed.
    """
    await quiet(service)
    for topic in service.topics:
        for subscription in topic.subscriptions.values():
            assert isinstance(subscription, PersistentSubscription)
            await subscription.cursor.flush()
    async with asyncio.timeout(30):
        # There is no event for it.
        while any(each not in others.writers for each in watched_writers()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def rounds(port: int, first: int) -> None:
    for number in range(first, first + ROUNDS):
        await churn_round(HOST, port, number, TOPICS)


async def test_clients_that_come_and_go_leave_no_garbage(others: Others) -> None:
    async with running_broker(AT_ONCE) as (service, port):
        await rounds(port, 0)
        await quiet(service)
        assert garbage() == Counter()


async def test_clients_that_come_and_go_leave_nothing_alive(others: Others) -> None:
    async with running_broker(AT_ONCE) as (service, port):
        await rounds(port, 0)
        await settled(service, others)
        before = live()
        await rounds(port, ROUNDS)
        await settled(service, others)
        more = live() - before
        assert {name: count for name, count in more.items() if name not in OF_THE_TEST_STORE} == {}


async def unloaded(service: BrokerService, topic: str) -> None:
    await service.topics.unload(parse_topic(topic))


async def deleted(service: BrokerService, topic: str) -> None:
    await service.topics.delete(parse_topic(topic), force=True)


async def abandoned(service: BrokerService, _topic: str) -> None:
    service.open_topics.abandon(lambda _topic: True)


@pytest.mark.parametrize("end", [unloaded, deleted, abandoned])
async def test_topics_that_end_are_freed_by_the_next_whole_pass(
    end: Callable[[BrokerService, str], Awaitable[None]], others: Others
) -> None:
    """A closed topic refers to itself: it counts as closed until a pass frees it."""
    async with running_broker(AT_ONCE) as (service, port):
        for number in range(TOPICS * 4):
            await churn_round(HOST, port, number, TOPICS)
        for number in range(TOPICS):
            await end(service, f"persistent://public/default/churn-{number}")
        async with asyncio.timeout(30):
            while service.sessions:  # noqa: ASYNC110 - a session's end is no event here
                await asyncio.sleep(0.01)
            assert garbage_policy.closed_alive
            while garbage_policy.closed_alive:
                gc.collect()
                await asyncio.sleep(0.01)
        left = live() - others.live
        assert not left["PersistentTopic"]
        assert not left["Cursor"]
