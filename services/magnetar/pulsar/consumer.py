"""The consumer and reader of the official client, on the blocking client."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar.client import message as own
from magnetar.client import sync
from magnetar.client.message_id import MessageId as OwnMessageId
from magnetar.client.options import SubscriptionType
from magnetar.pulsar.checks import check_type
from magnetar.pulsar.exceptions import (
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    OperationNotSupported,
)
from magnetar.pulsar.facts import ConsumerFacts, ReaderFacts
from magnetar.pulsar.listener import Pump
from magnetar.pulsar.message import Message
from magnetar.pulsar.message_id import AnyMessageId, MessageId, own_id
from magnetar.pulsar.options import MILLISECONDS
from magnetar.pulsar.outcomes import refuse_closed, translated, translated_ids

if TYPE_CHECKING:
    from magnetar.pulsar.client import Client
    from magnetar.pulsar.schema.schema import Schema

MessageOrId = Message | AnyMessageId
Listener = Callable[[Any, Message], object]


def acknowledged(message: MessageOrId) -> "own.Message[bytes] | OwnMessageId":
    """Returns what `magnetar.client` acknowledges; raises TypeError."""
    if isinstance(message, Message):
        return message._message
    if not isinstance(message, MessageId | OwnMessageId):
        raise TypeError(
            f"Argument message must be a Message or a MessageId, not {type(message).__name__}"
        )
    return own_id(message)


def target_of(messageid: AnyMessageId | int) -> "OwnMessageId | int":
    """Returns where to seek; raises ValueError."""
    if isinstance(messageid, int):
        return messageid
    if isinstance(messageid, MessageId) or hasattr(messageid, "ledger_id"):
        return own_id(messageid)
    raise ValueError(f"invalid seek_arg type {type(messageid)}")


def refuse_cumulative(kind: SubscriptionType) -> None:
    """Raises the official exception for types that have no cumulative acknowledgment."""
    if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
        raise CumulativeAcknowledgementNotAllowedError(
            "Pulsar error: ResultCumulativeAcknowledgementNotAllowedError: acknowledge the "
            "messages of a Shared or KeyShared subscription one by one"
        )


class Consumer(ConsumerFacts):
    """Receives the messages of a subscription."""

    def __init__(
        self,
        client: "Client",
        consumer: "sync.Consumer[bytes]",
        topic: str,
        schema: "Schema",
        *,
        inclusive: bool,
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._topic = topic
        self._schema = schema
        self._inclusive = inclusive
        self._unsubscribed = False
        self._pump: Pump | None = None

    def is_connected(self) -> bool:
        """Whether the brokers of all topics know the consumer now."""
        return self._consumer.connected

    def _wrap(self, message: "own.Message[bytes]") -> Message:
        return Message(message, self._schema)

    def _listen(self, listener: Listener) -> None:
        self._pump = Pump(
            self._consumer._inner.receive,
            self._consumer._inner.receive_nowait,
            lambda message: listener(self, self._wrap(message)),
            self._client._listener_thread(),
        )
        self._pump.start(self._consumer._portal)

    def _stop_listening(self) -> None:
        if self._pump is not None:
            self._pump.stop()

    def _check_no_listener(self) -> None:
        if self._pump is not None:
            raise InvalidConfiguration(
                "Pulsar error: InvalidConfiguration: the message_listener gets the messages of "
                "this consumer"
            )

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Returns the next message; raises Timeout if none comes in time."""
        self._check_no_listener()
        timeout_s = None
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
            timeout_s = timeout_millis / MILLISECONDS
        with translated():
            return self._wrap(self._consumer.receive(timeout_s))

    def batch_receive(self) -> list[Message]:
        """Returns messages as soon as a limit of the batch receive policy is reached."""
        self._check_no_listener()
        with translated():
            return [self._wrap(message) for message in self._consumer.receive_many()]

    def acknowledge(self, message: MessageOrId) -> None:
        """Acknowledges a message."""
        with translated(), translated_ids():
            if isinstance(message, Message) and self._received(message):
                # It joins a group that is sent later: there is no result to wait for.
                self._consumer._portal.submit(lambda: self._consumer._inner.ack(message._message))
            else:
                self._consumer.ack(acknowledged(message))

    def _received(self, message: Message) -> bool:
        """Whether the message is of this consumer, which is open."""
        inner = self._consumer._inner
        return inner.refusal is None and message._message.entry.source.shared is inner._shared

    def acknowledge_cumulative(self, message: MessageOrId) -> None:
        """Acknowledges a message and all before it."""
        refuse_cumulative(self._consumer.options.type)
        with translated():
            self._consumer.ack_cumulative(acknowledged(message))

    def negative_acknowledge(self, message: MessageOrId) -> None:
        """Asks for a message again, after `negative_ack_redelivery_delay_ms`."""
        with translated():
            self._consumer.nack(acknowledged(message))

    def redeliver_unacknowledged_messages(self) -> None:
        """Asks for everything that is not acknowledged."""
        with translated():
            self._consumer.redeliver_unacknowledged()

    def pause_message_listener(self) -> None:
        """Stops calling the listener."""
        self._listening().pause()

    def resume_message_listener(self) -> None:
        """Calls the listener again."""
        self._listening().resume()

    def _listening(self) -> Pump:
        if self._pump is None:
            raise InvalidConfiguration(
                "Pulsar error: InvalidConfiguration: this consumer has no message_listener"
            )
        return self._pump

    def seek(self, messageid: AnyMessageId | int) -> None:
        """Moves the subscription to a message, or to a publish time in ms since 1970."""
        to = target_of(messageid)
        with translated(), translated_ids():
            self._consumer.seek(to, inclusive=self._inclusive)

    def get_last_message_id(self) -> MessageId:
        """Returns the id of the last message of the topic."""
        with translated():
            return last_id(self._consumer.last_message_ids())

    def unsubscribe(self) -> None:
        """Deletes the subscription and closes the consumer."""
        with translated():
            self._consumer.unsubscribe()
        self._unsubscribed = True
        self._stop_listening()
        self._client._forget(self)

    def close(self) -> None:
        """Closes the consumer; raises AlreadyClosed if it is closed, but not by its client."""
        if self._unsubscribed or self._client._closed:
            return  # programs do both
        refuse_closed(self._consumer.refusal)
        self._stop_listening()
        with translated():
            self._consumer.close()
        self._client._forget(self)


