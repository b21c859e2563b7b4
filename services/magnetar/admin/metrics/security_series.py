"""Series of authentication and authorization; none while authentication is off."""

from collections.abc import Iterator

from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.security.denials import KINDS
from magnetar.observe.metrics import family, label_text, single


def security_families(cluster: str, security: BrokerSecurity | None) -> Iterator[str]:
    """Yields the text of each family; those of connections have Pulsar's names."""
    if security is None:
        return
    counts = security.counts
    labels = label_text([("cluster", cluster)])
    for name, count in (
        ("pulsar_connection_create_success_count", counts.accepted),
        ("pulsar_connection_create_fail_count", counts.refused),
        ("magnetar_authentication_unavailable_total", counts.unavailable),
        ("magnetar_authentication_refreshes_total", counts.refreshed),
        ("magnetar_credentials_expired_total", counts.expired),
    ):
        yield single(name, labels, count, "counter")
    if security.authorizer is None:
        return
    by_kind = security.authorizer.denials.by_kind
    yield family(
        "magnetar_authorization_denials_total",
        [label_text([("cluster", cluster), ("right", kind)]) for kind in KINDS],
        [by_kind[kind] for kind in KINDS],
        "counter",
    )
