"""The rate of commands that look up, list or attach: of one address, and of one role."""

from typing import Any

import pytest
from tests.security.sessions import ADMIN, PROXY, client_as, closed_broker
from tests.unit.broker.lifecycle.world import World, world
from tests.unit.broker.session.stage import Client

from magnetar.broker.rates.request_limit import RequestLimit
from magnetar.broker.session.request_rate import LIMITED
from magnetar.core.errors import ServerError
from magnetar.security.api import Peer
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
PER_S = 4.0
BURST = 2
"""Half a second's requests."""


class Stopped:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def limit_of(w: World) -> Stopped:
    """Limits what clients made from now on may send; returns the clock."""
    clock = Stopped()
    w.service.command_limit = RequestLimit(PER_S, clock)
    return clock


async def looks_up(client: Client) -> bool:
    """Whether a look-up is not refused for the rate."""
    client.told()
    client.say(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))
    answer = await client.hears(CommandType.LOOKUP_RESPONSE)
    if answer.error != ServerError.TOO_MANY_REQUESTS:
        return True
    assert "requests_per_s_max" in answer.message
    return False


def at(client: Client, address: str) -> Client:
    client.socket.peer = Peer(address)
    return client


async def test_an_address_is_limited_and_another_is_not() -> None:
    async with world() as w:
        clock = limit_of(w)
        client, again = Client(w).connect(), Client(w).connect()
        other = at(Client(w).connect(), "10.0.0.2")
        assert [await looks_up(client) for _ in range(BURST)] == [True] * BURST
        assert not await looks_up(again)
        assert await looks_up(other)
        clock.now_s += 1 / PER_S
        assert [await looks_up(again) for _ in range(2)] == [True, False]
        assert w.service.command_limit is not None
        assert w.service.command_limit.refused == {"address": 2, "role": 0}


async def test_a_role_is_limited_from_all_addresses_and_super_users_are_not() -> None:
    async with closed_broker() as w:
        limit_of(w)

        async def one(role: str, number: int) -> bool:
            return await looks_up(at(await client_as(w, role), f"10.0.0.{number}"))

        assert [await one("a", number) for number in range(3)] == [True, True, False]
        assert [await one(ADMIN, 10 + number) for number in range(4)] == [True] * 4


async def test_behind_a_proxy_the_role_of_its_client_counts_and_the_address_does_not() -> None:
    async with closed_broker() as w:
        limit_of(w)

        async def one(original: str) -> bool:
            return await looks_up(await client_as(w, PROXY, original_principal=original))

        roles = ("a", "b", "c", "a", "a", "b")
        assert [await one(role) for role in roles] == [True] * 4 + [False, True]


@pytest.mark.parametrize("kind", LIMITED, ids=CommandType.Name)
async def test_each_limited_command_is_refused_and_answered(kind: Any) -> None:
    async with world() as w:
        limit_of(w)
        client = Client(w).connect()
        for _ in range(BURST):
            assert await looks_up(client)
        client.told()
        client.say(kind, _command(kind))
        (answer,) = client.told()
        message: Any = answer.message
        number = getattr(message, "error", None) or message.error_code
        assert number == ServerError.TOO_MANY_REQUESTS
        assert message.request_id == 7


def _command(kind: int) -> Any:
    schema = pb.Schema(name="s", schema_data=b"", type=pb.Schema.String)
    shared = pb.CommandSubscribe.Shared
    return {
        CommandType.LOOKUP: pb.CommandLookupTopic(topic=TOPIC, request_id=7),
        CommandType.PARTITIONED_METADATA: pb.CommandPartitionedTopicMetadata(
            topic=TOPIC, request_id=7
        ),
        CommandType.GET_TOPICS_OF_NAMESPACE: pb.CommandGetTopicsOfNamespace(
            namespace="public/default", request_id=7
        ),
        CommandType.WATCH_TOPIC_LIST: pb.CommandWatchTopicList(
            namespace="public/default", request_id=7, watcher_id=1, topics_pattern=".*"
        ),
        CommandType.PRODUCER: pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7),
        CommandType.SUBSCRIBE: pb.CommandSubscribe(
            topic=TOPIC,
            subscription="s",
            subType=shared,
            consumer_id=1,
            request_id=7,
        ),
        CommandType.GET_SCHEMA: pb.CommandGetSchema(topic=TOPIC, request_id=7),
        CommandType.GET_OR_CREATE_SCHEMA: pb.CommandGetOrCreateSchema(
            topic=TOPIC, request_id=7, schema=schema
        ),
    }[kind]  # type: ignore[index]
