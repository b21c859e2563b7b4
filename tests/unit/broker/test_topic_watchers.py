"""Watchers of a namespace's topics: the updates of their clients."""

import asyncio

from tests.support.broker import running_broker
from tests.unit.broker.peer import Peer, peer_of

from magnetar.broker.service import BrokerService
from magnetar.broker.session.connection import Connection
from magnetar.core.clock import SystemClock
from magnetar.core.names import TopicName, parse_topic
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Record
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

NAMESPACE = "public/default"


class LateLists(MemoryStore):
    """Lists of topics that are read at once, and answered on the test's command."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.read = asyncio.Event()
        self.answering = asyncio.Event()

    async def list(self, prefix: str) -> list[Record]:
        found = await super().list(prefix)
        if prefix.startswith(MANAGED_LEDGERS_PREFIX):
            self.read.set()
            await self.answering.wait()
        return found


def named(local: str) -> TopicName:
    return parse_topic(f"persistent://{NAMESPACE}/{local}")


def watch(peer: Peer) -> None:
    command = pb.CommandWatchTopicList(
        request_id=1, watcher_id=1, namespace=NAMESPACE, topics_pattern=f"{NAMESPACE}/.*"
    )
    peer.send(CommandType.WATCH_TOPIC_LIST, command)


async def create(service: BrokerService, *locals_: str) -> None:
    for local in locals_:
        await service.topics.get_or_open(named(local), create=True)


async def test_a_topic_deleted_while_the_list_is_read_is_not_in_the_answer() -> None:
    store = LateLists()
    async with running_broker(store=store) as (service, port), peer_of(port) as peer:
        await create(service, "stays", "goes")
        watch(peer)
        await store.read.wait()
        await service.topics.delete(named("goes"), force=True)
        await create(service, "comes")
        store.answering.set()
        success = await peer.until(CommandType.WATCH_TOPIC_LIST_SUCCESS)
        assert sorted(success.topic) == [str(named("comes")), str(named("stays"))]


async def test_changes_for_a_client_that_does_not_read_are_sent_later_as_one_update() -> None:
    """The pending changes do not grow with each created and deleted topic."""
    async with running_broker() as (service, port), peer_of(port) as peer:
        await create(service, "old")
        watch(peer)
        await peer.until(CommandType.WATCH_TOPIC_LIST_SUCCESS)
        (session,) = service.sessions
        connection = session.wire
        assert isinstance(connection, Connection)
        connection.pause_writing()
        await create(service, "a", "b", "short-lived")
        await service.topics.delete(named("short-lived"), force=True)
        await service.topics.delete(named("old"), force=True)
        connection.resume_writing()
        update = await peer.until(CommandType.WATCH_TOPIC_UPDATE)
        assert list(update.new_topics) == [str(named("a")), str(named("b"))]
        assert list(update.deleted_topics) == [str(named("old"))]
        await create(service, "c")
        update = await peer.until(CommandType.WATCH_TOPIC_UPDATE)
        assert list(update.new_topics) == [str(named("c"))]
