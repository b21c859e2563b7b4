"""Series of the load balance: this broker's usage, and its decisions while it was the leader.

Usages are in percent, as in Pulsar. There are no series for values that are not measured. The
counters have two names, with `_total` and `_count`: public dashboards for Pulsar ask for both.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magnetar.admin.metrics.network_usage import NetworkUsage
from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import label_text, single

if TYPE_CHECKING:
    from magnetar.broker.balance.service import Balance


def balance_families(
    service: BrokerService, balance: "Balance | None", network: NetworkUsage
) -> Iterator[str]:
    """Yields the text of each family; nothing for a single broker."""
    if balance is None:
        return
    cluster = ("cluster", service.cluster)
    report = balance.reporter.last
    if report is not None:
        labels = label_text([cluster, ("broker", service.broker_id), ("metric", "loadBalancing")])
        yield single("pulsar_lb_cpu_usage", labels, round(report.cpu * 100, 2))
        yield single("pulsar_lb_memory_usage", labels, round(report.memory * 100, 2))
        shares = network.measure()
        if shares is not None:
            received, sent = round(shares.received * 100, 2), round(shares.sent * 100, 2)
            yield single("pulsar_lb_bandwidth_in_usage", labels, received)
            yield single("pulsar_lb_bandwidth_out_usage", labels, sent)
    counts = balance.balancer.counts
    unloading = label_text([cluster, ("metric", "bundleUnloading")])
    splitting = label_text([cluster, ("metric", "bundlesSplit")])
    for name, labels, count in (
        ("pulsar_lb_unload_broker", unloading, counts.brokers_unloaded),
        ("pulsar_lb_unload_bundle", unloading, counts.bundles_unloaded),
        ("pulsar_lb_bundles_split", splitting, counts.bundles_split),
    ):
        for ending in ("_total", "_count"):
            yield single(name + ending, labels, count, "counter")
    leading = int(balance.leadership.leading)
    yield single("magnetar_lb_leading", label_text([cluster]), leading)
