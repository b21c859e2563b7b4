"""The policies that limit how long a topic's messages are kept, as one value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.lifecycle.quota import Quota, quotas_of
from magnetar.ledger.affinity import affinity
from magnetar.ledger.settings import Quorums
from magnetar.managed_ledger.settings import MIB, MINUTE_MS, Retention

KEEPS_NOTHING: Final = Retention(0, 0)
KEEPS_ALL: Final = Retention(-1, -1)
"""The retention of a topic whose policies are unknown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one topic."""

    retention: Retention = KEEPS_NOTHING
    ttl_s: int = 0
    quotas: tuple[Quota, ...] = ()

    def expired_before_ms(self, now_ms: int) -> int:
        """Messages that arrived before this time are acknowledged for every subscription."""
        return now_ms - self.ttl_s * 1000


def limits_of(
    retention: Mapping[str, Any] | None, ttl_s: int | None, quotas: Mapping[str, Any] | None
) -> Limits:
    """Converts the values of the three policies."""
    return Limits(retention_of(retention), ttl_s or 0, quotas_of(quotas))


def retention_of(value: Mapping[str, Any] | None) -> Retention:
    """Converts the policy's value, in minutes and MiB; None keeps nothing."""
    if value is None:
        return KEEPS_NOTHING
    minutes, size_mb = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    return Retention(
        size_mb if size_mb < 0 else size_mb * MIB, minutes if minutes < 0 else minutes * MINUTE_MS
    )


def quorums_of(value: Mapping[str, Any] | None) -> Quorums | None:
    """Returns the quorums of new ledgers by the policy `persistence`; None: the broker's."""
    if value is None:
        return None
    return Quorums(
        value["bookkeeperEnsemble"], value["bookkeeperWriteQuorum"], value["bookkeeperAckQuorum"]
    )


def placement_of(value: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the properties of new ledgers by the policy `bookieAffinity`."""
    if value is None:
        return {}
    groups = affinity(
        value.get("bookkeeperAffinityGroupPrimary"), value.get("bookkeeperAffinityGroupSecondary")
    )
    return {} if groups is None else groups.properties
