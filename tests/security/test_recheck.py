"""Rights that change while producers, consumers and watches are attached."""

import asyncio
from typing import Any

import pytest
from tests.security.sessions import (
    ADMIN,
    METHOD,
    PROXY,
    client_as,
    closed_broker,
    connect_command,
    grant,
    secured,
)
from tests.support.broker import running_broker
from tests.support.raw_client import RawClient, Refused
from tests.unit.broker.lifecycle.world import NAMESPACE, World
from tests.unit.broker.session.stage import TOPIC, Client
from tests.unit.wire import frames

from magnetar.broker.session import recheck
from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

OTHER = "persistent://public/default/other"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "PAUSE_S", 0.001)


async def settled(*clients: Client) -> None:
    """Waits until the broker has observed the change and checked all attachments."""
    for _ in range(20):
        await asyncio.sleep(0.002)
    for client in clients:
        await client.quiet()


async def revoke_all(w: World, role: str) -> None:
    await grant(w, role)


async def test_a_producer_that_loses_its_right_is_disconnected() -> None:
    async with closed_broker() as w:
        topic = await w.topic("t")
        await grant(w, "writer", "produce")
        await grant(w, "other", "produce")
        await settled()
        writer, other = await client_as(w, "writer"), await client_as(w, "other")
        await writer.produces(3)
        await other.produces(4)
        await revoke_all(w, "writer")
        await settled(writer, other)
        (close,) = writer.told()
        message: Any = close.message
        assert (close.type, message.producer_id) == (CommandType.CLOSE_PRODUCER, 3)
        assert other.told() == []
        assert [producer.producer_id for producer in topic.producers] == [4]
        command = pb.CommandProducer(topic=TOPIC, producer_id=3, request_id=9)
        refused = await writer.ask(CommandType.PRODUCER, command, CommandType.ERROR)
        assert refused.error == ServerError.AUTHORIZATION_ERROR


async def test_messages_after_the_loss_are_not_stored() -> None:
    async with closed_broker() as w:
        topic = await w.topic("t")
        await grant(w, "writer", "produce")
        await settled()
        writer = await client_as(w, "writer")
        await writer.produces(1)
        writer.write(frames.send(1, 0))
        await settled(writer)
        assert topic.managed_ledger.entries_total == 1
        await revoke_all(w, "writer")
        await settled(writer)
        writer.write(frames.send(1, 1))
        await settled(writer)
        assert topic.managed_ledger.entries_total == 1


async def test_a_consumer_that_loses_its_right_is_disconnected_and_gets_nothing() -> None:
    async with closed_broker() as w:
        topic = await w.topic("t", "s")
        await grant(w, "reader", "consume")
        await settled()
        reader = await client_as(w, "reader")
        await reader.consumes(5, permits=100)
        await revoke_all(w, "reader")
        await settled(reader)
        (close,) = reader.told()
        message: Any = close.message
        assert (close.type, message.consumer_id) == (CommandType.CLOSE_CONSUMER, 5)
        assert not topic.subscriptions["s"].consumers
        await w.publish(topic)
        reader.say(CommandType.FLOW, pb.CommandFlow(consumer_id=5, messagePermits=100))
        await settled(reader)
        assert reader.told() == []


async def test_the_roles_of_a_subscription_count() -> None:
    async with closed_broker() as w:
        await w.topic("t")
        await grant(w, "reader", "consume")
        await settled()
        reader = await client_as(w, "reader")
        await reader.consumes(1, subscription="mine")
        await reader.consumes(2, subscription="theirs")

        def change(document: dict[str, Any]) -> dict[str, Any]:
            auth = dict(document["auth_policies"])
            auth["subscription_auth_roles"] = {"theirs": ["somebody"]}
            return {**document, "auth_policies": auth}

        await w.service.resources.update_policies(NAMESPACE, change)
        await settled(reader)
        (close,) = reader.told()
        message: Any = close.message
        assert message.consumer_id == 2


async def test_the_prefix_mode_closes_consumers_and_names_the_prefix() -> None:
    async with closed_broker() as w:
        await w.topic("t")
        await grant(w, "reader", "consume")
        await settled()
        reader = await client_as(w, "reader")
        await reader.consumes(1, subscription="reader-1")
        await reader.consumes(2, subscription="s")
        await w.service.resources.update_policies(
            NAMESPACE, lambda document: {**document, "subscription_auth_mode": "Prefix"}
        )
        await settled(reader)
        (close,) = reader.told()
        message: Any = close.message
        assert message.consumer_id == 2
        command = pb.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=2,
            request_id=9,
        )  # fmt: skip
        refused = await reader.ask(CommandType.SUBSCRIBE, command, CommandType.ERROR)
        assert refused.error == ServerError.AUTHORIZATION_ERROR
        assert refused.message == (
            "Failed to create consumer - The subscription name needs to be prefixed by the "
            f"authentication role, like reader-xxxx for topic: {TOPIC}"
        )


