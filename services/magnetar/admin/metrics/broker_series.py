"""Series of the whole broker: sums over topics, connections, the cache, the version."""

from collections.abc import Iterable, Iterator
from typing import Final

from magnetar.admin.metrics.windows import WINDOW_S, Rate
from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import family, label_text, single

_SUMS: Final = (
    "subscriptions_count",
    "producers_count",
    "consumers_count",
    "rate_in",
    "throughput_in",
    "rate_out",
    "throughput_out",
    None,
    None,
    "msg_backlog",
    "storage_size",
    "storage_logical_size",
    None,
    None,
    "storage_write_rate",
    "storage_read_rate",
    None,
)
"""`pulsar_broker_…`, in the order of `topic_series.ROW`; None if Pulsar has no such sum."""


class CacheRates:
    """The rates per second at which the entry cache was hit and missed, in reads and bytes."""

    def __init__(self) -> None:
        self.hits, self.hit_bytes = Rate(), Rate()
        self.misses, self.missed_bytes = Rate(), Rate()
        self.evictions = Rate()

    def turn(self, service: BrokerService) -> None:
        """Ends the current minute."""
        cache = service.ledgers.cache.stats()
        self.hits.turn(cache.hits)
        self.hit_bytes.turn(cache.hit_bytes)
        self.misses.turn(cache.misses)
        self.missed_bytes.turn(cache.missed_bytes)
        self.evictions.turn(cache.evictions)


def broker_families(
    service: BrokerService, rows: Iterable[tuple[float, ...]], topics: int, rates: CacheRates
) -> Iterator[str]:
    """Yields the text of each family; `rows` are those of the topics."""
    cluster = label_text([("cluster", service.cluster)])
    yield single("pulsar_broker_topics_count", cluster, topics)
    columns = list(zip(*rows, strict=True)) or [()] * len(_SUMS)
    for name, column in zip(_SUMS, columns, strict=True):
        if name is not None:
            yield single(f"pulsar_broker_{name}", cluster, sum(column))
    opened, now = service.sessions_total, len(service.sessions)
    yield single("pulsar_active_connections", cluster, now)
    yield single("pulsar_connection_created_total_count", cluster, opened, "counter")
    yield single("pulsar_connection_closed_total_count", cluster, opened - now, "counter")
    yield single("pulsar_ml_count", cluster, len(service.ledgers.opened))
    yield from _cache_families(service, cluster, rates)
    stalls, stalled = service.diagnosis.stalls.stalls_total, service.diagnosis.stalls.stalled_now
    yield single("magnetar_dispatch_stalls_total", cluster, stalls, "counter")
    yield single("magnetar_dispatch_stalled_subscriptions", cluster, stalled)
    yield single("pulsar_health", cluster, 0 if service.stopping else 1)
    yield single("magnetar_clock_apart_seconds", cluster, service.clock.apart_ms / 1000)
    for name, limit in (
        ("magnetar_http_requests_limited_total", service.request_limit),
        ("magnetar_commands_limited_total", service.command_limit),
    ):
        if limit is not None:
            own = ("cluster", service.cluster)
            labels = [label_text([own, ("by", by)]) for by in limit.refused]
            yield family(name, labels, list(limit.refused.values()), "counter")
    version = label_text([("cluster", service.cluster), ("version", service.version)])
    yield single("pulsar_version_info", version, 1)


def _cache_families(service: BrokerService, cluster: str, rates: CacheRates) -> Iterator[str]:
    """Yields the families of the entry cache; rates are those of the last whole minute."""
    cache = service.ledgers.cache.stats()
    for name, value in (
        ("used_size", cache.size_bytes),
        ("size_max", cache.size_bytes_max),
        ("hits_rate", rates.hits.per_second),
        ("hits_throughput", rates.hit_bytes.per_second),
        ("misses_rate", rates.misses.per_second),
        ("misses_throughput", rates.missed_bytes.per_second),
        ("evictions", round(rates.evictions.per_second * WINDOW_S)),
    ):
        yield single(f"pulsar_ml_cache_{name}", cluster, value)
    for name, count in (
        ("evicted_bytes_total", cache.evicted_bytes),
        ("evicted_entries_total", cache.evicted_entries),
    ):
        yield single(f"pulsar_ml_cache_{name}", cluster, count, "counter")
