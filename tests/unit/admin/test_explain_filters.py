"""Messages that entry filters reject, and the explanation of those that are not delivered."""

from typing import Any

from magnetar.core.ids import Position
from magnetar.wire._pb.PulsarApi_pb2 import KeyValue, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry

from .explained import attach, client_of, explain, first, follow
from .support import Admin, append, entry, metadata

TOPIC = "~/persistent/t1/n1/a"
FILTERS = {"entryFilterNames": "properties,expression"}
EU = {"filter.expression": "region = 'eu'"}


async def filtered(admin: Admin, properties: dict[str, str] | None = None) -> None:
    """Creates the subscription `s` on a topic with filters."""
    await admin.topic()
    await admin.done("POST", TOPIC + "/entryFilters", FILTERS)
    await admin.done("PUT", TOPIC + "/subscription/s")
    await admin.done("PUT", TOPIC + "/subscription/s/properties", EU | (properties or {}))


async def publish(admin: Admin, region: str, number: int = 0) -> Position:
    properties = [KeyValue(key="region", value=region)]
    return await append(
        await admin.topic(), entry(b"x", number, properties=properties, partition_key="k")
    )


async def test_a_rejected_message_names_filters_parameters_and_properties(admin: Admin) -> None:
    await filtered(admin, {"filter.property.team": "a"})
    position = await publish(admin, "us")
    for acknowledged in (False, True):
        if acknowledged:
            await attach(admin, "s")
        found = await first(admin, "s", position)
        assert found.code == "filtered"
        assert found.evidence["filters"] == ["properties", "expression"]
        assert found.evidence["subscription_parameters"] == [
            "filter.expression: region = 'eu'",
            "filter.property.team: a",
        ]
        assert found.evidence["message_properties"] == ["region: us"]
        assert found.evidence["message_key"] == "k"
        assert found.evidence["acknowledged"] is acknowledged
        assert found.evidence["level"] == "topic"


async def test_a_subscription_whose_messages_are_all_rejected(admin: Admin) -> None:
    await filtered(admin)
    consumer = await attach(admin, "s")
    await publish(admin, "us")
    answer = await explain(admin, "s")
    assert [each.code for each in answer.findings] == ["filtered", "caught_up"]
    assert answer.findings[0].evidence["rejected_messages"] == 1
    await follow(admin, answer.findings[0])
    await publish(admin, "us", 1)
    await client_of(consumer).got(1)


async def test_rejected_messages_beside_delivered_ones_only_contribute(admin: Admin) -> None:
    await filtered(admin)
    consumer = await attach(admin, "s")
    await publish(admin, "us")
    delivered = await publish(admin, "eu", 1)
    await client_of(consumer).got(1)
    assert (await first(admin, "s", delivered)).code == "in_flight"
    (await admin.topic()).subscriptions["s"].ack_one(consumer, *delivered)
    answer = await explain(admin, "s")
    assert [each.code for each in answer.findings] == ["caught_up", "filtered"]
    assert answer.findings[1].evidence["judged_messages"] == 2
    assert (await first(admin, "s", delivered)).code == "already_acknowledged"


async def test_each_message_of_a_batch_has_its_answer(admin: Admin) -> None:
    await filtered(admin)
    await attach(admin, "s")
    payload = build_batch(
        (
            SingleMessageMetadata(properties=[KeyValue(key="region", value=region)]),
            b"x",
        )
        for region in ("us", "eu")
    )
    data = build_entry(metadata(0, num_messages_in_batch=2), payload)
    position = await append(await admin.topic(), data)
    codes = [(await first(admin, "s", f"{position}:{index}")).code for index in (0, 1)]
    assert codes == ["filtered", "in_flight"]
    assert (await first(admin, "s", position)).code == "in_flight"


async def test_what_was_delivered_before_the_filters_is_not_called_filtered(admin: Admin) -> None:
    await attach(admin, "s")
    position = await publish(admin, "us")
    await admin.done("POST", TOPIC + "/entryFilters", FILTERS)
    await admin.done("PUT", TOPIC + "/subscription/s/properties", EU)
    assert (await first(admin, "s", position)).code == "in_flight"


async def test_filters_that_cannot_be_used_refuse_the_consumer(admin: Admin) -> None:
    topic: Any = await admin.topic()
    await topic.create_subscription("s", Position(-1, -1), {"filter.expression": "region ="})
    await admin.done("POST", TOPIC + "/entryFilters", FILTERS)
    position = await publish(admin, "us")
    assert (await first(admin, "s", position)).code == "no_consumer"
    assert (await first(admin, "s")).code == "no_consumer"
