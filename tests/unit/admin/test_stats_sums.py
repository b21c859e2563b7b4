"""Sums over partitions and over brokers: every number is counted once, and by its own rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pytest

from magnetar.admin.stats.drain import (
    TIME_TO_DRAIN_S_MAX,
    TOPICS_PER_TURN,
    WORST_SHOWN_MAX,
    BrokerDrain,
    SubscriptionDrain,
    drain_of,
    time_to_drain_s,
)
from magnetar.admin.stats.partitioned import summed
from magnetar.admin.stats.publisher import PublisherStats
from magnetar.admin.stats.topic import TopicStats
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import ConsumerStats, SubscriptionStats

from .support import Admin

Stats = TypeVar("Stats", bound=msgspec.Struct)

# -- what a subscription has before it -----------------------------------------------------


@pytest.mark.parametrize(
    ("backlog_bytes", "rate_in", "rate_out", "seconds"),
    [
        (0, 5.0, 1.0, 0.0),
        (1_000, 50.0, 150.0, 10.0),
        (1_000, 0.0, 100.0, 10.0),
        (1_000, 100.0, 100.0, TIME_TO_DRAIN_S_MAX),
        (1_000, 101.0, 100.0, TIME_TO_DRAIN_S_MAX),
        (1_000, 0.0, 0.0, TIME_TO_DRAIN_S_MAX),
        (TIME_TO_DRAIN_S_MAX * 2, 0.0, 1.0, TIME_TO_DRAIN_S_MAX),
        (1, 0.0, 2.0, 0.5),
    ],
)
def test_a_backlog_drains_by_what_leaves_beyond_what_comes(
    backlog_bytes: float, rate_in: float, rate_out: float, seconds: float
) -> None:
    assert time_to_drain_s(backlog_bytes, rate_in, rate_out) == seconds


def behind(backlog_bytes: int) -> SubscriptionDrain:
    return SubscriptionDrain(backlog_bytes, 1, "topic", f"s{backlog_bytes}", 0.0, 0.0, True)


def test_the_drains_of_two_brokers_add_up_and_show_the_worst_of_both() -> None:
    one = BrokerDrain(["a"], 1, 20, 300, 4_000, 2_000, 10.0, 30.0, worst=[behind(3), behind(1)])
    other = BrokerDrain(["b"], 5, 60, 700, 8_000, 6_000, 50.0, 70.0, worst=[behind(2)])
    both = one.plus(other)
    assert both == BrokerDrain(
        ["a", "b"],
        topics=6,
        subscriptions_behind=80,
        backlog_entries=1_000,
        backlog_bytes=12_000,
        wanted_bytes=8_000,
        wanted_bytes_per_second_in=60.0,
        wanted_bytes_per_second_out=100.0,
        time_to_drain_seconds=200.0,
        worst=[behind(3), behind(2), behind(1)],
    )
    many = BrokerDrain(["c"], worst=[behind(size) for size in range(100, 100 + WORST_SHOWN_MAX)])
    sizes = [each.backlog_bytes for each in one.plus(many).worst]
    assert sizes == list(range(99 + WORST_SHOWN_MAX, 99, -1))


async def test_a_brokers_drain_is_that_of_subscriptions_with_a_backlog(admin: Admin) -> None:
    await admin.consumer("wants", SubType.Shared)
    await admin.done("PUT", "~/persistent/t1/n1/a/subscription/idle")
    await admin.done("PUT", "~/persistent/t1/n1/b/subscription/read")
    await admin.publish([b"m"] * 3)
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    drain = (await admin.done("GET", "~/magnetar/drain")).json()
    assert drain["brokers"] == [admin.service.broker_id]
    assert (drain["topics"], drain["subscriptionsBehind"], drain["backlogEntries"]) == (3, 2, 6)
    by_name = {each["subscription"]: each for each in drain["worst"]}
    assert set(by_name) == {"wants", "idle"}
    assert {name: each["wanted"] for name, each in by_name.items()} == {
        "wants": True,
        "idle": False,
    }
    wanted, idle = by_name["wants"]["backlogBytes"], by_name["idle"]["backlogBytes"]
    assert wanted == idle > 0
    assert (drain["wantedBytes"], drain["backlogBytes"]) == (wanted, wanted + idle)
    assert drain["timeToDrainSeconds"] == TIME_TO_DRAIN_S_MAX  # nothing was read for a minute
    assert by_name["idle"]["topic"] == "persistent://t1/n1/a"


@dataclass(frozen=True)
class Backlog:
    """What a drain needs of a cursor."""

    backlog: int
    backlog_bytes_estimate: int


async def test_a_brokers_drain_shows_the_largest_backlogs_first(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of the topics after a turn of the loop, and no more than a page can show."""
    topic = await admin.topic()
    for number in range(WORST_SHOWN_MAX + 5):
        await admin.done("PUT", f"~/persistent/t1/n1/a/subscription/s{number}")
    sizes = dict(zip(topic.subscriptions, range(10, 1_000, 10), strict=False))
    for name, subscription in topic.subscriptions.items():
        monkeypatch.setattr(subscription, "cursor", Backlog(1, sizes[name]))
    drain = await drain_of("b", [topic] * 1)
    expected = sorted(sizes.values(), reverse=True)[:WORST_SHOWN_MAX]
    assert [each.backlog_bytes for each in drain.worst] == expected
    assert drain.backlog_bytes == sum(sizes.values())
    many = await drain_of("b", [topic] * (TOPICS_PER_TURN + 1))
    assert many.topics == TOPICS_PER_TURN + 1
    assert many.subscriptions_behind == many.topics * len(sizes)


