"""The analyses of the job `backlog`: growth, policies, and holders of ack holes."""

import pytest

from magnetar.core.clock import SystemClock
from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.documents.stats import ConsumerSummary
from magnetar.managed_ledger.settings import MIB, MINUTE_MS, Retention
from magnetar.metadata.memory import MemoryStore
from magnetar.offload.policy import NAMESPACES_PREFIX, TOPIC_POLICIES_PREFIX
from magnetar_spark.jobs.backlog.analyse.growth import (
    SECONDS_MIN,
    Before,
    Progress,
    Trend,
    progress,
)
from magnetar_spark.jobs.backlog.analyse.holes import HOLDERS_SHOWN_MAX, Consumer, holders
from magnetar_spark.jobs.backlog.gather.policies import (
    KEEPS_ALL,
    KEEPS_NOTHING,
    Keeping,
    PolicyReader,
    effective,
    parse_retention,
    parse_size,
    parse_time_ms,
    retention_of,
)

AT_MS = 1_000_000
END = Position(1, 0)


@pytest.mark.parametrize(
    ("before", "appended", "entries", "trend", "consumed", "drains_in_s"),
    [
        (10, 5, 0, Trend.EMPTY, 1.5, 0.0),
        (10, 5, 15, Trend.STALLED, 0.0, None),
        (10, 0, 10, Trend.STALLED, 0.0, None),
        (10, 5, 12, Trend.GROWING, 0.3, None),
        (10, 5, 10, Trend.STEADY, 0.5, None),
        (10, 5, 5, Trend.DRAINING, 1.0, 10.0),
        (10, 5, 9, Trend.DRAINING, 0.6, 90.0),
        (10, 5, 16, Trend.RESET, None, None),
    ],
)
def test_how_a_backlog_moves(
    before: int,
    appended: int,
    entries: int,
    trend: Trend,
    consumed: float | None,
    drains_in_s: float | None,
) -> None:
    found = progress(Before(AT_MS, before, END), entries, appended, AT_MS + 10_000)
    growth = (entries - before) / 10
    assert found == Progress(trend, 10.0, appended / 10, consumed, growth, drains_in_s)


def test_nothing_is_guessed_of_a_first_run_or_one_too_soon() -> None:
    assert progress(None, 0, 5, AT_MS) == Progress(Trend.UNKNOWN)
    assert progress(None, 5, None, AT_MS) == Progress(Trend.UNKNOWN)
    before = Before(AT_MS, 10, END)
    assert progress(before, 0, None, AT_MS + 10_000) == Progress(Trend.EMPTY)
    assert progress(before, 1, None, AT_MS + 10_000) == Progress(Trend.UNKNOWN)
    soon = AT_MS + int(SECONDS_MIN * 1000)
    assert progress(before, 5, 5, soon - 1) == Progress(Trend.UNKNOWN)
    assert progress(before, 5, 5, soon).trend is Trend.DRAINING


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("-1", -1),
        ("forever", -1),
        ("7ms", 7),
        ("90s", 90_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("2w", 14 * 86_400_000),
    ],
)
def test_times(text: str, milliseconds: int) -> None:
    assert parse_time_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("-1", -1),
        ("any", -1),
        ("7", 7),
        ("7B", 7),
        ("3K", 3 << 10),
        ("3KiB", 3 << 10),
        ("5M", 5 << 20),
        ("10G", 10 << 30),
        ("1TB", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        ("0", Retention(0, 0)),
        ("-1", KEEPS_ALL),
        ("forever", KEEPS_ALL),
        ("1d", Retention(-1, 86_400_000)),
        ("10G", Retention(10 << 30, -1)),
        ("1d/10G", Retention(10 << 30, 86_400_000)),
        ("forever/any", Retention(-1, -1)),
    ],
)
def test_retentions(text: str, retention: Retention) -> None:
    assert parse_retention(text) == retention


