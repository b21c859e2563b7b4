"""A topic's own policies in the metadata store: a small record per topic that has any.

    /topic-policies/{tenant}/{namespace}/{domain}/{topic}

The record is JSON with the version of its format: the policies for this cluster (`local`) and those
for all clusters that the topic is replicated to (`global`), by name. A partitioned topic's policies
belong to the parent and apply to every partition. Every change is a transaction that also checks
that the topic exists, so no policies outlive their topic. Policies that this version does not know
are preserved.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from magnetar.broker.catalog.resources import CAS_ATTEMPTS_MAX, Document, partitioned_key
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.core.errors import Conflict, MetadataError, NotFound, PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import RecordType, encode
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    Operation,
    Put,
    Record,
)

TOPIC_POLICIES_PREFIX: Final = "/topic-policies/"
FORMAT: Final = 1


class TopicPolicies(msgspec.Struct, frozen=True, omit_defaults=True):
    """The policies of one topic, as stored."""

    version: int
    local: Document = {}
    replicated: Document = msgspec.field(default_factory=dict, name="global")

    def get(self, policy: str, *, is_global: bool = False) -> Any:
        """Returns the value of one policy, None if it is not set."""
        return (self.replicated if is_global else self.local).get(policy)

    def having(self, policy: str, value: object, *, is_global: bool = False) -> "TopicPolicies":
        """Returns a copy with one policy changed; None removes it."""
        values = {**(self.replicated if is_global else self.local), policy: value}
        if value is None:
            del values[policy]
        if is_global:
            return TopicPolicies(FORMAT, self.local, values)
        return TopicPolicies(FORMAT, values, self.replicated)

    @property
    def empty(self) -> bool:
        """Whether no policy is set."""
        return not self.local and not self.replicated


NONE: Final = TopicPolicies(FORMAT)
SUBSCRIPTION_RATES: Final = "subscription_rates"
"""The entry of a record with the dispatch rates of single subscriptions, by their names."""
Change = Callable[[TopicPolicies], TopicPolicies]

_record_type = RecordType(TopicPolicies, "policies")


def namespace_prefix(namespace: NamespaceName) -> str:
    """Returns the prefix of the keys of a namespace's topics."""
    return f"{TOPIC_POLICIES_PREFIX}{namespace}/"


def policies_key(topic: TopicName) -> str:
    """Returns the key of a topic that is not a partition."""
    return f"{namespace_prefix(topic.namespace)}{topic.domain}/{topic.encoded_local}"


def own_rate(policies: TopicPolicies, subscription: str) -> Any:
    """Returns the dispatch rate of a subscription; one for this cluster precedes one for all."""
    local = own_rate_at(policies, subscription, is_global=False)
    return own_rate_at(policies, subscription, is_global=True) if local is None else local


def own_rate_at(policies: TopicPolicies, subscription: str, *, is_global: bool) -> Any:
    """Returns the dispatch rate of a subscription that is set for this cluster, or for all."""
    rates: Document = policies.get(SUBSCRIPTION_RATES, is_global=is_global) or {}
    return rates.get(subscription)


def with_own_rate(
    policies: TopicPolicies, subscription: str, rate: object, *, is_global: bool, rates_max: int
) -> TopicPolicies:
    """Returns a copy with another dispatch rate of a subscription; None removes it."""
    before = policies.get(SUBSCRIPTION_RATES, is_global=is_global) or {}
    rates = {name: value for name, value in before.items() if name != subscription}
    if rate is not None:
        rates[subscription] = rate
        if len(rates) > rates_max:
            raise PreconditionFailed(
                f"At most {rates_max} subscriptions of a topic can have a dispatchRate: remove "
                "another one, or set subscriptionDispatchRate for all"
            )
    if rates == before:
        return policies
    return policies.having(SUBSCRIPTION_RATES, rates or None, is_global=is_global)


