"""Series of authentication and authorization; none while authentication is off."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from magnetar.broker.service import BrokerService
from magnetar.observe.metrics import family, label_text, single

if TYPE_CHECKING:
    from magnetar.broker.security.broker_security import BrokerSecurity


def security_families(service: BrokerService) -> Iterator[str]:
    """Yields the text of each family."""
    security = service.security
    if security is None:
        return
    cluster = service.cluster
    own = label_text([("cluster", cluster)])
    connections = security.counts
    yield single("pulsar_connection_create_success_count", own, connections.accepted, "counter")
    yield single("pulsar_connection_create_fail_count", own, connections.refused, "counter")
    labels, values = [], []
    for of, counts in (("connection", security.counts), ("request", security.http_counts)):
        for result, count in asdict(counts).items():
            labels.append(label_text([("cluster", cluster), ("of", of), ("result", result)]))
            values.append(count)
    yield family("magnetar_authentications_total", labels, values, "counter")
    yield from _authentications(security, cluster)
    if security.authorizer is not None:
        denied = sorted(security.authorizer.denials.by_kind.items())
        kinds = [label_text([("cluster", cluster), ("right", kind)]) for kind, _ in denied]
        counted = [count for _, count in denied]
        yield family("magnetar_authorization_denied_total", kinds, counted, "counter")
    if (audit := security.audit) is not None:
        yield single("magnetar_audit_records_total", own, audit.written, "counter")
        yield single("magnetar_audit_records_dropped_total", own, audit.dropped, "counter")
        yield single("magnetar_audit_records_withheld_total", own, audit.budget.withheld, "counter")


def _authentications(security: "BrokerSecurity", cluster: str) -> Iterator[str]:
    """Yields the proofs of identity under Pulsar's names, which have no label for the method here:
    a connection and a request may be refused before they name a method that there is."""
    kinds = (("connection", security.counts), ("request", security.http_counts))
    succeeded = [label_text([("cluster", cluster), ("of", of)]) for of, _ in kinds]
    accepted = [counts.accepted + counts.refreshed for _, counts in kinds]
    yield family("pulsar_authentication_success_total", succeeded, accepted, "counter")
    labels, failed = [], []
    for of, counts in kinds:
        for reason, count in (("refused", counts.refused), ("unavailable", counts.unavailable)):
            labels.append(label_text([("cluster", cluster), ("of", of), ("reason", reason)]))
            failed.append(count)
    yield family("pulsar_authentication_failures_total", labels, failed, "counter")
