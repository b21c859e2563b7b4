"""What policies allow on a topic, be it persistent or not: who may attach, and how fast things go.

Caps are asked for when somebody attaches, so that they hold at once for whoever comes and for
nobody who is there. What costs on the way of messages is worked out when a policy changes
(`apply_policies`): the gate of publishing, the limits of subscriptions, the limiters of rates; a
topic without such policies has none of them. System topics are exempt. Texts are Pulsar's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from magnetar.broker.ownership.splitting import TopicLoad
from magnetar.broker.policies.applied import AppliedPolicies
from magnetar.broker.rates.dispatching import DispatchThrottle
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.rates.publishing import PublishGate
from magnetar.broker.rates.subscribing import SubscribeRate, host_of
from magnetar.broker.schema.model import SchemaInfo
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.system_topics import is_system_topic
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import (
    ConsumerBusy,
    MagnetarError,
    MetadataError,
    NotAllowed,
    ProducerBusy,
    ServiceNotReady,
)
from magnetar.core.names import TopicName
from magnetar.policies import admission, caps, rates
from magnetar.policies.policy import Policy
from magnetar.wire.events import SendRun

SYSTEM_SUBSCRIPTION_PREFIX: Final = "__"


class Governed(Protocol):
    """A subscription of either kind."""

    @property
    def consumers(self) -> Sequence[Consumer]: ...

    def set_limits(self, limits: SubscriptionLimits) -> None: ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages and bytes per period; 0 or less is any number."""

    messages: int
    size_bytes: int
    period_s: int = 1
    relative: bool = False

    @property
    def limits(self) -> bool:
        return self.messages > 0 or self.size_bytes > 0


def dispatch_rate(value: Mapping[str, Any] | None) -> Rate:
    """A dispatch rate as REST has it."""
    given = value or {}
    return Rate(
        given.get("dispatchThrottlingRateInMsg", -1),
        given.get("dispatchThrottlingRateInByte", -1),
        max(1, given.get("ratePeriodInSecond", 1)),
        bool(given.get("relativeToPublishRate", False)),
    )


