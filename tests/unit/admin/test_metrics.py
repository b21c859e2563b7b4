"""The metrics page: Pulsar's names and labels, the windows, the switches."""

import re
from dataclasses import dataclass

import msgspec
import pytest

from magnetar.admin.metrics.bookie_series import WINDOW_S, BookieSeries, quantile_ms
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.metrics.topic_series import bucket_families
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.stats import LATENCY_BUCKETS_MS, BookieStats, Latencies
from magnetar.broker.schema.registry import CompatibilityStrategy
from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import IncompatibleSchema
from magnetar.core.names import parse_topic
from magnetar.schemas.model import SchemaInfo, SchemaType
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

from .support import Admin, start_service, stop_service

PER_TOPIC = {
    *("pulsar_subscriptions_count", "pulsar_producers_count", "pulsar_consumers_count"),
    *("pulsar_rate_in", "pulsar_rate_out", "pulsar_throughput_in", "pulsar_throughput_out"),
    *("pulsar_in_messages_total", "pulsar_in_bytes_total", "pulsar_msg_backlog"),
    *("pulsar_storage_size", "pulsar_storage_logical_size", "pulsar_storage_backlog_size"),
    *("pulsar_storage_offloaded_size", "pulsar_storage_write_rate", "pulsar_storage_read_rate"),
    "pulsar_average_msg_size",
}
PER_SUBSCRIPTION = {
    *("pulsar_subscription_back_log", "pulsar_subscription_unacked_messages"),
    *("pulsar_subscription_msg_rate_out", "pulsar_subscription_msg_throughput_out"),
    *("pulsar_subscription_msg_rate_redeliver", "pulsar_subscription_delayed"),
    *("pulsar_out_messages_total", "pulsar_out_bytes_total"),
}
PER_BROKER = {
    *("pulsar_broker_topics_count", "pulsar_broker_producers_count", "pulsar_broker_rate_in"),
    *("pulsar_broker_msg_backlog", "pulsar_broker_storage_size", "pulsar_active_connections"),
    *("pulsar_connection_created_total_count", "pulsar_ml_cache_used_size"),
    *("pulsar_ml_cache_hits_rate", "pulsar_ml_cache_misses_rate", "pulsar_version_info"),
    *("process_resident_memory_bytes", "pulsar_health"),
}

Series = dict[tuple[str, str], float]


async def scrape(page: MetricsPage) -> Series:
    """Parses (name, labels) → value; checks that each family is contiguous, under one TYPE line."""
    actual: Series = {}
    typed: list[str] = []
    for line in "".join([piece async for piece in page.text()]).splitlines():
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
            continue
        left, _, value = line.rpartition(" ")
        name, _, labels = left.partition("{")
        assert name == typed[-1], line
        assert (name, labels) not in actual
        actual[name, labels] = float(value)
    assert len(typed) == len(set(typed))
    return actual


def of(series: Series, name: str, *labels: str) -> float:
    """Returns the only series of this name whose labels include all of `labels`."""
    (value,) = [
        value
        for (item, text), value in series.items()
        if item == name and all(label in text for label in labels)
    ]
    return value


async def test_names_and_labels(admin: Admin) -> None:
    producer = await admin.producer()
    await admin.consumer("sub", SubType.Shared)
    await admin.publish([b"x" * 100] * 3, producer=producer)
    series = await scrape(admin.page)
    assert {name for name, _ in series} >= PER_TOPIC | PER_SUBSCRIPTION | PER_BROKER
    labels = 'cluster="standalone",namespace="t1/n1",topic="persistent://t1/n1/a"'
    assert series["pulsar_in_messages_total", labels + "}"] == 3
    assert series["pulsar_out_messages_total", labels + ',subscription="sub"}'] == 3
    assert series["pulsar_subscription_unacked_messages", labels + ',subscription="sub"}'] == 3
    assert series["pulsar_broker_producers_count", 'cluster="standalone"}'] == 1
    assert of(series, "pulsar_topics_count", 'namespace="t1/n1"') == 1
    assert of(series, "pulsar_version_info", 'version="') == 1


