"""Brokers that answer nothing, twice, something else, or half a frame: every call ends.

None raises anything but a ClientError, and no task is left after the end of the client. What was
attached attaches again, whatever went wrong in between.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.support.scripted_broker import (
    CONNECT,
    Script,
    ScriptedBroker,
    Session,
    cut,
    other,
    scripted_broker,
    silent,
    twice,
)

from magnetar.client import Client, ClientError, SubscriptionType
from magnetar.client.auth import NoAuthentication
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

PATIENCE_S = 20.0
OPERATION_TIMEOUT_S = 0.3
NAME_TOO_LONG = f"pulsar://{'x' * 64}:6650"
"""Python's encoder of host names refuses it by a UnicodeError."""


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with scripted_broker() as broker:
        yield broker


def connect(broker: ScriptedBroker, **options: Any) -> Client:
    options.setdefault("operation_timeout_s", OPERATION_TIMEOUT_S)
    return Client(broker.url, backoff_max_s=0.05, **options)


async def produce(client: Client) -> None:
    async with client.producer("topic", send_timeout_s=OPERATION_TIMEOUT_S) as producer:
        await producer.send(b"x")
        await producer.flush()


async def consume(client: Client) -> None:
    async with client.consumer("topic", "sub", ack_receipt=True) as consumer:
        await consumer.last_message_ids()
        await consumer.seek(0)
        await consumer.unsubscribe()


async def read(client: Client) -> None:
    async with client.reader("topic") as reader:
        await reader.has_message_available()


async def acknowledge(client: Client) -> None:
    async with client.consumer("topic", "sub", ack_receipt=True) as consumer:
        await consumer.ack(await consumer.receive(OPERATION_TIMEOUT_S))


async def transact(client: Client) -> None:
    async with (
        client.consumer("topic", "sub", type=SubscriptionType.SHARED) as consumer,
        client.producer("topic", send_timeout_s=OPERATION_TIMEOUT_S) as producer,
    ):
        message = await consumer.receive(OPERATION_TIMEOUT_S)
        async with client.transaction() as txn:
            await producer.send(b"x", transaction=txn)
            await consumer.ack(message, transaction=txn)


STAGES: list[tuple[str, Callable[[Client], Awaitable[None]]]] = [
    ("CONNECT", produce),
    ("PARTITIONED_METADATA", produce),
    ("LOOKUP", produce),
    ("PRODUCER", produce),
    ("SEND", produce),
    ("CLOSE_PRODUCER", produce),
    ("PARTITIONED_METADATA", consume),
    ("SUBSCRIBE", consume),
    ("GET_LAST_MESSAGE_ID", consume),
    ("SEEK", consume),
    ("UNSUBSCRIBE", consume),
    ("CLOSE_CONSUMER", read),
    ("GET_LAST_MESSAGE_ID", read),
    ("ACK", acknowledge),
    ("TC_CLIENT_CONNECT_REQUEST", transact),
    ("NEW_TXN", transact),
    ("ADD_PARTITION_TO_TXN", transact),
    ("ADD_SUBSCRIPTION_TO_TXN", transact),
    ("ACK", transact),
    ("END_TXN", transact),
]
NEVER_FAIL = ("CLOSE_PRODUCER", "CLOSE_CONSUMER")
"""The broker has closed what it does not answer, or closes it with the connection."""
NO_REQUESTS = ("CONNECT", "SEND")
"""They have no number that an answer to another could have."""


CASES = [
    (stage, work, script)
    for stage, work in STAGES
    for script in (silent, cut, other, twice)
    if script is not other or stage not in NO_REQUESTS
]


@pytest.mark.parametrize(("stage", "work", "script"), CASES)
async def test_every_call_ends(
    broker: ScriptedBroker,
    stage: str,
    work: Callable[[Client], Awaitable[None]],
    script: Script,
) -> None:
    others = asyncio.all_tasks()
    broker.scripts[stage] = script
    broker.delivers = work in (acknowledge, transact)
    failure: ClientError | None = None
    async with asyncio.timeout(PATIENCE_S):
        async with connect(broker) as client:
            try:
                await work(client)
            except ClientError as error:
                failure = error
    assert stage in broker.received
    assert (failure is None) == (script is twice or stage in NEVER_FAIL), failure
    await only(others)


async def only(others: "set[asyncio.Task[Any]]") -> None:
    """Waits until no task is left besides these and those of the broker."""
    async with asyncio.timeout(PATIENCE_S):
        while [  # noqa: ASYNC110 - tasks end without an event
            task for task in asyncio.all_tasks() - others if "serve" not in repr(task)
        ]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("stage", "work"), STAGES)