def last_id(ids: "list[OwnMessageId]") -> MessageId:
    """Returns the last id of a single topic; raises OperationNotSupported for several."""
    if len(ids) != 1:
        raise OperationNotSupported(
            "Pulsar error: OperationNotSupported: each of several topics or partitions has a last "
            "message: last_message_ids of magnetar.client returns them"
        )
    return MessageId.wrap(ids[0])


class Reader(ReaderFacts):
    """Reads a topic from a position of its choice."""

    def __init__(
        self,
        client: "Client",
        reader: "sync.Reader[bytes]",
        topic: str,
        schema: "Schema",
    ) -> None:
        self._client = client
        self._reader = reader
        self._topic = topic
        self._schema = schema
        self._pump: Pump | None = None

    def _wrap(self, message: "own.Message[bytes]") -> Message:
        return Message(message, self._schema)

    def _listen(self, listener: Listener) -> None:
        self._pump = Pump(
            self._reader._inner.read,
            lambda: None,
            lambda message: listener(self, self._wrap(message)),
            self._client._listener_thread(),
        )
        self._pump.start(self._reader._portal)

    def _stop_listening(self) -> None:
        if self._pump is not None:
            self._pump.stop()

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Returns the next message; raises Timeout if none comes in time."""
        if self._pump is not None:
            raise InvalidConfiguration(
                "Pulsar error: InvalidConfiguration: the reader_listener gets the messages of this "
                "reader"
            )
        timeout_s = None
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
            timeout_s = timeout_millis / MILLISECONDS
        with translated():
            return self._wrap(self._reader.read(timeout_s))

    def has_message_available(self) -> bool:
        """Whether a message follows those that were read."""
        with translated():
            return self._reader.has_message_available()

    def seek(self, messageid: AnyMessageId | int) -> None:
        """Moves the reader to a message, or to a publish time in ms since 1970."""
        to = target_of(messageid)
        with translated():
            self._reader.seek(to, inclusive=self._reader.options.inclusive)

    def close(self) -> None:
        """Closes the reader; raises AlreadyClosed if it is closed, but not by its client."""
        if self._client._closed:
            return
        refuse_closed(self._reader._inner._consumer.refusal)
        self._stop_listening()
        with translated():
            self._reader.close()
        self._client._forget(self)
