"""CONNECT while authentication is on: admitted clients, and the errors of refused ones."""

import asyncio
import logging
from typing import Any

import pytest
from tests.security.sessions import (
    ADMIN,
    METHOD,
    PROXY,
    WordOfRoles,
    closed_broker,
    connect_command,
    connecting,
    security_of,
)
from tests.unit.broker.session.stage import TOPIC, Client

from magnetar.broker.session import access
from magnetar.broker.session.link import SERVER_REQUEST_ID
from magnetar.core.errors import ServerError
from magnetar.security.api import AuthenticationFailed, Identity, Peer
from magnetar.security.secret import Secret
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME, encode_command

LOOKUP = encode_command(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))


def answer(client: Client) -> tuple[int, int, str]:
    """The one ERROR that the client got before the broker closed its connection."""
    (command,) = client.told()
    assert command.type == CommandType.ERROR
    assert client.socket.closed
    message: Any = command.message
    return message.request_id, message.error, message.message


async def test_a_client_that_proves_its_role_is_connected_as_it() -> None:
    async with closed_broker() as w:
        client = await connecting(w, ADMIN)
        assert client.kinds() == ["CONNECTED"]
        assert client.session.principal.roles == (ADMIN,)
        assert security_of(w).counts.accepted == 1


class Remembers(WordOfRoles):
    """An authenticator that remembers what it accepted, until the test lets it expire."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: dict[Secret, Identity] = {}
        self.expired = False

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        if self.expired:
            raise AuthenticationFailed("expired")
        identity = await super().authenticate(method, data, peer)
        self.accepted[data] = identity
        return identity

    def remembered(self, method: str, data: Secret) -> Identity | None:
        identity = self.accepted.get(data) if method == METHOD else None
        if identity is not None and self.expired:
            raise AuthenticationFailed("expired")
        return identity


async def test_remembered_credentials_are_answered_in_the_same_turn() -> None:
    authenticator = Remembers()
    async with closed_broker(authenticator=authenticator) as w:
        await connecting(w, ADMIN)
        again = Client(w)
        again.say(CommandType.CONNECT, connect_command(ADMIN))
        assert again.kinds() == ["CONNECTED"]
        assert again.session.principal.roles == (ADMIN,)
        assert security_of(w).counts.accepted == 2
        assert len(authenticator.peers) == 1

        other_method = await connecting(w, ADMIN, "basic")
        assert answer(other_method)[1] == ServerError.AUTHENTICATION_ERROR
        authenticator.expired = True
        expired = await connecting(w, ADMIN)
        assert answer(expired)[1] == ServerError.AUTHENTICATION_ERROR
        assert security_of(w).counts.refused == 2


async def test_the_roles_of_remembered_credentials_are_checked() -> None:
    authenticator = Remembers()
    async with closed_broker(authenticator=authenticator) as w:
        for _ in range(2):  # a proxy that names no client
            assert answer(await connecting(w, PROXY))[1:] == (
                ServerError.AUTHORIZATION_ERROR,
                "Invalid roles.",
            )
        assert len(authenticator.peers) == 1
        proxied = await connecting(w, PROXY, original_principal="somebody")
        assert proxied.session.principal.roles == (PROXY, "somebody")
        assert len(authenticator.peers) == 2
        assert answer(await connecting(w, ADMIN, original_principal="somebody"))[1] == (
            ServerError.AUTHORIZATION_ERROR
        )


@pytest.mark.parametrize(
    ("data", "method"),
    [("-", METHOD), (ADMIN, "basic"), (ADMIN, None), ("", METHOD), ("!", METHOD)],
)
async def test_a_refused_client_hears_only_that_it_failed(data: str, method: str | None) -> None:
    async with closed_broker() as w:
        client = await connecting(w, data, method)
        assert answer(client) == (
            SERVER_REQUEST_ID,
            ServerError.AUTHENTICATION_ERROR,
            "Failed to authenticate",
        )
        assert security_of(w).counts.refused == 1


async def test_a_provider_that_does_not_answer_makes_clients_retry() -> None:
    async with closed_broker() as w:
        client = await connecting(w, "?")
        number, code, text = answer(client)
        assert (number, code) == (SERVER_REQUEST_ID, ServerError.SERVICE_NOT_READY)
        assert "10.0.0.1" not in text
        assert security_of(w).counts.unavailable == 1


async def test_a_provider_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "AUTHENTICATION_TIMEOUT_S", 0.01)
    async with closed_broker() as w:
        client = Client(w)
        client.say(CommandType.CONNECT, connect_command("..."))
        async with asyncio.timeout(10):
            while not client.socket.closed:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)
        assert answer(client)[1] == ServerError.SERVICE_NOT_READY


@pytest.mark.parametrize(
    ("number", "method"),
    [(pb.AuthMethodNone, "none"), (pb.AuthMethodYcaV1, "ycav1"), (pb.AuthMethodAthens, "athens")],
)
async def test_old_clients_name_their_method_by_number(
    number: int, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with closed_broker() as w:
        with caplog.at_level(logging.WARNING):
            await connecting(w, ADMIN, None, auth_method=number)
        (record,) = caplog.records
        assert f"no provider for {method}" in str(record.__dict__)


async def test_the_log_has_the_reason_once_and_no_credentials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with closed_broker() as w:
        with caplog.at_level(logging.DEBUG):
            for _ in range(5):
                await connecting(w, "-")
                await connecting(w, "!")
        text = " ".join(str(record.__dict__) for record in caplog.records)
        assert len(caplog.records) == 2
        assert "the password of admin is secret" in text
        assert "cannot handle" not in text


# -- before CONNECTED


async def test_nothing_may_be_asked_before_connected() -> None:
    """Commands of the same read are neither answered nor kept for later."""
    async with closed_broker() as w:
        client = Client(w)
        connect = encode_command(CommandType.CONNECT, connect_command(ADMIN))
        client.write(connect, LOOKUP)
        await client.quiet()
        assert client.socket.closed
        assert client.kinds() == []


async def test_keep_alive_is_answered_before_connected() -> None:
    async with closed_broker() as w:
        client = Client(w)
        connect = encode_command(CommandType.CONNECT, connect_command(ADMIN))
        client.write(PING_FRAME, connect, PING_FRAME)
        await client.quiet()
        assert client.kinds() == ["PONG", "PONG", "CONNECTED"]


@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_an_answer_to_no_challenge_ends_the_connection(when: str) -> None:
    async with closed_broker() as w:
        client = Client(w)
        response = pb.CommandAuthResponse(
            response=pb.AuthData(auth_method_name=METHOD, auth_data=ADMIN.encode())
        )
        if when != "before":
            client.say(CommandType.CONNECT, connect_command("somebody"))
        if when == "after":
            await client.quiet()
        client.say(CommandType.AUTH_RESPONSE, response)
        await client.quiet()
        assert client.socket.closed
        assert client.kinds() == (["CONNECTED"] if when == "after" else [])


async def test_a_second_connect_ends_the_connection() -> None:
    async with closed_broker() as w:
        client = await connecting(w, "somebody")
        client.say(CommandType.CONNECT, connect_command(ADMIN))
        await client.quiet()
        assert client.socket.closed
        assert client.kinds() == ["CONNECTED"]


# -- proxies


@pytest.mark.parametrize(
    ("role", "original", "text"),
    [
        (PROXY, None, "Invalid roles."),
        (PROXY, "", "Invalid roles."),
        (PROXY, " ", "Invalid roles."),
        (PROXY, "proxy2", "Invalid roles."),
        (PROXY, PROXY, "Invalid roles."),
        ("somebody", ADMIN, "Invalid roles."),
        ("somebody", "somebody", "Invalid roles."),
        (ADMIN, "somebody", "Invalid roles."),
        (PROXY, "somebody", None),
        ("somebody", None, None),
    ],
)
async def test_only_proxies_name_the_role_of_their_client(
    role: str, original: str | None, text: str | None
) -> None:
    async with closed_broker() as w:
        fields = {} if original is None else {"original_principal": original}
        client = await connecting(w, role, **fields)
        if text is None:
            assert client.kinds() == ["CONNECTED"]
            assert client.session.principal.original == original
        else:
            assert answer(client) == (SERVER_REQUEST_ID, ServerError.AUTHORIZATION_ERROR, text)


async def test_only_proxies_have_a_proxy_version() -> None:
    async with closed_broker() as w:
        client = await connecting(w, "somebody", proxy_version="4.0")
        assert answer(client) == (
            SERVER_REQUEST_ID,
            ServerError.AUTHORIZATION_ERROR,
            "Must not set proxyVersion without connecting as a ProxyRole.",
        )
        proxied = await connecting(w, PROXY, original_principal="somebody", proxy_version="4.0")
        assert proxied.kinds() == ["CONNECTED"]


async def test_a_proxy_is_not_believed_if_its_clients_are_verified() -> None:
    async with closed_broker(verify_original=True) as w:
        fields = {"original_principal": ADMIN, "original_auth_method": METHOD}
        client = await connecting(w, PROXY, **fields, original_auth_data="somebody")
        assert client.kinds() == ["CONNECTED"]
        assert client.session.principal.original == "somebody"
        for wrong in ({"original_auth_data": "-"}, {}):
            client = await connecting(w, PROXY, **fields, **wrong)
            assert answer(client)[1] == ServerError.AUTHENTICATION_ERROR
        client = await connecting(w, PROXY, **fields, original_auth_data="proxy2")
        assert answer(client)[2] == "Invalid roles."


async def test_the_certificate_of_a_proxy_proves_nothing_about_its_client() -> None:
    async with closed_broker(verify_original=True) as w:
        client = Client(w)
        client.socket.peer = Peer("127.0.0.1", b"the proxy's")
        client.say(
            CommandType.CONNECT,
            connect_command(
                PROXY,
                original_principal="somebody",
                original_auth_method=METHOD,
                original_auth_data="somebody",
            ),
        )
        await client.quiet()
        assert client.kinds() == ["CONNECTED"]
        authenticator: Any = security_of(w).authenticator
        assert [peer.certificate for peer in authenticator.peers] == [b"the proxy's", None]
