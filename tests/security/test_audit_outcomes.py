"""The audit log has the outcome of requests, and permitted attachments."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.security.sessions import (
    ADMIN,
    client_as,
    closed_broker,
    connect_command,
    connecting,
    grant,
    security_of,
)
from tests.security.test_commands_matrix import watched
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import TOPIC, Client

from magnetar.admin.rights.audit_trail import AuditTrail, note
from magnetar.admin.rights.caller import ROLE_HEADER
from magnetar.broker.security.denials import Denials
from magnetar.core.clock import SystemClock
from magnetar.observe.audit import AuditLog, AuditRecord
from magnetar.observe.audit_budget import SENDER_RECORDS_MAX
from magnetar.security.api import ProviderUnavailable
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

from .rest import BROKER, SUPER, SUPER_PROXY, closed_rest, token
from .rest import TOPIC as REST_TOPIC

Lines = list[dict[str, Any]]


def read(file: Path) -> Lines:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_a_request_has_the_status_of_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with closed_rest(audit_log_file=file) as closed:
        await closed.call("ta", "PUT", "~/persistent/t1/n1/new")
        await closed.call("ta", "PUT", "~/persistent/t1/n1/new")
        await closed.call("ta", "DELETE", "~/persistent/t1/n1/none")
        await closed.call("nobody", "GET", "~/persistent/t1/n1/a/stats")
        await closed.call("nobody", "GET", "~/namespaces/t1/n1/retention")
        await closed.send("DELETE", "~/tenants/t1", None)
        await closed.call(SUPER_PROXY, "DELETE", "~/tenants/t1")
    lines = [line for line in read(file) if line["role"] != SUPER]
    assert [(line["role"], line["allowed"], line["status"]) for line in lines] == [
        ("ta", True, 204),
        ("ta", True, 409),
        ("ta", True, 404),
        ("nobody", False, 401),
        ("nobody", False, 403),
        ("", False, 401),
        (SUPER_PROXY, False, 401),
    ]
    assert lines[-1]["reason"].startswith("Original principal cannot be empty")


async def test_the_prefix_mode_refuses_in_the_log_as_well(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    path = "~/persistent/t1/n1/a/subscription/wrong"
    async with closed_rest(audit_log_file=file) as closed:
        await closed.done("ta", "POST", "~/namespaces/t1/n1/subscriptionAuthMode", "Prefix")
        async with asyncio.timeout(30):
            while (await closed.call("cons", "PUT", path)).status_code != 403:
                await closed.done("ta", "DELETE", path)
    refused = [line for line in read(file) if line["role"] == "cons" and not line["allowed"]]
    assert [(line["status"], line["target"]) for line in refused] == [(403, REST_TOPIC)]


async def test_a_broker_that_acts_for_a_role_is_named(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with closed_rest(audit_log_file=file) as closed:
        headers = {ROLE_HEADER: "ta"}
        await closed.send("PUT", "~/persistent/t1/n1/x", token(BROKER), headers=headers)
        await closed.send("PUT", "~/persistent/t1/n1/y", token("ta"))
    lines = [line for line in read(file) if line["role"] == "ta"]
    assert [line.get("forwarder") for line in lines] == [BROKER, None]


async def test_the_value_of_a_setting_is_not_in_the_log(tmp_path: Path) -> None:
    """Pulsar's tools put it into the path, and it may be the token of the brokers."""
    file = tmp_path / "audit.log"
    path = "~/brokers/configuration/brokerClientAuthenticationParameters/token:abc"
    async with closed_rest(audit_log_file=file) as closed:
        await closed.call(SUPER, "POST", path)
        await closed.call("nobody", "POST", path)
        await closed.send("POST", path, None)
    assert "brokerClientAuthenticationParameters" in file.read_text()
    assert "abc" not in file.read_text()


def record(action: str) -> AuditRecord:
    return AuditRecord(action, "", "r", "", "127.0.0.1", allowed=True)