class GovernedTopic(ABC):
    """See the module's text. What both kinds of topics have."""

    __slots__ = (
        "__weakref__",
        "_closing",
        "_context",
        "_resting",
        "_subscribe_rate",
        "gate",
        "limits",
    )

    name: TopicName
    full_name: str
    place: int
    counters: TopicCounters
    producers: ProducerRegistry
    subscriptions: Mapping[str, Governed]

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._closing = self._resting = False
        self.gate: PublishGate | None = None
        """What sends pass through; None where nothing limits them."""
        self.limits: SubscriptionLimits = context.subscription_limits
        self._subscribe_rate: SubscribeRate | None = None

    @abstractmethod
    def publish(self, producer: Producer, run: SendRun) -> None:
        """Takes the run; its receipts come once it is dealt with."""

    @property
    def serving(self) -> bool:
        """Whether it takes messages now."""
        return not (self._closing or self._resting)

    @property
    def is_idle(self) -> bool:
        """Nobody is attached."""
        return not len(self.producers) and not any(
            subscription.consumers for subscription in self.subscriptions.values()
        )

    def _check_serving(self) -> None:
        if not self.serving:
            raise self._not_serving()

    def _not_serving(self) -> ServiceNotReady:
        return ServiceNotReady(f"Topic {self.full_name} is being closed, please retry")

    # -- when policies change

    def apply_policies(self) -> None:
        """Takes over what the policies say now."""
        self._apply_limits()
        if is_system_topic(self.name):
            return
        self._apply_gate()
        value = self._value(rates.SUBSCRIBE_RATE) or {}
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
        wanted = replace(
            default,
            max_unacked_per_consumer=self._value(caps.MAX_UNACKED_PER_CONSUMER) or 0,
            max_unacked_per_subscription=self._value(caps.MAX_UNACKED_PER_SUBSCRIPTION) or 0,
            max_consumers=self._cap(caps.MAX_CONSUMERS_PER_SUBSCRIPTION),
        )
        if wanted != self.limits:
            self.limits = default if wanted == default else wanted
            for subscription in list(self.subscriptions.values()):
                subscription.set_limits(self.limits)

    def _apply_gate(self) -> None:
        given = self._value(rates.PUBLISH_RATE) or {}
        rate = Rate(
            given.get("publishThrottlingRateInMsg", -1),
            given.get("publishThrottlingRateInByte", -1),
        )
        largest = self._value(caps.MAX_MESSAGE_SIZE) or 0
        if largest >= self._context.message_bytes_max:
            largest = 0  # the decoder refuses those
        encrypted = bool(self._value(admission.ENCRYPTION_REQUIRED))
        gate = self.gate
        if gate is None:
            if not (rate.limits or largest or encrypted):
                return
            gate = self.gate = PublishGate(self, self._context.held)
        gate.message_bytes_max = largest
        gate.encryption_required = encrypted
        gate.set_rate(rate.messages, rate.size_bytes, self._context.clock)
        if not gate.needed:
            self.gate = None
        if encrypted:
            self.producers.send_away(lambda producer: not producer.encrypted)

    def refuse(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        """Answers one message with SEND_ERROR, after the receipts of what came before it."""
        if self.gate is None:  # it goes again once the refusal is sent
            self.gate = PublishGate(self, self._context.held)
        self.gate.refuse(producer, run, error)

    # -- when somebody attaches

    def check_producer(self, name: str, *, encrypted: bool) -> None:
        """Raises ProducerBusy or MetadataError where no such producer is let in."""
        self.check_producers_cap(name)
        if (
            not encrypted
            and self._value(admission.ENCRYPTION_REQUIRED)
            and not is_system_topic(self.name)
        ):
            raise MetadataError(f"Encryption is required in {self.full_name}")

    def check_producers_cap(self, name: str) -> None:
        """Raises ProducerBusy; one that replaces a producer of its name takes its place."""
        cap = self._cap(caps.MAX_PRODUCERS)
        if cap and len(self.producers) >= cap and name not in self.producers:
            raise ProducerBusy(f"Topic '{self.full_name}' reached max producers limit")

    def check_subscriber(self, request: SubscribeRequest, consumer: Consumer) -> None:
        """Raises NotAllowed for its type, or where it subscribes too often."""
        wanted = request.spec.sub_type.name
        allowed = self._value(admission.SUBSCRIPTION_TYPES)
        if allowed and wanted not in allowed and not is_system_topic(self.name):
            raise NotAllowed(f"Topic[{{{self.full_name}}}] doesn't support {wanted} sub type!")
        if self._subscribe_rate is not None:
            key = (host_of(consumer.sink.address), consumer.name, request.spec.consumer_id)
            self._subscribe_rate.check(key, self._context.clock.monotonic())

    def check_consumers_cap(self) -> None:
        """Raises ConsumerBusy where the topic has as many consumers as it may."""
        cap = self._cap(caps.MAX_CONSUMERS)
        if cap and sum(len(each.consumers) for each in self.subscriptions.values()) >= cap:
            raise ConsumerBusy("Topic reached max consumers limit")

    def check_new_subscription(self, name: str) -> None:
        """Raises NotAllowed where the topic has as many subscriptions as it may."""
        cap = self._cap(caps.MAX_SUBSCRIPTIONS)
        if not cap or name.startswith(SYSTEM_SUBSCRIPTION_PREFIX):
            return
        counted = [
            each for each in self.subscriptions if not each.startswith(SYSTEM_SUBSCRIPTION_PREFIX)
        ]
        if len(counted) >= cap:
            raise NotAllowed(
                f"Exceed the maximum number of subscriptions of the topic: {self.full_name}",
                http_status=409,
            )

    @property
    def makes_subscriptions(self) -> bool:
        """Whether a subscription comes to be when a consumer first uses it."""
        return bool(
            self._value(admission.AUTO_SUBSCRIPTION_CREATION)["allowAutoSubscriptionCreation"]
        )

    async def add_schema(self, schema: SchemaInfo | None) -> bytes:
        """The version under which a producer's schema is known, registered where it is new."""
        return await self._context.schemas.for_producer(self.name, schema)

    def load(self) -> TopicLoad:
        """What the topic moves per second, in and out, as of the last rates."""
        messages, size_bytes = self.counters.message_rate_in, self.counters.bytes_rate_in
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                messages += consumer.rates.out
                size_bytes += consumer.rates.throughput
        return TopicLoad(self.place, messages, size_bytes)

    @property
    def policies(self) -> AppliedPolicies:
        """What holds for this topic."""
        return self._context.policies.of(self.name)

    def _value(self, policy: Policy) -> Any:
        return self._context.policies.value(self.name, policy)

    def _cap(self, policy: Policy) -> int:
        return 0 if is_system_topic(self.name) else int(self._value(policy) or 0)


def limiter_for(
    limiter: RateLimiter | None, rate: Rate, topic: GovernedTopic
) -> RateLimiter | None:
    """The limiter with that rate, made where there was none, or ended where none is asked for."""
    if not rate.limits:
        if limiter is not None:
            limiter.close()
        return None
    counters = topic.counters
    if limiter is None:
        limiter = RateLimiter(topic._context.clock)
    relative = (
        (lambda: (counters.message_rate_in, counters.bytes_rate_in)) if rate.relative else None
    )
    limiter.set(rate.messages, rate.size_bytes, rate.period_s, relative)
    return limiter


def throttle(
    topic: GovernedTopic, subscription: PersistentSubscription, whole: RateLimiter | None
) -> None:
    """Holds a subscription to its dispatch rate, and to its topic's, of which `whole` is."""
    known = subscription.throttle
    rate = dispatch_rate(topic.policies.value(rates.SUBSCRIPTION_DISPATCH_RATE))
    own = limiter_for(None if known is None else known.own, rate, topic)
    if known is None:
        if own is None and whole is None:
            return
        tailing = topic._context.throttle_tailing
        known = DispatchThrottle(subscription.cursor, subscription.wake, tailing=tailing)
        subscription.throttle = known
    known.topic, known.own = whole, own
    subscription.rates_changed()
