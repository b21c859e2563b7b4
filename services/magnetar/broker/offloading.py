"""The broker's part in offloading: its defaults, and what holds for each topic.

Jobs move ledgers, not brokers. A broker publishes its settings for them, says which copy of a
moved ledger is read, and knows for its stats what of its topics was moved.
"""

from typing import Final

import msgspec

from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.settings import BrokerSettings
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.store import BadRevision, MetadataStore
from magnetar.offload.policy import OffloadDefaults, OffloadPlan, effective
from magnetar.offload.records import DEFAULTS_KEY
from magnetar.policies.lifecycle import (
    OFFLOAD,
    OFFLOAD_DELETION_LAG,
    OFFLOAD_THRESHOLD,
    OFFLOAD_THRESHOLD_AGE,
)

ATTEMPTS_MAX: Final = 8

log = get_logger("magnetar.offload")


def offload_defaults(settings: BrokerSettings) -> OffloadDefaults:
    """The settings, as jobs get them."""
    return OffloadDefaults(
        driver=settings.offload_driver or "",
        bucket=settings.offload_bucket or "",
        region=settings.offload_region or "",
        endpoint=settings.offload_endpoint or "",
        folder=settings.offload_folder or "",
        threshold_bytes=settings.offload_threshold_bytes,
        threshold_s=settings.offload_threshold_s,
        deletion_lag_ms=settings.offload_deletion_lag_ms,
        read_priority=settings.offload_read_priority,
    )


async def publish_defaults(store: MetadataStore, defaults: OffloadDefaults) -> None:
    """Writes them where they differ from what is there; the broker that started last counts.

    Where no broker has any, nothing is written. Raises MetadataError.
    """
    value = msgspec.json.encode(defaults)
    for _ in range(ATTEMPTS_MAX):
        known = await store.get(DEFAULTS_KEY)
        if known is None and defaults == OffloadDefaults():
            return
        if known is not None and known.value == value:
            return
        try:
            await store.put(DEFAULTS_KEY, value, expected=0 if known is None else known.revision)
        except BadRevision:
            continue  # another broker was started at this moment
        return
    raise MetadataError(f"{DEFAULTS_KEY} changed {ATTEMPTS_MAX} times in a row")


class Offloading:
    """What holds for topics, by the policies that are in memory."""

    def __init__(self, settings: BrokerSettings, policies: BrokerPolicies) -> None:
        self.defaults = offload_defaults(settings)
        self._policies = policies

    def plan(self, topic: TopicName) -> OffloadPlan:
        """What holds for a topic."""
        namespace, policies = topic.namespace, self._policies
        document = {
            policy.document: policies.namespace_value(namespace, policy)
            for policy in (OFFLOAD, OFFLOAD_THRESHOLD, OFFLOAD_THRESHOLD_AGE, OFFLOAD_DELETION_LAG)
        }
        return effective(self.defaults, document, policies.own_value(topic, OFFLOAD))

    def cold_first(self, ledger: str) -> bool:
        """Whether a managed ledger's moved ledgers are read from their files."""
        plan = self.plan(topic_of(ledger))
        return plan.store is not None and plan.reads_cold_first


def topic_of(ledger: str) -> TopicName:
    """The topic of a managed ledger: the inverse of `topics.ledger_name`."""
    tenant, namespace, domain, encoded = ledger.split("/", 3)
    return TopicName.from_encoded(domain, NamespaceName(tenant, namespace), encoded)
