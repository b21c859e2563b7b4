"""Reasons that need several consumers, or consumers that were refused."""

from typing import cast

import pytest

from magnetar.broker.explain.refusals import Refusal
from magnetar.broker.subscription.spec import SubType

from .explained import attach, explain, explain_topic, first
from .support import Admin


async def test_a_standby_consumer_of_a_failover_subscription(admin: Admin) -> None:
    await admin.publish([b"1"])
    active = await attach(admin, "s", SubType.Failover, name="a", permits=0)
    await attach(admin, "s", SubType.Failover, name="b")
    subscription = (await admin.topic()).subscriptions["s"]
    findings = {each.code: each for each in (await explain(admin, "s")).findings}
    assert "no_permits" in findings
    assert findings["standby_consumer"].evidence["consumers"] == ["b"]
    subscription.flow(active, 10)
    assert "standby_consumer" not in [each.code for each in (await explain(admin, "s")).findings]


async def test_a_returned_message_awaits_its_redelivery(admin: Admin) -> None:
    consumer = await attach(admin, "s", permits=1, name="once")
    (position,) = await admin.publish([b"1"])
    subscription = (await admin.topic()).subscriptions["s"]
    subscription.redeliver(consumer, [position])
    answer = await explain(admin, "s", position)
    assert answer.findings[0].code == "awaits_redelivery"
    assert answer.findings[0].evidence["redelivery_count"] == 1
    assert "no_permits" in [each.code for each in answer.findings]
    subscription.flow(consumer, 1)
    assert (await first(admin, "s", position)).code == "in_flight"


@pytest.mark.parametrize("attached", [False, True])
async def test_a_refused_consumer(admin: Admin, *, attached: bool) -> None:
    if attached:
        await attach(admin, "s")
    else:
        await admin.done("PUT", "~/persistent/t1/n1/a/subscription/s")
    topic = await admin.topic()
    refused = Refusal("consumer", "late", "s", "app", "/127.0.0.1:1", "ConsumerBusy", "too many")
    other = Refusal("consumer", "late", "other", "app", "/127.0.0.1:1", "ConsumerBusy", "x")
    for refusal in (refused, other):
        admin.service.refusals.record(topic.full_name, refusal)
    findings = (await explain(admin, "s")).findings
    (found,) = [each for each in findings if each.code == "consumer_refused"]
    assert found.evidence["text"] == "too many"
    assert found.evidence["role"] == "app"
    admin.service.refusals.attached(topic.full_name, "consumer", "late", "s")
    assert "consumer_refused" not in [each.code for each in (await explain(admin, "s")).findings]


async def test_closed_ledgers_that_are_not_offloaded(admin: Admin) -> None:
    await attach(admin, "s", permits=0)
    await admin.publish([b"1", b"2"])
    topic = await admin.topic()
    await topic.managed_ledger.roll_over()
    await admin.publish([b"3"])
    codes = [each.code for each in (await explain_topic(admin)).findings]
    assert "not_offloaded" not in codes, "no policy asks for it"
    await admin.done("PUT", "~/namespaces/t1/n1/offloadThreshold", 0)
    found = next(
        each for each in (await explain_topic(admin)).findings if each.code == "not_offloaded"
    )
    (ledger,) = cast("list[dict[str, int]]", found.evidence["ledgers"])
    assert ledger["bytes"] > 0
    assert found.evidence["why"]
