"""Series of the load balance: this broker's usage, and its decisions while it was the leader.

Usages are in percent, as in Pulsar. There are no series for values that are not measured.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import label_text, single

if TYPE_CHECKING:
    from magnetar.broker.balance.service import Balance


def balance_families(service: BrokerService, balance: "Balance | None") -> Iterator[str]:
    """Yields the text of each family; nothing for a single broker."""
    if balance is None:
        return
    cluster = ("cluster", service.cluster)
    report = balance.reporter.last
    if report is not None:
        labels = label_text([cluster, ("broker", service.broker_id), ("metric", "loadBalancing")])
        yield single("pulsar_lb_cpu_usage", labels, round(report.cpu * 100, 2))
        yield single("pulsar_lb_memory_usage", labels, round(report.memory * 100, 2))
    counts = balance.balancer.counts
    unloading = label_text([cluster, ("metric", "bundleUnloading")])
    yield single("pulsar_lb_unload_broker_count", unloading, counts.brokers_unloaded, "counter")
    yield single("pulsar_lb_unload_bundle_count", unloading, counts.bundles_unloaded, "counter")
    splitting = label_text([cluster, ("metric", "bundlesSplit")])
    yield single("pulsar_lb_bundles_split_count", splitting, counts.bundles_split, "counter")
    leading = int(balance.leadership.leading)
    yield single("magnetar_lb_leading", label_text([cluster]), leading)
