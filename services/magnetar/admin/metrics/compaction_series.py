"""Series of the compactions that this broker has run, under Pulsar's names.

Pulsar's latency is that of one write to a compacted ledger. There is none here: the buckets count
whole compactions by their duration.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.admin.metrics.topic_series import topic_labels
from magnetar.broker.cold.compactor import LATENCY_BOUNDS_MS, Counters
from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import escape, family

MS_PER_S: Final = 1000


def _per_second(count_bytes: int, counters: Counters) -> float:
    return count_bytes * MS_PER_S / max(1, counters.duration_ms)


def compaction_families(service: BrokerService) -> Iterator[str]:
    """Yields the text of each family; nothing until a topic was compacted, or failed to be."""
    counters = service.compactor.counters
    cluster = escape(service.cluster)
    labels, rows = [], []
    for name, own in counters.items():
        if (topic := service.open_topics.get(name)) is not None:
            labels.append(topic_labels(cluster, topic))
            rows.append(own)
    for name, values, kind in (
        ("removed_event_count", [row.removed for row in rows], "counter"),
        ("succeed_count", [row.succeeded for row in rows], "counter"),
        ("failed_count", [row.failed for row in rows], "counter"),
        ("duration_time_in_mills", [row.duration_ms for row in rows], "gauge"),
        ("read_throughput", [_per_second(row.read_bytes, row) for row in rows], "gauge"),
        ("write_throughput", [_per_second(row.written_bytes, row) for row in rows], "gauge"),
        ("compacted_entries_count", [row.entries for row in rows], "gauge"),
        ("compacted_entries_size", [row.size_bytes for row in rows], "gauge"),
    ):
        yield family(f"pulsar_compaction_{name}", labels, values, kind)
    for index, bound_ms in enumerate((*LATENCY_BOUNDS_MS, None)):
        bucket = "overflow" if bound_ms is None else f"le_{bound_ms}".replace(".", "_")
        values = [row.latencies[index] for row in rows]
        yield family(f"pulsar_compaction_latency_{bucket}", labels, values, "counter")
    for name, values in (
        ("sum", [row.latency_sum_ms for row in rows]),
        ("count", [sum(row.latencies) for row in rows]),
    ):
        yield family(f"pulsar_compaction_latency_{name}", labels, values, "counter")
