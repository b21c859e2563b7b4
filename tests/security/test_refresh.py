"""Credentials that expire on an open connection."""

import asyncio
from typing import Any

import pytest
from tests.security.sessions import (
    METHOD,
    PROXY,
    WordOfRoles,
    closed_broker,
    connect_command,
    connecting,
    security_of,
)
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import Client

from magnetar.broker.session import access
from magnetar.core.errors import ServerError
from magnetar.security.api import Identity, Peer
from magnetar.security.secret import Secret
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

SOON_MS = 60_000
LATE_MS = 10 * SOON_MS


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers read the broker's clock often, because tests set that clock."""
    monkeypatch.setattr(access, "TIMER_S_MAX", 0.001)
    monkeypatch.setattr(access, "CHALLENGE_PAUSE_S", 0.0)


def until(w: World, role: str, ms: int) -> str:
    """Credentials that are valid for this long."""
    return f"{role}@{w.clock.now_ms() + ms}"


async def hears_or_is_closed(client: Client) -> Any:
    """The next AUTH_CHALLENGE; None if the broker closed the connection."""
    async with asyncio.timeout(10):
        while True:
            for command in client.told():
                if command.type == CommandType.AUTH_CHALLENGE:
                    return command.message
            if client.socket.closed:
                return None
            await asyncio.sleep(0.001)


async def undisturbed(client: Client) -> bool:
    """Whether the broker sends nothing while its timer fires several times."""
    await asyncio.sleep(0.02)
    return not client.told() and not client.socket.closed


def respond(client: Client, data: str, method: str = METHOD) -> None:
    auth = pb.AuthData(auth_method_name=method, auth_data=data.encode())
    client.say(CommandType.AUTH_RESPONSE, pb.CommandAuthResponse(response=auth))


async def test_the_challenge_comes_at_expiry_and_not_before() -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        assert client.kinds() == ["CONNECTED"]
        w.clock.advance(SOON_MS - 1)
        assert await undisturbed(client)
        w.clock.advance(1)
        challenge = await hears_or_is_closed(client)
        assert challenge.challenge.auth_method_name == METHOD
        assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
        assert challenge.protocol_version == 21


async def test_renewed_credentials_keep_the_connection_until_they_expire() -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        for _ in range(3):
            w.clock.advance(SOON_MS)
            assert await hears_or_is_closed(client) is not None
            respond(client, until(w, "somebody", SOON_MS))
            await client.quiet()
            assert await undisturbed(client)
        assert security_of(w).counts.refreshed == 3
        w.clock.advance(SOON_MS)
        assert await hears_or_is_closed(client) is not None
        respond(client, "somebody")  # which never expires
        await client.quiet()
        w.clock.advance(LATE_MS)
        assert await undisturbed(client)


async def test_another_role_ends_the_connection_without_an_error() -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        w.clock.advance(SOON_MS)
        await hears_or_is_closed(client)
        respond(client, until(w, "admin", LATE_MS))
        await client.quiet()
        assert client.socket.closed
        assert client.kinds() == []


@pytest.mark.parametrize(
    ("data", "code"),
    [("-", ServerError.AUTHENTICATION_ERROR), ("?", ServerError.SERVICE_NOT_READY)],
)
async def test_wrong_renewals_end_the_connection(data: str, code: ServerError) -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        w.clock.advance(SOON_MS)
        await hears_or_is_closed(client)
        respond(client, data)
        await client.quiet()
        assert client.socket.closed
        (command,) = client.told()
        message: Any = command.message
        assert message.error == code


async def test_the_method_cannot_change_with_the_credentials() -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        w.clock.advance(SOON_MS)
        await hears_or_is_closed(client)
        respond(client, until(w, "somebody", LATE_MS), "none")
        await client.quiet()
        assert not client.socket.closed
        assert client.session.access is not None
        assert await undisturbed(client)


@pytest.mark.parametrize("response", [None, pb.AuthData(), pb.AuthData(auth_data=b"somebody")])
async def test_an_incomplete_answer_ends_the_connection(response: pb.AuthData | None) -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        w.clock.advance(SOON_MS)
        await hears_or_is_closed(client)
        client.say(CommandType.AUTH_RESPONSE, pb.CommandAuthResponse(response=response))
        await client.quiet()
        assert client.socket.closed


async def test_a_challenge_without_an_answer_ends_the_connection() -> None:
    async with closed_broker(challenge_answer_s=0.05) as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        w.clock.advance(SOON_MS)
        assert await hears_or_is_closed(client) is not None
        assert await hears_or_is_closed(client) is None
        assert client.kinds() == []
        assert security_of(w).counts.expired == 1


async def test_a_client_that_knows_no_challenge_is_closed_at_expiry() -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS), refreshes=False)
        w.clock.advance(SOON_MS)
        assert await hears_or_is_closed(client) is None


async def test_a_lost_connection_has_no_timer() -> None:
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        assert client.kinds() == ["CONNECTED"]
        client.session.lost(None)
        w.clock.advance(SOON_MS)
        assert await undisturbed(client)


async def test_credentials_that_are_valid_only_by_the_clock_skew_are_not_requested_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "TIMER_S_MAX", 3_600.0)
    monkeypatch.setattr(access, "CHALLENGE_PAUSE_S", 3_600.0)
    async with closed_broker() as w:
        client = await connecting(w, until(w, "somebody", 0))
        assert await hears_or_is_closed(client) is not None
        respond(client, until(w, "somebody", -5))
        await client.quiet()
        assert await undisturbed(client)


