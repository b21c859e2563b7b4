"""Series per topic, or per namespace if `topic_metrics` is off.

Each topic has a row of numbers, and each column of the rows is a family. Bucket families contain
only topics with traffic in the last minute: sums count a missing series as zero, and ten thousand
idle topics would add a quarter of a million lines.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.admin.metrics.subscription_series import Sums
from magnetar.admin.metrics.windows import LATENCIES, NO_TRAFFIC, WINDOW_S, Counts, MinuteWindows
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.observe.metrics import escape, family

ROW: Final = (
    ("pulsar_subscriptions_count", "gauge"),
    ("pulsar_producers_count", "gauge"),
    ("pulsar_consumers_count", "gauge"),
    ("pulsar_rate_in", "gauge"),
    ("pulsar_throughput_in", "gauge"),
    ("pulsar_rate_out", "gauge"),
    ("pulsar_throughput_out", "gauge"),
    ("pulsar_in_messages_total", "counter"),
    ("pulsar_in_bytes_total", "counter"),
    ("pulsar_msg_backlog", "gauge"),
    ("pulsar_storage_size", "gauge"),
    ("pulsar_storage_logical_size", "gauge"),
    ("pulsar_storage_backlog_size", "gauge"),
    ("pulsar_storage_offloaded_size", "gauge"),
    ("pulsar_storage_write_rate", "gauge"),
    ("pulsar_storage_read_rate", "gauge"),
    ("pulsar_publish_rate_limit_times", "counter"),
)
"""The families of a row, in the order of its values."""

DUPLICATES: Final = "magnetar_deduplication_duplicates_total"
"""Messages that were not stored again; only topics with deduplication have the series."""
FORGOTTEN: Final = "magnetar_deduplication_forgotten_producers_total"
"""Producers whose sequence ids were forgotten; only topics with deduplication have the series."""
AVERAGE_SIZE: Final = "pulsar_average_msg_size"
_RATE_IN, _THROUGHPUT_IN = 3, 4

_LATENCY_NAMES: Final = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
_SIZE_NAMES: Final = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")

Row = tuple[float, ...]


def bucket_families() -> list[str]:
    """Returns the names of the bucket families and their sums, in the order of
    `windows.counts_of`."""
    latency, size = "pulsar_storage_write_latency_", "pulsar_entry_size_"
    return [
        *(f"{latency}le_{bound}" for bound in _LATENCY_NAMES),
        latency + "overflow",
        *(f"{size}le_{bound}" for bound in _SIZE_NAMES),
        size + "le_overflow",
        size + "count",
        size + "sum",
        latency + "sum",
        latency + "count",
    ]


def topic_labels(cluster: str, topic: Topic) -> str:
    """Returns the label text of a topic; names of tenants and namespaces need no escapes."""
    name = topic.name
    return (
        f'{{cluster="{cluster}",namespace="{name.tenant}/{name.namespace_local}",'
        f'topic="{escape(topic.full_name)}"}}'
    )


def namespace_labels(cluster: str, namespace: str) -> str:
    """Returns the label text of a namespace; both arguments are escaped."""
    return f'{{cluster="{cluster}",namespace="{namespace}"}}'


class TopicSeries:
    """Collects the rows of topics, then writes their families."""

    def __init__(self, windows: MinuteWindows) -> None:
        self._windows = windows
        self.labels: list[str] = []
        self.rows: list[Row] = []
        self.persistent: list[bool] = []
        """Of each row, whether its topic is persistent."""
        self.buckets: list[tuple[int, Counts]] = []
        """The index of a row with traffic, and its counts as `bucket_families` names them."""
        self._deduplicated: list[str] = []
        self._duplicates: list[int] = []
        self._forgotten: list[int] = []

    def add(self, labels: str, topic: Topic, sums: Sums, offloaded_bytes: int = 0) -> None:
        """Adds a topic with the sums over its subscriptions and its offloaded bytes."""
        counters = topic.counters
        window = self._windows.of(topic)
        stored = topic.stored_bytes
        row = (
            len(topic.subscriptions),
            len(topic.producers),
            sums.consumers,
            counters.message_rate_in,
            counters.bytes_rate_in,
            sums.rate_out,
            sums.throughput_out,
            counters.messages_in,
            counters.bytes_in,
            sums.backlog,
            stored,
            stored,
            sums.backlog_bytes,
            offloaded_bytes,
            window[-3] / WINDOW_S if stored else 0.0,
            sums.rate_out,
            counters.publish_limited_times,
        )
        self.labels.append(labels)
        self.rows.append(row)
        persistent = as_persistent(topic)
        if persistent is not None and (deduplication := persistent.deduplication) is not None:
            self._deduplicated.append(labels)
            self._duplicates.append(deduplication.duplicates)
            self._forgotten.append(deduplication.forgotten)
        self.persistent.append(topic.name.persistent)
        if window is not NO_TRAFFIC and topic.name.persistent:
            self.buckets.append((len(self.rows) - 1, (*window, sum(window[:LATENCIES]))))

    def families(self) -> Iterator[str]:
        """Yields the text of each family."""
        if not self.rows:
            return
        columns = list(zip(*self.rows, strict=True))
        for (name, kind), column in zip(ROW, columns, strict=True):
            yield family(name, self.labels, column, kind)
        yield family(DUPLICATES, self._deduplicated, self._duplicates, "counter")
        yield family(FORGOTTEN, self._deduplicated, self._forgotten, "counter")
        averages = [
            bytes_in / rate if rate else 0.0
            for rate, bytes_in in zip(columns[_RATE_IN], columns[_THROUGHPUT_IN], strict=True)
        ]
        yield family(AVERAGE_SIZE, self.labels, averages)
        labels = [self.labels[index] for index, _ in self.buckets]
        counts = zip(*(counts for _, counts in self.buckets), strict=True)
        for name, column in zip(bucket_families(), counts, strict=False):
            yield family(name, labels, column)


def by_namespace(
    series: TopicSeries, namespaces: list[str], cluster: str
) -> "tuple[list[str], list[Row]]":
    """Returns the labels and rows of namespaces; `namespaces` has the namespace of each row."""
    sums: dict[str, Row] = {}
    for namespace, row in zip(namespaces, series.rows, strict=True):
        total = sums.get(namespace)
        sums[namespace] = (
            row if total is None else tuple(a + b for a, b in zip(total, row, strict=True))
        )
    return [namespace_labels(cluster, namespace) for namespace in sums], list(sums.values())