# -- partitions ------------------------------------------------------------------------------

EARLIEST = {
    TopicStats: {"topic_creation_time_stamp", "earliest_msg_publish_time_in_backlogs"},
    SubscriptionStats: {"earliest_msg_publish_time_in_backlog"},
    ConsumerStats: set[str](),
}
LATEST = {
    TopicStats: {"last_publish_time_stamp"},
    SubscriptionStats: {
        "last_expire_timestamp",
        "last_consumed_flow_timestamp",
        "last_consumed_timestamp",
        "last_acked_timestamp",
        "last_mark_delete_advanced_timestamp",
    },
    ConsumerStats: {"avg_messages_per_entry"},
}
SUMMED = {
    TopicStats: {
        "msg_rate_in",
        "msg_throughput_in",
        "msg_rate_out",
        "msg_throughput_out",
        "bytes_in_counter",
        "msg_in_counter",
        "bytes_out_counter",
        "msg_out_counter",
        "storage_size",
        "backlog_size",
        "publish_rate_limited_times",
        "offloaded_storage_size",
        "waiting_publishers",
        "non_contiguous_deleted_messages_ranges",
        "msg_drop_rate",
    },
    SubscriptionStats: {
        "msg_rate_out",
        "msg_throughput_out",
        "bytes_out_counter",
        "msg_out_counter",
        "msg_rate_redeliver",
        "message_ack_rate",
        "msg_backlog",
        "backlog_size",
        "msg_backlog_no_delayed",
        "msg_in_replay",
        "unacked_messages",
        "msg_rate_expired",
        "msg_expired",
        "total_msg_expired",
        "draining_hashes_count",
        "draining_hashes_cleared_total",
        "draining_hashes_unacked_messages",
        "non_contiguous_deleted_messages_ranges",
    },
    ConsumerStats: {
        "msg_rate_out",
        "msg_throughput_out",
        "bytes_out_counter",
        "msg_out_counter",
        "msg_rate_redeliver",
        "message_ack_rate",
        "available_permits",
        "unacked_messages",
        "draining_hashes_count",
        "draining_hashes_cleared_total",
        "draining_hashes_unacked_messages",
    },
}


def numbered(kind: type[Stats], start: int, **fields: object) -> Stats:
    """Stats whose sums, extremes and averages have a value each that no other rule gives."""
    stats = kind(**fields)
    known = SUMMED[kind] | EARLIEST[kind] | LATEST[kind]
    for offset, field in enumerate(sorted(known)):
        setattr(stats, field, start * 1_000 + offset)
    return stats


