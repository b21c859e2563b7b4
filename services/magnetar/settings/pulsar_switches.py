"""Pulsar keys that require a feature that Magnetar does not have: the process does not start.

Most keys without effect here are for tuning, so a warning is sufficient. These are different: with
`brokerDeduplicationEnabled=true`, an operator who sees the server start believes that it removes
duplicates. A value that requires nothing ("false", 0, empty) is accepted.
`delayedDeliveryEnabled` and `enableReplicatedSubscriptions` are accepted as well: Pulsar's default
is true, they only permit a feature, and Magnetar refuses each use of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


def _is_true(value: object) -> bool:
    return str(value).strip().lower() == "true"


def _is_set(value: object) -> bool:
    return value not in ("", [], None, False) and str(value).strip() != ""


def _is_positive(value: object) -> bool:
    try:
        return float(str(value)) > 0
    except ValueError:
        return True


@dataclass(frozen=True, slots=True)
class Switch:
    """The feature that a key requires, the values that require it, and how to avoid that."""

    requires: Callable[[object], bool]
    feature: str
    way_out: str


_AUTHENTICATION: Final = "authentication"
_AUTHORIZATION: Final = "authorization"
_TLS: Final = "TLS"


def _switches(requires: Callable[[object], bool], way_out: str, **keys: str) -> dict[str, Switch]:
    return {key: Switch(requires, feature, way_out) for key, feature in keys.items()}


SWITCHES: Final[dict[str, Switch]] = {
    **_switches(
        _is_true,
        "remove the key or set it to false",
        bookkeeperClientRegionawarePolicyEnabled="region-aware placement",
        brokerClientTlsEnabledWithKeyStore=_TLS,
        brokerDeduplicationEnabled="deduplication",
        failureDomainsEnabled="failure domains",
        replicationTlsEnabled="geo-replication",
        strictBookieAffinityEnabled="bookie affinity",
        tlsEnabled=_TLS,
        tlsEnabledWithKeyStore=_TLS,
        transactionCoordinatorEnabled="transactions",
        zkEnableSecurity="access control in the metadata store by Pulsar's means",
    ),
    **_switches(
        _is_set,
        "remove the key or leave it empty",
        authorizedRoles=_AUTHORIZATION,
        bookieAuthProviderFactoryClass=_AUTHENTICATION,
        bookkeeperClientAuthenticationPlugin=_AUTHENTICATION,
        tokenSettingPrefix="another prefix of the token settings",
    ),
    **_switches(
        _is_positive,
        "remove the key or set it to 0",
        maxUnackedMessagesPerBroker="a cap on unacknowledged messages per broker",
    ),
}


def refusal(key: str, value: object) -> str | None:
    """The reason why the process does not start with this value of `key`, or None."""
    switch = SWITCHES.get(key)
    if switch is None or not switch.requires(value):
        return None
    return f"Magnetar does not support {switch.feature}; {switch.way_out}"
