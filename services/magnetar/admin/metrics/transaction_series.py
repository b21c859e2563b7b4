"""Series of the coordinators that this broker serves, under Pulsar's names if it has them."""

from collections.abc import Iterator
from typing import Final

from magnetar.broker.service import BrokerService
from magnetar.broker.transactions.counts import LATENCY_BOUNDS_MS
from magnetar.observe.metrics import family, label_text, single

LATENCY: Final = "pulsar_txn_execution_latency_le_"


def transaction_families(service: BrokerService) -> Iterator[str]:
    """Yields the text of each family; nothing while no coordinator is served."""
    if service.transactions is None:
        return
    serving = sorted(service.transactions.coordinators.serving.items())
    if not serving:
        return
    labels = [
        label_text([("cluster", service.cluster), ("coordinator_id", str(id_))])
        for id_, _ in serving
    ]
    coordinators = [coordinator for _, coordinator in serving]
    counts = [coordinator.counts for coordinator in coordinators]
    columns = (
        ("active_count", [coordinator.active_count for coordinator in coordinators], "gauge"),
        ("created_total", [count.begun for count in counts], "counter"),
        ("committed_total", [count.committed for count in counts], "counter"),
        ("aborted_total", [count.aborted for count in counts], "counter"),
        ("timeout_total", [count.timed_out for count in counts], "counter"),
        (
            "append_log_total",
            [coordinator.groups_written for coordinator in coordinators],
            "counter",
        ),
    )
    for name, values, kind in columns:
        yield family(f"pulsar_txn_{name}", labels, values, kind)
        if name.endswith("_total"):
            # An older name of Pulsar's, which public dashboards still ask for.
            yield family(f"pulsar_txn_{name.removesuffix('_total')}_count", labels, values, kind)
    for index, bound_ms in enumerate((*LATENCY_BOUNDS_MS, None)):
        name = LATENCY + ("overflow" if bound_ms is None else str(bound_ms))
        yield family(name, labels, [count.latencies[index] for count in counts], "counter")
    ages_s = [coordinator.oldest_age_s for coordinator in coordinators]
    yield family("magnetar_txn_oldest_age_seconds", labels, ages_s, "gauge")
    cluster = label_text([("cluster", service.cluster)])
    retries = service.transactions.notifier.retries
    yield single("magnetar_txn_end_retries_total", cluster, retries, "counter")
