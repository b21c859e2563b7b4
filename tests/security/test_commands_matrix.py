"""Every command of the binary protocol for every kind of client: who may send it, who may not.

`MAY` is written by hand, from the rights that Pulsar's documentation gives to roles; it does not
use the table that it tests. A command of the table that is missing here fails a test.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from google.protobuf.message import Message
from tests.security.sessions import (
    ADMIN,
    PROXY,
    client_as,
    closed_broker,
    connecting,
    grant,
    other_tenant,
    security_of,
)
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import TOPIC, Client

from magnetar.broker.security.rights import RIGHTS
from magnetar.broker.session.handlers import HANDLERS
from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.connection_state import FROM_CLIENT, KEEP_ALIVE
from magnetar.wire.encoder import encode_command

NAMESPACE: Final = "public/default"
CONSUMER: Final = 7
DENIED: Final = ServerError.AUTHORIZATION_ERROR

GRANTS: Final[dict[str, tuple[str, ...]]] = {
    "nobody": (),
    "producer": ("produce",),
    "consumer": ("consume",),
    "functions": ("functions", "sources", "sinks", "packages"),
}
"""What these roles may do on the namespace."""
CLIENTS: Final = {
    **{role: (role, None) for role in GRANTS},
    "topic-producer": ("topic-producer", None),
    "tenant-admin": ("public-admin", None),
    "admin of another tenant": ("other-admin", None),
    "super user": (ADMIN, None),
    "nobody through a proxy": (PROXY, "nobody"),
    "consumer through a proxy": (PROXY, "consumer"),
    "consumer through a proxy without rights": ("proxy2", "consumer"),
}
"""(role, original role) by name."""

ADMINS: Final = {"tenant-admin", "super user"}
READERS: Final = ADMINS | {"consumer", "consumer through a proxy"}
WRITERS: Final = ADMINS | {"producer", "topic-producer"}
MAY: Final[dict[str, set[str]]] = {
    "LOOKUP": READERS | WRITERS,
    "PARTITIONED_METADATA": READERS | WRITERS,
    "GET_SCHEMA": READERS | WRITERS,
    "CONSUMER_STATS": READERS | WRITERS,
    "GET_TOPICS_OF_NAMESPACE": READERS | {"producer"},
    "WATCH_TOPIC_LIST": READERS | {"producer"},
    "PRODUCER": WRITERS,
    "GET_OR_CREATE_SCHEMA": WRITERS,
    "ADD_PARTITION_TO_TXN": WRITERS,
    "SUBSCRIBE": READERS,
    "UNSUBSCRIBE": READERS,
    "SEEK": READERS,
    "GET_LAST_MESSAGE_ID": READERS,
    "ADD_SUBSCRIPTION_TO_TXN": READERS,
    "END_TXN_ON_PARTITION": {"super user"},
    "END_TXN_ON_SUBSCRIPTION": {"super user"},
}
TEXTS: Final = {
    "LOOKUP": "Client is not authorized to Lookup",
    "PARTITIONED_METADATA": "Client is not authorized to Get Partition Metadata",
    "GET_TOPICS_OF_NAMESPACE": "Client is not authorized to GetTopicsOfNamespace",
    "WATCH_TOPIC_LIST": "Proxy Client is not authorized to watchTopicList",
    "PRODUCER": "Client is not authorized to Produce",
    "SUBSCRIBE": "Client is not authorized to subscribe",
}
"""Pulsar's, word for word: clients show them."""
OF_A_CONSUMER: Final = {"UNSUBSCRIBE", "SEEK", "GET_LAST_MESSAGE_ID", "CONSUMER_STATS"}

COMMANDS: Final[dict[str, Callable[[], Message]]] = {
    "LOOKUP": lambda: pb.CommandLookupTopic(topic=TOPIC, request_id=1),
    "PARTITIONED_METADATA": lambda: pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1),
    "GET_SCHEMA": lambda: pb.CommandGetSchema(topic=TOPIC, request_id=1),
    "CONSUMER_STATS": lambda: pb.CommandConsumerStats(consumer_id=CONSUMER, request_id=1),
    "GET_TOPICS_OF_NAMESPACE": lambda: pb.CommandGetTopicsOfNamespace(
        namespace=NAMESPACE, request_id=1
    ),
    "WATCH_TOPIC_LIST": lambda: pb.CommandWatchTopicList(
        namespace=NAMESPACE, request_id=1, watcher_id=1, topics_pattern=".*"
    ),
    "PRODUCER": lambda: pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1),
    "GET_OR_CREATE_SCHEMA": lambda: pb.CommandGetOrCreateSchema(
        topic=TOPIC,
        request_id=1,
        schema=pb.Schema(name="s", type=pb.Schema.String, schema_data=b""),
    ),
    "ADD_PARTITION_TO_TXN": lambda: pb.CommandAddPartitionToTxn(request_id=1, partitions=[TOPIC]),
    "SUBSCRIBE": lambda: pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=1,
    ),
    "UNSUBSCRIBE": lambda: pb.CommandUnsubscribe(consumer_id=CONSUMER, request_id=1),
    "SEEK": lambda: pb.CommandSeek(consumer_id=CONSUMER, request_id=1, message_publish_time=1),
    "GET_LAST_MESSAGE_ID": lambda: pb.CommandGetLastMessageId(consumer_id=CONSUMER, request_id=1),
    "ADD_SUBSCRIPTION_TO_TXN": lambda: pb.CommandAddSubscriptionToTxn(
        request_id=1, subscription=[pb.Subscription(topic=TOPIC, subscription="s")]
    ),
    "END_TXN_ON_PARTITION": lambda: pb.CommandEndTxnOnPartition(request_id=1, topic=TOPIC),
    "END_TXN_ON_SUBSCRIPTION": lambda: pb.CommandEndTxnOnSubscription(
        request_id=1, subscription=pb.Subscription(topic=TOPIC, subscription="s")
    ),
}


