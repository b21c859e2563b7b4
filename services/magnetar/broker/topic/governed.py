"""Enforces policies on a topic, persistent or not: caps on clients, limits on traffic.

Caps are checked on attach only; connected clients are never disconnected by a new cap. What affects
the path of messages is computed when a policy changes (`apply_policies`): the publish gate, the
limits of subscriptions, the rate limiters. A topic without such policies has none of them. System
topics are exempt. Texts are Pulsar's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.ownership.split_algorithms import TopicLoad
from magnetar.broker.policies.applied_policies import AppliedPolicies
from magnetar.broker.rates.publish_rate import PublishGate
from magnetar.broker.rates.rate import Rate
from magnetar.broker.rates.subscribe_rate import SubscribeRate, host_of
from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.broker.topic.transactions.admission import Admission
from magnetar.core.errors import (
    ConsumerBusy,
    MagnetarError,
    MetadataError,
    NotAllowed,
    ProducerBusy,
    ServiceNotReady,
)
from magnetar.core.names import TopicName
from magnetar.managed_ledger.record import PAYLOAD_CURSORS
from magnetar.policies import admission, caps, rates
from magnetar.policies.filters import ENTRY_FILTERS, FilterInvalid, FilterSpec
from magnetar.policies.policy import Policy
from magnetar.schemas.model import SchemaInfo
from magnetar.wire.events import SendRun

SYSTEM_SUBSCRIPTION_PREFIX: Final = "__"


class GovernedTopic(ABC):
    """The base of both kinds of topics: enforces their policies."""

    __slots__ = (
        "__weakref__",
        "_being_created",
        "_closing",
        "_context",
        "_subscribe_rate",
        "_suspended",
        "gate",
        "limits",
    )

    name: TopicName
    full_name: str
    ring_position: int
    counters: TopicCounters
    producers: ProducerRegistry
    subscriptions: Mapping[str, Subscription]

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._closing = self._suspended = False
        self.gate: PublishGate | None = None
        """Limits publishes; None if nothing limits them."""
        self.limits: SubscriptionLimits = context.subscription_limits
        self._being_created: frozenset[str] = frozenset()
        """Subscriptions that are being created; they count towards the cap."""
        self._subscribe_rate: SubscribeRate | None = None

    @property
    @abstractmethod
    def broken_subscriptions(self) -> Mapping[str, MagnetarError]:
        """See `Topic.broken_subscriptions`."""

    @abstractmethod
    def publish(self, producer: Producer, run: SendRun) -> None:
        """Publishes the run; see `Topic.publish`."""

    @abstractmethod
    def admission(self, run: SendRun) -> Admission:
        """Returns whether a message of a transaction, or with a delay, may be stored now."""

    def gate_of(self, run: SendRun) -> PublishGate | None:
        """Returns the gate for a message of a transaction or with a delay.

        None if nothing limits it.
        """
        if self.gate is None and self.admission(run) is not None:
            self.gate = PublishGate(self, self._context.held)  # removed once nothing is held
        return self.gate

    def disconnect_producer(self, producer: Producer) -> None:
        """See `Publishes.disconnect_producer`."""
        self.producers.disconnect(lambda attached: attached is producer)

    @property
    def serving(self) -> bool:
        """Whether the topic takes messages now."""
        return not (self._closing or self._suspended)

    @property
    def is_idle(self) -> bool:
        """Whether no producer and no consumer is attached."""
        return not len(self.producers) and not any(
            subscription.consumers for subscription in self.subscriptions.values()
        )

    def _check_serving(self) -> None:
        if not self.serving:
            raise self._not_serving()

    def _not_serving(self) -> ServiceNotReady:
        return ServiceNotReady(f"Topic {self.full_name} is being closed, please retry")

    def apply_policies(self) -> None:
        """Applies caps and rates of the current policies."""
        self._apply_limits()
        if is_system_topic(self.name):
            return
        self._apply_gate()
        value = self._value(rates.SUBSCRIBE_RATE)
        times = value.get("subscribeThrottlingRatePerConsumer", 0)
        period_s = value.get("ratePeriodInSecond", 30)
        if times <= 0:
            self._subscribe_rate = None
        elif self._subscribe_rate is not None:
            self._subscribe_rate.set(times, period_s)
        else:
            now_s = self._context.clock.monotonic()
            self._subscribe_rate = SubscribeRate(times, period_s, now_s)

    def _apply_limits(self) -> None:
        default = self._context.subscription_limits
        limits = replace(
            default,
            max_unacked_per_consumer=self._value(caps.MAX_UNACKED_PER_CONSUMER),
            max_unacked_per_subscription=self._context.limits.unacked_cap(
                self._value(caps.MAX_UNACKED_PER_SUBSCRIPTION)
            ),
            max_consumers=self._cap(caps.MAX_CONSUMERS_PER_SUBSCRIPTION),
            entry_filters=None if is_system_topic(self.name) else self._filters(),
        )
        if limits != self.limits:
            self.limits = default if limits == default else limits
            for subscription in list(self.subscriptions.values()):
                subscription.set_limits(self.limits)

    def _filters(self) -> FilterSpec | None:
        return FilterSpec.of(self._value(ENTRY_FILTERS))

    def _apply_gate(self) -> None:
        document = self._value(rates.PUBLISH_RATE)
        rate = Rate(
            document.get("publishThrottlingRateInMsg", -1),
            document.get("publishThrottlingRateInByte", -1),
        )
        largest = self._value(caps.MAX_MESSAGE_SIZE)
        if largest >= self._context.message_bytes_max:
            largest = 0  # the decoder refuses larger messages anyway
        encrypted = self._encryption_required
        shared = self._context.publishing(self.name.namespace)
        gate = self.gate
        if gate is None:
            if not (rate.limits or largest or encrypted or shared):
                return
            gate = self.gate = PublishGate(self, self._context.held)
        gate.message_bytes_max = largest
        gate.encryption_required = encrypted
        gate.set_rate(rate.messages, rate.size_bytes, self._context.clock, shared)
        if not gate.needed:
            self.gate = None
        if encrypted:
            self.producers.disconnect(lambda producer: not producer.encrypted)

    def refuse(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        """Answers one message with SEND_ERROR, after the receipts of earlier messages."""
        if self.gate is None:  # removed again once the refusal is sent
            self.gate = PublishGate(self, self._context.held)
        self.gate.refuse(producer, run, error)

    def check_producer(self, name: str, *, encrypted: bool) -> None:
        """Raises ProducerBusy or MetadataError if policies forbid such a producer."""
        self.check_producers_cap(name)
        if not encrypted and self._encryption_required and not is_system_topic(self.name):
            raise MetadataError(f"Encryption is required in {self.full_name}")

    @property
    def _encryption_required(self) -> bool:
        """Whether the broker or a policy requires encrypted messages."""
        return self._context.encryption_required or bool(self._value(admission.ENCRYPTION_REQUIRED))

    def check_producers_cap(self, name: str) -> None:
        """Raises ProducerBusy at the cap, unless the producer replaces one of its name."""
        cap = self._cap(caps.MAX_PRODUCERS)
        if cap and len(self.producers) >= cap and name not in self.producers:
            raise ProducerBusy(f"Topic '{self.full_name}' reached max producers limit")

    def check_subscriber(self, request: SubscribeRequest, consumer: Consumer) -> None:
        """Raises NotAllowed if the type is not allowed or the consumer subscribes too often."""
        sub_type = request.spec.sub_type.name
        allowed = self._value(admission.SUBSCRIPTION_TYPES)
        if allowed and sub_type not in allowed and not is_system_topic(self.name):
            raise NotAllowed(f"Topic[{{{self.full_name}}}] doesn't support {sub_type} sub type!")
        self._check_filters(request)
        if self._subscribe_rate is not None:
            key = (host_of(consumer.sink.address), consumer.name, request.spec.consumer_id)
            self._subscribe_rate.check(key, self._context.clock.monotonic())

    def _check_filters(self, request: SubscribeRequest) -> None:
        """Raises NotAllowed if filters cannot use the properties of a new subscription."""
        filters = self.limits.entry_filters
        if filters is None or request.subscription in self.subscriptions:
            return
        try:
            filters.predicate(request.properties)
        except FilterInvalid as error:
            raise NotAllowed(f"Subscription {request.subscription}: {error}") from error

    def check_consumers_cap(self, *, attached: bool = False) -> None:
        """Raises ConsumerBusy if the topic has its maximum of consumers.

        With `attached`, the consumer in question is already counted.
        """
        cap = self._cap(caps.MAX_CONSUMERS)
        consumers = sum(len(item.consumers) for item in self.subscriptions.values())
        if cap and consumers - attached >= cap:
            raise ConsumerBusy("Topic reached max consumers limit")

    def check_new_subscription(self, name: str) -> None:
        """Raises NotAllowed for a reserved name, or at the maximum of subscriptions."""
        if name in PAYLOAD_CURSORS:
            raise NotAllowed(f"{name} is the name of a cursor that holds state of the topic")
        cap = self._cap(caps.MAX_SUBSCRIPTIONS)
        broken = self.broken_subscriptions
        if not cap or name.startswith(SYSTEM_SUBSCRIPTION_PREFIX) or name in broken:
            return
        counted = [
            other
            for other in {*self.subscriptions, *self._being_created, *broken}
            if other != name and not other.startswith(SYSTEM_SUBSCRIPTION_PREFIX)
        ]
        if len(counted) >= cap:
            raise NotAllowed(
                f"Exceed the maximum number of subscriptions of the topic: {self.full_name}",
                http_status=409,
            )

    @property
    def makes_subscriptions(self) -> bool:
        """Whether a consumer creates its subscription by using it."""
        return bool(
            self._value(admission.AUTO_SUBSCRIPTION_CREATION)["allowAutoSubscriptionCreation"]
        )

    async def add_schema(self, schema: SchemaInfo | None) -> bytes:
        """Registers a producer's schema if it is new and returns its version."""
        return await self._context.schemas.for_producer(self.name, schema)

    def load(self) -> TopicLoad:
        """Returns messages and bytes per second, in and out, of the last rate period."""
        messages, size_bytes = self.counters.message_rate_in, self.counters.bytes_rate_in
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                messages += consumer.rates.out
                size_bytes += consumer.rates.throughput
        return TopicLoad(self.ring_position, messages, size_bytes)

    @property
    def policies(self) -> AppliedPolicies:
        """The policies in force for the topic."""
        return self._context.policies.of(self.name)

    def _value(self, policy: Policy) -> Any:
        """Returns the value in force; never None, since all policies used here have a default."""
        return self._context.policies.value(self.name, policy)

    def _cap(self, policy: Policy) -> int:
        return 0 if is_system_topic(self.name) else int(self._value(policy))
