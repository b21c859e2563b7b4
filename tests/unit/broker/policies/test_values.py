"""Policies as values: the broker's settings, the levels, and the notifications of changes."""

import asyncio
from typing import Any

import pytest
from tests.unit.ledger.cluster import virtual

from magnetar.broker.policies.defaults import broker_value
from magnetar.broker.policies.notifier import PAUSE_S, PolicyNews
from magnetar.broker.policies.resolution import applied, of_namespace, of_topic
from magnetar.broker.policies.store import FORMAT, TopicPolicies
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.policies.policy import Policy
from magnetar.policies.registry import BY_NAME, POLICIES
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose, values_of

HERE = NamespaceName("public", "here")
RATE = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 6}

SETTINGS = compose(
    BrokerSettings,
    retention_minutes=3,
    retention_size_mb=4,
    backlog_quota_bytes=5,
    backlog_quota_s=6,
    backlog_quota_action="producer_exception",
    delete_inactive_topics=True,
    delete_inactive_topics_interval_s=7,
    dispatch_rate_messages=8,
    dispatch_rate_bytes=9,
    dispatch_rate_relative=True,
    subscription_dispatch_rate_messages=10,
    subscription_dispatch_rate_bytes=11,
    publish_rate_messages=12,
    publish_rate_bytes=13,
    subscribe_rate=14,
    subscribe_rate_period_s=15,
    auto_topic_creation=True,
    auto_subscription_creation=False,
)


def rate(messages: int, size_bytes: int, *, relative: bool) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": relative,
        "ratePeriodInSecond": 1,
    }


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4}),
        (
            "backlog_quota",
            {
                "destination_storage": {
                    "limitSize": 5,
                    "limitTime": -1,
                    "policy": "producer_exception",
                },
                "message_age": {"limitSize": -1, "limitTime": 6, "policy": "producer_exception"},
            },
        ),
        ("dispatch_rate", rate(8, 9, relative=True)),
        ("subscription_dispatch_rate", rate(10, 11, relative=True)),
        ("replicator_dispatch_rate", rate(0, 0, relative=False)),
        ("publish_rate", {"publishThrottlingRateInMsg": 12, "publishThrottlingRateInByte": 13}),
        ("subscribe_rate", {"subscribeThrottlingRatePerConsumer": 14, "ratePeriodInSecond": 15}),
        (
            "auto_topic_creation",
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
        ),
        ("auto_subscription_creation", {"allowAutoSubscriptionCreation": False}),
        ("persistence", None),
    ],
)
def test_the_brokers_settings_are_values_of_policies(policy: str, value: Any) -> None:
    assert broker_value(SETTINGS, BY_NAME[policy]) == value


def test_a_broker_of_a_cluster_says_where_entries_are_stored() -> None:
    persistence = BY_NAME["persistence"]
    settings = compose(BrokerProcessSettings, ensemble_size=5, write_quorum=3, ack_quorum=2)
    assert broker_value(settings, persistence) == {
        "bookkeeperEnsemble": 5,
        "bookkeeperWriteQuorum": 3,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }


def test_messages_may_be_delayed_unless_somebody_says_otherwise() -> None:
    value = broker_value(SETTINGS, BY_NAME["delayed_delivery"])
    assert value == {"tickTime": 1_000, "active": True, "maxDeliveryDelayInMillis": 0}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_a_broker_says_is_a_value_that_can_be_acted_on(policy: Policy) -> None:
    value = broker_value(SETTINGS, policy)
    if value is not None:
        policy.type.check(value, policy.name)
    if policy.broker_setting and isinstance(value, int | str):
        assert value == values_of(SETTINGS)[policy.broker_setting]


def test_settings_that_depend_on_each_other() -> None:
    inactive = BY_NAME["inactive_topics"]
    assert broker_value(SETTINGS, inactive)["maxInactiveDurationSeconds"] == 7
    for after_s in (1, 20):
        given = compose(BrokerSettings, delete_inactive_topics_after_s=after_s)
        assert broker_value(given, inactive)["maxInactiveDurationSeconds"] == after_s
    assert broker_value(SETTINGS, inactive)["deleteWhileInactive"] is True
    partitioned = compose(
        BrokerSettings, auto_topic_creation_type="partitioned", default_partitions=3
    )
    value = broker_value(partitioned, BY_NAME["auto_topic_creation"])
    assert (value["topicType"], value["defaultNumPartitions"]) == ("partitioned", 3)


