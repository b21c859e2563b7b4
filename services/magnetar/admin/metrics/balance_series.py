"""Series of the load balance: what this broker uses, and what it decided while it led.

Usages are in percent, as Pulsar's; series for what is not measured are left out.
"""

from collections.abc import Iterator

from magnetar.broker.balance.service import Balance
from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import label_text, single


def balance_families(service: BrokerService, balance: Balance | None) -> Iterator[str]:
    """One text for each family; none for a broker alone."""
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
