"""Clients that come and go: one round attaches everything that a client can attach, and leaves.

A round is numbered; its number draws the topic, the subscription type and the way it ends, so that
a run of some rounds meets all combinations, and two runs of the same numbers do the same.
"""

import contextlib
from typing import Final

from tests.support.raw_client import RawClient, Refused

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

SENT: Final = 5
RECEIVED: Final = 3
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
KINDS: Final = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)


async def churn_round(host: str, port: int, number: int, topics: int) -> None:
    """Connects, produces SENT, consumes RECEIVED, disconnects; every third time unsubscribes."""
    client = await RawClient.connect(host, port)
    try:
        await _round(client, number, f"persistent://public/default/churn-{number % topics}")
    finally:
        await client.close()


async def _round(client: RawClient, number: int, topic: str) -> None:
    kind = KINDS[number % len(KINDS)]
    leaves = number % 3 == 0
    # A subscription that stays is shared by all rounds of its topic and type.
    name = f"leaves-{number}" if leaves else f"stays-{kind}"
    consumer = await client.consumer(topic, name, kind=kind)
    producer = await client.producer(topic)
    client.flow(consumer, SENT * 10)
    for sequence_id in range(SENT):
        client.send(producer, sequence_id, b"x" * 100, key=f"key-{sequence_id}")
    await client.receipted(producer, SENT)
    received = [await client.receive(consumer) for _ in range(RECEIVED)]
    await client.ack(consumer, [(each.ledger_id, each.entry_id) for each in received])
    if number % 2:
        await _look_around(client, number, topic, consumer)
    if leaves:
        await client.request(CommandType.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=consumer))
    else:
        await _read_all(client, consumer, topic)
    if number % 5 < 2:
        await client.request(
            CommandType.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer)
        )


async def _read_all(client: RawClient, consumer: int, topic: str) -> None:
    """Skips what is left, so that the backlog of what stays does not grow."""
    last = await client.request(
        CommandType.GET_LAST_MESSAGE_ID, pb.CommandGetLastMessageId(consumer_id=consumer)
    )
    seek = pb.CommandSeek(consumer_id=consumer)
    seek.message_id.ledgerId = last.last_message_id.ledgerId
    seek.message_id.entryId = last.last_message_id.entryId + 1
    await client.request(CommandType.SEEK, seek)


async def _look_around(client: RawClient, number: int, topic: str, consumer: int) -> None:
    """What clients do besides: a reader, a redelivery, metadata, and requests that are refused."""
    reader = await client.consumer(topic, f"reader-{number}", durable=False)
    client.flow(reader, 10)
    await client.receive(reader)
    client.write_redelivery(consumer)
    await client.request(
        CommandType.PARTITIONED_METADATA, pb.CommandPartitionedTopicMetadata(topic=topic)
    )
    await client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=topic))
    exclusive = await client.consumer(topic, f"one-{number}", kind=EXCLUSIVE)
    with contextlib.suppress(Refused):
        await client.consumer(topic, f"one-{number}", kind=EXCLUSIVE)
        raise AssertionError("a second exclusive consumer was let in")
    await client.request(CommandType.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=exclusive))
    with contextlib.suppress(Refused):
        await client.producer("persistent://public/nowhere/topic")
        raise AssertionError("a namespace that is not there took a producer")
