"""What holds for each topic, known without asking: `topic.policies.value(RETENTION)`.

Two parts of the metadata store are followed: the namespaces' records, and the topics' own policies
(`store.TOPIC_POLICIES_PREFIX`). A change made by any broker of the cluster is known here as soon as
the watch tells, one made here at once. Topics without policies of their own cost nothing: theirs
are their namespace's, worked out once for all of them and kept until something changes. Memory is
by the number of namespaces in use and of topics that have policies of their own, not by topics.

What holds may not be known: a record is on its way, or was written by a version or a hand that this
one does not understand. Then what is above it is answered, and `known` says no: nobody's messages
are deleted by a guess. Nor by what was true some time ago: who is about to delete `confirm`s with
the store that what is known is what is set, and asks again. Where the store cannot be reached
nothing is deleted.

Whoever caches what it was told asks again when it is told of a change: `listen`, or a topic's own
`policies_changed()` (`telling.py`), which costs nothing per topic.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from magnetar.broker.namespace_policies import granted_on_topics, without_topic
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.defaults import broker_value
from magnetar.broker.policies.namespaces import NamespaceRecords
from magnetar.broker.policies.resolving import applied, of_namespace, of_topic
from magnetar.broker.policies.store import (
    TOPIC_POLICIES_PREFIX,
    Change,
    TopicPolicies,
    TopicPolicyStore,
    decode_policies,
    policies_key,
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
from magnetar.policies.types import PolicyInvalid

START_TIMEOUT_S: Final = 30.0
CONFIRM_TIMEOUT_S: Final = 10.0

_LOSING: Final = tuple(policy for policy in POLICIES if policy.loses_data)

Told = Callable[[], None]
OnChange = Callable[[NamespaceName, TopicName | None], None]
"""The namespace, and the topic (no partition) where only its own policies changed."""

log = get_logger("magnetar.policies")

_document = msgspec.json.Decoder(Document)


class AppliedPolicies:
    """One topic's view of the policies: made when asked for, and kept by nobody."""

    __slots__ = ("_policies", "_topic")

    def __init__(self, policies: "BrokerPolicies", topic: TopicName) -> None:
        self._policies = policies
        self._topic = topic

    def value(self, policy: Policy) -> Any:
        """What holds: topic over namespace over broker over default. Not to be changed."""
        return self._policies.value(self._topic, policy)

    @property
    def known(self) -> bool:
        """Whether what holds is known; where not, nothing may be deleted by what is answered."""
        return self._policies.known(self._topic)

    async def confirm(self) -> None:
        """Asks the store whether what is known is what is set. Raises MetadataError, NotFound."""
        await self._policies.confirm(self._topic)

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
        self._store = store
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
        # Topics whose record, and namespaces of whose record that revision, is not understood.
        self._strange: set[TopicName] = set()
        self._strange_namespaces: dict[NamespaceName, int] = {}

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
            if not _is_sound(policy, own, namespace):
                own = None
                if policy.loses_data:
                    self._is_strange(namespace)
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
            said = of_topic(policy, own)
            if not _is_sound(policy, said, topic):
                said = None
                if policy.loses_data:
                    self._strange.add(topic.base)
            known[policy.name] = applied(policy, above, said)
        return known[policy.name]

    def known(self, topic: TopicName) -> bool:
        """See `AppliedPolicies.known`."""
        record = self._record(topic.namespace)
        if record is None:
            return False
        for policy in _LOSING:
            self.value(topic, policy)  # and with that, whether it is sound
        strange = self._strange_namespaces.get(topic.namespace)
        return strange != record.revision and topic.base not in self._strange

    def own_value(self, topic: TopicName, policy: Policy) -> Any:
        """What the topic itself says; None where it does not."""
        own = self._own.get(topic.base)
        return None if own is None or policy.topic is None else of_topic(policy, own)

    def topics_with(self, policy: Policy) -> list[TopicName]:
        """The topics, no partitions, that say something themselves."""
        return [topic for topic in self._own if self.own_value(topic, policy) is not None]

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

    async def confirm(self, topic: TopicName) -> None:
        """See `AppliedPolicies.confirm`."""
        key = policies_key(topic.base)
        known = self._following.records.get(key)
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                namespace = await self._store.get(namespace_key(topic.namespace))
                record = await self._store.get(key)
        except TimeoutError:
            raise MetadataError(f"The policies of {topic} could not be asked for in time") from None
        if namespace is None or self._records is None:
            raise NotFound(f"Namespace not found: {topic.namespace}")
        self._records.seen(namespace)
        if record is not None:
            self._following.seen(record)
        elif known is not None:
            self._following.missing(key, known.revision)

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
                    topic.namespace,
                    lambda document: without_topic(document, full),
                    while_deleted=True,
                )

    async def begin(self, topic: TopicName) -> None:
        """The topic is about to be created: it begins without policies, whatever was left over."""
        known = self._following.records.get(policies_key(topic))
        if known is not None and topic.persistent:
            await self.documents.forget(topic)
            await self.confirm(topic)

    # -- what the watches tell

    def _record(self, namespace: NamespaceName) -> Record | None:
        return None if self._records is None else self._records.record(namespace)

    def _document(self, namespace: NamespaceName) -> Document:
        record = self._record(namespace)
        try:
            document = {} if record is None else _document.decode(record.value)
        except msgspec.MsgspecError as error:
            log.error("namespace's policies ignored", namespace=str(namespace), error=str(error))
            self._is_strange(namespace)
            return {}
        return document

    def _is_strange(self, namespace: NamespaceName) -> None:
        if (record := self._record(namespace)) is not None:
            self._strange_namespaces[namespace] = record.revision

    def _namespace_changed(self, namespace: NamespaceName) -> None:
        self._of_namespaces.pop(namespace, None)
        self._strange_namespaces.pop(namespace, None)
        for topic in [each for each in self._of_topics if each.namespace == namespace]:
            del self._of_topics[topic]
        self.on_change(namespace, None)
        for topic in [each for each in self._listeners if each.namespace == namespace]:
            self._tell(topic)

    def _record_changed(self, key: str, record: Record | None) -> None:
        try:
            topic = topic_of_key(key)
        except MetadataError as error:
            log.error("topic's policies ignored", key=key, error=str(error))
            return
        self._strange.discard(topic)
        try:
            own = None if record is None else decode_policies(key, record.value)
        except MetadataError as error:
            log.error("topic's policies ignored", key=key, error=str(error))
            self._strange.add(topic)
            own = self._own.get(topic)
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


def _is_sound(policy: Policy, value: Any, of: NamespaceName | TopicName) -> bool:
    """Whether it can be acted on."""
    if value is None:
        return True
    try:
        policy.type.check(value, policy.name)
    except PolicyInvalid as error:
        log.error("policy ignored", of=str(of), loses_data=policy.loses_data, error=str(error))
        return False
    return True


def _call(told: Told, topic: TopicName) -> None:
    """A mistake of one listener must not keep the others, and the watch, from going on."""
    try:
        told()
    except Exception:
        log.exception("change of policies not taken", topic=str(topic))
