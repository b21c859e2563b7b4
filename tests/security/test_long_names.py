"""Names as long as a frame permits cost a broker no memory once the command is refused."""

import gc
import logging
import tracemalloc
from pathlib import Path

import pytest
from tests.security.sessions import (
    ADMIN,
    client_as,
    closed_broker,
    connect_command,
    security_of,
)
from tests.unit.broker.session.stage import Client

from magnetar.broker.security.denials import LINES_PER_PRINCIPAL_MAX
from magnetar.broker.session.link import CLIENT_VERSION_CHARS_MAX
from magnetar.core.clock import SystemClock
from magnetar.observe.audit import AuditLog
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
NAME_BYTES = 1 << 18
TIMES = 40
LOGGER = "magnetar.authorization"
KEPT_BYTES_MAX = TIMES * NAME_BYTES // 4


def subscribe(number: int, name: str) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=TOPIC,
        subscription=name,
        subType=pb.CommandSubscribe.Shared,
        consumer_id=number,
        request_id=number,
    )


@pytest.mark.parametrize("role", ["nobody", ADMIN])
async def test_long_names_of_subscriptions_are_not_kept(role: str, tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.log", 64 << 20, 2, SystemClock())
    async with closed_broker(audit=audit) as w:
        await w.topic("t")
        client = await client_as(w, role)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(1, TIMES + 1):
                name = f"{number}-".ljust(NAME_BYTES, "x")
                await client.ask(CommandType.SUBSCRIBE, subscribe(number, name), CommandType.ERROR)
            client.told()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < KEPT_BYTES_MAX
        await security_of(w).close()


async def test_lines_of_the_log_are_short_and_bounded_for_a_role(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with closed_broker() as w:
        client = await client_as(w, "nobody")
        for number in range(1, LINES_PER_PRINCIPAL_MAX + 20):
            name = f"{number}-".ljust(10_000, "x")
            await client.ask(CommandType.SUBSCRIBE, subscribe(number, name), CommandType.ERROR)
        lines = [r.getMessage() for r in caplog.records if r.name == LOGGER]
        assert len(lines) == LINES_PER_PRINCIPAL_MAX
        assert all(len(line) < 2_000 for line in lines)
        assert security_of(w).authorizer is not None
        other = await client_as(w, "another")
        await other.ask(CommandType.SUBSCRIBE, subscribe(1, "s"), CommandType.ERROR)
        assert len([r for r in caplog.records if r.name == LOGGER]) == len(lines) + 1


async def test_a_connection_keeps_the_beginning_of_its_clients_version() -> None:
    async with closed_broker() as w:
        command = connect_command("nobody")
        command.client_version = "Pulsar-CPP-".ljust(60_000, "x")
        client = Client(w)
        client.say(CommandType.CONNECT, command)
        await client.quiet()
        assert client.kinds() == ["CONNECTED"]
        version = client.session.link.client_version
        assert version.startswith("Pulsar-CPP-")
        assert len(version) == CLIENT_VERSION_CHARS_MAX
