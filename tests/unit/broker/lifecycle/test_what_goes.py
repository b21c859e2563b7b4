"""What is deleted and what is kept, at the boundaries of positions and of retention."""

import dataclasses

import pytest
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, world

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.lifecycle.effect import Supposed, on_recorded
from magnetar.broker.lifecycle.inactivity import Inactive, Use, should_delete
from magnetar.broker.policies.applied_policies import AppliedPolicies
from magnetar.managed_ledger.settings import Retention
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL

QUOTA = {"message_age": {"limitSize": -1, "limitTime": 60, "policy": "producer_request_hold"}}
EVICTION = {"message_age": {"limitSize": -1, "limitTime": 9, "policy": "consumer_backlog_eviction"}}


@pytest.mark.parametrize(
    ("kept_ms", "idle_ms", "goes"),
    [
        (-1, 10**15, False),
        (0, 999, False),
        (0, 1_000, True),
        (1_000, 1_000, True),
        (1_001, 1_000, False),
        (1_001, 1_001, True),
    ],
)
def test_an_unused_topic_goes_when_its_retention_is_over_and_never_if_that_is_for_ever(
    kept_ms: int, idle_ms: int, goes: bool
) -> None:
    policy = Inactive(deletes=True, caught_up=False, after_ms=1_000)
    use = Use(attached=False, subscriptions=0, backlog=False, last_active_ms=5_000)
    assert should_delete(use, policy, Retention(0, kept_ms), 5_000 + idle_ms) is goes


async def test_a_ttl_reaches_the_slowest_subscription_beside_one_that_is_past_all_that_is_old() -> (
    None
):
    async with world() as w:
        topic = await w.topic("t", "behind", "recent")
        places = await w.publish(topic, 20, every_ms=1_000)
        topic.subscriptions["recent"].cursor.ack_cumulative(places[15])
        await w.set(MESSAGE_TTL, 9)
        await w.upkeep.expire_messages()
        assert topic.subscriptions["behind"].cursor.mark_delete == places[9]
        assert topic.subscriptions["recent"].cursor.mark_delete == places[15]


@pytest.mark.parametrize(("policy", "value"), [(MESSAGE_TTL, 1), (BACKLOG_QUOTA, EVICTION)])
async def test_nothing_is_cut_if_it_is_no_longer_known_what_holds_once_the_store_was_asked(
    policy, value, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 3 * ENTRIES_PER_LEDGER)
        await w.set(policy, value, topic)
        w.clock.advance(600_000)
        confirm, asked = AppliedPolicies.confirm, []

        async def not_understood(policies: AppliedPolicies) -> None:
            await confirm(policies)
            asked.append(policies)
            monkeypatch.setattr(AppliedPolicies, "known", False)

        monkeypatch.setattr(AppliedPolicies, "confirm", not_understood)
        await w.upkeep.expire_messages()
        await w.upkeep.check_quotas()
        assert asked
        assert topic.subscriptions["s"].cursor.backlog == 3 * ENTRIES_PER_LEDGER
        monkeypatch.undo()
        await w.upkeep.expire_messages()
        await w.upkeep.check_quotas()
        assert topic.subscriptions["s"].cursor.backlog == 0


@pytest.mark.parametrize(
    ("exact", "ttl_s", "quotas", "estimated"),
    [
        (True, 0, {}, False),
        (False, 0, {}, True),
        (True, 5, {}, True),
        (True, 0, QUOTA, True),
    ],
)
async def test_a_prediction_from_records_says_whether_it_is_an_estimate(
    exact: bool, ttl_s: int, quotas: dict[str, object], estimated: bool
) -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 3)
        await w.service.topics.unload(topic.name)
        known = await w.service.ledgers.outline(ledger_name(topic.name))
        tried = Supposed({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, ttl_s, quotas)
        found = await on_recorded(
            topic.name,
            dataclasses.replace(known, exact=exact),
            w.service.policies,
            tried,
            w.clock.now_ms(),
            None,
        )
        assert found.estimated is estimated


async def test_the_store_is_asked_only_if_something_is_to_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 3, every_ms=1_000)
        await w.set(MESSAGE_TTL, 60, topic)
        confirm, asked = AppliedPolicies.confirm, []

        async def noted(policies: AppliedPolicies) -> None:
            asked.append(policies)
            await confirm(policies)

        monkeypatch.setattr(AppliedPolicies, "confirm", noted)
        await w.upkeep.expire_messages()
        assert asked == []
        w.clock.advance(61_000)
        await w.upkeep.expire_messages()
        assert len(asked) == 1
        assert topic.subscriptions["s"].cursor.backlog == 0