async def served(tmp_path: Path, app: Callable[[Request], Any]) -> Lines:
    """The records of one request to a handler that notes one."""
    audit = AuditLog(tmp_path / "audit.log", 1 << 20, 2, SystemClock())
    audit.start()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        note(scope, record("GET /"))
        response: Response = await app(Request(scope))
        await response(scope, receive, send)

    async def send(_: object) -> None:
        await asyncio.sleep(0)

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    try:
        await AuditTrail(inner, audit)(scope, receive, send)
    except RuntimeError:
        pass  # handled by the server
    finally:
        await audit.stop()
    return read(tmp_path / "audit.log")


async def test_a_request_without_an_answer_is_written_without_a_status(tmp_path: Path) -> None:
    async def fails(_: Request) -> Response:
        raise RuntimeError("a bug")

    (line,) = await served(tmp_path, fails)
    assert "status" not in line
    assert line["action"] == "GET /"


@asynccontextmanager
async def audited_broker(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[World, Path]]:
    audit = AuditLog(tmp_path / "audit.log", 1 << 20, 2, SystemClock())
    async with closed_broker(audit=audit, **more) as w:
        yield w, tmp_path / "audit.log"


async def lines_of(w: World, file: Path) -> Lines:
    """All lines but those of CONNECT; the broker writes no more afterwards."""
    await security_of(w).close()
    return [line for line in read(file) if line["action"] != "CONNECT"]


async def consumes(client: Client, subscription: str, consumer_id: int = 1) -> None:
    await client.consumes(consumer_id, subscription=subscription)


@pytest.mark.parametrize("authorization", [True, False])
async def test_permitted_attachments_are_written(tmp_path: Path, authorization: bool) -> None:
    async with audited_broker(tmp_path, authorization=authorization) as (w, file):
        await w.topic("t")
        client = await client_as(w, ADMIN)
        await client.produces()
        await consumes(client, "s")
        lines = await lines_of(w, file)
    shown = [
        (line["action"], line["role"], line["target"], line.get("subscription"), line["allowed"])
        for line in lines
    ]
    assert shown == [
        ("PRODUCER", ADMIN, TOPIC, None, True),
        ("SUBSCRIBE", ADMIN, TOPIC, "s", True),
    ]


async def test_an_attachment_that_is_repeated_is_written_once(tmp_path: Path) -> None:
    async with audited_broker(tmp_path) as (w, file):
        await w.topic("t")
        for _ in range(3):
            client = await client_as(w, ADMIN)
            await consumes(client, "s")
            await consumes(client, "other", consumer_id=2)
            client.session.lost(None)
        lines = await lines_of(w, file)
    assert [line["subscription"] for line in lines] == ["s", "other"]


async def test_a_refused_attachment_is_written_as_refused_only(tmp_path: Path) -> None:
    async with audited_broker(tmp_path) as (w, file):
        await w.topic("t")
        await grant(w, "reader", "consume")
        client = await client_as(w, "reader")
        command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        await client.ask(CommandType.PRODUCER, command, CommandType.ERROR)
        authorizer = security_of(w).authorizer
        assert authorizer is not None
        assert authorizer.denials.by_kind["topic"] == 1
        lines = await lines_of(w, file)
    assert lines == []  # the stage's authorizer has no audit log of its own


async def refused_attachments(w: World, role: str, port: int, count: int) -> None:
    """Connects from this port as a role without rights, which tries to attach producers."""
    client = Client(w)
    client.session.link.address = f"/10.0.0.7:{port}"
    client.say(CommandType.CONNECT, connect_command(role))
    await client.quiet()
    for number in range(count):
        command = pb.CommandProducer(topic=f"{TOPIC}{number}", producer_id=1, request_id=1)
        client.say(CommandType.PRODUCER, command)
    await client.quiet()
    client.session.lost(None)


