"""The proof of identity of one connection, under any order of commands, answers and time.

The model knows only the proven role and its expiry. The broker handles commands of connected
clients only, and no client stays connected longer after its credentials expired than it may take to
answer a challenge.
"""

import asyncio
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.security.sessions import METHOD, PROXY, closed_broker, connect_command
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import TOPIC, Client

from magnetar.broker.session import access
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME

ROLES: Final = ("writer", "admin")
HOUR_MS: Final = 3_600_000

credentials = st.one_of(
    st.sampled_from(("-", "?", "!", "", *ROLES)),
    st.tuples(st.sampled_from(ROLES), st.integers(-5, 90)).map(lambda pair: f"{pair[0]}+{pair[1]}"),
)
"""`ROLE+SECONDS` expires this many seconds after it is sent."""
steps = st.one_of(
    st.tuples(st.just("connect"), credentials, st.booleans(), st.booleans(), credentials),
    st.tuples(st.just("respond"), credentials),
    st.tuples(st.just("incomplete")),
    st.tuples(st.just("lookup")),
    st.tuples(st.just("ping")),
    st.tuples(st.just("advance"), st.integers(1, 120)),
)


class Model:
    """The role that the client has proven, and the responses that it must get."""

    def __init__(self, w: World, client: Client) -> None:
        self.w = w
        self.client = client
        self.connected = False
        self.challenged = False
        self.role = ""
        self.closed = False

    def text(self, credential: str) -> str:
        """The credentials as the authenticator of tests reads them."""
        role, plus, seconds = credential.partition("+")
        return f"{role}@{self.w.clock.now_ms() + int(seconds) * 1000}" if plus else role

    async def turn(self) -> list[Any]:
        """Lets timers and tasks run; returns what the broker sent."""
        await self.client.quiet()
        for _ in range(6):
            await asyncio.sleep(0.0006)  # timers of TIMER_S_MAX
        await self.client.quiet()
        recorded = self.client.told()
        for command in recorded:
            if command.type == CommandType.CONNECTED:
                assert not self.connected
                assert not self.closed
                self.connected = True
            elif command.type == CommandType.AUTH_CHALLENGE:
                assert self.connected
                assert not self.challenged
                assert self.expired_ms() >= 0
                self.challenged = True
        self.closed = self.closed or self.client.socket.closed
        if self.closed:
            self.connected = False
        return recorded

    def expired_ms(self) -> int:
        """How long the credentials have been expired; negative before that."""
        proof = self.client.session.access._proof  # type: ignore[union-attr]
        assert proof is not None
        assert proof.expires_at_ms is not None
        return self.w.clock.now_ms() - proof.expires_at_ms


async def play(plan: list[tuple[Any, ...]]) -> None:
    async with closed_broker(authorization=False, verify_original=True) as w:
        model = Model(w, Client(w))
        client = model.client
        for step in plan:
            was_closed, was_connected = model.closed, model.connected
            was_challenged = model.challenged
            sound = await act(model, step)
            recorded = await model.turn()
            kinds = [command.type for command in recorded]
            if was_closed:
                assert not recorded
            if step[0] == "lookup":
                assert (CommandType.LOOKUP_RESPONSE in kinds) == (was_connected and not was_closed)
                assert was_connected or model.closed
            elif step[0] == "ping" and not was_closed:
                assert CommandType.PONG in kinds
            elif step[0] == "connect":
                first = not was_connected and not was_closed
                assert (CommandType.CONNECTED in kinds) == (first and sound)
                assert model.connected <= (first and sound)  # perhaps expired at once
            elif step[0] in ("respond", "incomplete") and was_connected:
                assert model.connected <= (was_challenged and sound)
            proof = client.session.access._proof if client.session.access else None
            if model.connected and proof is not None and proof.expires_at_ms is not None:
                # Valid, or challenged at once: nothing else keeps a connection.
                assert model.expired_ms() < 0 or model.challenged
        client.session.lost(None)


async def act(model: Model, step: tuple[Any, ...]) -> bool:
    """Does the step; returns whether the credentials in it are sound."""
    client = model.client
    match step:
        case ("connect", own, refreshes, proxied, theirs):
            role = PROXY + own.partition("writer")[2] if proxied and "writer" in own else own
            fields: dict[str, Any] = {}
            if proxied:
                fields = {
                    "original_principal": "writer",
                    "original_auth_method": METHOD,
                    "original_auth_data": model.text(theirs),
                }
            command = connect_command(model.text(role), refreshes=refreshes, **fields)
            client.say(CommandType.CONNECT, command)
            model.role = (theirs if proxied else own).partition("+")[0]
            return valid(own) and (not proxied or valid(theirs))
        case ("respond", text):
            data = pb.AuthData(auth_method_name=METHOD, auth_data=model.text(text).encode())
            client.say(CommandType.AUTH_RESPONSE, pb.CommandAuthResponse(response=data))
            model.challenged = False
            return valid(text) and text.partition("+")[0] == model.role
        case ("incomplete",):
            client.say(CommandType.AUTH_RESPONSE, pb.CommandAuthResponse())
            model.challenged = False
            return False
        case ("lookup",):
            client.say(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))
        case ("ping",):
            client.write(PING_FRAME)
        case ("advance", seconds):
            model.w.clock.advance(seconds * 1000)
    return True


def valid(text: str) -> bool:
    return text.partition("+")[0] in ROLES


# A timeout that strikes inside of a task of the broker would be that task's failure, and be lost.
@pytest.mark.timeout(600)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(plan=st.lists(steps, max_size=8))
def test_any_order_of_commands_and_time(
    plan: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "TIMER_S_MAX", 0.0005)
    monkeypatch.setattr(access, "CHALLENGE_PAUSE_S", 0.0)
    asyncio.run(play(plan))
