"""The schema registry as topics use it: under their policies, versions as bytes."""

from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.schema.model import (
    CompatibilityStrategy,
    SchemaInfo,
    SchemaPolicy,
    version_to_bytes,
)
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.core.names import TopicName
from magnetar.policies.admission import SCHEMA_AUTO_UPDATE, SCHEMA_COMPATIBILITY, SCHEMA_VALIDATION


class TopicSchemas:
    """Registers and checks schemas of topics; raises IncompatibleSchema."""

    def __init__(self, registry: SchemaRegistry, policies: BrokerPolicies) -> None:
        self._registry = registry
        self._policies = policies

    def policy(self, topic: TopicName) -> SchemaPolicy:
        """What holds for the topic's schemas now."""
        value = self._policies.value
        return SchemaPolicy(
            CompatibilityStrategy(value(topic, SCHEMA_COMPATIBILITY)),
            auto_update=bool(value(topic, SCHEMA_AUTO_UPDATE)),
            validation_enforced=bool(value(topic, SCHEMA_VALIDATION)),
        )

    async def for_producer(self, topic: TopicName, schema: SchemaInfo | None) -> bytes:
        """The version of a producer's schema, registered where it is new; empty for none."""
        policy = self.policy(topic)
        return version_to_bytes(await self._registry.for_producer(topic, schema, policy))

    async def for_consumer(
        self, topic: TopicName, schema: SchemaInfo, *, topic_is_idle: bool
    ) -> None:
        """Adds a consumer's schema to an idle topic without one; else checks that it fits."""
        policy = self.policy(topic)
        await self._registry.for_consumer(topic, schema, policy, topic_is_idle=topic_is_idle)

    async def forget(self, topic: TopicName) -> None:
        """The topic is gone: its schemas go with it."""
        await self._registry.forget(topic)
