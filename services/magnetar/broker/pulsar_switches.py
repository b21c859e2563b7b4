"""Keys of Pulsar's that ask for a promise nothing keeps: the process does not start with them.

Most keys without effect here are tuning, and a warning is enough. These are different: an operator
who sets `authenticationEnabled=true` and sees the server start believes that its ports are closed.
A value that asks for nothing ("false", 0, empty) is accepted. So are `delayedDeliveryEnabled` and
`enableReplicatedSubscriptions`, which Pulsar ships switched on: they only allow what each use asks
for again, and each use is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


def _is_true(value: object) -> bool:
    return str(value).strip().lower() == "true"


def _is_given(value: object) -> bool:
    return value not in ("", [], None, False) and str(value).strip() != ""


def _is_positive(value: object) -> bool:
    try:
        return float(str(value)) > 0
    except ValueError:
        return True


@dataclass(frozen=True, slots=True)
class Switch:
    """One key: when its value asks for something, for what, and how to ask for nothing."""

    asks: Callable[[object], bool]
    feature: str
    way_out: str


_AUTHENTICATION: Final = "authentication"
_AUTHORIZATION: Final = "authorization"
_TLS: Final = "TLS"


def _switches(asks: Callable[[object], bool], way_out: str, **keys: str) -> dict[str, Switch]:
    return {key: Switch(asks, feature, way_out) for key, feature in keys.items()}


SWITCHES: Final[dict[str, Switch]] = {
    **_switches(
        _is_true,
        "remove the key or set it to false",
        authenticateMetricsEndpoint=_AUTHENTICATION,
        authenticateOriginalAuthData=_AUTHENTICATION,
        authenticationEnabled=_AUTHENTICATION,
        authorizationEnabled=_AUTHORIZATION,
        bookkeeperClientRegionawarePolicyEnabled="region-aware placement",
        bookkeeperTLSClientAuthentication=_TLS,
        brokerClientTlsEnabled=_TLS,
        brokerClientTlsEnabledWithKeyStore=_TLS,
        brokerDeduplicationEnabled="deduplication",
        failureDomainsEnabled="failure domains",
        httpServerTlsEnable=_TLS,
        replicationTlsEnabled="geo-replication",
        strictAuthMethod=_AUTHENTICATION,
        strictBookieAffinityEnabled="bookie affinity",
        tlsEnabled=_TLS,
        tlsEnabledWithKeyStore=_TLS,
        tlsRequireTrustedClientCertOnConnect=_TLS,
        transactionCoordinatorEnabled="transactions",
        zkEnableSecurity="access control in the metadata store by Pulsar's means",
    ),
    **_switches(
        _is_given,
        "remove the key or leave it empty",
        anonymousUserRole=_AUTHENTICATION,
        authenticationProviders=_AUTHENTICATION,
        authorizedRoles=_AUTHORIZATION,
        bookieAuthProviderFactoryClass=_AUTHENTICATION,
        bookkeeperClientAuthenticationPlugin=_AUTHENTICATION,
        brokerClientAuthenticationPlugin=_AUTHENTICATION,
        brokerServicePortTls=_TLS,
        proxyRoles=_AUTHORIZATION,
        superUserRoles=_AUTHORIZATION,
        tlsProviderFactoryClass=_TLS,
        webServicePortTls=_TLS,
    ),
    **_switches(
        _is_positive,
        "remove the key or set it to 0",
        brokerMaxConnectionsPerIp="a cap on connections per IP address",
        maxUnackedMessagesPerBroker="a cap on unacknowledged messages per broker",
    ),
}


def refusal(key: str, value: object) -> str | None:
    """Why the process does not start with this value of Pulsar's `key`; None if it does."""
    switch = SWITCHES.get(key)
    if switch is None or not switch.asks(value):
        return None
    return f"Magnetar does not support {switch.feature}; {switch.way_out}"
