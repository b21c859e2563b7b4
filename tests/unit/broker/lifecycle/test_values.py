"""Policies of a topic's lifecycle as values: units, absent limits, and defaults."""

from typing import Any

import pytest
from tests.unit.broker.lifecycle.world import named, world

from magnetar.broker.lifecycle.effect import Supposed
from magnetar.broker.lifecycle.enforcement import furthest_behind
from magnetar.broker.lifecycle.limits import (
    KEEPS_NOTHING,
    Limits,
    limits_of,
    quorums_of,
    retention_of,
)
from magnetar.broker.lifecycle.quota import Quota, QuotaAction, QuotaType
from magnetar.documents.effect import Deletes, Effect
from magnetar.ledger.settings import Quorums
from magnetar.managed_ledger.settings import Retention
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION


def retention(minutes: int, size_mb: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size_mb}


def quota(size: int) -> dict[str, Any]:
    return {"limitSize": size, "limitTime": -1, "policy": "producer_exception"}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, KEEPS_NOTHING),
        (retention(0, 0), Retention(0, 0)),
        (retention(-1, -1), Retention(-1, -1)),
        (retention(3, -1), Retention(-1, 180_000)),
        (retention(-1, 2), Retention(2 << 20, -1)),
    ],
)
def test_retention_is_given_in_minutes_and_mib(value: Any, kept: Retention) -> None:
    assert retention_of(value) == kept


def test_limits_are_those_of_three_policies() -> None:
    assert limits_of(None, None, None) == Limits()
    found = limits_of(retention(1, -1), 60, {"destination_storage": quota(5)})
    assert found == Limits(
        Retention(-1, 60_000), 60, (Quota(QuotaType.SIZE, 5, QuotaAction.EXCEPTION),)
    )
    assert found.expired_before_ms(100_000) == 40_000
    persistence = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
    assert quorums_of(persistence) == Quorums(5, 3, 2)
    assert quorums_of(None) is None
    assert Quota(QuotaType.AGE, 100, QuotaAction.EVICT).reduced == 90
    assert Quota(QuotaType.AGE, 100, QuotaAction.EVICT).evicted_before_ms(100_000) == 10_000


@pytest.mark.parametrize(
    ("effect", "does"),
    [
        (Effect(), False),
        (Effect(Deletes(1, 0, 1)), False),
        (Effect(Deletes(0, 1, 0)), True),
        (Effect(expires={"s": 1}), True),
        (Effect(evicts={"s": 1}), True),
        (Effect(blocks_producers=True), True),
        (Effect(estimated=True), False),
    ],
)
def test_an_effect_is_what_goes_or_who_is_blocked(effect: Effect, does: bool) -> None:
    assert effect.does_something is does


def test_deletions_add_up() -> None:
    assert Deletes(1, 2, 3).plus(Deletes(10, 20, 30)) == Deletes(11, 22, 33)


async def test_values_that_are_supposed_hold_before_those_that_are_set() -> None:
    async with world() as w:
        own = await w.topic("own")
        await w.topic("plain")
        policies = w.service.policies
        await w.set(RETENTION, retention(1, 1))
        await w.set(MESSAGE_TTL, 60)
        await w.set(BACKLOG_QUOTA, {"destination_storage": quota(5)})
        await w.set(MESSAGE_TTL, 7, own)
        await w.set(BACKLOG_QUOTA, {"message_age": quota(9)}, own)

        def held(name: str, **how: Any) -> Any:
            return Supposed(**how).holds(policies, named(name))

        found = held("plain")
        assert (found.retention, found.message_t_t_l) == (retention(1, 1), 60)
        assert found.backlog_quota_map is not None
        assert found.backlog_quota_map["destination_storage"] == quota(5)
        assert held("plain", retention=retention(2, 2)).retention == retention(2, 2)
        assert held("plain", message_ttl=0).message_t_t_l == 0
        assert held("own").message_t_t_l == 7
        assert held("own", message_ttl=9).message_t_t_l == 9
        assert held("own", message_ttl=9, on_namespace=True).message_t_t_l == 7
        assert held("plain", message_ttl=9, on_namespace=True).message_t_t_l == 9
        tried = {"destination_storage": quota(8), "message_age": quota(1)}
        assert held("plain", backlog_quota=tried).backlog_quota_map == tried
        other = {"message_age": quota(1)}
        both = {"destination_storage": quota(5), "message_age": quota(1)}
        assert held("plain", backlog_quota=other).backlog_quota_map == both
        kept = held("own", backlog_quota=tried, on_namespace=True).backlog_quota_map
        assert kept["message_age"] == quota(9)
        assert kept["destination_storage"] == quota(8)


async def test_the_subscription_that_is_furthest_behind_is_named_with_its_bytes() -> None:
    async with world() as w:
        topic = await w.topic("t", "a", "b")
        places = await w.publish(topic, 4, size_bytes=100)
        topic.subscriptions["a"].cursor.ack_cumulative(places[2])
        topic.subscriptions["b"].cursor.ack_cumulative(places[1])
        name, size = furthest_behind(topic)
        assert name == "b"
        assert size == topic.managed_ledger.index.bytes_after(*places[1]) > 200
        assert furthest_behind(await w.topic("none")) == ("", 0)
