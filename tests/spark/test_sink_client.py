"""The sink's client at a broker that keeps the connection open and does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magnetar.core.ids import Position
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import PONG_FRAME, encode_command
from magnetar.wire.events import Command
from magnetar_spark.sink import state
from magnetar_spark.sink.client import connection
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.errors import Unavailable
from magnetar_spark.sink.client.transactions import Coordinator
from magnetar_spark.sink.journal import Base
from magnetar_spark.sink.settings import ClientSettings
from magnetar_spark.sink.state import Journal

HOST = "127.0.0.1"


@asynccontextmanager
async def mute_broker() -> AsyncIterator[tuple[Brokers, list[int]]]:
    """Answers CONNECT, PING and LOOKUP, and nothing else; the commands that it does not answer."""
    unanswered: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        port = writer.get_extra_info("sockname")[1]
        while data := await reader.read(1 << 16):
            for event in decoder.feed(data):
                assert isinstance(event, Command)
                message: Any = event.message
                if event.type == CommandType.CONNECT:
                    answer = pb.CommandConnected(server_version="mute", protocol_version=20)
                    writer.write(encode_command(CommandType.CONNECTED, answer))
                elif event.type == CommandType.PING:
                    writer.write(PONG_FRAME)
                elif event.type == CommandType.LOOKUP:
                    found = pb.CommandLookupTopicResponse(
                        request_id=message.request_id,
                        response=pb.CommandLookupTopicResponse.Connect,
                        brokerServiceUrl=f"pulsar://{HOST}:{port}",
                        authoritative=True,
                    )
                    writer.write(encode_command(CommandType.LOOKUP_RESPONSE, found))
                else:
                    unanswered.append(event.type)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Brokers(ClientSettings(f"pulsar://{HOST}:{port}")) as brokers:
        yield brokers, unanswered


async def test_a_journal_that_is_not_served_fails_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 0.05)
    monkeypatch.setattr(state, "SETTLE_TIMEOUT_S", 0.1)
    async with mute_broker() as (brokers, unanswered):
        journal = Journal(brokers, "persistent://public/default/__spark-sink-q")
        coordinator = Coordinator(brokers, 0, 60_000)
        with pytest.raises(Unavailable, match=r"has not answered in 0\.05 s"):
            await journal.settle(coordinator, "execution", Base(), Position(1, 1))
        with pytest.raises(Unavailable, match="has not answered"):
            await journal.transactions("execution", Base())
        assert set(unanswered) == {CommandType.SUBSCRIBE}
