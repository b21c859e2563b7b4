"""Retry letters and dead letters, with the topic names and properties of Java's and Go's clients.

A message that the user puts off is published to the retry letter topic, to which the consumer is
subscribed as well, with the time of its delivery; then the original is acknowledged. A message
that was delivered or put off too often is published to the dead letter topic.
"""

from typing import TYPE_CHECKING, Any, Final

from magnetar.client.consumer.subscription import Shared
from magnetar.client.context import Context
from magnetar.client.errors import AlreadyClosed
from magnetar.client.message import Message
from magnetar.client.options import DeadLetterPolicy, ProducerOptions
from magnetar.client.schema.api import RawSchema
from magnetar.core.names import parse_topic

if TYPE_CHECKING:
    from magnetar.client.producer.producer import Producer

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_ID_OLD: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The name in older releases of Java's and Go's clients, which read nothing else."""
RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
RECONSUME_TIMES_MAX: Final = 16


def retry_topic(topic: str, subscription: str, policy: DeadLetterPolicy | None) -> str:
    """Returns the retry letter topic of a topic."""
    if policy is not None and policy.retry_letter_topic:
        return str(parse_topic(policy.retry_letter_topic))
    return f"{parse_topic(topic).base}-{subscription}-RETRY"


def dead_topic(topic: str, subscription: str, policy: DeadLetterPolicy | None) -> str:
    """Returns the dead letter topic of a topic."""
    if policy is not None and policy.dead_letter_topic:
        return str(parse_topic(policy.dead_letter_topic))
    return f"{parse_topic(topic).base}-{subscription}-DLQ"


class LetterTopics:
    """The producers of one consumer's letters, created with the first letter."""

    def __init__(self, context: Context, shared: Shared, topic: str) -> None:
        self._context = context
        self._shared = shared
        self._topic = topic
        self._producers: dict[str, Producer[bytes]] = {}
        self._closed = False

    @property
    def reconsume_times_max(self) -> int:
        """How often a message is put off before it becomes a dead letter."""
        policy = self._shared.options.dead_letter
        return policy.max_redeliver_count if policy is not None else RECONSUME_TIMES_MAX

    async def dead(self, messages: list[Message[Any]]) -> None:
        """Publishes messages to the dead letter topic."""
        policy = self._shared.options.dead_letter
        topic = dead_topic(self._origin(messages[0]), self._shared.subscription, policy)
        initial = policy.initial_subscription if policy is not None else ""
        producer = await self._producer(topic, initial)
        for message in messages:
            await self._publish(producer, message, self._properties(message), 0)

    async def later(self, message: Message[Any], delay_s: float, extra: dict[str, str]) -> bool:
        """Publishes a message to the retry letter topic; returns whether it became a dead letter.

        The caller acknowledges the original.
        """
        shared = self._shared
        properties = self._properties(message) | extra
        times = _number(message.properties.get(RECONSUME_TIMES)) + 1
        delay_ms = round(delay_s * 1000)
        properties |= {RECONSUME_TIMES: str(times), DELAY_TIME: str(delay_ms)}
        policy = shared.options.dead_letter
        if times > self.reconsume_times_max:
            topic = dead_topic(self._topic, shared.subscription, policy)
            initial = policy.initial_subscription if policy is not None else ""
            producer = await self._producer(topic, initial)
            await self._publish(producer, message, properties, 0)
            return True
        topic = retry_topic(self._topic, shared.subscription, policy)
        producer = await self._producer(topic, "")
        await self._publish(producer, message, properties, delay_ms)
        return False

    def _origin(self, message: Message[Any]) -> str:
        """The topic whose name the dead letter topic has: that of the consumer, if it has one."""
        return self._topic or message.topic

    def _properties(self, message: Message[Any]) -> dict[str, str]:
        properties = dict(message.properties)
        origin = str(message.id)
        properties.setdefault(REAL_TOPIC, str(parse_topic(message.topic)))
        properties.setdefault(REAL_SUBSCRIPTION, self._shared.subscription)
        properties.setdefault(ORIGIN_MESSAGE_ID, origin)
        properties.setdefault(ORIGIN_MESSAGE_ID_OLD, origin)
        return properties

    async def _publish(
        self,
        producer: "Producer[bytes]",
        message: Message[Any],
        properties: dict[str, str],
        delay_ms: int,
    ) -> None:
        key_bytes = message.key_bytes
        await producer.send(
            message.data,
            key=None
            if key_bytes is None or message._own.partition_key_b64_encoded
            else message.key,
            key_bytes=key_bytes if message._own.partition_key_b64_encoded else None,
            ordering_key=message.ordering_key,
            properties=properties,
            event_time_ms=message.event_time_ms,
            deliver_after_s=delay_ms / 1000,
        )

    async def _producer(self, topic: str, initial_subscription: str) -> "Producer[bytes]":
        from magnetar.client.producer.producer import Producer

        producer = self._producers.get(topic)
        if producer is not None and producer.ended:  # its topic was deleted or terminated
            del self._producers[topic]
            await producer.close()
            producer = None
        if producer is None:
            options = ProducerOptions(batching=None, initial_subscription=initial_subscription)
            schema = RawSchema(self._shared.schema.info)
            producer = Producer(self._context, topic, schema, options)
            await producer.open()
            if self._closed:
                await producer.close()
                raise AlreadyClosed("The consumer is closed", topic=topic)
            known = self._producers.setdefault(topic, producer)
            if known is not producer:  # another message was as fast
                await producer.close()
                producer = known
        return producer

    async def close(self) -> None:
        """Closes the producers."""
        self._closed = True
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            await producer.close()


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
