"""Entry filters: which messages reach a consumer, what becomes of the others, and the refusals."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import NotAllowed
from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.wire._pb.PulsarApi_pb2 import KeyValue, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry

from .support import Admin, Peer, append, metadata

NAMESPACE, TOPIC = "~/namespaces/t1/n1", "~/persistent/t1/n1/a"
PROPERTIES = TOPIC + "/subscription/s/properties"
EXPRESSION = {"filter.expression": "region = 'eu' AND amount > 10"}
BOTH = {"entryFilterNames": "properties, expression"}
TYPES = pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared, SubType.Key_Shared])


def key_values(properties: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in properties.items()]


def message(number: int, **properties: str) -> bytes:
    data = metadata(number, properties=key_values(properties), partition_key=f"k{number}")
    return build_entry(data, str(number).encode())


def batch(*of: Mapping[str, str]) -> bytes:
    payload = build_batch(
        (SingleMessageMetadata(properties=key_values(one), payload_size=0), b"x") for one in of
    )
    return build_entry(metadata(0, num_messages_in_batch=len(of)), payload)


async def subscribe(
    admin: Admin, kind: SubType = SubType.Shared, properties: Mapping[str, str] | None = None
) -> Peer:
    """Attaches a consumer to the subscription `s`; returns its connection."""
    topic, spec = await admin.topic(), ConsumerSpec(7, "c", kind)
    peer = Peer()
    consumer = Consumer(spec, peer, admin.service.clock)
    request = SubscribeRequest("s", spec, from_earliest=True, properties=dict(properties or {}))
    (await topic.subscribe(request, consumer)).flow(consumer, 1_000)
    return peer


async def set_filters(admin: Admin, value: Any, path: str = TOPIC) -> None:
    await admin.topic()
    await admin.done("POST", path + "/entryFilters", value)


async def stats(admin: Admin) -> dict[str, Any]:
    found = (await admin.done("GET", TOPIC + "/stats")).json()["subscriptions"]["s"]
    return dict(found)


def numbers(peer: Peer) -> list[bytes]:
    return [delivery.entry.data[-1:] for delivery in peer.delivered]


@TYPES
@pytest.mark.parametrize("path", [NAMESPACE, TOPIC])
async def test_rejected_messages_are_acknowledged(admin: Admin, kind: SubType, path: str) -> None:
    await set_filters(admin, BOTH, path)
    topic = await admin.topic()
    peer = await subscribe(admin, kind, EXPRESSION | {"filter.property.team": "x"})
    for number, (region, amount, team) in enumerate(
        [("eu", "11", "x"), ("us", "11", "x"), ("eu", "9", "x"), ("eu", "12", "y")]
    ):
        await append(topic, message(number, region=region, amount=amount, team=team))
    await append(topic, message(4))
    await append(topic, message(5, region="eu", amount="20", team="x"))
    assert numbers(peer) == [b"0", b"5"]
    subscription = topic.subscriptions["s"]
    assert subscription.backlog == 2
    found = await stats(admin)
    assert found["filterProcessedMsgCount"] == 6
    assert found["filterAcceptedMsgCount"] == 2
    assert found["filterRejectedMsgCount"] == 4
    assert found["filterRescheduledMsgCount"] == 0
    page = "".join([piece async for piece in admin.page.text()])
    assert (
        'subscription="s"} 4\n' in page.split("pulsar_subscription_filter_rejected_msg_count")[-1]
    )


@TYPES
async def test_each_message_of_a_batch_is_judged(admin: Admin, kind: SubType) -> None:
    await set_filters(admin, BOTH | {"parameters": {"filter.expression": "region = 'eu'"}})
    topic = await admin.topic()
    peer = await subscribe(admin, kind)
    await append(topic, batch({"region": "us"}, {"region": "eu"}, {}, {"region": "eu"}))
    await append(topic, batch({"region": "us"}, {}))
    await append(topic, batch({"region": "eu"}, {"region": "eu"}))
    assert [delivery.ack_set for delivery in peer.delivered] == [0b1010, None]
    assert topic.subscriptions["s"].backlog == 2
    found = await stats(admin)
    counted = (found["filterAcceptedMsgCount"], found["filterRejectedMsgCount"])
    assert counted == (4, 4)


async def test_a_subscription_without_parameters_gets_everything(admin: Admin) -> None:
    await set_filters(admin, BOTH)
    topic = await admin.topic()
    peer = await subscribe(admin)
    await append(topic, message(0))
    assert numbers(peer) == [b"0"]
    assert (await stats(admin))["filterProcessedMsgCount"] == 0


async def test_filters_change_while_consumers_are_attached(admin: Admin) -> None:
    topic = await admin.topic()
    peer = await subscribe(admin, properties=EXPRESSION)
    await append(topic, message(0))
    await set_filters(admin, BOTH)
    await append(topic, message(1))
    await admin.done("PUT", PROPERTIES, {"filter.expression": "key = 'k3'"})
    await append(topic, message(2))
    await append(topic, message(3))
    await admin.done("DELETE", TOPIC + "/entryFilters")
    await append(topic, message(4))
    assert numbers(peer) == [b"0", b"3", b"4"]


async def test_filters_that_cannot_be_used_are_refused(admin: Admin) -> None:
    topic = await admin.topic()
    for path in (NAMESPACE, TOPIC):
        for value, text in (
            ({"entryFilterNames": "x"}, "Entry filter 'x' not found"),
            ({"entryFilterNames": "properties,x"}, "Entry filter 'x' not found"),
            ({"entryFilterNames": ""}, "entryFilterNames can't be empty. To remove entry filters"),
            ({}, "entryFilterNames can't be empty. To remove entry filters use the remove method."),
            (BOTH | {"parameters": {"filter.expression": "a ="}}, "filter.expression cannot be"),
            (BOTH | {"parameters": {"color": "red"}}, "color is no parameter of an entry filter"),
        ):
            refused = await admin.call("POST", path + "/entryFilters", value)
            assert (refused.status_code, text in refused.json()["reason"]) == (400, True)
    # Consumers that would get rejected messages are disconnected, and learn why.
    broken = {"filter.expression": "region ="}
    peer = await subscribe(admin, properties=broken)
    await set_filters(admin, BOTH)
    assert peer.closed_consumers == [7]
    with pytest.raises(NotAllowed, match=r"Subscription s: filter\.expression cannot be parsed"):
        await subscribe(admin)
    refused = await admin.call("PUT", PROPERTIES, broken)
    assert refused.status_code == 400
    await admin.done("PUT", PROPERTIES, EXPRESSION)
    await subscribe(admin)
    await admin.done("DELETE", TOPIC + "/subscription/s?force=true")
    with pytest.raises(NotAllowed, match="cannot be parsed"):
        await subscribe(admin, properties=broken)
    assert "s" not in topic.subscriptions  # it would hold back data, and get no consumer


async def test_a_turn_ends_after_many_filtered_messages(admin: Admin) -> None:
    await set_filters(admin, BOTH | {"parameters": {"filter.expression": "region = 'eu'"}})
    topic = await admin.topic()
    for _ in range(40):
        await append(topic, batch(*[{} for _ in range(100)]))
    await append(topic, message(1, region="eu"))
    peer = await subscribe(admin)
    subscription = topic.subscriptions["s"]
    assert subscription.backlog >= 41 - 8  # the rest waits for later turns of the event loop
    for _ in range(60):
        await asyncio.sleep(0)
    assert numbers(peer) == [b"1"]
    assert subscription.backlog == 1


async def test_the_broker_s_filters_hold_unless_policies_may_override_them(admin: Admin) -> None:
    await set_filters(admin, {"entryFilterNames": "expression"}, NAMESPACE)
    await set_filters(admin, {"entryFilterNames": "expression"})
    await admin.done("POST", "~/brokers/configuration/entryFilterNames/properties")
    topic, policies = (await admin.topic()).name, admin.service.policies
    (await admin.topic()).policies_changed()  # the scan that says so may still be to come
    for path in (NAMESPACE, TOPIC):
        shown = (await admin.done("GET", path + "/entryFilters?applied=true")).json()
        assert shown["entryFilterNames"] == "properties"
        refused = await admin.call("POST", path + "/entryFilters", BOTH)
        assert refused.status_code == 405
        assert "allowOverrideEntryFilters=true" in refused.json()["reason"]
    created = await admin.call("PUT", "~/namespaces/t1/n2", {"entryFilters": BOTH})
    assert created.status_code == 405
    assert policies.value(topic, ENTRY_FILTERS)["entryFilterNames"] == "properties"
    parameters = {"filter.property.region": "eu"} | EXPRESSION
    peer = await subscribe(admin, properties=parameters)
    await append(await admin.topic(), message(1, region="eu", amount="3"))
    await append(await admin.topic(), message(2, region="us", amount="30"))
    assert numbers(peer) == [b"1"]
    await admin.done("POST", "~/brokers/configuration/allowOverrideEntryFilters/true")
    assert policies.value(topic, ENTRY_FILTERS)["entryFilterNames"] == "expression"
    await admin.done("DELETE", TOPIC + "/entryFilters")
    await admin.done("DELETE", NAMESPACE + "/entryFilters")
    assert policies.value(topic, ENTRY_FILTERS)["entryFilterNames"] == "properties"