# -- what each level says


def test_what_a_namespace_says_is_this_clusters() -> None:
    policy = BY_NAME["dispatch_rate"]
    assert policy.by_cluster
    assert of_namespace(policy, {policy.document: {"mine": RATE, "other": {}}}, "mine") == RATE
    assert of_namespace(policy, {policy.document: {"other": RATE}}, "mine") is None
    assert of_namespace(policy, {}, "mine") is None
    ttl = BY_NAME["message_ttl"]
    assert of_namespace(ttl, {ttl.document: 5}, "mine") == 5
    assert of_namespace(ttl, {ttl.document: 0}, "mine") == 0


def test_a_topics_own_value_is_before_the_one_for_all_clusters() -> None:
    ttl, quota = BY_NAME["message_ttl"], BY_NAME["backlog_quota"]
    own = TopicPolicies(FORMAT)
    assert of_topic(ttl, own) is None
    assert of_topic(quota, own) is None
    own = own.having(ttl.name, 5, is_global=True)
    assert of_topic(ttl, own) == 5
    own = own.having(ttl.name, 0)
    assert of_topic(ttl, own) == 0
    own = own.having(quota.name, {"a": 1, "b": 1}, is_global=True).having(quota.name, {"b": 2})
    assert of_topic(quota, own) == {"a": 1, "b": 2}


def test_entries_go_their_own_way_up_and_other_values_as_a_whole() -> None:
    quota, ttl = BY_NAME["backlog_quota"], BY_NAME["message_ttl"]
    assert applied(quota, {"a": 1, "b": 1}, {"b": 2}) == {"a": 1, "b": 2}
    assert applied(quota, None, {"b": 2}) == {"b": 2}
    assert applied(quota, {"a": 1}, None) == {"a": 1}
    assert [applied(ttl, 9, own) for own in (None, 0, 5)] == [9, 0, 5]


# -- notifications


class Topic:
    def __init__(self, full_name: str, *, fails: bool = False) -> None:
        self.full_name = full_name
        self.name: TopicName = parse_topic(full_name)
        self.told = 0
        self.fails = fails

    def policies_changed(self) -> None:
        self.told += 1
        if self.fails:
            raise ValueError("a mistake of its own")


def test_open_topics_are_notified_by_name_by_parent_and_by_namespace() -> None:
    async def scenario() -> None:
        names = ["here/a", "here/b-partition-0", "here/b-partition-1", "there/a", "there/c"]
        topics = {name: Topic(f"persistent://public/{name}") for name in names}
        topics["here/a"].fails = True
        tasks = TaskSet("test")
        by_name = {topic.full_name: topic for topic in topics.values()}
        news = PolicyNews(topics.values, lambda name: by_name.get(str(name)), tasks)

        def told() -> list[int]:
            counts = [topic.told for topic in topics.values()]
            for topic in topics.values():
                topic.told = 0
            return counts

        news.changed(HERE, topics["here/a"].name)
        assert told() == [1, 0, 0, 0, 0], "one that is open is told at once"
        assert len(tasks) == 0
        news.changed(HERE, parse_topic("persistent://public/here/b"))
        assert told() == [0, 0, 0, 0, 0]
        await asyncio.sleep(PAUSE_S / 2)
        assert told() == [0, 1, 1, 0, 0]
        # What changes meanwhile is gathered for the next time through.
        for _ in range(3):
            news.changed(HERE, None)
        news.changed(HERE, parse_topic("persistent://public/here/none"))
        await asyncio.sleep(PAUSE_S / 4)
        assert told() == [0, 0, 0, 0, 0]
        await asyncio.sleep(PAUSE_S)
        assert told() == [1, 1, 1, 0, 0]
        await asyncio.sleep(2 * PAUSE_S)
        assert len(tasks) == 0
        news.changed(NamespaceName("public", "there"), None)
        await asyncio.sleep(0)
        assert told() == [0, 0, 0, 1, 1]
        await tasks.stop()
        news.changed(HERE, None)
        assert told() == [0, 0, 0, 0, 0]

    virtual(scenario())
