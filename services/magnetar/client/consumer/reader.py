"""The reader: reads a topic from a position of its choice, without a durable subscription."""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from magnetar.client.consumer.consumer import Consumer
from magnetar.client.consumer.subscription import StartPosition
from magnetar.client.context import Context
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.options import ConsumerOptions, ReaderOptions, SubscriptionType
from magnetar.client.schema.api import Schema

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")


class Reader(Generic[T]):
    """Reads the messages of topics, beginning at a message id or a time."""

    def __init__(
        self,
        context: Context,
        topics: list[str],
        start: StartPosition,
        schema: Schema[T],
        options: ReaderOptions,
    ) -> None:
        self.options = options
        subscription = options.subscription or f"reader-{uuid.uuid4().hex[:10]}"
        self._consumer: Consumer[T] = Consumer(
            context,
            topics,
            subscription,
            schema,
            ConsumerOptions(
                type=SubscriptionType.EXCLUSIVE,
                name=options.name,
                durable=False,
                receiver_queue_size=options.receiver_queue_size,
                read_compacted=options.read_compacted,
                properties=options.properties,
                interceptors=options.interceptors,
                update_partitions_s=options.update_partitions_s,
                create_topic=options.create_topic,
                decryption=options.decryption,
            ),
            start,
        )
        self.on_close: Callable[[Any], object] | None = None

    async def open(self) -> None:
        """Attaches to the topics."""
        await self._consumer.open()

    @property
    def topics(self) -> list[str]:
        """The topics and partitions that are read."""
        return self._consumer.topics

    @property
    def connected(self) -> bool:
        """Whether the brokers of all topics know the reader now."""
        return self._consumer.connected

    async def read(self, timeout_s: float | None = None) -> Message[T]:
        """Returns the next message; raises OperationTimeout if none comes in `timeout_s`."""
        message = await self._consumer.receive(timeout_s)
        message.entry.acks.ack_cumulative(message.id)
        return message

    def read_nowait(self) -> Message[T] | None:
        """Returns the next message if it has been received already."""
        message = self._consumer.receive_nowait()
        if message is not None:
            message.entry.acks.ack_cumulative(message.id)
        return message

    async def has_message_available(self) -> bool:
        """Whether a message follows those that were read."""
        return await self._consumer.has_message_available()

    async def last_message_ids(self) -> list[MessageId]:
        """Returns the id of the last message of each topic or partition."""
        return await self._consumer.last_message_ids()

    async def seek(
        self, to: MessageId | int | Callable[[str], MessageId | int], *, inclusive: bool = True
    ) -> None:
        """Moves the reader to a message, or to a publish time in ms since 1970.

        Without `inclusive`, the next message is the one after the id.
        """
        await self._consumer.seek(to, inclusive=inclusive)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        message = await self._consumer.__anext__()
        message.entry.acks.ack_cumulative(message.id)
        return message

    async def close(self) -> None:
        """Closes the reader; may be called again."""
        if self.on_close is not None:
            self.on_close(self)
        await self._consumer.close()

    def moved(self) -> None:
        """Ends the reader: the cluster that the client leaves has other message ids."""
        self._consumer.moved()

    def abandon(self, error: Any) -> None:
        """Refuses everything from now on, without a word to the broker."""
        self._consumer.abandon(error)

    async def __aenter__(self) -> "Reader[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await self.close()
