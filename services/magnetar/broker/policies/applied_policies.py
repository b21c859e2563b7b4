"""The policies that apply to each topic, in memory: `topic.policies.value(RETENTION)`.

The broker follows two parts of the metadata store: the namespaces' records, and the topics' own
policies (`store.TOPIC_POLICIES_PREFIX`). A change by another broker applies here when the watch
reports it; a change by this broker applies at once. A topic without own policies costs nothing: it
uses its namespace's values, which are computed once for all topics and kept until a change. Memory
grows with the namespaces in use and the topics with own policies, not with the topics.

A value may be unknown: its record has not arrived yet, or this version cannot read it. Then the
value of the next level up applies, and `known` is false: no message is ever deleted by a guess. Nor
by a stale value: before code deletes anything, it calls `confirm`, which compares with the store,
and reads the value again. If the store cannot be reached, nothing is deleted.

Code that caches a value reads it again after a change. It is notified through `listen` or through
the topic's own `policies_changed()` (`notifier.py`), which costs nothing per topic.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from magnetar.broker.catalog.deletion_mark import BeingDeleted
from magnetar.broker.catalog.namespace_policies import granted_on_topics, without_topics
from magnetar.broker.catalog.resources import Document, Resources
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.defaults import broker_value, fixed
from magnetar.broker.policies.namespaces import NamespaceRecords
from magnetar.broker.policies.resolution import applied, of_namespace, of_topic
from magnetar.broker.policies.store import (
    TOPIC_POLICIES_PREFIX,
    Change,
    TopicPolicies,
    TopicPolicyStore,
    decode_policies,
    own_rate,
    policies_key,
    topic_of_key,
)
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import decode_document
from magnetar.metadata.store import Check, MetadataStore, Record
from magnetar.policies.policy import Policy
from magnetar.policies.rates import SUBSCRIPTION_DISPATCH_RATE
from magnetar.policies.registry import POLICIES
from magnetar.policies.types import PolicyInvalid
from magnetar.settings.broker import BrokerSettings

START_TIMEOUT_S: Final = 30.0
CONFIRM_TIMEOUT_S: Final = 10.0

RESOURCE_GROUP: Final = "resource_group_name"
"""The field of a namespace's document that names its resource group."""

_LOSING: Final = tuple(policy for policy in POLICIES if policy.loses_data)

Listener = Callable[[], None]
OnChange = Callable[[NamespaceName, TopicName | None], None]
"""Called with the namespace or the topic whose policies have changed."""
"""Gets the namespace, and the topic (not a partition) if only its own policies changed."""

log = get_logger("magnetar.policies")


