"""Series of the schema registry by namespace, under Pulsar's names; latencies in milliseconds."""

from collections.abc import Iterator
from typing import Final

from magnetar.admin.metrics.topic_series import namespace_labels
from magnetar.broker.schema.counts import OPERATIONS
from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import escape, family

MS_PER_S: Final = 1000


def schema_families(service: BrokerService) -> Iterator[str]:
    """Yields the text of each family; nothing until a schema was used."""
    by_namespace = service.schemas.counts.by_namespace
    cluster = escape(service.cluster)
    labels = [namespace_labels(cluster, namespace) for namespace in by_namespace]
    counts = list(by_namespace.values())
    for operation in OPERATIONS:
        prefix = f"pulsar_schema_{operation}_ops_"
        sums = [round(namespace.seconds[operation] * MS_PER_S, 3) for namespace in counts]
        succeeded = [namespace.succeeded[operation] for namespace in counts]
        failed = [namespace.failed[operation] for namespace in counts]
        yield family(prefix + "latency_count", labels, succeeded, "counter")
        yield family(prefix + "latency_sum", labels, sums, "counter")
        yield family(prefix + "failed_total", labels, failed, "counter")
    compatible = [namespace.compatible for namespace in counts]
    incompatible = [namespace.incompatible for namespace in counts]
    yield family("pulsar_schema_compatible_total", labels, compatible, "counter")
    yield family("pulsar_schema_incompatible_total", labels, incompatible, "counter")