async def test_a_close_ends_the_calls_that_are_under_way(
    broker: ScriptedBroker, stage: str, work: Callable[[Client], Awaitable[None]]
) -> None:
    others = asyncio.all_tasks()
    reached = asyncio.Event()

    def hold(session: Session, message: Any) -> bool:
        reached.set()
        return True

    broker.scripts[stage] = hold
    broker.delivers = work in (acknowledge, transact)
    # Closing waits for receipts and for answers to what it sends, so for this long.
    timeout_s = OPERATION_TIMEOUT_S if stage in (*NEVER_FAIL, "SEND", "ACK") else PATIENCE_S * 3
    client = connect(broker, operation_timeout_s=timeout_s)
    working = asyncio.ensure_future(work(client))
    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()
        broker.scripts.clear()
        await client.close()
        await asyncio.wait([working])
    error = working.exception()
    assert error is None or isinstance(error, ClientError)
    await only(others)


def redirected(url: str) -> Script:
    def answer(session: Session, message: Any) -> bool:
        found = pb.CommandLookupTopicResponse(
            request_id=message.request_id, brokerServiceUrl=url, response=CONNECT
        )
        session.write(CommandType.LOOKUP_RESPONSE, found)
        return True

    return answer


@pytest.mark.parametrize("url", [NAME_TOO_LONG, "pulsar://127.0.0.1:99999", "no url", "pulsar://["])
async def test_an_address_that_is_none_is_an_error_of_the_client(
    broker: ScriptedBroker, url: str
) -> None:
    broker.scripts["LOOKUP"] = redirected(url)
    async with asyncio.timeout(PATIENCE_S), connect(broker) as client:
        with pytest.raises(ClientError):
            await produce(client)


@pytest.mark.parametrize("redirect", ["", "no url", NAME_TOO_LONG, "pulsar://127.0.0.1:1"])
@pytest.mark.parametrize("wrong", [None, other, redirected("no url"), redirected(NAME_TOO_LONG)])
async def test_a_consumer_attaches_again_whatever_goes_wrong(
    broker: ScriptedBroker, redirect: str, wrong: Script | None
) -> None:
    def once(session: Session, message: Any) -> bool:
        del broker.scripts["LOOKUP"]
        return wrong is not None and wrong(session, message)

    def attached(session: Session, message: Any) -> bool:
        session.answer(message)
        session.deliver(0, 0, b"again")
        return True

    async with asyncio.timeout(PATIENCE_S), connect(broker) as client:
        consumer = await client.consumer("topic", "sub")
        broker.scripts.update(LOOKUP=once, SUBSCRIBE=attached)
        closing = pb.CommandCloseConsumer(consumer_id=0, request_id=1)
        closing.assignedBrokerServiceUrl = redirect
        broker.sessions[0].write(CommandType.CLOSE_CONSUMER, closing)
        message = await consumer.receive()
        assert message.data == b"again"


async def test_a_frame_that_does_not_go_on_is_not_waited_for(broker: ScriptedBroker) -> None:
    drips: list[asyncio.Task[None]] = []

    async def drip(session: Session) -> None:
        # The sizes of a frame and of its command, whose rest comes too slowly.
        session.writer.write((1000).to_bytes(4) + (900).to_bytes(4))
        while not session.writer.is_closing():
            session.writer.write(b"\0")
            await asyncio.sleep(0.02)

    def attached(session: Session, message: Any) -> bool:
        session.answer(message)
        if drips:
            session.deliver(0, 0, b"again")
        else:
            drips.append(asyncio.create_task(drip(session)))
        return True

    broker.scripts["SUBSCRIBE"] = attached
    async with asyncio.timeout(PATIENCE_S), connect(broker, keep_alive_s=0.1) as client:
        consumer = await client.consumer("topic", "sub")
        assert (await consumer.receive()).data == b"again"
    drips[0].cancel()


async def test_challenges_are_answered_one_at_a_time(broker: ScriptedBroker) -> None:
    asked = 0
    release, answered = asyncio.Event(), asyncio.Event()

    class Slow(NoAuthentication):
        async def credentials(self) -> bytes:
            nonlocal asked
            asked += 1
            if asked > 1:
                await release.wait()
            return b"x"

    def flood(session: Session, message: Any) -> bool:
        for _ in range(100):
            challenge = pb.CommandAuthChallenge(server_version="x", protocol_version=19)
            session.write(CommandType.AUTH_CHALLENGE, challenge)
        return False

    def refreshed(session: Session, message: Any) -> bool:
        answered.set()
        return True

    broker.scripts.update(PARTITIONED_METADATA=flood, AUTH_RESPONSE=refreshed)
    async with asyncio.timeout(PATIENCE_S), connect(broker, auth=Slow()) as client:
        await produce(client)
        assert asked == 2
        release.set()
        await answered.wait()
