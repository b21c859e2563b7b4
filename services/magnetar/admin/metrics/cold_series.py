"""Series of reads of offloaded data: from the object store, and from cached row groups.

They have the current and the older names of Pulsar's offloaders, which dashboards use.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.admin.metrics.windows import Rate
from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import label_text, single

_PREFIXES: Final = ("brk_ledgeroffloader_", "pulsar_ledgeroffloader_")


class ColdSeries:
    """Keeps the rate of reads over the last minute."""

    def __init__(self) -> None:
        self._read = Rate()

    def turn(self, service: BrokerService) -> None:
        """Ends the current minute."""
        self._read.turn(service.ledgers.cold.files.counters.read_bytes)

    def families(self, service: BrokerService) -> Iterator[str]:
        """Yields the text of each family; nothing until something was read."""
        files = service.ledgers.cold.files
        counters = files.counters
        if not (counters.group_reads or counters.errors):
            return
        cluster = label_text([("cluster", service.cluster)])
        for prefix in _PREFIXES:
            for name, value, kind in (
                ("read_offload_rate", self._read.per_second, "gauge"),
                ("read_offload_error", counters.errors, "counter"),
                ("read_bytes", counters.read_bytes, "counter"),
                ("read_ledger_latency_sum", counters.read_seconds * 1000, "counter"),
                ("read_ledger_latency_count", counters.group_reads, "counter"),
            ):
                yield single(prefix + name, cluster, value, kind)
        yield single("magnetar_cold_cache_bytes", cluster, files.kept_bytes)
        yield single("magnetar_cold_cache_bytes_max", cluster, files.cache_bytes_max)
        yield single("magnetar_cold_cache_hits_total", cluster, counters.group_hits, "counter")
