"""The consumer of users: receives the messages of a subscription and acknowledges them.

    async for message in consumer:
        await handle(message.value)
        await consumer.ack(message)

All topics and partitions share one queue. `async for` ends when the consumer is closed, or when
all of its topics are terminated and were read to their ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

import msgspec

from magnetar.client.consumer.acks import Acks, undone_by_seek
from magnetar.client.consumer.entry import ReceivedEntry
from magnetar.client.consumer.letters import LetterTopics, retry_topic
from magnetar.client.consumer.listener import run_listener
from magnetar.client.consumer.partition import PartitionConsumer
from magnetar.client.consumer.queue import MessageQueue
from magnetar.client.consumer.stats import ConsumerStats
from magnetar.client.consumer.subscription import Shared, StartPosition
from magnetar.client.consumer.topics import Topics
from magnetar.client.context import Context
from magnetar.client.errors import (
    AckFailed,
    AlreadyClosed,
    ClientError,
    InvalidConfiguration,
    OperationTimeout,
    TopicNotFound,
)
from magnetar.client.interceptors import notify
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.options import BatchReceive, ConsumerOptions, SubscriptionType
from magnetar.client.schema.api import Schema
from magnetar.core.log import get_logger
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

if TYPE_CHECKING:
    from types import TracebackType

    from magnetar.client.consumer.pattern import PatternWatch
    from magnetar.client.transaction.transaction import Transaction

log = get_logger("magnetar.client.consumer")

T = TypeVar("T")


class EndOfTopics(ClientError):
    """All topics of the consumer are terminated, and every message was received."""


class Consumer(Generic[T]):
    """Receives messages with values of type `T`."""

    def __init__(
        self,
        context: Context,
        topics: list[str],
        subscription: str,
        schema: Schema[T],
        options: ConsumerOptions,
        start: StartPosition | None = None,
        pattern: "PatternWatch | None" = None,
    ) -> None:
        self.subscription = subscription
        self.options = options
        self._context = context
        self._names = topics
        self._pattern = pattern
        self._queue = MessageQueue(context.loop)
        self._stats = ConsumerStats()
        self._shared = Shared(
            subscription,
            options,
            schema,
            self._queue,
            self._stats,
            self._source_ended,
            self._topic_ended,
        )
        self._topics = Topics(context, self._shared, start or StartPosition())
        if options.decryption is not None:
            from magnetar.client.consumer.decryption import decryptor

            self._shared.decrypt = decryptor(options.decryption)
        self._letters: LetterTopics | None = None
        if options.dead_letter is not None or options.retry_enabled:
            single = topics[0] if len(topics) == 1 and pattern is None else ""
            self._letters = LetterTopics(context, self._shared, single)
            if options.dead_letter is not None:
                self._shared.letters = self._letters
        self.refusal: ClientError | None = None
        """Why nothing can be received any more; None while the consumer is usable."""
        self.on_close: Callable[[Consumer[T]], object] | None = None

    # -- open ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Attaches to all topics; what was attached is closed again if one fails."""
        topics = list(self._names)
        if self.options.retry_enabled:
            if len(topics) != 1 or self._pattern is not None:
                raise InvalidConfiguration("retry_enabled needs a single topic")
            topics.append(retry_topic(topics[0], self.subscription, self.options.dead_letter))
        try:
            await self._topics.add(topics)
            if self._pattern is not None:
                await self._pattern.start(self._topics)
        except BaseException:
            await self.close()
            raise

    # -- facts ---------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """The topics and partitions that are consumed."""
        return list(self._topics.sources)

    @property
    def connected(self) -> bool:
        """Whether the brokers of all topics know the consumer now."""
        sources = self._topics.sources.values()
        return self.refusal is None and all(source.connection is not None for source in sources)

    @property
    def stats(self) -> ConsumerStats:
        """The totals since the consumer was created."""
        self._stats.queued_messages = len(self._queue)
        self._stats.queued_bytes = self._queue.size_bytes
        return self._stats

    # -- receive -------------------------------------------------------------------------------

    async def receive(self, timeout_s: float | None = None) -> Message[T]:
        """Returns the next message; raises OperationTimeout if none comes in `timeout_s`."""
        message = self._queue.take_nowait()
        if message is None:
            message = await self._wait(timeout_s)
        message.entry.source.taken(message)
        return message

    def receive_nowait(self) -> Message[T] | None:
        """Returns the next message if it has been received already."""
        message = self._queue.take_nowait()
        if message is not None:
            message.entry.source.taken(message)
        return message

    async def _wait(self, timeout_s: float | None) -> Message[T]:
        if self.refusal is not None:
            raise self.refusal
        context = self._context
        for source in self._topics.sources.values():
            source.permits.ran_empty(context.received_bytes, context.options.memory_limit_bytes)
        try:
            message = await self._queue.take(timeout_s)
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise OperationTimeout(
                f"No message in {timeout_s:g} s", topic=", ".join(self._names)
            ) from None
        return message

    async def receive_many(self, policy: BatchReceive | None = None) -> list[Message[T]]:
        """Returns messages as soon as a limit of the policy is reached; may return none."""
        policy = policy or self.options.batch_receive
        loop = self._context.loop
        deadline = loop.time() + policy.timeout_s if policy.timeout_s else None
        messages: list[Message[T]] = []
        size_bytes = 0
        while not (policy.messages_max and len(messages) >= policy.messages_max):
            if policy.bytes_max and size_bytes >= policy.bytes_max:
                break
            try:
                message = self.receive_nowait()
                if message is None:
                    if deadline is not None and loop.time() >= deadline:
                        break
                    left_s = None if deadline is None else deadline - loop.time()
                    message = await self.receive(left_s)
            except OperationTimeout:
                break
            except BaseException as error:
                if messages and isinstance(error, EndOfTopics):
                    break  # the next call raises it
                for taken in reversed(messages):
                    taken.entry.source.untake(taken)
                raise
            messages.append(message)
            size_bytes += len(message.data)
        return messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.receive()
        except (AlreadyClosed, EndOfTopics):
            raise StopAsyncIteration from None

    async def run(
        self,
        handle: Callable[[Message[T]], Awaitable[object]],
        *,
        concurrency: int = 1,
        ordered_by_key: bool = True,
    ) -> None:
        """Handles messages until the consumer is closed or the call is cancelled.

        A message is acknowledged when `handle` returns, and negatively acknowledged if it raises.
        Up to `concurrency` messages are handled at a time; with `ordered_by_key`, those of one key
        one after the other.
        """
        await run_listener(self, handle, concurrency, ordered_by_key=ordered_by_key)

    # -- acknowledge ---------------------------------------------------------------------------

    async def ack(
        self, message: Message[T] | MessageId, *, transaction: "Transaction | None" = None
    ) -> None:
        """Acknowledges a message; with `ack_receipt`, once the broker has recorded it."""
        if transaction is not None:
            await self._ack_in_transaction([message], transaction, cumulative=False)
            return
        source, acks = self._ack(message)
        if self.options.ack_receipt or self.options.interceptors:
            await self._confirm(source, acks, [message])

    def _ack(self, message: Message[T] | MessageId) -> tuple[PartitionConsumer, Acks]:
        """Adds an ack to the group of its topic, in the cluster that it came from."""
        if isinstance(message, Message) and message.entry.source.shared is self._shared:
            source = message.entry.source
            if source.refusal is not None and (self.refusal or self.options.ack_receipt):
                raise source.refusal
            acks = message.entry.acks
            self._check_not_undone(acks, message.entry, source)
            acks.ack(message.entry, message.batch_index)
            return source, acks
        source, acks, message_id = self._origin(message)
        self._check_not_undone(acks, message_id.entry, source)
        acks.ack_id(message_id)
        return source, acks

    def _check_not_undone(
        self, acks: Acks, entry: ReceivedEntry | None, source: PartitionConsumer
    ) -> None:
        """Raises AckFailed for a message before a seek, if the caller waits for the receipt."""
        if self.options.ack_receipt and acks.is_undone(entry):
            raise undone_by_seek(source.topic)

    async def ack_many(
        self,
        messages: Iterable[Message[T] | MessageId],
        *,
        transaction: "Transaction | None" = None,
    ) -> None:
        """Acknowledges several messages; with `ack_receipt`, once the broker has recorded all."""
        if transaction is not None:
            await self._ack_in_transaction(list(messages), transaction, cumulative=False)
            return
        confirm = self.options.ack_receipt or bool(self.options.interceptors)
        groups: dict[int, tuple[PartitionConsumer, Acks, list[Message[T] | MessageId]]] = {}
        undone: AckFailed | None = None
        for message in messages:
            try:
                source, acks = self._ack(message)
            except AckFailed as error:
                undone = error  # the others are acknowledged
                continue
            if confirm:
                groups.setdefault(id(acks), (source, acks, []))[2].append(message)
        confirmed = (self._confirm(*group) for group in groups.values())
        results = await asyncio.gather(*confirmed, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if undone is not None:
            raise undone

    async def ack_cumulative(
        self, message: Message[T] | MessageId, *, transaction: "Transaction | None" = None
    ) -> None:
        """Acknowledges a message and all before it in its topic or partition."""
        if self.options.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            raise InvalidConfiguration(
                "Shared subscriptions have no cumulative acknowledgment: use ack or ack_many"
            )
        if transaction is not None:
            await self._ack_in_transaction([message], transaction, cumulative=True)
            return
        source, acks, message_id = self._origin(message)
        self._check_not_undone(acks, message_id.entry, source)
        acks.ack_cumulative(message_id)
        if self.options.ack_receipt or self.options.interceptors:
            await self._confirm(source, acks, [message])

    async def _confirm(
        self, source: PartitionConsumer, acks: Acks, messages: list[Message[T] | MessageId]
    ) -> None:
        """Waits for the broker if acks have receipts, and calls the interceptors."""
        error: ClientError | None = None
        try:
            if self.options.ack_receipt:
                await self._in_time(acks.receipt(), source)
        except ClientError as failed:
            error = failed
            raise
        except BaseException:
            error = ClientError("The call ended before the broker's answer", topic=source.topic)
            raise
        finally:
            for message in messages if self.options.interceptors else ():
                message_id = message.id if isinstance(message, Message) else message
                notify(self.options.interceptors, "on_ack", source.topic, message_id, error)

    async def _in_time(self, answer: Awaitable[object], source: PartitionConsumer) -> None:
        timeout_s = self._context.options.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await answer
        except TimeoutError as late:
            if isinstance(late, ClientError):
                raise
            raise OperationTimeout(
                f"The request was not answered in {timeout_s:g} s", topic=source.topic
            ) from None

    async def _ack_in_transaction(
        self,
        messages: list[Message[T] | MessageId],
        transaction: "Transaction",
        *,
        cumulative: bool,
    ) -> None:
        by_source: dict[str, tuple[Acks, list[MessageId]]] = {}
        for message in messages:
            source, acks, message_id = self._origin(message)
            by_source.setdefault(source.topic, (acks, []))[1].append(message_id)
        for topic, (acks, message_ids) in by_source.items():
            await transaction.enlist_subscription(topic, self.subscription)
            await transaction.run(
                acks.in_transaction(message_ids, transaction.wire_id, cumulative=cumulative)
            )

    async def nack(self, message: Message[T] | MessageId) -> None:
        """Asks for a message again, after `negative_ack_delay_s` or the backoff."""
        count = message.redelivery_count if isinstance(message, Message) else 0
        _, acks, message_id = self._origin(message)
        acks.nack(message_id, count)
        notify(self.options.interceptors, "on_negative_ack", message_id.topic, message_id)

    async def reconsume_later(
        self,
        message: Message[T],
        delay_s: float,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publishes a message to the retry letter topic for a later delivery, and acknowledges it.

        Needs `retry_enabled`. A message that was put off as often as the dead letter policy
        permits goes to the dead letter topic.
        """
        if self._letters is None or not self.options.retry_enabled:
            raise InvalidConfiguration("reconsume_later needs retry_enabled=True")
        dead = await self._letters.later(message, delay_s, dict(properties or {}))
        self._stats.dead_letters += dead
        self._stats.retry_letters += not dead
        await self.ack(message)

    async def redeliver_unacknowledged(self) -> None:
        """Asks for everything that is not acknowledged."""
        for source in self._topics.sources.values():
            source.acks.redeliver_all()

    def _origin(self, message: Message[T] | MessageId) -> tuple[PartitionConsumer, Acks, MessageId]:
        """Returns the source of a message, its acks there, and its id.

        Of a message that another consumer has received, only the id counts.
        """
        if self.refusal is not None:
            raise self.refusal
        message_id = message.id if isinstance(message, Message) else message
        entry = message_id.entry
        if entry is not None and entry.source.shared is self._shared:
            return entry.source, cast("Acks", entry.acks), message_id
        if entry is not None:
            message_id = msgspec.structs.replace(message_id, entry=None)
        source = self._topics.source_of(message_id.topic, message_id.partition)
        return source, source.acks, message_id

    # -- move ----------------------------------------------------------------------------------

    async def seek(
        self, to: MessageId | int | Callable[[str], MessageId | int], *, inclusive: bool = True
    ) -> None:
        """Moves the subscription to a message, or to a publish time in ms since 1970.

        The next message is the one with this id, or without `inclusive` the one after it, or the
        first from this time on. A function is called with each topic or partition. An id of one
        topic cannot move others.
        """
        if self.refusal is not None:
            raise self.refusal
        sources = list(self._topics.sources.values())
        targets = [(source, to(source.topic) if callable(to) else to) for source in sources]
        if (
            isinstance(to, MessageId)
            and len(sources) > 1
            and to.ledger_id >= 0
            and to.entry_id < 2**62
        ):
            raise InvalidConfiguration(
                "A message id belongs to one topic or partition, and this consumer has several: "
                "seek by time, or give a function"
            )
        for source, target in targets:
            if isinstance(target, MessageId):
                await source.seek(target, 0, inclusive=inclusive)
            else:
                await source.seek(None, target, inclusive=True)
            if not source.ended:
                self._queue.recover(EndOfTopics)

    async def last_message_ids(self) -> list[MessageId]:
        """Returns the id of the last message of each topic or partition; (-1, -1) if empty."""
        ids = []
        for source in list(self._topics.sources.values()):
            answer = await self._last(source)
            ids.append(MessageId.from_wire(answer.last_message_id, source.topic))
        return ids

    async def _last(self, source: PartitionConsumer) -> pb.CommandGetLastMessageIdResponse:
        request = pb.CommandGetLastMessageId(consumer_id=source.consumer_id, request_id=0)
        answer: pb.CommandGetLastMessageIdResponse = await source.request(
            CommandType.GET_LAST_MESSAGE_ID, request
        )
        return answer

    async def has_message_available(self) -> bool:
        """Whether a message follows those that were received."""
        if self._queue.messages:
            return True
        for source in list(self._topics.sources.values()):
            answer = await self._last(source)
            if self._queue.messages:
                return True
            if _follows(source, answer):
                return True
        return False

    def pause(self) -> None:
        """Requests no more messages; those that were received can still be taken."""
        for source in self._topics.sources.values():
            source.permits.paused = True

    def resume(self) -> None:
        """Requests messages again."""
        for source in self._topics.sources.values():
            source.permits.resume()

    # -- end -----------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Deletes the subscription and closes the consumer; `force` disconnects others.

        If one of several topics refuses, the call may be repeated for those that are left.
        """
        if self.refusal is not None:
            raise self.refusal
        for source in list(self._topics.sources.values()):
            command = pb.CommandUnsubscribe(
                consumer_id=source.consumer_id, request_id=0, force=force
            )
            # Not repeated: the refusal while others are attached has the number of a failure that
            # may pass.
            await self._in_time(source.request_once(CommandType.UNSUBSCRIBE, command), source)
            source.end(AlreadyClosed("The subscription is deleted", topic=source.topic))
            self._topics.sources.pop(source.topic, None)  # another call is about the others
        await self.close()

    def _source_ended(self, error: ClientError) -> None:
        if self._pattern is not None and isinstance(error, TopicNotFound):
            self._pattern.lost(error.topic)
            return
        self._queue.fail(error)

    def _topic_ended(self, topic: str) -> None:
        if self._pattern is None and all(source.ended for source in self._topics.sources.values()):
            self._queue.fail(EndOfTopics("All topics are terminated and read to their ends"))

    async def close(self) -> None:
        """Sends grouped acknowledgments and closes the consumer; may be called again."""
        if self._shared.closed:
            return
        self._shared.closed = True
        self.refusal = AlreadyClosed(f"The consumer of {self.subscription} is closed")
        if self.on_close is not None:
            self.on_close(self)
        self._queue.fail(self.refusal)
        try:
            if self._pattern is not None:
                await self._pattern.stop()
            await self._topics.close()
        finally:
            self._topics.give_up()
            self._queue.clear()
            if self._letters is not None:
                await self._letters.close()
            notify(self.options.interceptors, "close")

    def moved(self) -> None:
        """Forgets the cluster that the client leaves: its message ids mean others elsewhere."""
        for source in list(self._topics.sources.values()):
            source.moved()

    def abandon(self, error: ClientError) -> None:
        """Refuses everything from now on, without a word to the broker."""
        self.refusal = error
        self._shared.closed = True  # `close` has nothing to close here

    async def __aenter__(self) -> "Consumer[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await self.close()


def _follows(source: PartitionConsumer, answer: pb.CommandGetLastMessageIdResponse) -> bool:
    """Whether the last message of a topic comes after what the user has taken."""
    last = MessageId.from_wire(answer.last_message_id)
    if last.entry_id < 0:
        return False
    if source.given_back is not None:
        return True
    taken = source.last_taken
    if taken is not None:
        return (last.ledger_id, last.entry_id, last.batch_index) > (
            taken.ledger_id,
            taken.entry_id,
            taken.batch_index,
        )
    start = source.start
    if start.is_latest or start.message_id is None:
        if not answer.HasField("consumer_mark_delete_position"):
            return not start.is_latest
        marked = MessageId.from_wire(answer.consumer_mark_delete_position)
        return (last.ledger_id, last.entry_id) > (marked.ledger_id, marked.entry_id)
    begin = start.message_id
    first = (begin.ledger_id, begin.entry_id, begin.batch_index)
    end = (last.ledger_id, last.entry_id, last.batch_index)
    return end >= first if start.inclusive else end > first
