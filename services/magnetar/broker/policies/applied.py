"""What holds for each topic, known without asking: `topic.policies.value(RETENTION)`.

Two parts of the metadata store are followed: the namespaces' records, and the topics' own policies
(`store.TOPIC_POLICIES_PREFIX`). A change made by any broker of the cluster is known here as soon as
the watch tells, one made here at once. Topics without policies of their own cost nothing: theirs
are their namespace's, worked out once for all of them and kept until something changes. Memory is
by the number of namespaces in use and of topics that have policies of their own, not by topics.

Whoever caches what it was told asks again when it is told of a change: `listen`, or a topic's own
`policies_changed()` (`telling.py`), which costs nothing per topic.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from magnetar.broker.namespace_policies import granted_on_topics, without_topic
from magnetar.broker.policies.defaults import broker_value
from magnetar.broker.policies.namespaces import NamespaceRecords
from magnetar.broker.policies.resolving import applied, of_namespace, of_topic
from magnetar.broker.policies.store import (
    TOPIC_POLICIES_PREFIX,
    Change,
    TopicPolicies,
    TopicPolicyStore,
    decode_policies,
    topic_of_key,
)
from magnetar.broker.resources import Document, Resources
from magnetar.broker.settings import BrokerSettings
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.metadata.following import Following
from magnetar.metadata.store import MetadataStore, Record
from magnetar.policies.policy import Policy
from magnetar.policies.registry import POLICIES

START_TIMEOUT_S: Final = 30.0

Told = Callable[[], None]
OnChange = Callable[[NamespaceName, TopicName | None], None]
"""The namespace, and the topic (no partition) where only its own policies changed."""

log = get_logger("magnetar.policies")


class AppliedPolicies:
    """One topic's view of the policies: made when asked for, and kept by nobody."""

    __slots__ = ("_policies", "_topic")

    def __init__(self, policies: "BrokerPolicies", topic: TopicName) -> None:
        self._policies = policies
        self._topic = topic

    def value(self, policy: Policy) -> Any:
        """What holds: topic over namespace over broker over default. Not to be changed."""
        return self._policies.value(self._topic, policy)

    def listen(self, told: Told) -> Callable[[], None]:
        """`told()` is called after each change that may concern the topic; gives the way to end it.

        What it raises is logged.
        """
        return self._policies.listen(self._topic, told)


