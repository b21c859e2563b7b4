"""Series of the delayed messages of topics, under Pulsar's names.

Only topics that have had a delayed message have them. Without `topic_metrics`, they are sums by
namespace. Pulsar has an index and buckets for each subscription, Magnetar one index for the topic:
so the series have no label `subscription`. A bucket is a run of the index, and the moments in
memory are one more.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.admin.metrics.topic_series import namespace_labels
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.delayed.delayed_delivery import DelayedDelivery
from magnetar.observe.metrics import family

ROW: Final = (
    "pulsar_delayed_message_index_size_bytes",
    "pulsar_delayed_message_index_bucket_total",
    "pulsar_delayed_message_index_loaded",
)
OPERATIONS: Final = "pulsar_delayed_message_index_bucket_op_count"


class DelaySeries:
    """Collects the indexes of topics, then writes their families."""

    def __init__(self, cluster: str, *, topics: bool) -> None:
        """`cluster` is escaped; without `topics`, the series are those of namespaces."""
        self._cluster = cluster
        self._by_topic = topics
        self._rows: dict[str, tuple[int, int, int]] = {}
        self._operations: dict[str, int] = {}

    def add(self, labels: str, topic: Topic, delays: DelayedDelivery) -> None:
        """Adds a topic with its label text and its delayed delivery."""
        schedule = delays.schedule
        if schedule is None:
            return
        if not self._by_topic:
            name = topic.name
            labels = namespace_labels(self._cluster, f"{name.tenant}/{name.namespace_local}")
        size, buckets, loaded = self._rows.get(labels, (0, 0, 0))
        self._rows[labels] = (
            size + delays.memory_bytes,
            buckets + len(schedule.runs) + 1,
            loaded + schedule.loaded,
        )
        for state, operation, count in delays.operations.counts():
            own = f'{labels[:-1]},state="{state}",type="{operation}"}}'
            self._operations[own] = self._operations.get(own, 0) + count

    def families(self) -> Iterator[str]:
        """Yields the text of each family."""
        for name, column in zip(ROW, zip(*self._rows.values(), strict=True), strict=False):
            yield family(name, list(self._rows), column)
        if self._operations:
            labels = list(self._operations)
            yield family(OPERATIONS, labels, list(self._operations.values()), "counter")
