"""Series of managed ledgers by namespace, under Pulsar's names: sums over the rows of topics.

As in Pulsar, buckets are rates per second over the last whole minute, with the range of a bucket as
the label `quantile`, and a namespace is named `tenant/namespace/persistent`. Topics that are not
persistent have no managed ledger; their backlog and size are zero, and so are their rates here.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from magnetar.admin.metrics.topic_series import ROW, TopicSeries
from magnetar.admin.metrics.windows import LATENCIES, SIZES, WINDOW_S
from magnetar.broker.topic.counters import ENTRY_SIZE_BOUNDS_BYTES, WRITE_LATENCY_BOUNDS_MS
from magnetar.observe.metrics import family

_COLUMNS: Final = {name: index for index, (name, _) in enumerate(ROW)}
_FROM_ROWS: Final = tuple(
    (f"pulsar_ml_{name}", _COLUMNS[column])
    for name, column in (
        ("AddEntryBytesRate", "pulsar_throughput_in"),
        ("AddEntryMessagesRate", "pulsar_storage_write_rate"),
        ("ReadEntriesBytesRate", "pulsar_throughput_out"),
        ("ReadEntriesRate", "pulsar_storage_read_rate"),
        ("NumberOfMessagesInBacklog", "pulsar_msg_backlog"),
        ("StoredMessagesSize", "pulsar_storage_size"),
    )
)
_NO_BUCKETS: Final = (0.0,) * (LATENCIES + SIZES)


def _ranges(bounds: Sequence[float]) -> list[str]:
    """The buckets below the last bound, as Pulsar names them: `0.0_0.5`."""
    return [f"{low}_{high}" for low, high in pairwise((0.0, *map(float, bounds)))]


_LATENCY_RANGES: Final = _ranges(WRITE_LATENCY_BOUNDS_MS)
_SIZE_RANGES: Final = _ranges(ENTRY_SIZE_BOUNDS_BYTES)


def ledger_families(series: TopicSeries, namespaces: list[str], cluster: str) -> Iterator[str]:
    """Yields the text of each family; `namespaces` has that of each row, `cluster` is escaped."""
    sums: dict[str, list[float]] = {}
    for namespace, persistent, row in zip(namespaces, series.persistent, series.rows, strict=True):
        if not persistent:
            continue
        total = sums.setdefault(namespace, [0.0] * len(_FROM_ROWS))
        for index, (_, column) in enumerate(_FROM_ROWS):
            total[index] += row[column]
    if not sums:
        return
    labels = [f'{{cluster="{cluster}",namespace="{name}/persistent"}}' for name in sums]
    for index, (name, _) in enumerate(_FROM_ROWS):
        yield family(name, labels, [total[index] for total in sums.values()])
    buckets: dict[str, tuple[float, ...]] = dict.fromkeys(sums, _NO_BUCKETS)
    for index, counts in series.buckets:
        namespace = namespaces[index]
        known = buckets[namespace]
        buckets[namespace] = tuple(map(float.__add__, known, map(float, counts[: len(known)])))
    rates = [[count / WINDOW_S for count in counts] for counts in buckets.values()]
    entries = [sum(counts[:LATENCIES]) for counts in buckets.values()]
    yield family("pulsar_ml_AddEntrySucceed", labels, entries)
    latencies = [row[:LATENCIES] for row in rates]
    yield from _buckets("AddEntryLatencyBuckets", _LATENCY_RANGES, labels, latencies)
    sizes = [row[LATENCIES:] for row in rates]
    yield from _buckets("EntrySizeBuckets", _SIZE_RANGES, labels, sizes)


def _buckets(
    name: str, ranges: list[str], labels: list[str], rates: list[list[float]]
) -> Iterator[str]:
    """Yields a family with a series for each bucket, and that of what is above all bounds."""
    named = [f'{label[:-1]},quantile="{limits}"}}' for label in labels for limits in ranges]
    values = [rate for row in rates for rate in row[: len(ranges)]]
    yield family(f"pulsar_ml_{name}", named, values)
    yield family(f"pulsar_ml_{name}_OVERFLOW", labels, [row[-1] for row in rates])
