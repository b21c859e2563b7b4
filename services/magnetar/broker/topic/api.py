"""The interface of a topic, persistent or not, for the rest of the broker."""

from collections.abc import Callable, Mapping
from typing import Protocol

from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.ownership.split_algorithms import TopicLoad
from magnetar.broker.policies.applied_policies import AppliedPolicies
from magnetar.broker.rates.publish_rate import PublishGate
from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.broker.topic.transactions.admission import Admission
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.schemas.model import SchemaInfo
from magnetar.wire.events import SendRun


class Topic(Protocol):
    """One topic or partition that this broker serves.

    Attaching and subscribing raise ServiceNotReady while the topic is suspended or closing; all
    other methods may be called at any time.
    """

    name: TopicName
    full_name: str
    ring_position: int
    """The hash that decides the topic's bundle."""
    counters: TopicCounters
    producers: ProducerRegistry
    last_active_ms: int
    """When a producer or consumer last attached or detached, on the wall clock."""
    gate: PublishGate | None
    """Limits publishes; None if nothing limits them."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The topic's subscriptions by name."""

    @property
    def broken_subscriptions(self) -> Mapping[str, MagnetarError]:
        """Subscriptions whose cursor cannot be read, by name, with the reason."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that clients have set; empty for a non-persistent topic."""

    @property
    def stored_bytes(self) -> int:
        """The size of the topic's log; 0 for a non-persistent topic."""

    @property
    def serving(self) -> bool:
        """Whether the topic takes messages now."""

    @property
    def fenced(self) -> bool:
        """Whether another broker owns the log, so that this instance must be closed."""

    @property
    def is_idle(self) -> bool:
        """Whether no producer and no consumer is attached."""

    @property
    def makes_subscriptions(self) -> bool:
        """Whether a consumer creates its subscription by using it."""

    @property
    def policies(self) -> AppliedPolicies:
        """The policies in force for the topic."""

    def check_producer(self, name: str, *, encrypted: bool) -> None:
        """Raises ProducerBusy or MetadataError if policies forbid such a producer."""

    async def add_producer(self, producer: Producer) -> None:
        """Attaches a producer, or queues it for exclusive access.

        Raises ProducerBusy, ProducerFenced, TopicTerminated or ServiceNotReady.
        """

    def remove_producer(self, producer: Producer) -> None:
        """Detaches a producer whose client closed it or whose connection is lost. Idempotent."""

    async def initial_subscription(self, name: str) -> None:
        """Creates a producer's initial subscription, from the earliest entry, if it is missing.

        Raises NotAllowed. A non-persistent topic ignores the request: it has no earlier entry.
        """

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Publishes a run of messages; the producer's sink gets the receipts or the errors."""

    def admission(self, run: SendRun) -> Admission:
        """Returns whether a message of a transaction, or with a delay, may be stored now."""

    def gate_of(self, run: SendRun) -> PublishGate | None:
        """Returns the gate for a message of a transaction or with a delay.

        None if nothing limits it.
        """

    def refuse(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        """Answers one message with SEND_ERROR, after the receipts of earlier messages."""

    async def subscribe(self, request: SubscribeRequest, consumer: Consumer) -> Subscription:
        """Attaches a consumer; creates the subscription if the request and policies allow it.

        Raises NotAllowed, ConsumerBusy, ConsumerAssignError, SubscriptionNotFound or
        ServiceNotReady.
        """

    def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """Detaches a consumer whose client closed it or whose connection is lost. Idempotent."""

    async def unsubscribe(
        self, subscription: Subscription, consumer: Consumer, *, force: bool
    ) -> None:
        """Deletes a subscription for its consumer; MetadataError while others are attached."""

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Deletes a subscription; raises SubscriptionNotFound, or ConsumerBusy unless forced."""

    async def last_message(self, compacted: CompactedLog | None) -> tuple[Position, int]:
        """Returns the last message (EARLIEST: none) and its index in its batch (-1: no batch).

        Raises NotAllowed on a non-persistent topic.
        """

    async def check_schema(self, schema: SchemaInfo) -> None:
        """Registers or checks a consumer's schema; raises IncompatibleSchema."""

    async def add_schema(self, schema: SchemaInfo | None) -> bytes:
        """Registers a producer's schema if it is new and returns its version."""

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Stores the topic's properties; a non-persistent topic keeps none."""

    def apply_policies(self) -> None:
        """Applies caps and rates of the current policies."""

    def policies_changed(self) -> None:
        """Applies all current policies, after a change that may concern the topic."""

    def when_fenced(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once another broker owns the log; never for a non-persistent topic."""

    def check_deletable(self, *, force: bool) -> None:
        """Raises PreconditionFailed while the topic is in use, unless forced."""

    def suspend(self) -> None:
        """Stops taking and dispatching messages, without notifying the clients."""

    def resume(self) -> None:
        """Ends `suspend`."""

    async def drain(self) -> None:
        """Takes no more messages and makes all state durable; clients stay attached."""

    def dismiss(self, destination: BrokerRecord | None) -> None:
        """Disconnects all clients; they look the topic up again or connect to `destination`."""

    async def close(self) -> None:
        """Drains the topic and disconnects its clients, also if draining fails."""

    def abandon(self) -> None:
        """Disconnects all clients and writes nothing: another broker may own the topic."""

    def load(self) -> TopicLoad:
        """Messages and bytes per second, in and out."""
