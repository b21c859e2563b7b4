"""Delayed messages and what the storage does with their ledgers: trims and quotas."""

from typing import Any

from tests.unit.broker.topic.delay_stage import delay_stage, texts
from tests.unit.ledger.stage import turns

from magnetar.broker.lifecycle import enforcement
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.policies.lifecycle import BACKLOG_QUOTA


def ledgers_of(topic: PersistentTopic) -> list[int]:
    return [item.ledger_id for item in topic.managed_ledger.ledgers]


async def test_a_delayed_message_keeps_its_ledger_until_it_is_acked() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.consume(topic)
        (late,) = await s.send(topic, ("late", 60_000))
        await topic.managed_ledger.roll_over()
        (now,) = await s.send(topic, ("now", 0))
        await topic.managed_ledger.roll_over()
        await s.send(topic, ("end", 0))
        subscription.ack_one(consumer, *now)
        await topic.managed_ledger.trim()
        assert late[0] in ledgers_of(topic)
        await s.pass_ms(topic, 60_000)
        assert texts(sink) == ["now", "end", "late"]
        subscription.ack_one(consumer, *late)
        await subscription.cursor.flush()
        assert topic.delays is not None
        topic.delays.store.take()
        await turns(60)
        await topic.managed_ledger.trim()
        assert late[0] not in ledgers_of(topic)


async def test_a_quota_evicts_delayed_messages_with_the_others() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, _, sink = await s.consume(topic)
        await s.send(topic, ("late", 60_000), ("now", 0))
        value: Any = {
            "message_age": {
                "limitSize": -1, "limitTime": 10, "policy": "consumer_backlog_eviction",
            }
        }  # fmt: skip
        await s.s.set(BACKLOG_QUOTA, value, topic)
        s.s.clock.advance(20_000)
        await enforcement.check_quotas(topic, enforcement.limits_on(topic))
        assert subscription.backlog == 0
        await s.pass_ms(topic, 60_000)
        assert texts(sink) == ["now"]
