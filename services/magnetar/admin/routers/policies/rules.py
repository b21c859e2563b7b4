"""Rules between policies, beyond their types, that are checked before anything is stored.

A retention must exceed the backlog quota, whichever of the two is set later. Otherwise unread
messages would fill the space that is meant for messages after they are read. Pulsar's tools match
the texts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from magnetar.broker.service import BrokerService
from magnetar.core.errors import AuthorizationError, NotAllowed, PreconditionFailed
from magnetar.core.names import NamespaceName
from magnetar.policies import filters
from magnetar.policies.admission import (
    AUTO_TOPIC_CREATION,
    BOOKIE_AFFINITY,
    REPLICATION,
    SUBSCRIPTION_AUTH_MODE,
)
from magnetar.policies.caps import MAX_MESSAGE_SIZE, MESSAGE_SIZE_INVALID
from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.policies.lifecycle import BACKLOG_QUOTA, RETENTION
from magnetar.policies.policy import Level, Policy

MIB: Final = 1 << 20
MINUTE_S: Final = 60
SIZE_QUOTA: Final = "destination_storage"
AGE_QUOTA: Final = "message_age"
LIMITS: Final = {SIZE_QUOTA: "limitSize", AGE_QUOTA: "limitTime"}
"""The limit that counts, by the type of the quota."""

InForce = Callable[[Policy], Any]
"""Returns the policy in force after the change; for a namespace, only its own value."""


def check_together(changed: Policy, in_force: InForce, level: Level) -> None:
    """Raises PreconditionFailed if retention and backlog quota contradict each other.

    As in Pulsar, a namespace's age quota is not checked.
    """
    if changed is not RETENTION and changed is not BACKLOG_QUOTA:
        return
    quotas: Mapping[str, Any] = in_force(BACKLOG_QUOTA) or {}
    keys = [SIZE_QUOTA] if level is Level.NAMESPACE else list(quotas)
    if not _contradict(in_force(RETENTION), (quotas[key] for key in keys if key in quotas)):
        return
    if changed is BACKLOG_QUOTA:
        raise PreconditionFailed(
            f"Backlog Quota exceeds configured retention quota for {level.value}. "
            "Please increase retention quota and retry"
        )
    raise PreconditionFailed(
        f"Retention Quota must exceed configured backlog quota for {level.value}. "
        "Please increase retention quota and retry"
    )


def check_quota(kind: str, quota: Mapping[str, Any]) -> None:
    """Raises PreconditionFailed if a quota has only the limit that its type does not count."""
    own, other = LIMITS[kind], LIMITS[SIZE_QUOTA if kind == AGE_QUOTA else AGE_QUOTA]
    if quota[own] < 0 <= quota[other]:
        raise PreconditionFailed(
            f"{BACKLOG_QUOTA.invalid}: a quota of the type {kind} needs {own}, and {other} has no "
            f"effect on it: set {own}, or choose the other type (backlogQuotaType)",
            http_status=BACKLOG_QUOTA.invalid_status,
        )


def _contradict(retention: Mapping[str, Any] | None, quotas: Iterable[Mapping[str, Any]]) -> bool:
    if retention is None:
        return False
    size_mb, minutes = retention["retentionSizeInMB"], retention["retentionTimeInMinutes"]
    return any(
        (size_mb > 0 and quota["limitSize"] >= size_mb * MIB)
        or (minutes > 0 and quota["limitTime"] >= minutes * MINUTE_S)
        for quota in quotas
    )


async def check_value(
    service: BrokerService, namespace: NamespaceName, policy: Policy, value: Any, level: Level
) -> None:
    """Raises if this broker cannot accept the value."""
    if policy is REPLICATION and value is not None:
        await _check_clusters(service, namespace, value, level)
    bytes_max = service.settings.producers.message_bytes_max
    if policy is MAX_MESSAGE_SIZE and value is not None and value > bytes_max:
        raise PreconditionFailed(MESSAGE_SIZE_INVALID)
    check_honored(policy, value, service)


def check_honored(policy: Policy, value: object, service: BrokerService) -> None:
    """Raises if the value cannot be honored; None needs nothing.

    NotAllowed: it needs a feature that is missing or off, or exceeds a limit of the broker;
    PreconditionFailed: it names no filter.
    """
    if (reason := policy.unsupported(value, service.cluster)) is not None:
        raise NotAllowed(reason)
    if policy is AUTO_TOPIC_CREATION and isinstance(value, Mapping):
        service.topics.creation.check_count(value.get("defaultNumPartitions") or 0)
    if policy is BOOKIE_AFFINITY and value is not None and service.session is None:
        raise NotAllowed(
            "bookieAffinity needs a cluster: a standalone has one bookie; leave it out"
        )
    if value is not None and service.policies.is_fixed(policy):
        raise NotAllowed(
            "the brokers' entry filters (entryFilterNames) hold for all topics: set "
            "allowOverrideEntryFilters=true to have policies replace them"
        )
    if policy is ENTRY_FILTERS and isinstance(value, Mapping):
        try:
            filters.check(value)
        except filters.FilterInvalid as error:
            raise PreconditionFailed(str(error), http_status=400) from error
    if policy is not SUBSCRIPTION_AUTH_MODE or value in (None, "None"):
        return
    if service.security is None or service.security.authorizer is None:
        raise NotAllowed(
            "subscriptionAuthMode Prefix needs authorization (authorizationEnabled): without it, "
            "brokers know no roles; leave it out or set None"
        )


async def _check_clusters(
    service: BrokerService, namespace: NamespaceName, clusters: list[str], level: Level
) -> None:
    if not clusters:
        raise PreconditionFailed("ClusterIds should not be null or empty")
    if level is Level.TOPIC and service.cluster not in clusters:
        raise PreconditionFailed(
            "Can not remove local cluster from the local topic-level replication clusters policy"
        )
    clusters_of_instance = await service.resources.clusters()
    tenant = await service.resources.tenant(namespace.tenant)
    allowed = tenant.get("allowedClusters") or []
    for cluster in clusters:
        if cluster not in clusters_of_instance:
            raise AuthorizationError(f"Invalid cluster id: {cluster}")
        if cluster not in allowed:
            raise AuthorizationError(
                f"Cluster [{cluster}] is not in the list of allowed clusters list for "
                f"tenant [{namespace.tenant}]"
            )