async def grants(w: World) -> None:
    await other_tenant(w)
    info = {"adminRoles": ["public-admin"], "allowedClusters": [w.service.cluster]}
    await w.service.resources.update_tenant("public", info)
    for role, actions in GRANTS.items():
        await grant(w, role, *actions)
    await grant(w, "topic-producer", "produce", topic=TOPIC)
    await watched()


async def watched() -> None:
    """The broker's watches have reported what was written."""
    for _ in range(200):
        await asyncio.sleep(0)


async def with_consumer(w: World, client: str) -> Client:
    """The client has a consumer, from before it had the rights that it has now."""
    role, original = CLIENTS[client]
    for role_name in {role, original} - {None}:
        await grant(w, str(role_name), "consume")
    await watched()
    session = await client_as(w, role, **_original(original))
    await session.consumes(CONSUMER)
    await grants(w)
    for role_name in {role, original} - {None} - set(GRANTS):
        await grant(w, str(role_name))
    await watched()
    session.told()
    return session


def _original(original: str | None) -> dict[str, str]:
    return {} if original is None else {"original_principal": original}


def denials_of(w: World) -> Counter[str]:
    authorizer = security_of(w).authorizer
    assert authorizer is not None
    return authorizer.denials.by_kind


def error_of(client: Client) -> tuple[int | None, str]:
    """The error in the answers to one command, and its text; None if there is none."""
    for command in client.told():
        message: Any = command.message
        for code, text in (("error", "message"), ("error_code", "error_message")):
            if code in message.DESCRIPTOR.fields_by_name and message.HasField(code):
                return getattr(message, code), getattr(message, text)
    return None, ""


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", MAY)
async def test_each_command_of_each_client(name: str, client: str) -> None:
    role, original = CLIENTS[client]
    async with closed_broker() as w:
        await w.topic("t")
        if name in OF_A_CONSUMER:
            sender = await with_consumer(w, client)
        else:
            await grants(w)
            sender = await client_as(w, role, **_original(original))
        denials = denials_of(w)
        denied_before = denials.total()
        sender.say(CommandType.Value(name), COMMANDS[name]())
        await sender.quiet()
        code, text = error_of(sender)
        denied = denials.total() - denied_before
        if client in MAY[name]:
            assert code != DENIED
            assert not denied or name in OF_A_CONSUMER  # the consumer itself was closed, then
        else:
            assert code == DENIED
            assert denied
            assert text == TEXTS.get(name, text)
            assert role not in text
            assert "public" not in text
        assert not sender.socket.closed


def test_every_command_with_rights_is_tested() -> None:
    checked = {command_name(kind) for kind, right in RIGHTS.items() if right.checked}
    assert checked == set(MAY) == set(COMMANDS)


def test_every_command_has_an_entry() -> None:
    assert set(RIGHTS) == set(HANDLERS) | set(FROM_CLIENT) | KEEP_ALIVE | {CommandType.CONNECT}


@pytest.mark.parametrize("data", [None, "-"])
@pytest.mark.parametrize("name", MAY)
async def test_no_command_is_answered_without_credentials(name: str, data: str | None) -> None:
    async with closed_broker() as w:
        await w.topic("t")
        if data is None:
            stranger = Client(w)
        else:
            stranger = await connecting(w, data)
            stranger.told()
            assert stranger.socket.closed
            stranger.socket.closed = False  # an answer to what comes now would be seen
        stranger.write(encode_command(CommandType.Value(name), COMMANDS[name]()))
        await stranger.quiet()
        assert stranger.socket.closed is (data is None)
        assert stranger.told() == []


@pytest.mark.parametrize("client", ["nobody", "admin of another tenant"])
@pytest.mark.parametrize("name", ["LOOKUP", "PARTITIONED_METADATA", "PRODUCER", "SUBSCRIBE"])
async def test_a_refusal_does_not_tell_what_exists(name: str, client: str) -> None:
    async with closed_broker() as w:
        await w.topic("t")
        await grants(w)
        sender = await client_as(w, CLIENTS[client][0])
        answers = set()
        for topic in ("t", "absent"):
            for namespace in ("public/default", "public/absent", "absent/absent"):
                command: Any = COMMANDS[name]()
                command.topic = f"persistent://{namespace}/{topic}"
                sender.say(CommandType.Value(name), command)
                await sender.quiet()
                answers.add(error_of(sender))
        assert answers == {(DENIED, TEXTS[name])}
