"""The schema registry as topics use it: under their namespace's policy, versions as bytes."""

from magnetar.broker.resources import Document, Resources
from magnetar.broker.schema.model import (
    CompatibilityStrategy,
    SchemaInfo,
    SchemaPolicy,
    version_to_bytes,
)
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.core.names import NamespaceName, TopicName


class TopicSchemas:
    """Registers and checks schemas of topics; raises IncompatibleSchema."""

    def __init__(
        self, registry: SchemaRegistry, resources: Resources, default: SchemaPolicy
    ) -> None:
        self._registry = registry
        self._resources = resources
        self._default = default

    async def policy(self, namespace: NamespaceName) -> SchemaPolicy:
        """What the namespace says about schemas; where it is silent, what the broker says."""
        return merged(await self._resources.policies_known(namespace), self._default)

    async def for_producer(self, topic: TopicName, schema: SchemaInfo | None) -> bytes:
        """The version of a producer's schema, registered where it is new; empty for none."""
        policy = await self.policy(topic.namespace)
        return version_to_bytes(await self._registry.for_producer(topic, schema, policy))

    async def for_consumer(
        self, topic: TopicName, schema: SchemaInfo, *, topic_is_idle: bool
    ) -> None:
        """Adds a consumer's schema to an idle topic without one; else checks that it fits."""
        policy = await self.policy(topic.namespace)
        await self._registry.for_consumer(topic, schema, policy, topic_is_idle=topic_is_idle)

    async def forget(self, topic: TopicName) -> None:
        """The topic is gone: its schemas go with it."""
        await self._registry.forget(topic)


def merged(policies: Document, default: SchemaPolicy) -> SchemaPolicy:
    """A namespace's schema policy over the broker's."""
    named = policies.get("schema_compatibility_strategy", "UNDEFINED")
    strategy = CompatibilityStrategy(named)
    auto_update = policies.get("is_allow_auto_update_schema")
    return SchemaPolicy(
        default.strategy if strategy is CompatibilityStrategy.UNDEFINED else strategy,
        default.auto_update if auto_update is None else bool(auto_update),
        bool(policies.get("schema_validation_enforced", False)) or default.validation_enforced,
    )