async def test_refusals_are_bounded_for_an_address_whatever_its_ports(tmp_path: Path) -> None:
    """Otherwise a client without rights rotates the records of others out of the log."""
    audit = AuditLog(tmp_path / "audit.log", 1 << 20, 2, SystemClock())
    denials = Denials(audit)
    async with closed_broker(audit=audit, denials=denials) as w:
        await w.topic("t")
        for port in range(5):
            await refused_attachments(w, "nobody", 40_000 + port, SENDER_RECORDS_MAX)
        lines = await lines_of(w, tmp_path / "audit.log")
    assert {line["address"] for line in lines} == {"10.0.0.7"}
    assert {line["action"] for line in lines} == {"PRODUCER"}
    assert len(lines) == SENDER_RECORDS_MAX
    assert denials.by_kind["topic"] == 5 * SENDER_RECORDS_MAX


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        ("-", "authentication failed"),
        ("?", "the identity provider does not answer"),
        ("!", "authentication failed"),
    ],
)
async def test_every_refused_connection_is_written(
    tmp_path: Path, credentials: str, reason: str
) -> None:
    async with audited_broker(tmp_path) as (w, file):
        await connecting(w, credentials)
        await security_of(w).close()
    (line,) = read(file)
    assert (line["action"], line["role"], line["allowed"]) == ("CONNECT", "", False)
    assert line["reason"] == reason


async def test_a_connection_that_is_closed_for_its_credentials_is_written(tmp_path: Path) -> None:
    async with audited_broker(tmp_path) as (w, file):
        client = await client_as(w, f"me@{w.clock.now_ms()}", refreshes=False)
        async with asyncio.timeout(30):
            while not client.socket.closed:  # noqa: ASYNC110 - the timer has no event
                await asyncio.sleep(0.001)
        await security_of(w).close()
    accepted, closed = read(file)
    assert (accepted["role"], accepted["allowed"]) == ("me", True)
    assert (closed["role"], closed["allowed"]) == ("me", False)
    assert "refresh" in closed["reason"]


async def test_an_end_for_a_lost_right_is_written(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.log", 1 << 20, 2, SystemClock())
    async with closed_broker(audit=audit, denials=Denials(audit)) as w:
        await w.topic("t")
        await grant(w, "both", "produce", "consume")
        await watched()
        client = await client_as(w, "both")
        await client.produces()
        await client.consumes()
        await grant(w, "both")
        ends = {CommandType.CLOSE_PRODUCER, CommandType.CLOSE_CONSUMER}
        async with asyncio.timeout(30):
            while not ends <= {command.type for command in client.socket.commands}:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        lines = await lines_of(w, tmp_path / "audit.log")
    ended = [
        (line["action"], line["role"], line["target"]) for line in lines if not line["allowed"]
    ]
    assert ended == [("CLOSE_PRODUCER", "both", TOPIC), ("CLOSE_CONSUMER", "both", TOPIC)]


async def test_a_connection_beyond_a_cap_is_written(tmp_path: Path) -> None:
    async with audited_broker(tmp_path, settings={"connections_max": 1}) as (w, file):
        await client_as(w, ADMIN)
        assert (await connecting(w, ADMIN)).socket.closed
        await security_of(w).close()
    refused = [line for line in read(file) if not line["allowed"]]
    assert [(line["role"], line["address"]) for line in refused] == [("", "127.0.0.1")]
    assert refused[0]["reason"] == "Reached the maximum number of connections"


async def test_a_request_that_nobody_can_verify_and_one_too_many_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.log"
    limit = {"http_requests_limited": True, "http_requests_per_s": 1_000.0}
    async with closed_rest(audit_log_file=file, **limit) as closed:
        service = closed.service
        assert service.security is not None
        assert service.request_limit is not None
        monkeypatch.setattr(service.request_limit, "admits_role", lambda role: role != "ta")
        assert (await closed.call("ta", "DELETE", "~/tenants/t2")).status_code == 429

        async def absent(*_: object) -> None:
            raise ProviderUnavailable("no answer of https://10.0.0.1")

        monkeypatch.setattr(service.security.authenticator, "authenticate_http", absent)
        assert (await closed.call("tb", "DELETE", "~/tenants/t2")).status_code == 503
    lines = [line for line in read(file) if line["role"] != SUPER]
    assert [(line["role"], line["allowed"], line["status"]) for line in lines] == [
        ("ta", False, 429),
        ("", False, 503),
    ]
    assert "10.0.0.1" not in file.read_text()


async def test_without_an_audit_log_the_handlers_are_the_same_as_before() -> None:
    async with closed_broker(authorization=False) as w:
        client = await client_as(w, ADMIN)
        from magnetar.broker.session import producers

        assert client.session._handlers[CommandType.PRODUCER] is producers.on_producer
