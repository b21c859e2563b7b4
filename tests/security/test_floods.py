"""A connection that sends commands as fast as it can delays another by single reads, on sockets."""

import asyncio

import pytest
from google.protobuf.message import Message
from tests.security.sessions import ADMIN, connect_command, secured
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME, encode_command

TOPIC = "persistent://public/default/t"
COMMANDS = 10_000
LISTS = 2_000
"""A list takes several turns of the loop."""
WAIT_S = 240.0
LAST = 1_000_000_000
"""The request id of the last command of a flood."""


def of_kind(kind: int, number: int) -> Message:
    if kind == CommandType.LOOKUP:
        return pb.CommandLookupTopic(topic=TOPIC, request_id=number)
    if kind == CommandType.PRODUCER:
        return pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number)
    return pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=number)


def frames(kind: int) -> bytes:
    once = encode_command(kind, of_kind(kind, 1))
    count = LISTS if kind == CommandType.GET_TOPICS_OF_NAMESPACE else COMMANDS
    return once * count + encode_command(kind, of_kind(kind, LAST))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (CommandType.LOOKUP, ADMIN),
        (CommandType.LOOKUP, "nobody"),
        (CommandType.GET_TOPICS_OF_NAMESPACE, ADMIN),
        (CommandType.PRODUCER, "nobody"),
    ],
    ids=["look-ups", "refused look-ups", "lists", "refused producers"],
)
async def test_others_are_served_during_a_flood(kind: int, role: str) -> None:
    async with running_broker(secure=secured()) as (_, port):
        witness = await RawClient.connect(HOST, port, connect_command(ADMIN))
        flood = await RawClient.connect(HOST, port, connect_command(role))
        last = asyncio.get_running_loop().create_future()
        flood._waiting[LAST] = last
        flood.write(frames(kind))
        async with asyncio.timeout(WAIT_S):
            while not witness.pongs:
                witness.on_receipt.clear()
                witness.write(PING_FRAME)
                await witness.on_receipt.wait()
            assert not last.done(), "the flood was served first"
            await witness.producer(TOPIC + "-of-the-witness")
            await last
        assert not flood.lost.is_set()
        await flood.close()
        await witness.close()