def check(total: msgspec.Struct, parts: Sequence[msgspec.Struct]) -> None:
    kind = type(total)
    for fields, rule in ((SUMMED, sum), (EARLIEST, min), (LATEST, max)):
        for field in fields[kind]:
            assert getattr(total, field) == rule(getattr(part, field) for part in parts), field


def consumer(name: str, start: int, **fields: object) -> ConsumerStats:
    return numbered(ConsumerStats, start, consumer_name=name, **fields)


def test_partitions_add_up_and_times_are_the_earliest_or_the_latest() -> None:
    consumers = [
        [consumer("both", 1, blocked_consumer_on_unacked_msgs=True), consumer("first", 2)],
        [consumer("both", 3), consumer("second", 4)],
    ]
    subscriptions = [
        numbered(
            SubscriptionStats, 7, type="Shared", subscription_properties={"a": "1"},
            consumers=consumers[0], blocked_subscription_on_unacked_msgs=True, durable=False,
        ),
        numbered(
            SubscriptionStats, 5, type="Shared", subscription_properties={"b": "2"},
            consumers=consumers[1], cursor_error="damaged",
        ),
    ]  # fmt: skip
    only_here = numbered(SubscriptionStats, 9, type="Exclusive")
    parts = [
        numbered(TopicStats, 3, subscriptions={"s": subscriptions[0]}),
        numbered(TopicStats, 2, subscriptions={"s": subscriptions[1], "t": only_here}),
    ]
    total = summed(parts)
    check(total, parts)
    assert total.average_msg_size == total.msg_throughput_in / total.msg_rate_in
    assert set(total.subscriptions) == {"s", "t"}
    check(total.subscriptions["s"], subscriptions)
    check(total.subscriptions["t"], [only_here])
    both = total.subscriptions["s"]
    assert (both.type, both.durable) == ("Shared", False)
    assert both.blocked_subscription_on_unacked_msgs
    assert both.subscription_properties == {"a": "1", "b": "2"}
    assert both.cursor_error == "damaged"
    by_name = {each.consumer_name: each for each in both.consumers}
    assert set(by_name) == {"both", "first", "second"}
    check(by_name["both"], [consumers[0][0], consumers[1][0]])
    check(by_name["second"], [consumers[1][1]])
    assert by_name["both"].blocked_consumer_on_unacked_msgs
    assert not by_name["first"].blocked_consumer_on_unacked_msgs


def test_a_time_that_a_partition_does_not_have_is_not_the_earliest() -> None:
    known, unknown = TopicStats(topic_creation_time_stamp=5), TopicStats()
    assert summed([known, unknown]).topic_creation_time_stamp == 5
    assert summed([unknown, known]).topic_creation_time_stamp == 5
    assert summed([unknown]).topic_creation_time_stamp == 0


def test_limits_are_those_of_the_topic_and_nothing_is_dropped_where_nothing_can_be() -> None:
    part = TopicStats(backlog_quota_limit_size=5, backlog_quota_limit_time=7)
    total = summed([part, part])
    assert (total.backlog_quota_limit_size, total.backlog_quota_limit_time) == (5, 7)
    assert total.msg_drop_rate is msgspec.UNSET
    assert total.average_msg_size == 0.0


def test_a_partitioned_producer_is_one_and_others_are_their_own() -> None:
    def producer(name: str, rate: float, throughput: float, size: float = 0.0) -> PublisherStats:
        return PublisherStats(
            producer_name=name, msg_rate_in=rate, msg_throughput_in=throughput,
            average_msg_size=size,
        )  # fmt: skip

    parts = [
        TopicStats(publishers=[producer("p", 1.0, 100.0), producer("idle", 0.0, 0.0, 40.0)]),
        TopicStats(publishers=[producer("p", 3.0, 500.0), producer("idle", 0.0, 0.0, 30.0)]),
    ]
    found = {each.producer_name: each for each in summed(parts).publishers}
    assert set(found) == {"p", "idle"}
    both = found["p"]
    assert (both.msg_rate_in, both.msg_throughput_in, both.average_msg_size) == (4.0, 600.0, 150.0)
    assert found["idle"].average_msg_size == 40.0
