"""A topic's own policies in the metadata store: one small record for a topic that has any.

    /topic-policies/{tenant}/{namespace}/{domain}/{topic}

The record is JSON with the version of its format: what is set for this cluster (`local`) and what
is set for all clusters that the topic is replicated to (`global`), each by the policy's name. Those
of a partitioned topic are its parent's and hold for every partition. Every change is made in one
transaction with a check that the topic is still there, so that none outlives its topic. Policies
that this version does not know are kept as they are.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from magnetar.broker.resources import CAS_ATTEMPTS_MAX, Document, partitioned_key
from magnetar.core.errors import Conflict, MetadataError, NotFound
from magnetar.core.names import NamespaceName, TopicName
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
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
    """What is set for a topic itself."""

    version: int
    local: Document = {}
    replicated: Document = msgspec.field(default_factory=dict, name="global")

    def get(self, policy: str, *, is_global: bool = False) -> Any:
        """The value of one policy; None where it is not set there."""
        return (self.replicated if is_global else self.local).get(policy)

    def having(self, policy: str, value: object, *, is_global: bool = False) -> "TopicPolicies":
        """The same with one policy changed; None: no longer set."""
        values = {**(self.replicated if is_global else self.local), policy: value}
        if value is None:
            del values[policy]
        if is_global:
            return TopicPolicies(FORMAT, self.local, values)
        return TopicPolicies(FORMAT, values, self.replicated)

    @property
    def empty(self) -> bool:
        return not self.local and not self.replicated


NONE: Final = TopicPolicies(FORMAT)
Change = Callable[[TopicPolicies], TopicPolicies]

_decoder = msgspec.json.Decoder(TopicPolicies)


def namespace_prefix(namespace: NamespaceName) -> str:
    return f"{TOPIC_POLICIES_PREFIX}{namespace}/"


def policies_key(topic: TopicName) -> str:
    """Of a topic that is no partition."""
    return f"{namespace_prefix(topic.namespace)}{topic.domain}/{topic.encoded_local}"


def topic_of_key(key: str) -> TopicName:
    """The inverse of `policies_key`; raises MetadataError."""
    parts = key.removeprefix(TOPIC_POLICIES_PREFIX).split("/")
    if len(parts) != 4:
        raise MetadataError(f"{key} is no key of a topic's policies")
    tenant, namespace, domain, encoded = parts
    return TopicName.from_encoded(domain, NamespaceName(tenant, namespace), encoded)


def decode_policies(key: str, value: bytes) -> TopicPolicies:
    """Raises MetadataError naming the key where the value is not what this version can read."""
    try:
        policies = _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no policies: {error}") from error
    if policies.version > FORMAT:
        raise MetadataError(
            f"{key} has format {policies.version}; this version reads up to {FORMAT}: "
            "upgrade this broker"
        )
    return policies


class TopicPolicyStore:
    """Reads and changes topics' own policies. Any broker can, whoever serves the topic."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, topic: TopicName) -> TopicPolicies:
        """Those that hold for the topic, a partition's being its parent's."""
        record = await self._store.get(policies_key(topic.base))
        return NONE if record is None else decode_policies(record.key, record.value)

    async def update(self, topic: TopicName, change: Change) -> Record | None:
        """Applies `change`, which may run more than once; the new record, None where none is left.

        Raises NotFound where the topic does not exist. A non-persistent one without partitions is
        written nowhere: the caller knows whether it is there.
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
            value = msgspec.json.encode(changed)
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

    async def forget(self, topic: TopicName) -> None:
        """The topic has gone: its policies go with it. Those of a partition's parent stay.

        If it is there (again), they are its own, and stay: who deletes may be late with that.
        """
        key, partitioned = policies_key(topic), partitioned_key(topic)
        record = await self._store.get(key)
        if record is None or await self._store.get(partitioned) is not None:
            return
        operations: list[Operation] = [Check(partitioned, ABSENT), Delete(key, record.revision)]
        if topic.persistent:
            ledger_key = managed_ledger_key(f"{topic.namespace}/persistent/{topic.encoded_local}")
            ledger = await self._store.get(ledger_key)
            if ledger is not None and not decode_managed_ledger(ledger_key, ledger.value).deleted:
                return
            operations.append(Check(ledger_key, ABSENT if ledger is None else ledger.revision))
        with contextlib.suppress(BadRevision):  # it came to be meanwhile
            await self._store.transact(operations)

    async def forget_namespace(self, namespace: NamespaceName, under: Check) -> None:
        """Deletes what a deletion that was cut short has left behind. Raises BadRevision."""
        for record in await self._store.list(namespace_prefix(namespace)):
            await self._store.transact([Delete(record.key), under])

    async def _existing(self, topic: TopicName) -> tuple[Check, ...]:
        """What a transaction checks so that it fails where the topic is deleted meanwhile."""
        record = await self._store.get(partitioned_key(topic))
        if record is not None:
            return (Check(record.key, record.revision),)
        if not topic.persistent:
            return ()
        key = managed_ledger_key(f"{topic.namespace}/persistent/{topic.encoded_local}")
        record = await self._store.get(key)
        if record is None or decode_managed_ledger(key, record.value).deleted:
            raise NotFound(f"Topic {topic} not found")
        return (Check(key, record.revision),)
