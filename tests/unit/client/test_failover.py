"""Failover between clusters: the decisions, and a client that switches between two brokers."""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.broker import running_broker

from magnetar.client import AutoFailover, AvroSchema, Client, ControlledFailover, InitialPosition
from magnetar.client.errors import AckFailed, ClientError, Disconnected, InvalidConfiguration
from magnetar.client.failover import FailoverState, addresses_of

PATIENCE_S = 60.0
OPTIONS = AutoFailover(["pulsar://b", "pulsar://c"], failover_delay_s=10, switch_back_delay_s=20)


def test_a_cluster_is_left_after_the_delay() -> None:
    state = FailoverState(OPTIONS)
    assert state.to_check() == [0]
    assert state.decide({0: False}, 0) == []
    assert state.decide({0: False}, 9) == []
    assert state.decide({0: True}, 10) == []
    assert state.decide({0: False}, 11) == []
    assert state.decide({0: False}, 21) == [1, 2]
    state.switched(2)
    assert state.to_check() == [2, 0]


def test_the_client_returns_to_a_primary_that_answers_for_a_while() -> None:
    state = FailoverState(OPTIONS)
    state.switched(1)
    assert state.decide({1: True, 0: True}, 0) == []
    assert state.decide({1: True, 0: False}, 10) == []
    assert state.decide({1: True, 0: True}, 11) == []
    assert state.decide({1: True, 0: True}, 30) == []
    assert state.decide({1: True, 0: True}, 31) == [0]


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans(), st.booleans()), max_size=60))
def test_no_cluster_is_left_while_it_answers(steps: list[tuple[float, bool, bool]]) -> None:
    """Except for the primary, and never before the delay."""
    state, now, failing_since = FailoverState(OPTIONS), 0.0, None
    for pause, current_answers, primary_answers in steps:
        now += pause
        answers = {state.current: current_answers} | ({0: primary_answers} if state.current else {})
        failing_since = None if current_answers else now if failing_since is None else failing_since
        candidates = state.decide(answers, now)
        if candidates and candidates != [0]:
            assert failing_since is not None
            assert now - failing_since >= OPTIONS.failover_delay_s
            assert state.current not in candidates
        if candidates:
            state.switched(candidates[0])
            failing_since = None


@pytest.mark.parametrize(
    "make",
    [
        lambda: AutoFailover([]),
        lambda: AutoFailover("pulsar://b"),
        lambda: AutoFailover(["pulsar://b"], check_s=0),
        lambda: ControlledFailover("pulsar://b"),
        lambda: addresses_of("pulsar://a", AutoFailover(["http://b"])),
        lambda: Client("pulsar://a", failover="pulsar://b"),
    ],
)
def test_refused_options(make: object) -> None:
    with pytest.raises(InvalidConfiguration, match="failover"):
        make()  # type: ignore[operator]


async def test_a_client_moves_with_all_it_has() -> None:
    """Messages without receipt go to the other cluster; acks of the first's messages do not."""
    async with AsyncExitStack() as clusters:
        _, second = await clusters.enter_async_context(running_broker())
        first_cluster = AsyncExitStack()
        _, first = await first_cluster.enter_async_context(running_broker())
        failover = AutoFailover(
            [f"pulsar://127.0.0.1:{second}"], failover_delay_s=0.0, check_s=0.01
        )
        url = f"pulsar://127.0.0.1:{first}"
        async with Client(url, failover=failover, backoff_max_s=0.1) as client:
            producer = await client.producer("orders", batching=None)
            reader = await client.reader("orders")
            consumer = await client.consumer(
                "orders", "s", initial_position=InitialPosition.EARLIEST, ack_receipt=True
            )
            await producer.send(b"1")
            old = await consumer.receive(PATIENCE_S)
            assert (await reader.read(PATIENCE_S)).value == b"1"
            await first_cluster.aclose()
            with pytest.raises(ClientError, match="another cluster"):
                await reader.read(PATIENCE_S)
            assert await producer.send(b"2")
            new = await consumer.receive(PATIENCE_S)
            assert new.value == b"2"
            assert new.id.ledger_id == old.id.ledger_id, "else this test shows nothing"
            with pytest.raises(AckFailed, match="has left"):
                await consumer.ack(old)
            await consumer.nack(old)
            await consumer.ack(new)
            await consumer.close()
            async with client.consumer("orders", "s") as again:
                assert not await again.has_message_available()