async def test_a_watch_of_topics_ends_with_the_right_to_list_them() -> None:
    async with closed_broker() as w:
        await grant(w, "reader", "consume")
        await settled()
        reader = await client_as(w, "reader")
        watch = pb.CommandWatchTopicList(
            namespace="public/default", request_id=1, watcher_id=1, topics_pattern=".*"
        )
        await reader.ask(CommandType.WATCH_TOPIC_LIST, watch, CommandType.WATCH_TOPIC_LIST_SUCCESS)
        await w.topic("seen")
        await settled(reader)
        assert reader.kinds() == ["WATCH_TOPIC_UPDATE"]
        await revoke_all(w, "reader")
        await settled(reader)
        await w.topic("unseen")
        await settled(reader)
        assert reader.told() == []
        assert not reader.session.watchers


@pytest.mark.parametrize("watch", [True, False], ids=["watch", "list"])
async def test_a_list_that_a_client_delays_is_checked_when_it_is_made(watch: bool) -> None:
    """Lists wait until the client reads, so the client chooses the time of their creation."""
    namespace, pattern = "public/default", ".*"
    async with closed_broker() as w:
        await grant(w, "reader", "consume")
        await w.topic("secret")
        await settled()
        reader = await client_as(w, "reader")
        reader.socket.writable = False
        if watch:
            watching = pb.CommandWatchTopicList(
                namespace=namespace, request_id=1, watcher_id=1, topics_pattern=pattern
            )
            reader.say(CommandType.WATCH_TOPIC_LIST, watching)
        else:
            listing = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=1)
            reader.say(CommandType.GET_TOPICS_OF_NAMESPACE, listing)
        for _ in range(20):
            await asyncio.sleep(0.002)
        await revoke_all(w, "reader")
        for _ in range(20):
            await asyncio.sleep(0.002)
        reader.socket.writable = True
        reader.session.drained()
        await settled(reader)
        (refused,) = reader.told()
        message: Any = refused.message
        assert refused.type == CommandType.ERROR
        assert message.error == ServerError.AUTHORIZATION_ERROR
        assert not reader.session.watchers
        await w.topic("another")
        await settled(reader)
        assert reader.told() == []


@pytest.mark.parametrize("watch", [True, False], ids=["watch", "list"])
async def test_a_right_that_is_lost_while_a_list_is_read_shows_no_name(
    watch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = "public/default"
    async with closed_broker() as w:
        await grant(w, "reader", "consume")
        await w.topic("secret")
        await settled()
        reader = await client_as(w, "reader")
        names = w.service.topics.names

        async def slowly(*arguments: Any) -> Any:
            read = await names(*arguments)
            await revoke_all(w, "reader")
            await settled()
            return read

        monkeypatch.setattr(w.service.topics, "names", slowly)
        if watch:
            watching = pb.CommandWatchTopicList(
                namespace=namespace, request_id=1, watcher_id=1, topics_pattern=".*"
            )
            reader.say(CommandType.WATCH_TOPIC_LIST, watching)
        else:
            listing = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=1)
            reader.say(CommandType.GET_TOPICS_OF_NAMESPACE, listing)
        async with asyncio.timeout(10):
            while not (told := reader.told()):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.002)
        (refused,) = told
        message: Any = refused.message
        assert refused.type == CommandType.ERROR
        assert message.error == ServerError.AUTHORIZATION_ERROR
        assert not reader.session.watchers


async def test_a_check_that_fails_ends_its_connection_and_the_scan_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with closed_broker() as w:
        await w.topic("t")
        await grant(w, "writer", "produce")
        await settled()
        first, second = await client_as(w, "writer"), await client_as(w, "writer")
        await first.produces(1)
        await second.produces(2)
        check = recheck.check_producer
        failed: list[Any] = []

        def failing(session: Any, *arguments: Any) -> None:
            if not failed:
                failed.append(session)
                raise RuntimeError("a bug")
            check(session, *arguments)

        monkeypatch.setattr(recheck, "check_producer", failing)
        await revoke_all(w, "writer")
        await settled()
        (unchecked,) = failed
        other = second if unchecked is first.session else first
        closed = first if unchecked is first.session else second
        assert closed.socket.closed
        assert other.kinds() == ["CLOSE_PRODUCER"]


