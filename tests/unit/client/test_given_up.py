"""Openings that are cancelled, at every point at which they can be, leave nothing at the broker.

A consumer that stays there unowned would be sent messages that nobody takes, and a producer would
keep its name.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.support.broker import running_broker

from magnetar.broker.service import BrokerService
from magnetar.client import Client
from magnetar.client.network.connection import Connection
from magnetar.client.opening import Opening
from magnetar.core.names import parse_topic
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.topics import TopicSettings

PARTITIONS = 3
PARTITIONED = BrokerSettings(
    topics=TopicSettings(auto_topic_creation_type="partitioned", default_partitions=PARTITIONS)
)
OPEN_TURNS = 5
CLOSE_TURNS = 12
PATIENCE_S = 10.0


@pytest.fixture
async def rig() -> AsyncIterator[tuple[BrokerService, Client]]:
    async with (
        running_broker(PARTITIONED) as (service, port),
        Client(f"pulsar://127.0.0.1:{port}") as client,
    ):
        yield service, client


def attached(service: BrokerService) -> list[object]:
    """The producers and consumers of all topics."""
    found: list[object] = []
    for name, partition in itertools.product("ab", range(PARTITIONS)):
        topic = service.topics.loaded(parse_topic(f"{name}-partition-{partition}"))
        if topic is not None:
            found += topic.producers
            for subscription in topic.subscriptions.values():
                found += subscription.consumers
    return found


async def none_attached(service: BrokerService) -> None:
    """Waits until the broker has neither producers nor consumers."""
    async with asyncio.timeout(PATIENCE_S):
        while attached(service):  # noqa: ASYNC110 - the broker shares the loop
            await asyncio.sleep(0)


class Reads:
    """Counts what the client reads from its connection: its tasks go on after each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        read = Connection.buffer_updated

        def counted(connection: Connection, nbytes: int) -> None:
            read(connection, nbytes)
            self._count += 1

        monkeypatch.setattr(Connection, "buffer_updated", counted)

    async def wait(self, count: int, opening: "asyncio.Task[Any]") -> None:
        """Waits for so many reads, or the end of the opening."""
        until = self._count + count
        while self._count < until and not opening.done():  # noqa: ASYNC110 - turns count
            await asyncio.sleep(0)


async def cancelled_everywhere(
    service: BrokerService, reads: Reads, open_: Callable[[], Opening[Any]]
) -> None:
    """Opens, and cancels some turns of the loop after each read, until it was too late."""
    opened = await open_()
    assert attached(service)
    await opened.close()
    for count in itertools.count():
        for turns in range(OPEN_TURNS):
            opening = asyncio.create_task(open_().opened())
            await reads.wait(count, opening)
            for _ in range(turns):
                await asyncio.sleep(0)
            if not opening.cancel():
                await (await opening).close()
                return
            with pytest.raises(asyncio.CancelledError):
                await opening
            await none_attached(service)


async def closed_in_a_hurry(service: BrokerService, open_: Callable[[], Opening[Any]]) -> None:
    """Opens, and cancels the close, once it has begun, after one turn more each time."""
    for turns in range(1, CLOSE_TURNS):
        closing = asyncio.create_task((await open_()).close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await none_attached(service)


async def test_cancelled_openings_of_consumers(
    rig: tuple[BrokerService, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, client = rig
    await cancelled_everywhere(
        service, Reads(monkeypatch), lambda: client.consumer(["a", "b"], "sub")
    )


async def test_cancelled_openings_of_producers(
    rig: tuple[BrokerService, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, client = rig
    await cancelled_everywhere(service, Reads(monkeypatch), lambda: client.producer("a"))


async def test_cancelled_closes(rig: tuple[BrokerService, Client]) -> None:
    service, client = rig
    await closed_in_a_hurry(service, lambda: client.consumer(["a", "b"], "sub"))
    await closed_in_a_hurry(service, lambda: client.producer("a"))