@dataclass
class Old:
    b: int | None


@dataclass
class New:
    b: int | None
    a: str | None = None


async def test_versions_of_schemas_are_those_of_the_cluster() -> None:
    """The schema is version 0 in the first cluster, and 1 in the second."""
    async with AsyncExitStack() as clusters:
        _, second = await clusters.enter_async_context(running_broker())
        async with Client(f"pulsar://127.0.0.1:{second}") as other:
            old = AvroSchema(Old, name="Thing")
            async with other.producer("orders", schema=old) as producer:
                await producer.send(Old(1))
        first_cluster = AsyncExitStack()
        _, first = await first_cluster.enter_async_context(running_broker())
        failover = AutoFailover(
            [f"pulsar://127.0.0.1:{second}"], failover_delay_s=0.0, check_s=0.01
        )
        schema = AvroSchema(New, name="Thing")
        url = f"pulsar://127.0.0.1:{first}"
        async with Client(url, failover=failover, backoff_max_s=0.1) as client:
            consumer = await client.consumer(
                "orders", "s", schema=schema, initial_position=InitialPosition.EARLIEST
            )
            moving = await client.producer("orders", schema=schema)
            await moving.send(New(2, "x"))
            message = await consumer.receive(PATIENCE_S)
            assert (message.schema_version, message.value) == (bytes(8), New(2, "x"))
            await first_cluster.aclose()
            received = [await consumer.receive(PATIENCE_S)]
            # The consumer may have moved before the producer: then the message was encoded for the
            # first cluster, and its error says so.
            with suppress(Disconnected):
                await moving.send(New(3, "y"))
                received.append(await consumer.receive(PATIENCE_S))
            if len(received) == 1:
                await moving.send(New(3, "y"))
                received.append(await consumer.receive(PATIENCE_S))
            assert [m.value for m in received] == [New(1), New(3, "y")]
            assert received[1].schema_version == (1).to_bytes(8, "big")


class Control:
    """An HTTP service that answers with a document."""

    def __init__(self) -> None:
        self.document: object = {}
        self.asked = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(self.document).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        self.asked.set()


async def test_a_control_service_names_the_cluster() -> None:
    control = Control()
    server = await asyncio.start_server(control.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with running_broker() as (_, second), running_broker() as (_, first):
        failover = ControlledFailover(f"http://127.0.0.1:{port}/url", check_s=0.01)
        url = f"pulsar://127.0.0.1:{first}"
        control.document = {"serviceUrl": url}
        async with Client(url, failover=failover, backoff_max_s=0.1) as client:
            producer = await client.producer("orders")
            await producer.send(b"1")
            documents: list[object] = [
                {"serviceUrl": "http://127.0.0.1"},
                {"serviceUrl": url, "authPluginClassName": "x"},
                {"other": 1},
                [],
            ]
            for refused in documents:
                control.document = refused
                for _ in range(2):
                    control.asked.clear()
                    async with asyncio.timeout(PATIENCE_S):
                        await control.asked.wait()
            control.document = {"serviceUrl": f"pulsar://127.0.0.1:{second}"}

            async def keep_sending() -> None:
                while True:
                    await producer.send(b"2")

            sending = asyncio.create_task(keep_sending())
            async with (
                Client(f"pulsar://127.0.0.1:{second}") as other,
                other.reader("orders") as reader,
            ):
                assert (await reader.read(PATIENCE_S)).value == b"2"
            sending.cancel()
    server.close()
    await server.wait_closed()