@pytest.mark.parametrize("text", ["", "x", "1", "1y", "d", "1d2h", "-5s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(PreconditionFailed, match="time"):
        parse_time_ms(text)


@pytest.mark.parametrize("text", ["", "x", "1P", "G", "1d/", "/1G", "1G/1d", "-5G"])
def test_what_is_no_retention_is_refused(text: str) -> None:
    with pytest.raises(PreconditionFailed):
        parse_retention(text)


def retained(minutes: int, megabytes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def test_retention_in_minutes_and_mebibytes() -> None:
    assert retention_of(retained(3, 5)) == Retention(5 * MIB, 3 * MINUTE_MS)
    assert retention_of(retained(-1, -1)) == KEEPS_ALL
    assert retention_of(retained(0, 0)) == KEEPS_NOTHING


def test_topic_over_namespace_over_default_value_by_value() -> None:
    default = Keeping(Retention(1, 1), 7, 9)
    namespace = {"retention_policies": retained(1, 1), "message_ttl_in_seconds": 5}
    assert effective(default, {}, {}) == default
    assert effective(default, namespace, {}) == Keeping(Retention(MIB, MINUTE_MS), 5, 9)
    local = {"retention": retained(2, 2)}
    shared = {"retention": retained(3, 3), "message_ttl": 6, "compaction_threshold": -4}
    found = effective(default, namespace, {"local": local, "global": shared})
    assert found == Keeping(Retention(2 * MIB, 2 * MINUTE_MS), 6, 0)
    assert effective(default, namespace, {"local": {"message_ttl": 0}}).ttl_s == 0


def test_what_is_not_understood_keeps_all() -> None:
    for namespace, topic in (
        (None, {}),
        ({}, None),
        ({"retention_policies": {"retentionTimeInMinutes": 1}}, {}),
        ({"message_ttl_in_seconds": "long"}, {}),
        ({"retention_policies": 5}, {}),
    ):
        assert effective(Keeping(ttl_s=3), namespace, topic) == Keeping(KEEPS_ALL, 0)


async def test_records_of_namespaces_are_read_once() -> None:
    store = MemoryStore(SystemClock())
    topic = parse_topic("persistent://public/default/t")
    reader = PolicyReader(store, Keeping(ttl_s=1))
    key = f"{NAMESPACES_PREFIX}public/default"
    await store.put(key, b'{"message_ttl_in_seconds":5}')
    assert (await reader.of(topic)).ttl_s == 5
    await store.put(key, b'{"message_ttl_in_seconds":6}')
    own = f"{TOPIC_POLICIES_PREFIX}public/default/persistent/t"
    assert (await reader.of(topic)).ttl_s == 5
    assert (await PolicyReader(store, Keeping()).of(topic)).ttl_s == 6
    await store.put(own, b'{"local":{"message_ttl":7}}')
    assert (await reader.of(topic.partition(2))).ttl_s == 7, "a partition has its topic's"
    await store.put(own, b"no json")
    assert await reader.of(topic) == Keeping(KEEPS_ALL, 0)
    assert (await reader.of(parse_topic("persistent://a/b/t"))).ttl_s == 1


def consumer(name: str, unacked: int, *ranges: tuple[int, int]) -> Consumer:
    return Consumer(name, unacked, 0, "", 0, ranges)


def test_who_holds_a_hole() -> None:
    assert holders(None, None) == ""
    assert holders([], b"k") == ""
    assert holders([consumer("one", 0)], None) == "one", "there is nobody else"
    two = [consumer("a", 1), consumer("b", 5), consumer("c", 5), consumer("d", 0)]
    assert holders(two, None) == "b, c, a"
    assert holders(two, b"k") == "b, c, a"
    many = [consumer(f"{number:02d}", 1) for number in range(HOLDERS_SHOWN_MAX + 3)]
    assert len(holders(many, None).split(", ")) == HOLDERS_SHOWN_MAX


def test_of_keys_the_consumer_of_their_range_holds_it() -> None:
    from magnetar.core.hashing import sticky_key_hash, sticky_range_hash

    for sticky, hashed in ((False, sticky_key_hash), (True, sticky_range_hash)):
        point = hashed(b"k")
        low, high = consumer("low", 9, (0, point - 1)), consumer("high", 9, (point + 1, 1 << 31))
        for mine in ((point, point), (point, point + 5), (point - 5, point)):
            found = holders([low, consumer("mine", 0, mine), high], b"k", sticky=sticky)
            assert found == "mine"
        assert holders([low, high], b"k", sticky=sticky) == "high, low", "nobody has the range"
        both = consumer("both", 0, (0, point - 1), (point, point))
        assert holders([low, both], b"k", sticky=sticky) == "both"
        assert holders([low, high], None, sticky=sticky) == "high, low"


def test_a_consumer_of_a_brokers_stats() -> None:
    assert Consumer.of(ConsumerSummary()) == Consumer("", 0, 0, "", 0)
    summary = ConsumerSummary("c", 1, 2, "a", 3, ((0, 5), (9, 11)))
    assert Consumer.of(summary) == Consumer("c", 1, 2, "a", 3, ((0, 5), (9, 11)))