class BrokerPolicies:
    """See the module's text. `start` before the first topic is opened."""

    def __init__(
        self, store: MetadataStore, settings: BrokerSettings, resources: Resources
    ) -> None:
        self.documents = TopicPolicyStore(store)
        self._resources = resources
        self.on_change: OnChange = lambda _namespace, _topic: None
        self._cluster = settings.cluster_name
        self._defaults = {
            policy.name: applied(policy, policy.default, broker_value(settings, policy))
            for policy in POLICIES
        }
        self._records: NamespaceRecords | None = None
        self._following = Following(store, TOPIC_POLICIES_PREFIX, self._record_changed)
        self._own: dict[TopicName, TopicPolicies] = {}
        # What was worked out: by policy, for each namespace and each topic with its own.
        self._of_namespaces: dict[NamespaceName, dict[str, Any]] = {}
        self._of_topics: dict[TopicName, dict[str, Any]] = {}
        self._listeners: dict[TopicName, list[Told]] = {}

    async def start(self, records: NamespaceRecords, tasks: TaskSet) -> None:
        """Returns once what is set is known here."""
        self._records = records
        records.listen(self._namespace_changed)
        tasks.start(self._following.run(), "follow topic policies")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._following.ready()

    # -- what is asked

    def of(self, topic: TopicName) -> AppliedPolicies:
        return AppliedPolicies(self, topic)

    def broker_default(self, policy: Policy) -> Any:
        """What holds where neither topic nor namespace say anything."""
        return self._defaults[policy.name]

    def namespace_value(self, namespace: NamespaceName, policy: Policy) -> Any:
        """What holds for the namespace, and its topics that say nothing themselves."""
        known = self._of_namespaces.get(namespace)
        if known is None:
            if self._record(namespace) is None:
                return self._defaults[policy.name]  # its record is on its way
            known = self._of_namespaces[namespace] = {}
        if policy.name not in known:
            own = of_namespace(policy, self._document(namespace), self._cluster)
            known[policy.name] = applied(policy, self._defaults[policy.name], own)
        return known[policy.name]

    def value(self, topic: TopicName, policy: Policy) -> Any:
        """What holds for the topic; a partition has its parent's."""
        own = self._own.get(topic.base) if self._own and policy.topic is not None else None
        if own is None:
            return self.namespace_value(topic.namespace, policy)
        known = self._of_topics.setdefault(topic.base, {})
        if policy.name not in known:
            above = self.namespace_value(topic.namespace, policy)
            known[policy.name] = applied(policy, above, of_topic(policy, own))
        return known[policy.name]

    def own_value(self, topic: TopicName, policy: Policy) -> Any:
        """What the topic itself says; None where it does not."""
        own = self._own.get(topic.base)
        return None if own is None or policy.topic is None else of_topic(policy, own)

    def listen(self, topic: TopicName, told: Told) -> Callable[[], None]:
        """See `AppliedPolicies.listen`."""
        base = topic.base
        self._listeners.setdefault(base, []).append(told)

        def unlisten() -> None:
            listeners = self._listeners.get(base, [])
            if told in listeners:
                listeners.remove(told)
            if not listeners:
                self._listeners.pop(base, None)

        return unlisten

    # -- what is done

    async def update(self, topic: TopicName, change: Change) -> None:
        """Changes a topic's own policies; they hold here when it returns. Raises NotFound."""
        record = await self.documents.update(topic, change)
        if record is not None:
            self._following.seen(record)

    async def forget(self, topic: TopicName) -> None:
        """The topic has gone: its policies and permissions go with it. A partition has none."""
        await self.documents.forget(topic)
        full = str(topic)
        if full in granted_on_topics(self._document(topic.namespace)):
            with contextlib.suppress(NotFound):  # the namespace has gone, too
                await self._resources.update_policies(
                    topic.namespace, lambda document: without_topic(document, full)
                )

    # -- what the watches tell

    def _record(self, namespace: NamespaceName) -> Record | None:
        return None if self._records is None else self._records.record(namespace)

    def _document(self, namespace: NamespaceName) -> Document:
        record = self._record(namespace)
        try:
            document: Document = {} if record is None else msgspec.json.decode(record.value)
        except msgspec.MsgspecError as error:
            log.error("namespace's policies ignored", namespace=str(namespace), error=str(error))
            return {}
        return document

    def _namespace_changed(self, namespace: NamespaceName) -> None:
        self._of_namespaces.pop(namespace, None)
        for topic in [each for each in self._of_topics if each.namespace == namespace]:
            del self._of_topics[topic]
        self.on_change(namespace, None)
        for topic in [each for each in self._listeners if each.namespace == namespace]:
            self._tell(topic)

    def _record_changed(self, key: str, record: Record | None) -> None:
        try:
            topic = topic_of_key(key)
            own = None if record is None else decode_policies(key, record.value)
        except MetadataError as error:
            log.error("topic's policies ignored", key=key, error=str(error))
            return
        self._of_topics.pop(topic, None)
        if own is None:
            self._own.pop(topic, None)
        else:
            self._own[topic] = own
        self.on_change(topic.namespace, topic)
        self._tell(topic)

    def _tell(self, topic: TopicName) -> None:
        for told in list(self._listeners.get(topic, ())):
            _call(told, topic)


def _call(told: Told, topic: TopicName) -> None:
    """A mistake of one listener must not keep the others, and the watch, from going on."""
    try:
        told()
    except Exception:
        log.exception("change of policies not taken", topic=str(topic))
