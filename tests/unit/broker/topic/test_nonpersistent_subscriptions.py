"""Subscriptions of a non-persistent topic: deliveries when consumers leave or request again."""

import pytest
from tests.unit.admin.support import metadata
from tests.unit.broker.subscription.conftest import entry_bytes
from tests.unit.broker.topic.stage import request, stage

from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import NotAllowed
from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.wire._pb.PulsarApi_pb2 import KeyValue
from magnetar.wire.entry import build_entry

KEYS = 64


async def test_keys_of_a_detached_non_persistent_consumer_move_to_the_others() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        entries = [entry_bytes(str(each), key=f"k{each}") for each in range(KEYS)]
        subscription, leaving, left = await s.attach(topic, request(sub_type=SubType.Key_Shared))
        _, _, staying = await s.attach(topic, request(sub_type=SubType.Key_Shared))
        subscription.publish(entries)
        assert min(len(left.texts), len(staying.texts)) > 0
        before = left.take() + staying.take()
        topic.remove_consumer(subscription, leaving)
        subscription.publish(entries)
        assert sorted(staying.texts) == sorted(before)
        assert (left.texts, subscription.dropped) == ([], 0)


@pytest.mark.parametrize("sub_type", [SubType.Exclusive, SubType.Shared])
async def test_an_epoch_of_a_nonpersistent_consumer_holds_until_the_next(
    sub_type: SubType,
) -> None:
    """A client drops messages of an epoch that is not its own."""
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, consumer, sink = await s.attach(topic, request(sub_type=sub_type))
        for asked, holds in ((3, 3), (None, 3), (4, 4)):
            subscription.redeliver(consumer, epoch=asked)
            subscription.publish([entry_bytes("x")])
            assert sink.epochs[-1] == holds
        assert sink.texts == ["x"] * 3


async def test_stats_of_a_nonpersistent_subscription_have_nothing_durable() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, _, _ = await s.attach(topic)
        stats = subscription.stats()
        assert (stats.durable, stats.is_durable, stats.msg_backlog) == (False, False, 0)


@pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
async def test_stats_have_the_rates_of_each_consumer_since_the_last_time(kind: str) -> None:
    async with stage() as s:
        topic = await (s.topic() if kind == "persistent" else s.nonpersistent())
        subscription, one, _ = await s.attach(topic)
        _, two, _ = await s.attach(topic)
        one.messages_out, one.bytes_out, two.messages_out, two.bytes_out = 10, 100, 20, 200
        s.clock.advance(10_000)
        subscription.update_rates()
        stats = subscription.stats()
        assert [each.msg_rate_out for each in stats.consumers] == [1.0, 2.0]
        assert (stats.msg_rate_out, stats.msg_throughput_out) == (3.0, 30.0)
        s.clock.advance(10_000)
        subscription.update_rates()
        assert subscription.stats().msg_rate_out == 0.0


def entry_of(region: str) -> bytes:
    properties = [KeyValue(key="region", value=region)]
    return build_entry(metadata(0, properties=properties), region.encode())


async def test_properties_of_a_nonpersistent_subscription_are_parameters_of_filters() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        await s.set(ENTRY_FILTERS, {"entryFilterNames": "properties, expression"}, topic)
        parameters = {"filter.property.region": "eu"}
        subscription, _, sink = await s.attach(topic, request("s", properties=parameters))
        subscription.publish([entry_of("eu"), entry_of("us")])
        assert len(sink.delivered) == 1
        stats = subscription.stats()
        assert stats.subscription_properties == parameters
        assert (stats.filter_accepted_msg_count, stats.filter_rejected_msg_count) == (1, 1)


async def test_a_nonpersistent_subscription_ends_if_its_filters_cannot_be_used() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        wrong = {"filter.expression": "region = "}
        subscription, _, sink = await s.attach(topic, request("s", properties=wrong))
        await s.set(ENTRY_FILTERS, {"entryFilterNames": "expression"}, topic)
        assert topic.subscriptions == {}
        assert len(sink.destinations) == 1
        with pytest.raises(NotAllowed, match="Subscription s"):
            await s.attach(topic, request("s", properties=wrong))
        again, _, _ = await s.attach(topic, request("s"))
        assert again is not subscription
