"""The producer of users: the steps of a message from its value to its receipt.

`send` builds the message, lets interceptors see it, chooses its partition, waits for room, and
hands it to the partition's producer. `send_nowait` does the same without waiting: it raises if
there is no room. All partitions share one limit of pending messages, and all producers of a client
its memory limit.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from magnetar.client.context import Context
from magnetar.client.errors import (
    AlreadyClosed,
    ClientError,
    InvalidConfiguration,
    MemoryBufferIsFull,
    ProducerQueueIsFull,
    SendFailed,
)
from magnetar.client.interceptors import notify
from magnetar.client.limits import Permits
from magnetar.client.message_id import MessageId
from magnetar.client.options import ProducerOptions
from magnetar.client.producer.compression import compressor
from magnetar.client.producer.lazy import LazyLanes
from magnetar.client.producer.outgoing import OutgoingMessage, check_fields, delay_ms
from magnetar.client.producer.partition import MESSAGE_OVERHEAD_BYTES, PartitionProducer
from magnetar.client.producer.routing import Router
from magnetar.client.producer.stats import ProducerStats
from magnetar.client.schema.api import Schema
from magnetar.core.log import get_logger
from magnetar.core.names import parse_topic

if TYPE_CHECKING:
    from types import TracebackType

    from magnetar.client.crypto.cipher import ProducerCipher
    from magnetar.client.producer.advice import Advice
    from magnetar.client.transaction.transaction import Transaction

log = get_logger("magnetar.client.producer")

T = TypeVar("T")


class Producer(Generic[T]):
    """Sends values of type `T` to a topic."""

    def __init__(
        self, context: Context, topic: str, schema: Schema[T], options: ProducerOptions
    ) -> None:
        self.topic = topic
        """The full name of the topic."""
        self.options = options
        self._context = context
        self._schema = schema
        self._stats = ProducerStats()
        self._total = Permits(
            options.max_pending_messages_total if options.max_pending_messages else 0
        )
        self._compress = compressor(options.compression)
        self._cipher: ProducerCipher | None = None
        self._opened_at = context.loop.time()
        self._lanes: list[PartitionProducer] = []
        self._ended_as: tuple[str, int] | None = None
        """The name and the last sequence id, once the producer has ended."""
        self._lazy = LazyLanes() if options.lazy else None
        self._router: Router  # exists once open
        self._growth: asyncio.Task[Any] | None = None
        self.refusal: ClientError | None = None
        """Why nothing can be sent any more; None while the producer is usable."""
        self.on_close: Callable[[Producer[T]], object] | None = None

    # -- open ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Attaches to all partitions; what was attached is closed again if one fails."""
        name = parse_topic(self.topic)
        partitions = await self._context.lookup.partitions(self.topic)
        if self.options.chunking and not name.persistent:
            raise InvalidConfiguration("Chunking needs a persistent topic", topic=self.topic)
        if self.options.encryption is not None:
            from magnetar.client.crypto.cipher import ProducerCipher

            self._cipher = ProducerCipher(self.options.encryption, self._context.loop.time)
        try:
            if not partitions:
                self._lazy = None
                await self._add([self.topic], -1)
            else:
                await self._add_partitions(partitions)
            self._router = Router(
                self.options.routing,
                self.options.hashing,
                sticky=self.options.batching is not None,
                partitions=len(self._lanes),
                random=self._context.random,
            )
            if self._lazy is not None:  # whether the producer may send is known at once
                await self._lazy.attach(self._lanes[self._router.first])
        except BaseException:
            await self.close(flush_timeout_s=0.0)
            raise
        if partitions and self.options.update_partitions_s:
            self._growth = self._context.tasks.start(
                self._watch_partitions(), f"partitions of {self.topic}"
            )

    async def _add_partitions(self, count: int) -> None:
        name = parse_topic(self.topic)
        start = len(self._lanes)
        topics = [str(name.partition(index)) for index in range(start, count)]
        await self._add(topics, start)

    async def _add(self, topics: list[str], first: int) -> None:
        lanes = [
            PartitionProducer(
                self._context,
                topic,
                first + index if first >= 0 else -1,
                self.options,
                self._schema.info,
                self._compress,
                self._total,
                self._stats,
                self._cipher,
            )
            for index, topic in enumerate(topics)
        ]
        if self._lazy is not None:
            pass  # they are attached when messages go to them
        elif len(lanes) == 1:
            await lanes[0].open()
        else:
            await self._open_together(lanes)
        self._lanes += lanes

    async def _open_together(self, lanes: list[PartitionProducer]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(lane.open(), name=f"attach producer to {lane.topic}")
        except BaseExceptionGroup as failures:
            await _close_all(lanes)
            raise failures.exceptions[0] from None
        except BaseException:
            # Some may be attached: the broker would refuse others of the same name.
            _give_up(lanes)
            raise

    async def _watch_partitions(self) -> None:
        while self.refusal is None:
            await asyncio.sleep(self.options.update_partitions_s)
            try:
                count = await self._context.lookup.partitions(self.topic)
                if count > len(self._lanes):
                    await self._add_partitions(count)
                    log.info("topic has more partitions", topic=self.topic, partitions=count)
            except ClientError as error:
                log.info("partitions not checked", topic=self.topic, error=str(error))

    # -- facts ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name by which the broker knows the producer."""
        if self._ended_as is not None:
            return self._ended_as[0]
        lanes = self._attached
        return lanes[0].name if lanes else self.options.name

    @property
    def _attached(self) -> list[PartitionProducer]:
        lazy = self._lazy
        return self._lanes if lazy is None else [x for x in self._lanes if lazy.is_attached(x)]

    @property
    def partitions(self) -> int:
        """The number of partitions; 0 for a topic without."""
        return len(self._lanes) if self._lanes and self._lanes[0].partition >= 0 else 0

    @property
    def lane_topics(self) -> list[str]:
        """The names of the partitions; that of the topic if it has none."""
        return [lane.topic for lane in self._lanes]

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that was stored; -1 before the first."""
        if self._ended_as is not None:
            return self._ended_as[1]
        return _last_sequence_id(self._lanes)

    @property
    def connected(self) -> bool:
        """Whether every partition's broker knows the producer now."""
        return self.refusal is None and all(lane.connected for lane in self._attached)

    @property
    def ended(self) -> bool:
        """Whether a partition takes no messages any more, as its topic was deleted."""
        return self.refusal is not None or any(lane.refusal is not None for lane in self._lanes)

    @property
    def stats(self) -> ProducerStats:
        """The totals since the producer was created."""
        self._stats.pending_messages = sum(lane.pending_messages for lane in self._lanes)
        self._stats.pending_bytes = sum(lane.pending_bytes for lane in self._lanes)
        return self._stats

    def advise(self) -> "list[Advice]":
        """Suggests settings from what was sent since the producer was opened.

        `docs/use/client.md` has the rules. Empty if little was sent, or nothing would help.
        """
        from magnetar.client.producer.advice import advice

        return advice(self.options, self.stats, self._context.loop.time() - self._opened_at)

    # -- send ----------------------------------------------------------------------------------

    async def send(
        self,
        value: T | None,
        *,
        key: str | None = None,
        key_bytes: bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        sequence_id: int = -1,
        deliver_at_ms: int = 0,
        deliver_after_s: float = 0.0,
        replicate_to: tuple[str, ...] = (),
        transaction: "Transaction | None" = None,
    ) -> MessageId:
        """Sends a message and returns its id once it is stored.

        Waits for room for at most `send_timeout_s`. A `value` of None is a null value. A call that
        is cancelled may have sent its message. Raises SendFailed and other ClientErrors.
        """
        message = self._build(
            value, key, key_bytes, ordering_key, properties, event_time_ms, sequence_id,
            deliver_at_ms, deliver_after_s, replicate_to, transaction,
        )  # fmt: skip
        lane = self._lane_of(message)
        if transaction is not None:
            await transaction.enlist_topic(lane.topic)
        if self._lazy is not None and self._lazy.must_wait(lane):
            await self._lazy.attach(lane)
        if self.options.block_if_queue_full:
            if not self._try_admit(lane, message):
                await self._admit(lane, message)
        else:
            self._admit_or_raise(lane, message)
        future = self._enqueue(lane, message, eager=True)
        result: MessageId = await future
        return result

    def send_nowait(
        self,
        value: T | None,
        *,
        key: str | None = None,
        key_bytes: bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        sequence_id: int = -1,
        deliver_at_ms: int = 0,
        deliver_after_s: float = 0.0,
        replicate_to: tuple[str, ...] = (),
        transaction: "Transaction | None" = None,
    ) -> "asyncio.Future[MessageId]":
        """Queues a message; the future has its id once it is stored.

        Raises ProducerQueueIsFull or MemoryBufferIsFull if there is no room. With a transaction,
        `await transaction.enlist(producer)` first.
        """
        message = self._build(
            value, key, key_bytes, ordering_key, properties, event_time_ms, sequence_id,
            deliver_at_ms, deliver_after_s, replicate_to, transaction,
        )  # fmt: skip
        lane = self._lane_of(message)
        if transaction is not None and not transaction.has_topic(lane.topic):
            raise InvalidConfiguration(
                "The transaction does not have the topic yet: `await transaction.enlist(producer)` "
                "before `send_nowait`",
                topic=lane.topic,
            )
        if self._lazy is not None and self._lazy.must_wait(lane):
            raise InvalidConfiguration(
                "The partition of a lazy producer is not attached yet: use `send`",
                topic=lane.topic,
            )
        self._admit_or_raise(lane, message)
        return self._enqueue(lane, message, eager=False)

    def _build(
        self,
        value: T | None,
        key: str | None,
        key_bytes: bytes | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
        sequence_id: int,
        deliver_at_ms: int,
        deliver_after_s: float,
        replicate_to: tuple[str, ...],
        transaction: "Transaction | None",
    ) -> OutgoingMessage:
        if self.refusal is not None:
            raise self.refusal
        payload = b"" if value is None else self._schema.encode(value)
        null_value = value is None
        if self._schema.separates_key and value is not None:
            if key is not None or key_bytes is not None:
                raise InvalidConfiguration(
                    "The schema separates keys: the key of the message is that of the value",
                    topic=self.topic,
                )
            key_bytes = self._schema.key_of(value)
            null_value = self._schema.is_null(value)
        if deliver_after_s:
            deliver_at_ms = self._context.clock.now_ms() + delay_ms(deliver_after_s)
        message = OutgoingMessage(
            payload, key, key_bytes, ordering_key, properties or {}, event_time_ms, sequence_id,
            deliver_at_ms, replicate_to, null_value, transaction,
        )  # fmt: skip
        check_fields(message)
        for interceptor in self.options.interceptors:
            message = interceptor.before_send(self.topic, message)
            check_fields(message)
        return message

    def _lane_of(self, message: OutgoingMessage) -> PartitionProducer:
        lanes = self._lanes
        if len(lanes) == 1 and lanes[0].partition < 0:
            return lanes[0]
        return lanes[self._router.choose(message, lanes)]

    def _enqueue(
        self, lane: PartitionProducer, message: OutgoingMessage, *, eager: bool
    ) -> "asyncio.Future[MessageId]":
        if lane.refusal is not None:
            self._return(lane, message)
            raise lane.refusal
        transaction = message.transaction
        future = lane.enqueue(message, eager=eager)
        if transaction is not None:
            transaction.track(future)
        if self.options.interceptors:
            future.add_done_callback(lambda done: self._sent(message, done))
        return future

    def _sent(self, message: OutgoingMessage, done: "asyncio.Future[MessageId]") -> None:
        error: BaseException | None
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        message_id = done.result() if error is None else None
        notify(self.options.interceptors, "on_sent", self.topic, message, message_id, error)

    # -- room ----------------------------------------------------------------------------------

    def _try_admit(self, lane: PartitionProducer, message: OutgoingMessage) -> bool:
        if lane.permits.limit:
            if not lane.permits.try_take(1):
                return False
            if not self._total.try_take(1):
                lane.permits.release(1)
                return False
        size_bytes = len(message.payload) + MESSAGE_OVERHEAD_BYTES
        if self._context.memory.try_take(size_bytes):
            return True
        if lane.permits.limit:
            self._total.release(1)
            lane.permits.release(1)
        return False

    def _admit_or_raise(self, lane: PartitionProducer, message: OutgoingMessage) -> None:
        if self._try_admit(lane, message):
            return
        raise self._full(lane, message)

    def _full(self, lane: PartitionProducer, message: OutgoingMessage) -> SendFailed:
        for permits in (lane.permits, self._total):
            if permits.limit and (permits.waiting or permits.taken >= permits.limit):
                return ProducerQueueIsFull(
                    f"{permits.taken} messages wait for receipts, the limit is {permits.limit}",
                    topic=lane.topic,
                )
        memory = self._context.memory
        return MemoryBufferIsFull(
            f"Messages without receipts hold {memory.taken} bytes; "
            f"{len(message.payload)} more exceed the client's limit of {memory.limit}",
            topic=lane.topic,
        )

    async def _admit(self, lane: PartitionProducer, message: OutgoingMessage) -> None:
        """Waits for permits in a fixed order; returns those it has if it fails."""
        size_bytes = len(message.payload) + MESSAGE_OVERHEAD_BYTES
        taken: list[tuple[Permits, int]] = []
        wanted = [(self._context.memory, size_bytes)]
        if lane.permits.limit:
            wanted = [(lane.permits, 1), (self._total, 1), *wanted]
        try:
            async with asyncio.timeout(self.options.send_timeout_s or None):
                for permits, count in wanted:
                    await permits.take(count)
                    taken.append((permits, count))
        except BaseException as error:
            for permits, count in taken:
                permits.release(count)
            if isinstance(error, TimeoutError) and not isinstance(error, ClientError):
                raise self._full(lane, message) from None
            raise

    def _return(self, lane: PartitionProducer, message: OutgoingMessage) -> None:
        self._context.memory.release(len(message.payload) + MESSAGE_OVERHEAD_BYTES)
        if lane.permits.limit:
            self._total.release(1)
            lane.permits.release(1)

    # -- end -----------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Sends everything queued and waits for its receipts.

        Raises the error of the last message of a partition, if that failed.
        """
        if self.refusal is not None:
            raise self.refusal
        lanes = list(self._attached)
        for lane in lanes:
            lane.close_batches()
        flushed = (lane.flush() for lane in lanes)
        for outcome in await asyncio.gather(*flushed, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def close(self, *, flush_timeout_s: float | None = None) -> None:
        """Sends what is queued, waits for its receipts, and closes the producer.

        After `flush_timeout_s` (by default the operation timeout), messages without a receipt
        fail with AlreadyClosed.
        """
        if self.refusal is not None and not self._lanes:
            return
        self.refusal = AlreadyClosed("The producer is closed", topic=self.topic)
        if self.on_close is not None:
            self.on_close(self)
        if self._growth is not None:
            self._growth.cancel()
        name, attached, lanes = self.name, self._attached, self._lanes
        self._lanes, self._ended_as = [], (name, _last_sequence_id(lanes))
        if flush_timeout_s is None:
            flush_timeout_s = self._context.options.operation_timeout_s
        try:
            if flush_timeout_s:
                await _flush_all(attached, flush_timeout_s)
            await _close_all(lanes)
        except BaseException:
            _give_up(lanes)  # a cancelled call does not wait for the broker
            raise
        finally:
            self._ended_as = name, _last_sequence_id(lanes)
            notify(self.options.interceptors, "close")

    def moved(self) -> None:
        """Forgets the cluster that the client leaves."""
        for lane in self._lanes:
            lane.moved()

    def abandon(self, error: ClientError) -> None:
        """Refuses everything from now on, without a word to the broker."""
        self.refusal = error
        for lane in self._lanes:
            lane.refusal = error
        if self._ended_as is None:
            self._ended_as = self.name, _last_sequence_id(self._lanes)
        self._lanes = []  # `close` has nothing to close here

    async def __aenter__(self) -> "Producer[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await self.close()


def _last_sequence_id(lanes: list[PartitionProducer]) -> int:
    return max((lane.last_sequence_id for lane in lanes), default=-1)


async def _close_all(lanes: list[PartitionProducer]) -> None:
    try:
        await asyncio.gather(*(lane.close() for lane in lanes))
    except BaseException:
        _give_up(lanes)
        raise


def _give_up(lanes: list[PartitionProducer]) -> None:
    for lane in lanes:
        lane.give_up()


async def _flush_all(lanes: list[PartitionProducer], timeout_s: float) -> None:
    """Waits for receipts; errors are those of the messages' own futures."""
    for lane in lanes:
        lane.close_batches()
    try:
        async with asyncio.timeout(timeout_s):
            for lane in lanes:
                try:
                    await lane.flush()
                except ClientError as error:
                    log.info("messages failed", topic=lane.topic, error=str(error))
    except TimeoutError:
        log.warning("producer closes with messages unanswered", timeout_s=timeout_s)