# -- CVE-2023-31007: expired credentials keep a connection through a proxy


@pytest.mark.parametrize("verify_original", [False, True])
@pytest.mark.parametrize("forwards", [False, True])
@pytest.mark.parametrize("expires", ["proxy", "client"])
async def test_cve_2023_31007_expiry_in_all_modes_of_proxies(
    verify_original: bool, forwards: bool, expires: str
) -> None:
    async with closed_broker(verify_original=verify_original) as w:
        own = until(w, PROXY, SOON_MS) if expires == "proxy" else until(w, PROXY, LATE_MS)
        theirs = until(w, "somebody", SOON_MS if expires == "client" else LATE_MS)
        fields: dict[str, Any] = {"original_principal": "somebody"}
        if forwards:
            fields |= {"original_auth_method": METHOD, "original_auth_data": theirs}
        client = await connecting(w, own, **fields)
        if verify_original and not forwards:
            assert client.socket.closed
            return
        assert client.kinds() == ["CONNECTED"]
        w.clock.advance(SOON_MS)
        if expires == "proxy":
            assert await hears_or_is_closed(client) is None
        elif verify_original:
            # The challenge passes through the proxy to the client, which renews its own.
            assert await hears_or_is_closed(client) is not None
            respond(client, until(w, "somebody", LATE_MS * 2))
            await client.quiet()
            w.clock.advance(LATE_MS - SOON_MS)  # the proxy's expire now
            assert await hears_or_is_closed(client) is None
        else:
            assert await undisturbed(client)  # the broker never saw credentials of the client
            w.clock.advance(LATE_MS)
            assert await hears_or_is_closed(client) is None


async def test_cve_2023_31007_forwarded_credentials_of_a_client_do_not_replace_its_own() -> None:
    """A CONNECT that looks like a proxy's, without the name of its client."""
    async with closed_broker(verify_original=True) as w:
        client = await connecting(
            w,
            until(w, "somebody", SOON_MS),
            original_auth_method=METHOD,
            original_auth_data=until(w, "somebody", LATE_MS),
            refreshes=False,
        )
        assert client.kinds() == ["CONNECTED"]
        w.clock.advance(SOON_MS)
        assert await hears_or_is_closed(client) is None


async def test_the_proxy_may_renew_nothing_with_the_credentials_of_its_client() -> None:
    async with closed_broker(verify_original=True) as w:
        client = await connecting(
            w,
            PROXY,
            original_principal="somebody",
            original_auth_method=METHOD,
            original_auth_data=until(w, "somebody", SOON_MS),
        )
        w.clock.advance(SOON_MS)
        await hears_or_is_closed(client)
        respond(client, PROXY)
        await client.quiet()
        assert client.socket.closed


# -- connections that end while a proof is under way


class HeldProof(WordOfRoles):
    """An authenticator that answers once the test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.permitted = asyncio.Event()
        self.permitted.set()
        self.asked = asyncio.Event()

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        self.asked.set()
        await self.permitted.wait()
        return await super().authenticate(method, data, peer)

    def hold(self) -> None:
        self.permitted.clear()
        self.asked.clear()


async def test_a_connection_that_is_lost_during_its_proof_is_not_counted_and_has_no_timer() -> None:
    proofs = HeldProof()
    async with closed_broker(authenticator=proofs) as w:
        proofs.hold()
        client = Client(w)
        client.say(CommandType.CONNECT, connect_command(until(w, "somebody", SOON_MS)))
        await proofs.asked.wait()
        access_of = client.session.access
        assert access_of is not None
        proving = asyncio.create_task(access_of.prove(connect_command(until(w, "x", SOON_MS))))
        await asyncio.sleep(0)
        client.session.lost(None)
        proofs.permitted.set()
        assert not await proving
        w.clock.advance(SOON_MS)
        assert await undisturbed(client)
        assert security_of(w).counts.accepted == security_of(w).counts.expired == 0


@pytest.mark.parametrize("late", [False, True])
async def test_a_renewal_of_a_connection_that_has_ended_has_no_effect(late: bool) -> None:
    proofs = HeldProof()
    async with closed_broker(authenticator=proofs, challenge_answer_s=0.05 if late else 60.0) as w:
        client = await connecting(w, until(w, "somebody", SOON_MS))
        w.clock.advance(SOON_MS)
        assert await hears_or_is_closed(client) is not None
        proofs.hold()
        access_of = client.session.access
        assert access_of is not None
        auth = pb.AuthData(
            auth_method_name=METHOD, auth_data=until(w, "somebody", LATE_MS).encode()
        )
        renewing = asyncio.create_task(access_of.renew(pb.CommandAuthResponse(response=auth)))
        await proofs.asked.wait()
        if late:
            assert await hears_or_is_closed(client) is None
        else:
            client.session.lost(None)
        expired = security_of(w).counts.expired
        proofs.permitted.set()
        await renewing
        w.clock.advance(2 * LATE_MS)
        await asyncio.sleep(0.02)
        assert client.kinds() == []
        assert security_of(w).counts.refreshed == 0
        assert security_of(w).counts.expired == expired