class AppliedPolicies:
    """A topic's view of the policies, created on demand and not kept."""

    __slots__ = ("_policies", "_topic")

    def __init__(self, policies: "BrokerPolicies", topic: TopicName) -> None:
        self._policies = policies
        self._topic = topic

    def value(self, policy: Policy) -> Any:
        """Returns the value of the highest level that sets it: topic, namespace, broker, default.

        Callers must not modify it.
        """
        return self._policies.value(self._topic, policy)

    @property
    def known(self) -> bool:
        """Whether the values are certain; if not, nothing may be deleted because of them."""
        return self._policies.known(self._topic)

    async def confirm(self) -> None:
        """Brings the values up to date with the store. Raises MetadataError, NotFound."""
        await self._policies.confirm(self._topic)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener()` after each change that may concern the topic; returns the undo.

        Exceptions of the listener are logged.
        """
        return self._policies.listen(self._topic, listener)


class BrokerPolicies:
    """Computes the policies of all topics. `start` it before the first topic is opened."""

    def __init__(
        self,
        store: MetadataStore,
        settings: BrokerSettings,
        resources: Resources,
        on_change: OnChange = lambda _namespace, _topic: None,
    ) -> None:
        self.documents = TopicPolicyStore(store)
        self._store = store
        self._resources = resources
        self._on_change = on_change
        self._cluster = settings.cluster_name
        self._defaults, self._fixed = _defaults(settings), fixed(settings)
        self.confirm_defaults: Callable[[], Awaitable[None]] | None = None
        """Brings the broker's settings up to date with the store; None: they never change."""
        self._records: NamespaceRecords | None = None
        self._following = Follower(store, TOPIC_POLICIES_PREFIX, self._record_changed)
        self._own: dict[TopicName, TopicPolicies] = {}
        # Computed values by policy, for each namespace and each topic with own policies.
        self._of_namespaces: dict[NamespaceName, dict[str, Any]] = {}
        self._of_topics: dict[TopicName, dict[str, Any]] = {}
        self._listeners: dict[TopicName, list[Listener]] = {}
        # Topics with an unreadable record, and namespaces with the revision that is unreadable.
        self._unreadable: set[TopicName] = set()
        self._unreadable_namespaces: dict[NamespaceName, int] = {}

    async def start(self, records: NamespaceRecords, tasks: TaskSet) -> None:
        """Returns once all existing policies are loaded."""
        self._records = records
        records.listen(self._namespace_changed)
        tasks.start(self._following.run(), "follow topic policies")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._following.ready()

    def set_defaults(self, settings: BrokerSettings) -> None:
        """Applies changed settings of the broker. Topics need a notification afterwards."""
        self._defaults, self._fixed = _defaults(settings), fixed(settings)
        self._of_namespaces.clear()
        self._of_topics.clear()
        for topic in list(self._listeners):
            self._notify(topic)

    def of(self, topic: TopicName) -> AppliedPolicies:
        """Returns the topic's view of the policies."""
        return AppliedPolicies(self, topic)

    def broker_default(self, policy: Policy) -> Any:
        """Returns the value that applies if neither the topic nor its namespace sets one."""
        return self._defaults[policy.name]

    def is_fixed(self, policy: Policy) -> bool:
        """Whether the broker's settings forbid policies of topics and namespaces."""
        return policy.name in self._fixed

    def namespace_value(self, namespace: NamespaceName, policy: Policy) -> Any:
        """Returns the value for the namespace and for its topics without a value of their own."""
        if policy.name in self._fixed:
            return self._defaults[policy.name]
        values = self._of_namespaces.get(namespace)
        if values is None:
            if self._record(namespace) is None:
                return self._defaults[policy.name]  # the record has not arrived yet
            values = self._of_namespaces[namespace] = {}
        if policy.name not in values:
            own = of_namespace(policy, self._document(namespace), self._cluster)
            if not _is_valid(policy, own, namespace):
                own = None
                if policy.loses_data:
                    self._mark_unreadable(namespace)
            values[policy.name] = applied(policy, self._defaults[policy.name], own)
        return values[policy.name]

    def resource_group(self, namespace: NamespaceName) -> str:
        """Returns the name of the namespace's resource group, empty if it has none."""
        values = self._of_namespaces.get(namespace)
        if values is None:
            if self._record(namespace) is None:
                return ""  # the record has not arrived yet
            values = self._of_namespaces[namespace] = {}
        if RESOURCE_GROUP not in values:
            values[RESOURCE_GROUP] = self._document(namespace).get(RESOURCE_GROUP) or ""
        return str(values[RESOURCE_GROUP])

    def value(self, topic: TopicName, policy: Policy) -> Any:
        """Returns the value for the topic; a partition has its parent's."""
        own = self._own.get(topic.base) if self._own and policy.topic is not None else None
        if own is None or policy.name in self._fixed:
            return self.namespace_value(topic.namespace, policy)
        values = self._of_topics.setdefault(topic.base, {})
        if policy.name not in values:
            above = self.namespace_value(topic.namespace, policy)
            own_value = of_topic(policy, own)
            if not _is_valid(policy, own_value, topic):
                own_value = None
                if policy.loses_data:
                    self._unreadable.add(topic.base)
            values[policy.name] = applied(policy, above, own_value)
        return values[policy.name]

    def subscription_rate(self, topic: TopicName, subscription: str) -> tuple[Any, bool]:
        """Returns the dispatch rate of a subscription, and whether it is its own."""
        own = self._own.get(topic.base)
        rate = None if own is None else own_rate(own, subscription)
        if rate is not None and _is_valid(SUBSCRIPTION_DISPATCH_RATE, rate, topic):
            return rate, True
        return self.value(topic, SUBSCRIPTION_DISPATCH_RATE), False

    def known(self, topic: TopicName) -> bool:
        """Whether the topic's values are certain; see `AppliedPolicies.known`."""
        record = self._record(topic.namespace)
        if record is None:
            return False
        for policy in _LOSING:
            self.value(topic, policy)  # also validates the value
        unreadable = self._unreadable_namespaces.get(topic.namespace)
        return unreadable != record.revision and topic.base not in self._unreadable

    def own_value(self, topic: TopicName, policy: Policy) -> Any:
        """Returns the topic's own value, None if it has none that counts."""
        own = self._own.get(topic.base)
        if own is None or policy.topic is None or policy.name in self._fixed:
            return None
        return of_topic(policy, own)

    def topics_with(self, policy: Policy) -> list[TopicName]:
        """Returns the topics (not partitions) with an own value."""
        return [topic for topic in self._own if self.own_value(topic, policy) is not None]

    def listen(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        """Calls `listener()` after each change for the topic; see `AppliedPolicies.listen`."""
        base = topic.base
        self._listeners.setdefault(base, []).append(listener)

        def unlisten() -> None:
            listeners = self._listeners.get(base, [])
            if listener in listeners:
                listeners.remove(listener)
            if not listeners:
                self._listeners.pop(base, None)

        return unlisten

    async def confirm(self, topic: TopicName) -> None:
        """Brings the topic's values up to date with the store; see `AppliedPolicies.confirm`."""
        key = policies_key(topic.base)
        cached = self._following.records.get(key)
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                if self.confirm_defaults is not None:
                    await self.confirm_defaults()
                namespace = await self._store.get(namespace_key(topic.namespace))
                record = await self._store.get(key)
        except TimeoutError:
            raise MetadataError(f"The policies of {topic} could not be asked for in time") from None
        if namespace is None or self._records is None:
            raise NotFound(f"Namespace not found: {topic.namespace}")
        self._records.seen(namespace)
        if record is not None:
            self._following.seen(record)
        elif cached is not None:
            self._following.missing(key, cached.revision)

    async def update(self, topic: TopicName, change: Change) -> None:
        """Changes a topic's own policies; they apply here on return. Raises NotFound."""
        key = policies_key(topic.base)
        cached = self._following.records.get(key)
        record = await self.documents.update(topic, change)
        if record is not None:
            self._following.seen(record)
        elif cached is not None:
            self._following.missing(key, cached.revision)

    async def forget(self, topic: TopicName, under: Sequence[Check] = ()) -> None:
        """Deletes the policies and permissions of a deleted topic. A partition has none.

        `under` as for `TopicPolicyStore.forget`. The permissions are left to the deletion of the
        namespace if that has begun: each change of its record would make it start over.
        """
        await self.documents.forget(topic, under)
        full = str(topic)
        with contextlib.suppress(NotFound, BeingDeleted):
            # Read from the store: the watch may be behind.
            if full in granted_on_topics(await self._resources.policies(topic.namespace)):
                await self._resources.update_policies(
                    topic.namespace, lambda document: without_topics(document, {full}), under=under
                )

    async def begin(self, topic: TopicName) -> None:
        """Deletes leftover policies of a topic that is about to be created."""
        leftover = self._following.records.get(policies_key(topic))
        if leftover is not None and topic.persistent:
            await self.documents.forget(topic)
            await self.confirm(topic)

    def _record(self, namespace: NamespaceName) -> Record | None:
        return None if self._records is None else self._records.record(namespace)

    def _document(self, namespace: NamespaceName) -> Document:
        record = self._record(namespace)
        try:
            document = {} if record is None else decode_document(record.key, record.value)
        except MetadataError as error:
            log.error("namespace's policies ignored", namespace=str(namespace), error=str(error))
            self._mark_unreadable(namespace)
            return {}
        return document

    def _mark_unreadable(self, namespace: NamespaceName) -> None:
        if (record := self._record(namespace)) is not None:
            self._unreadable_namespaces[namespace] = record.revision

    def _namespace_changed(self, namespace: NamespaceName) -> None:
        self._of_namespaces.pop(namespace, None)
        self._unreadable_namespaces.pop(namespace, None)
        for topic in [topic for topic in self._of_topics if topic.namespace == namespace]:
            del self._of_topics[topic]
        self._on_change(namespace, None)
        for topic in [topic for topic in self._listeners if topic.namespace == namespace]:
            self._notify(topic)

    def _record_changed(self, key: str, record: Record | None) -> None:
        try:
            topic = topic_of_key(key)
        except MetadataError as error:
            log.error("topic's policies ignored", key=key, error=str(error))
            return
        self._unreadable.discard(topic)
        try:
            own = None if record is None else decode_policies(key, record.value)
        except MetadataError as error:
            log.error("topic's policies ignored", key=key, error=str(error))
            self._unreadable.add(topic)
            own = self._own.get(topic)
        self._of_topics.pop(topic, None)
        if own is None:
            self._own.pop(topic, None)
        else:
            self._own[topic] = own
        self._on_change(topic.namespace, topic)
        self._notify(topic)

    def _notify(self, topic: TopicName) -> None:
        for listener in list(self._listeners.get(topic, ())):
            _call(listener, topic)


def _defaults(settings: BrokerSettings) -> dict[str, Any]:
    """Returns the values that apply if neither topic nor namespace sets one."""
    return {
        policy.name: applied(policy, policy.default, broker_value(settings, policy))
        for policy in POLICIES
    }


def _is_valid(policy: Policy, value: Any, owner: NamespaceName | TopicName) -> bool:
    """Whether the value can be applied; logs the reason if not."""
    if value is None:
        return True
    try:
        policy.type.check(value, policy.name)
    except PolicyInvalid as error:
        log.error("policy ignored", of=str(owner), loses_data=policy.loses_data, error=str(error))
        return False
    return True


def _call(listener: Listener, topic: TopicName) -> None:
    """Calls a listener; its exception must not stop the other listeners or the watch."""
    try:
        listener()
    except Exception:
        log.exception("listener failed on a change of policies", topic=str(topic))