async def test_buckets_are_those_of_the_last_minute(admin: Admin) -> None:
    producer = await admin.producer()
    await admin.publish([b"x" * 200] * 3 + [b"x" * 1500], producer=producer)
    await admin.topic("idle")

    async def sizes() -> tuple[float, float, float]:
        series = await scrape(admin.page)
        names = ("pulsar_entry_size_le_512", "pulsar_entry_size_le_2_kb", "pulsar_entry_size_count")
        return tuple(series.get((name, LABELS), 0.0) for name in names)  # type: ignore[return-value]

    # Before the first whole minute: all counts so far.
    assert await sizes() == (3, 1, 4)
    admin.page.turn()
    assert await sizes() == (3, 1, 4)
    await admin.publish([b"x" * 200], producer=producer)
    assert await sizes() == (3, 1, 4)
    admin.page.turn()
    assert await sizes() == (1, 0, 1)
    series = await scrape(admin.page)
    assert of(series, "pulsar_storage_write_rate", '/a"') == pytest.approx(1 / 60)
    # Idle topics have no bucket series: ten thousand of them would have a quarter of a million.
    assert not [key for key in series if key[0] in bucket_families() and "idle" in key[1]]
    admin.page.turn()
    assert await sizes() == (0, 0, 0)
    # A topic that was opened again counts from zero.
    await admin.done("PUT", "~/persistent/t1/n1/a/unload")
    producer = await admin.producer()
    await admin.publish([b"x" * 200], producer=producer)
    admin.page.turn()
    assert await sizes() == (1, 0, 1)


async def test_managed_ledgers_are_summed_by_namespace(admin: Admin) -> None:
    for local in ("a", "b"):
        producer = await admin.producer(local)
        await admin.publish([b"x" * 200] * 3, local, producer=producer)
    admin.page.turn()
    series = await scrape(admin.page)
    namespace = 'namespace="t1/n1/persistent"'
    assert of(series, "pulsar_ml_AddEntrySucceed", namespace) == 6
    assert of(series, "pulsar_ml_AddEntryMessagesRate", namespace) == pytest.approx(6 / 60)
    stored = [value for (name, _), value in series.items() if name == "pulsar_storage_size"]
    assert of(series, "pulsar_ml_StoredMessagesSize", namespace) == sum(stored) > 0
    sizes = ("pulsar_ml_EntrySizeBuckets", namespace)
    assert of(series, *sizes, 'quantile="128.0_512.0"') == pytest.approx(6 / 60)
    assert of(series, *sizes, 'quantile="0.0_128.0"') == 0
    assert of(series, "pulsar_ml_EntrySizeBuckets_OVERFLOW", namespace) == 0
    latencies = [v for (name, _), v in series.items() if name.startswith("pulsar_ml_AddEntryLat")]
    assert len(latencies) == 10
    assert sum(latencies) == pytest.approx(6 / 60)


async def test_schemas_are_counted_by_namespace(admin: Admin) -> None:
    schemas = admin.service.schemas
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"%s"}]}'
    kept, other = (
        SchemaInfo(SchemaType.AVRO, (text % kind).encode()) for kind in ("int", "string")
    )
    topic = parse_topic("persistent://t1/n1/a")
    await schemas.put(topic, kept, CompatibilityStrategy.FULL)
    with pytest.raises(IncompatibleSchema):
        await schemas.put(topic, other, CompatibilityStrategy.FULL)
    await schemas.get(topic)
    await schemas.delete(topic)
    series = await scrape(admin.page)
    counts = {
        name.removeprefix("pulsar_schema_"): value
        for (name, labels), value in series.items()
        if name.startswith("pulsar_schema_") and 'namespace="t1/n1"' in labels
    }
    assert counts.pop("put_ops_latency_sum") > 0
    counts = {name: count for name, count in counts.items() if not name.endswith("_sum")}
    assert counts == {
        **dict.fromkeys(("get_ops_latency_count", "put_ops_latency_count"), 1),
        "del_ops_latency_count": 1,
        "put_ops_failed_total": 1,
        "compatible_total": 1,
        "incompatible_total": 1,
        "get_ops_failed_total": 0,
        "del_ops_failed_total": 0,
    }


LABELS = 'cluster="standalone",namespace="t1/n1",topic="persistent://t1/n1/a"}'


