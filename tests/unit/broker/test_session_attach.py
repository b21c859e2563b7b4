"""Attaching and detaching: repeated, interrupted, with reused ids, and after a lost connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused
from tests.unit.broker.peer import Peer, peer_of

from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ServerError
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

TOPIC = "persistent://public/default/t"
SHARED = 1
WAIT_S = 20.0


@pytest.fixture
async def broker() -> AsyncIterator[tuple[BrokerService, int]]:
    async with running_broker() as running:
        yield running


@pytest.fixture
async def peer(broker: tuple[BrokerService, int]) -> AsyncIterator[Peer]:
    async with peer_of(broker[1]) as peer:
        yield peer


def topic_of(service: BrokerService) -> PersistentTopic:
    topic = service.topics.loaded(parse_topic(TOPIC))
    assert isinstance(topic, PersistentTopic)
    return topic


async def eventually(what: Callable[[], bool]) -> None:
    """Waits for an effect in a later turn of the loop, which the broker shares with the test."""
    async with asyncio.timeout(WAIT_S):
        while not what():  # noqa: ASYNC110 - nothing tells when a broker has noticed
            await asyncio.sleep(0.001)


def resting(service: BrokerService) -> PersistentTopic:
    """The topic, whose broker's lease is in doubt."""
    topic = topic_of(service)
    topic.suspend()
    return topic


def producer(request_id: int, producer_id: int = 1, **more: Any) -> bytes:
    command = pb.CommandProducer(
        topic=TOPIC, producer_id=producer_id, request_id=request_id, **more
    )
    return encode_command(CommandType.PRODUCER, command)


def close_producer(request_id: int, producer_id: int = 1) -> bytes:
    command = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return encode_command(CommandType.CLOSE_PRODUCER, command)


def subscribe(request_id: int, consumer_id: int = 1, sub_type: int = 0) -> bytes:
    command = pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        subType=sub_type,  # type: ignore[arg-type]
        consumer_id=consumer_id,
        request_id=request_id,
    )
    return encode_command(CommandType.SUBSCRIBE, command)


def close_consumer(request_id: int, consumer_id: int = 1) -> bytes:
    command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return encode_command(CommandType.CLOSE_CONSUMER, command)


# -- producers