def topic_of_key(key: str) -> TopicName:
    """The inverse of `policies_key`; raises MetadataError."""
    parts = key.removeprefix(TOPIC_POLICIES_PREFIX).split("/")
    if len(parts) != 4:
        raise MetadataError(f"{key} is no key of a topic's policies")
    tenant, namespace, domain, encoded = parts
    return TopicName.from_encoded(domain, NamespaceName(tenant, namespace), encoded)


def decode_policies(key: str, value: bytes) -> TopicPolicies:
    """Decodes a record; raises MetadataError with its key if this version cannot read it."""
    policies = _record_type.decode(key, value)
    if policies.version > FORMAT:
        raise MetadataError(
            f"{key} has format {policies.version}; this version reads up to {FORMAT}: "
            "upgrade this broker"
        )
    return policies


class TopicPolicyStore:
    """Reads and changes topics' own policies; works for topics of other brokers, too."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, topic: TopicName) -> TopicPolicies:
        """Returns the topic's own policies; a partition has its parent's."""
        record = await self._store.get(policies_key(topic.base))
        return NONE if record is None else decode_policies(record.key, record.value)

    async def update(self, topic: TopicName, change: Change) -> Record | None:
        """Applies `change`, possibly repeatedly; returns the new record, None if none is left.

        Raises NotFound if the topic does not exist. A non-persistent topic without partitions has
        no record that shows its existence; there, the caller must know that it exists.
        """
        topic = topic.base
        key = policies_key(topic)
        for _ in range(CAS_ATTEMPTS_MAX):
            record = await self._store.get(key)
            now = NONE if record is None else decode_policies(key, record.value)
            changed = change(now)
            if changed == now:
                return record
            operations: list[Operation] = [*await self._existing(topic)]
            revision = 0 if record is None else record.revision
            value = encode(changed)
            if changed.empty:
                operations.append(Delete(key, expected=revision))
            else:
                operations.append(Put(key, value, expected=revision))
            try:
                at = await self._store.transact(operations)
            except BadRevision:
                continue
            return None if changed.empty else Record(key, value, at)
        raise Conflict(f"The policies of {topic} are being changed by others; try again")

    async def forget(self, topic: TopicName, under: Sequence[Check] = ()) -> None:
        """Deletes the policies of a deleted topic; those of a partition's parent stay.

        `under` are checks that hold only while the topic is being deleted; raises BadRevision of
        one that does not. Without them, this call may come late: if the topic exists again, the
        policies belong to it and stay.
        """
        key, partitioned = policies_key(topic), partitioned_key(topic)
        record = await self._store.get(key)
        if record is not None and under:
            await self._store.transact([Delete(key), *under])
            return
        if record is None or await self._store.get(partitioned) is not None:
            return
        operations: list[Operation] = [Check(partitioned, ABSENT), Delete(key, record.revision)]
        if topic.persistent:
            ledger_key = managed_ledger_key(ledger_name(topic))
            ledger = await self._store.get(ledger_key)
            if ledger is not None and not decode_managed_ledger(ledger_key, ledger.value).deleted:
                return
            operations.append(Check(ledger_key, ABSENT if ledger is None else ledger.revision))
        with contextlib.suppress(BadRevision):  # the topic was created meanwhile
            await self._store.transact(operations)

    async def forget_namespace(self, namespace: NamespaceName, under: Check) -> None:
        """Deletes what an interrupted deletion has left behind. Raises BadRevision."""
        for record in await self._store.list(namespace_prefix(namespace)):
            await self._store.transact([Delete(record.key), under])

    async def _existing(self, topic: TopicName) -> tuple[Check, ...]:
        """Returns checks that make a transaction fail if the topic is deleted meanwhile."""
        record = await self._store.get(partitioned_key(topic))
        if record is not None:
            return (Check(record.key, record.revision),)
        if not topic.persistent:
            return ()
        key = managed_ledger_key(ledger_name(topic))
        record = await self._store.get(key)
        if record is None or decode_managed_ledger(key, record.value).deleted:
            raise NotFound(f"Topic {topic} not found")
        return (Check(key, record.revision),)