async def test_odd_names_are_escaped(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/a%22b%5Cc")
    await admin.done("PUT", "~/persistent/t1/n1/a%22b%5Cc/subscription/s%0At")
    series = await scrape(admin.page)
    assert of(series, "pulsar_subscription_back_log", r'a\"b\\c"', r'subscription="s\nt"') == 0


async def test_switches() -> None:
    service = await start_service(
        compose(BrokerSettings, topic_metrics=False, consumer_metrics=True)
    )
    admin = Admin(service, MetricsPage(service), None)  # type: ignore[arg-type]
    for local in ("a", "b"):
        await admin.consumer("sub", SubType.Exclusive, local)
        await admin.publish([b"x"] * 2, local, await admin.producer(local))
    series = await scrape(admin.page)
    assert of(series, "pulsar_in_messages_total", 'namespace="t1/n1"') == 4
    assert not [name for name, _ in series if name.startswith("pulsar_subscription_b")]
    assert of(series, "pulsar_consumer_out_messages_total", '/a"', 'consumer_name="c"') == 2
    assert of(series, "pulsar_consumer_available_permits", '/b"', 'consumer_id="7"') == 998
    await stop_service(service)


async def test_a_broker_without_topics(admin: Admin) -> None:
    series = await scrape(admin.page)
    assert of(series, "pulsar_broker_topics_count") == 0


@dataclass
class CountingBookie:
    """A bookie with fixed stats."""

    numbers: BookieStats
    identity: BookieIdentity

    def stats(self) -> BookieStats:
        return self.numbers


def latencies(sum_s: float = 0.0, **counts: int) -> Latencies:
    """A histogram by the bounds of its buckets, `ms_1=98`."""
    bounds = [f"ms_{bound:g}" for bound in LATENCY_BUCKETS_MS]
    return Latencies((*(counts.pop(bound, 0) for bound in bounds), 0), sum_s)


def bookie(**numbers: object) -> CountingBookie:
    fields = dict.fromkeys(BookieStats.__struct_fields__, 0)
    names = ("add_latencies", "read_latencies", "journal_sync_latencies")
    empty = dict.fromkeys(names, latencies())
    texts = {"read_only_reason": "", "fault": ""}
    stats = msgspec.convert({**fields, **empty, **texts, **numbers}, BookieStats, strict=False)
    return CountingBookie(stats, BookieIdentity("b1", "1"))


def test_bookie_series() -> None:
    busy = bookie(
        writable=True,
        bytes_added=700,
        adds_failed=3,
        add_latencies=latencies(0.014, ms_2=6, ms_5=1),
        read_latencies=latencies(0.004, ms_1=4),
        index_memory_bytes=4_096,
        journal_pending_records=2,
        journal_sync_latencies=latencies(0.25, ms_1=98, ms_10=2),
        gc_bytes_freed=900,
        gc_bytes_compacted=200,
        gc_major=1,
        ledgers_deleted=5,
    )
    page = "".join(BookieSeries().families([busy]))
    for line in (
        "bookie_SERVER_STATUS 1",
        "bookie_WRITE_BYTES 700",
        "bookie_index_memory_bytes 4096",
        "bookie_journal_JOURNAL_QUEUE_SIZE 2",
        "bookie_DELETED_LEDGER_TOTAL 5",
        "bookie_MAJOR_COMPACTION_TOTAL 1",
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES 200",
        "bookie_RECLAIMED_DELETION_SPACE_BYTES 700",
        'bookkeeper_server_ADD_ENTRY{success="true",quantile="0.5"} 2.0',
        'bookkeeper_server_ADD_ENTRY{success="true",quantile="0.99"} 5.0',
        'bookkeeper_server_ADD_ENTRY_count{success="true"} 7',
        'bookkeeper_server_ADD_ENTRY_count{success="false"} 3',
        'bookkeeper_server_ADD_ENTRY_sum{success="true"} 14.0',
        'bookkeeper_server_READ_ENTRY_REQUEST{success="true",quantile="0.5"} 1.0',
        'bookkeeper_server_READ_ENTRY_count{success="true"} 4',
        'bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="1.0"} 5.0',
        'bookie_journal_JOURNAL_SYNC{success="true",quantile="0.5"} 1.0',
        'bookie_journal_JOURNAL_SYNC{success="true",quantile="0.99"} 10.0',
        'bookie_journal_JOURNAL_SYNC_count{success="true"} 100',
        'bookie_journal_JOURNAL_SYNC_sum{success="true"} 250.0',
    ):
        assert f"{line}\n" in page


def test_quantiles_are_recent_ones() -> None:
    now_s = 0.0
    series = BookieSeries(lambda: now_s)

    def slowest(**counts: int) -> str:
        page = "".join(series.families([bookie(add_latencies=latencies(**counts))]))
        (line,) = re.findall(r'JOURNAL_ADD_ENTRY{success="true",quantile="1.0"} (.*)', page)
        return str(line)

    assert slowest(ms_200=1) == "200.0"
    now_s = WINDOW_S
    assert slowest(ms_200=1, ms_1=1) == "200.0"
    now_s = 2 * WINDOW_S - 1
    assert slowest(ms_200=1, ms_1=2) == "200.0"  # the window before still counts
    now_s = 2 * WINDOW_S
    assert slowest(ms_200=1, ms_1=2) == "1.0"
    now_s = 3 * WINDOW_S
    assert slowest(ms_200=1, ms_1=2) == "0"
    assert slowest(ms_5=1) == "5.0"  # the bookie was opened again


def test_quantiles() -> None:
    assert quantile_ms((0,) * 13, 0.5) == 0.0
    assert quantile_ms((1,) + (0,) * 12, 0.999) == LATENCY_BUCKETS_MS[0]
    assert quantile_ms((0,) * 12 + (1,), 0.5) == LATENCY_BUCKETS_MS[-1]