async def test_a_repeated_producer_command_gets_the_same_producer(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    names = []
    for request_id in (1, 2):
        peer.write(producer(request_id))
        success = await peer.until(CommandType.PRODUCER_SUCCESS)
        assert success.request_id == request_id
        names.append(success.producer_name)
    assert names[0] == names[1]
    assert len(topic_of(broker[0]).producers) == 1


async def test_a_producer_command_repeated_before_its_answer(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    """The second is refused with a retryable error; the first continues."""
    peer.write(producer(1) + producer(2))
    answers: dict[int, Any] = {}
    for _ in range(2):
        command = await peer.next()
        assert command is not None
        message: Any = command.message
        answers[message.request_id] = command
    assert answers[1].type == CommandType.PRODUCER_SUCCESS
    assert answers[2].type == CommandType.ERROR
    assert answers[2].message.error == ServerError.SERVICE_NOT_READY
    assert len(topic_of(broker[0]).producers) == 1


async def test_a_producer_closed_right_behind_its_creation(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    """Both commands arrive in one read; afterwards the producer's name and id are free."""
    peer.write(producer(1, producer_name="n") + close_producer(2))
    assert (await peer.until(CommandType.SUCCESS)).request_id == 2
    peer.write(producer(3, producer_name="n", producer_access_mode=1))
    success = await peer.until(CommandType.PRODUCER_SUCCESS)
    assert (success.request_id, success.producer_ready) == (3, True)
    assert len(topic_of(broker[0]).producers) == 1
    assert await peer.is_silent()


async def test_a_producer_closed_and_created_again_at_once(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    peer.write(producer(1) + close_producer(2) + producer(3))
    assert (await peer.until(CommandType.SUCCESS)).request_id == 2
    assert (await peer.until(CommandType.PRODUCER_SUCCESS)).request_id == 3
    assert len(topic_of(broker[0]).producers) == 1
    peer.write(close_producer(4))
    assert (await peer.until(CommandType.SUCCESS)).request_id == 4
    assert len(topic_of(broker[0]).producers) == 0


async def test_closing_an_unknown_id_succeeds(peer: Peer) -> None:
    for request_id in (1, 2):
        peer.write(close_producer(request_id, 9) + close_consumer(request_id + 10, 9))
        assert (await peer.until(CommandType.SUCCESS)).request_id == request_id
        assert (await peer.until(CommandType.SUCCESS)).request_id == request_id + 10


async def test_sends_under_way_when_a_producer_is_closed_are_forgotten(
    broker: tuple[BrokerService, int],
) -> None:
    client = await RawClient.connect(HOST, broker[1])
    producer_id = await client.producer(TOPIC)
    client.write(close_producer(90, producer_id))
    client.send(producer_id, 0, b"late")
    other = await client.producer(TOPIC)
    client.send(other, 0, b"kept")
    await client.receipted(other, 1)
    assert not client.receipts[producer_id]
    assert not client.lost.is_set()
    await client.close()


async def test_a_lost_connection_leaves_nothing(broker: tuple[BrokerService, int]) -> None:
    service, port = broker
    client = await RawClient.connect(HOST, port)
    await client.producer(TOPIC, "n")
    await client.consumer(TOPIC, "s", kind=SHARED)
    watch = pb.CommandWatchTopicList(watcher_id=1, namespace="public/default", topics_pattern=".*")
    await client.request(CommandType.WATCH_TOPIC_LIST, watch)
    topic = topic_of(service)
    assert not topic.is_idle
    await client.close()
    await eventually(lambda: topic.is_idle and not service.sessions)
    async with peer_of(port) as peer:
        peer.write(producer(1, producer_name="n"))
        assert (await peer.until(CommandType.PRODUCER_SUCCESS)).producer_name == "n"


async def test_a_connection_lost_while_it_attaches_leaves_nothing(
    broker: tuple[BrokerService, int],
) -> None:
    service, port = broker
    async with peer_of(port) as peer:
        peer.write(producer(1, producer_name="n") + subscribe(2))
    await eventually(lambda: not service.sessions)
    async with peer_of(port) as peer:
        peer.write(producer(1, producer_name="n", producer_access_mode=1))
        assert (await peer.until(CommandType.PRODUCER_SUCCESS)).producer_ready
        peer.write(subscribe(2))
        assert (await peer.until(CommandType.SUCCESS)).request_id == 2
        assert len(topic_of(service).producers) == 1


async def test_a_waiting_producer_is_answered_twice(broker: tuple[BrokerService, int]) -> None:
    _, port = broker
    async with peer_of(port) as holder, peer_of(port) as waiting:
        holder.write(producer(1, producer_access_mode=1))
        await holder.until(CommandType.PRODUCER_SUCCESS)
        waiting.write(producer(5, producer_access_mode=2))
        success = await waiting.until(CommandType.PRODUCER_SUCCESS)
        assert (success.request_id, success.producer_ready) == (5, False)
        assert not success.HasField("topic_epoch")
        holder.write(close_producer(2))
        success = await waiting.until(CommandType.PRODUCER_SUCCESS)
        assert (success.request_id, success.producer_ready) == (5, True)
        assert success.topic_epoch == 1


async def test_a_waiting_producer_is_refused_when_it_is_fenced(
    broker: tuple[BrokerService, int],
) -> None:
    _, port = broker
    async with peer_of(port) as holder, peer_of(port) as waiting, peer_of(port) as fencing:
        holder.write(producer(1, producer_access_mode=1))
        await holder.until(CommandType.PRODUCER_SUCCESS)
        waiting.write(producer(5, producer_access_mode=2))
        await waiting.until(CommandType.PRODUCER_SUCCESS)
        fencing.write(producer(7, producer_access_mode=3))
        assert (await fencing.until(CommandType.PRODUCER_SUCCESS)).producer_ready
        error = await waiting.until(CommandType.ERROR)
        assert (error.request_id, error.error) == (5, ServerError.PRODUCER_FENCED)
        assert (await holder.until(CommandType.CLOSE_PRODUCER)).producer_id == 1


# -- consumers


async def test_a_repeated_subscribe_succeeds(broker: tuple[BrokerService, int], peer: Peer) -> None:
    for request_id in (1, 2):
        peer.write(subscribe(request_id))
        assert (await peer.until(CommandType.SUCCESS)).request_id == request_id
    assert len(topic_of(broker[0]).subscriptions["s"].consumers) == 1


async def test_a_consumer_closed_right_behind_its_subscribe(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    """In one read: the exclusive subscription is free afterwards."""
    peer.write(subscribe(1) + close_consumer(2))
    assert (await peer.until(CommandType.SUCCESS)).request_id == 2
    peer.write(subscribe(3, consumer_id=2))
    assert (await peer.until(CommandType.SUCCESS)).request_id == 3
    assert len(topic_of(broker[0]).subscriptions["s"].consumers) == 1
    assert await peer.is_silent()


async def test_a_consumer_closed_and_attached_again_at_once(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    peer.write(subscribe(1) + close_consumer(2) + subscribe(3))
    assert (await peer.until(CommandType.SUCCESS)).request_id == 2
    assert (await peer.until(CommandType.SUCCESS)).request_id == 3
    assert len(topic_of(broker[0]).subscriptions["s"].consumers) == 1


async def test_a_second_exclusive_consumer_is_refused(broker: tuple[BrokerService, int]) -> None:
    first, second = [await RawClient.connect(HOST, broker[1]) for _ in range(2)]
    await first.consumer(TOPIC, "s")
    with pytest.raises(Refused) as refused:
        await second.consumer(TOPIC, "s")
    assert refused.value.code == ServerError.CONSUMER_BUSY
    await first.close()
    await second.consumer(TOPIC, "s")
    await second.close()


async def test_a_consumer_that_is_refused_leaves_nothing_at_its_connection(
    broker: tuple[BrokerService, int],
) -> None:
    service, port = broker
    holder = await RawClient.connect(HOST, port)
    await holder.consumer(TOPIC, "s")
    (others,) = service.sessions
    refused = await RawClient.connect(HOST, port)
    for _ in range(3):
        with pytest.raises(Refused):
            await refused.consumer(TOPIC, "s")
    (session,) = service.sessions - {others}
    assert session.consumers == {}
    assert session.pending_attachments == {}
    assert len(session.tasks) == 0
    await holder.close()
    await refused.close()


async def test_unsubscribing_ends_the_consumer(broker: tuple[BrokerService, int]) -> None:
    service, port = broker
    client = await RawClient.connect(HOST, port)
    consumer_id = await client.consumer(TOPIC, "s")
    unsubscribe = pb.CommandUnsubscribe(consumer_id=consumer_id)
    await client.request(CommandType.UNSUBSCRIBE, unsubscribe)
    assert topic_of(service).subscriptions == {}
    with pytest.raises(Refused) as refused:
        await client.request(CommandType.UNSUBSCRIBE, unsubscribe)
    assert refused.value.code == ServerError.CONSUMER_NOT_FOUND
    await client.close()


@pytest.mark.parametrize("kind", [CommandType.SEEK, CommandType.GET_LAST_MESSAGE_ID])
async def test_operations_that_a_non_persistent_topic_refuses(
    broker: tuple[BrokerService, int], kind: int
) -> None:
    client = await RawClient.connect(HOST, broker[1])
    consumer_id = await client.consumer("non-persistent://public/default/n", "s", kind=SHARED)
    message = (
        pb.CommandSeek(consumer_id=consumer_id, message_publish_time=1)
        if kind == CommandType.SEEK
        else pb.CommandGetLastMessageId(consumer_id=consumer_id)
    )
    with pytest.raises(Refused) as refused:
        await client.request(kind, message)
    assert refused.value.code == ServerError.NOT_ALLOWED_ERROR
    await client.close()


# -- finding topics


async def test_a_watch_reports_created_and_deleted_topics(
    broker: tuple[BrokerService, int],
) -> None:
    service, port = broker
    async with peer_of(port) as peer:
        watch = pb.CommandWatchTopicList(
            request_id=1,
            watcher_id=4,
            namespace="public/default",
            topics_pattern="persistent://public/default/t.*",
        )
        peer.send(CommandType.WATCH_TOPIC_LIST, watch)
        assert list((await peer.until(CommandType.WATCH_TOPIC_LIST_SUCCESS)).topic) == []
        for local in ("other", "t"):
            await service.topics.create(parse_topic(f"persistent://public/default/{local}"), {})
        update = await peer.until(CommandType.WATCH_TOPIC_UPDATE)
        assert (update.watcher_id, list(update.new_topics)) == (4, [TOPIC])
        await service.topics.delete(parse_topic(TOPIC), force=True)
        update = await peer.until(CommandType.WATCH_TOPIC_UPDATE)
        assert list(update.deleted_topics) == [TOPIC]
        close = pb.CommandWatchTopicListClose(request_id=2, watcher_id=4)
        peer.send(CommandType.WATCH_TOPIC_LIST_CLOSE, close)
        assert (await peer.until(CommandType.SUCCESS)).request_id == 2
        await service.topics.create(parse_topic(TOPIC), {})
        assert await peer.is_silent()


async def test_a_list_that_has_not_changed_is_not_sent_again(peer: Peer) -> None:
    peer.write(producer(1))
    await peer.until(CommandType.PRODUCER_SUCCESS)
    ask = pb.CommandGetTopicsOfNamespace(request_id=2, namespace="public/default")
    peer.send(CommandType.GET_TOPICS_OF_NAMESPACE, ask)
    answer = await peer.until(CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    assert (list(answer.topics), answer.changed) == ([TOPIC], True)
    ask.topics_hash = answer.topics_hash
    peer.send(CommandType.GET_TOPICS_OF_NAMESPACE, ask)
    answer = await peer.until(CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    assert (list(answer.topics), answer.changed) == ([], False)


async def test_a_stopping_broker_sends_lookups_away(broker: tuple[BrokerService, int]) -> None:
    service, port = broker
    async with peer_of(port) as peer:
        service.stopping = True
        peer.send(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))
        answer = await peer.until(CommandType.LOOKUP_RESPONSE)
        assert answer.response == pb.CommandLookupTopicResponse.Failed
        assert answer.error == ServerError.SERVICE_NOT_READY


async def test_a_repeated_producer_of_a_suspended_topic_does_not_wait_for_access(
    broker: tuple[BrokerService, int], peer: Peer
) -> None:
    """Its client would send nothing until it hears a second time, which never comes."""
    service, _ = broker
    peer.write(producer(1))
    assert (await peer.until(CommandType.PRODUCER_SUCCESS)).producer_ready
    topic = resting(service)
    peer.write(producer(2))
    again = await peer.until(CommandType.PRODUCER_SUCCESS)
    assert (again.request_id, again.producer_ready) == (2, True)
    assert not any(each.ready for each in topic.producers)
    topic.resume()
    assert all(each.ready for each in topic.producers)