@pytest.mark.parametrize("loser", ["client", "proxy"])
async def test_cve_2023_30429_both_roles_of_a_proxied_connection_count(loser: str) -> None:
    async with closed_broker() as w:
        topic = await w.topic("t")
        await grant(w, "proxy2", "produce")
        await grant(w, "writer", "produce")
        await settled()
        client = await client_as(w, "proxy2", original_principal="writer")
        await client.produces()
        await revoke_all(w, "writer" if loser == "client" else "proxy2")
        await settled(client)
        assert client.kinds() == ["CLOSE_PRODUCER"]
        assert not len(topic.producers)


async def test_a_super_user_through_a_proxy_is_still_its_client() -> None:
    async with closed_broker() as w:
        await w.topic("t")
        client = await client_as(w, PROXY, original_principal="nobody")
        command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        refused = await client.ask(CommandType.PRODUCER, command, CommandType.ERROR)
        assert refused.error == ServerError.AUTHORIZATION_ERROR


async def test_a_tenant_admin_that_is_no_more_loses_its_producers() -> None:
    async with closed_broker() as w:
        topic = await w.topic("t")
        info = {"adminRoles": ["boss"], "allowedClusters": [w.service.cluster]}
        await w.service.resources.update_tenant("public", info)
        await settled()
        client = await client_as(w, "boss")
        await client.produces()
        await w.service.resources.update_tenant("public", {**info, "adminRoles": []})
        await settled(client)
        assert client.kinds() == ["CLOSE_PRODUCER"]
        assert not len(topic.producers)


async def test_a_right_withdrawn_while_a_producer_attaches_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is being opened when the right goes: nothing is attached yet to be closed."""
    async with closed_broker() as w:
        await grant(w, "writer", "produce")
        await settled()
        writer = await client_as(w, "writer")
        opened = asyncio.Event()
        get_or_open = w.service.topics.get_or_open

        async def slow(*arguments: Any, **more: Any) -> Any:
            topic = await get_or_open(*arguments, **more)
            await opened.wait()
            return topic

        monkeypatch.setattr(w.service.topics, "get_or_open", slow)
        writer.say(
            CommandType.PRODUCER, pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        )
        await revoke_all(w, "writer")
        await asyncio.sleep(0.05)
        opened.set()
        await settled(writer)
        assert writer.kinds() == ["PRODUCER_SUCCESS", "CLOSE_PRODUCER"]


async def test_ten_thousand_producers_are_checked_in_small_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two turns of the loop, no more than CHECKS_PER_TURN of them are checked."""
    count = 10_000
    async with closed_broker() as w:
        topics = [await w.topic(f"t{number}") for number in range(4)]
        await grant(w, "writer", "produce")
        await grant(w, "other", "produce")
        await settled()
        clients = [await client_as(w, "writer"), await client_as(w, "other")]
        for number in range(count):
            command = pb.CommandProducer(
                topic=topics[number % 4].full_name, producer_id=number, request_id=number
            )
            clients[number % 2].say(CommandType.PRODUCER, command)
            if not number % 500:
                await asyncio.sleep(0)
        for client in clients:
            await client.quiet()
            client.told()
        checked = in_turn = most = 0
        check = recheck.check_producer

        def counted(*arguments: Any) -> None:
            nonlocal checked, in_turn
            checked += 1
            in_turn += 1
            check(*arguments)

        monkeypatch.setattr(recheck, "check_producer", counted)
        await revoke_all(w, "writer")
        while checked < count:
            in_turn = 0
            await asyncio.sleep(0)
            most = max(most, in_turn)
        assert 0 < most <= recheck.CHECKS_PER_TURN
        await settled(*clients)
        assert clients[0].kinds() == ["CLOSE_PRODUCER"] * (count // 2)
        assert clients[1].told() == []
        assert sum(len(topic.producers) for topic in topics) == count // 2


async def test_a_revoked_producer_on_a_real_connection() -> None:
    """Over sockets, with the real watch of metadata."""
    async with running_broker(secure=secured()) as (service, port):
        client = await RawClient.connect("127.0.0.1", port, connect_command("writer"))
        with pytest.raises(Refused, match="not authorized to Produce"):
            await client.producer(TOPIC)
        admin = await RawClient.connect("127.0.0.1", port, connect_command(ADMIN, METHOD))

        def change(document: dict[str, Any], *actions: str) -> dict[str, Any]:
            return {**document, "auth_policies": {"namespace_auth": {"writer": list(actions)}}}

        update = service.resources.update_policies
        await update(NAMESPACE, lambda document: change(document, "produce"))
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.producer(TOPIC, producer_id=1)
                    break
                except Refused:
                    await asyncio.sleep(0.01)
        await admin.producer(TOPIC)
        client.send(1, 0, b"x")
        await client.receipted(1, 1)
        await update(NAMESPACE, change)
        (close,) = await client.closings(1)
        assert close.producer_id == 1
        assert admin.closed_commands == []
        await client.close()
        await admin.close()
