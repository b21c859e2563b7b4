"""The schema registry as topics use it: with their policies applied, and versions as bytes."""

from collections.abc import Sequence

from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.core.names import TopicName
from magnetar.metadata.store import Check
from magnetar.policies.admission import SCHEMA_AUTO_UPDATE, SCHEMA_COMPATIBILITY, SCHEMA_VALIDATION
from magnetar.schemas.model import (
    CompatibilityStrategy,
    SchemaInfo,
    SchemaPolicy,
    version_to_bytes,
)


class TopicSchemas:
    """Registers and checks the schemas of topics; raises IncompatibleSchema."""

    def __init__(self, registry: SchemaRegistry, policies: BrokerPolicies) -> None:
        self._registry = registry
        self._policies = policies

    def policy(self, topic: TopicName) -> SchemaPolicy:
        """Returns the topic's current schema policies."""
        value = self._policies.value
        return SchemaPolicy(
            CompatibilityStrategy(value(topic, SCHEMA_COMPATIBILITY)),
            auto_update=bool(value(topic, SCHEMA_AUTO_UPDATE)),
            validation_enforced=bool(value(topic, SCHEMA_VALIDATION)),
        )

    async def for_producer(self, topic: TopicName, schema: SchemaInfo | None) -> bytes:
        """Returns the version of a producer's schema, registering a new one; empty for None."""
        policy = self.policy(topic)
        return version_to_bytes(await self._registry.for_producer(topic, schema, policy))

    async def for_consumer(
        self, topic: TopicName, schema: SchemaInfo, *, topic_is_idle: bool
    ) -> None:
        """Registers a consumer's schema on an idle topic without one; else checks compatibility."""
        policy = self.policy(topic)
        await self._registry.for_consumer(topic, schema, policy, topic_is_idle=topic_is_idle)

    async def forget(self, topic: TopicName, under: Sequence[Check] = ()) -> None:
        """Deletes the schemas of a deleted topic. Raises BadRevision of a check in `under`."""
        await self._registry.forget(topic, under)
