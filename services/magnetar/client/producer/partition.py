"""The producer of one topic or partition: connection, open batches, pending entries.

It stays usable while its connection is lost: messages are kept, and are sent in the same order
after the reconnect. All state changes happen in callbacks of one loop, so nothing is locked.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.client.attachment import attach_again, ends_attachment
from magnetar.client.context import Context
from magnetar.client.errors import (
    AlreadyClosed,
    ChecksumFailed,
    ClientError,
    Disconnected,
    IncompatibleSchema,
    NotAllowed,
    QuotaExceeded,
    SendTimeout,
    TopicTerminated,
    TransactionLost,
    server_error,
)
from magnetar.client.limits import Permits
from magnetar.client.message_id import MessageId
from magnetar.client.network.connection import Connection
from magnetar.client.network.retry import retrying, while_disconnected
from magnetar.client.network.service_urls import broker_address
from magnetar.client.options import AccessMode, ProducerOptions
from magnetar.client.producer.batch import BatchContainer, MessageFuture, OpenBatch, size_in_batch
from magnetar.client.producer.chunks import Chunker
from magnetar.client.producer.command import close_unanswered, producer_command, producer_created
from magnetar.client.producer.encode import ChunkPlace, FrameEncoder, single_head
from magnetar.client.producer.outgoing import OutgoingMessage, wire_id_of
from magnetar.client.producer.pending import (
    ChunkedMessage,
    PendingEntries,
    PendingEntry,
    fail,
    flush_waiter,
    succeed,
)
from magnetar.client.producer.stats import ProducerStats
from magnetar.client.schema.evolution import explained
from magnetar.core.log import get_logger
from magnetar.schemas.model import SchemaInfo
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Receipt
from magnetar.wire.commands import CommandType

if TYPE_CHECKING:
    from magnetar.client.crypto.cipher import ProducerCipher

log = get_logger("magnetar.client.producer")

STALLED_S: Final = 1.0
"""A partition that has not answered for so long is left out by round robin."""
CHECKSUM_ATTEMPTS_MAX: Final = 3
"""How often an entry is sent again after the broker received other bytes."""
MESSAGE_OVERHEAD_BYTES: Final = 256
"""What a pending message holds besides its payload, counted against the memory limit."""
_QUOTA_EXCEPTION: Final = 8
_TERMINATED: Final = 15
_CHECKSUM: Final = 9


class PartitionProducer:
    """Sends the messages of one topic or partition."""

    def __init__(
        self,
        context: Context,
        topic: str,
        partition: int,
        options: ProducerOptions,
        schema: SchemaInfo | None,
        compress: Callable[[bytes], bytes] | None,
        total: Permits,
        stats: ProducerStats,
        cipher: "ProducerCipher | None" = None,
    ) -> None:
        self.topic, self._cipher = topic, cipher
        self.partition = partition
        self._context = context
        self._loop = context.loop
        self._options = options
        self._schema = schema
        self._compress = compress
        self._total = total
        self._stats = stats
        self.permits = Permits(options.max_pending_messages)
        self._producer_id = context.next_producer_id()
        self.name = options.name
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._has_moved = False
        self._connection: Connection | None = None
        self._was_attached = False
        self._encoder: FrameEncoder  # exists once attached
        self._chunker: Chunker
        self._container: BatchContainer | None = None
        self._batch_delay_s = options.batching.delay_s if options.batching is not None else 0.0
        self._batch_timer: asyncio.Handle | None = None
        self._eager = False
        """Whether the open batch is sent as soon as no entry is pending."""
        self._timeout: asyncio.TimerHandle | None = None
        self._pending = PendingEntries()
        initial = options.initial_sequence_id
        self._next_sequence_id = 0 if initial is None else initial + 1
        self.last_sequence_id = -1 if initial is None else initial
        """The highest sequence id with a receipt."""
        self.refusal: ClientError | None = None
        """Why no message is taken any more; None while the producer is usable."""
        self._reconnect: asyncio.Task[Any] | None = None
        self._lost_while_attaching = False
        self._answer: asyncio.Future[Any] | None = None
        """The answer to the last PRODUCER."""

    # -- facts ---------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the broker knows the producer now."""
        return self._connection is not None

    @property
    def batch_is_open(self) -> bool:
        """Whether a batch waits for more messages."""
        return bool(self._container)

    @property
    def blocked(self) -> bool:
        """Whether messages without a key should rather go to another partition."""
        if self._connection is None:
            return self._was_attached
        limit = self.permits.limit
        if limit and self.permits.taken >= limit:
            return True
        oldest = self._pending.oldest
        if oldest is not None and self._loop.time() - oldest.created_at > STALLED_S:
            return True
        return 0 < self._context.memory.limit // 8 < self._pending.size_bytes

    @property
    def pending_messages(self) -> int:
        """Messages without a receipt, those of open batches included."""
        return self._pending.messages + len(self._container or ())

    @property
    def pending_bytes(self) -> int:
        """The size of entries without a receipt."""
        return self._pending.size_bytes

    # -- attach --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Attaches to the topic's broker for the first time."""
        options = self._context.options
        if self._options.access_mode == AccessMode.WAIT_FOR_EXCLUSIVE:
            await while_disconnected(
                lambda: self._attach(None, ""),
                random=self._context.random,
                backoff_max_s=options.backoff_max_s,
            )
            return
        try:
            await retrying(
                lambda: self._attach(options.operation_timeout_s, ""),
                what="The creation of the producer",
                timeout_s=options.operation_timeout_s,
                random=self._context.random,
                topic=self.topic,
                backoff_max_s=options.backoff_max_s,
            )
        except IncompatibleSchema as error:
            raise await explained(self._context.lookup, self.topic, self._schema, error) from error

    async def _attach(self, timeout_s: float | None, redirect: str) -> None:
        context = self._context
        if redirect:
            broker = broker_address(redirect, self.topic, "")
            connection = await context.pool.get(broker)
        else:
            connection = await context.lookup.connection(self.topic)
        self._lost_while_attaching = False
        connection.attach_producer(self._producer_id, self)
        command = self._command()
        self._answer = connection.start_request(CommandType.PRODUCER, command, self.topic)
        success = await producer_created(
            connection, self._producer_id, self.topic, self._answer, timeout_s
        )
        if connection.closed or self._lost_while_attaching:
            raise Disconnected(
                "The producer was closed as it was created",
                topic=self.topic,
                broker=connection.address,
            )
        if self.refusal is not None:  # a lazy producer was closed meanwhile
            connection.detach_producer(self._producer_id)
            close_unanswered(connection, self._producer_id)
            raise self.refusal
        self._attached(connection, success)

    def _command(self) -> pb.CommandProducer:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return producer_command(
            self._options, self.topic, self._producer_id, epoch, self.name, self._schema,
            self._topic_epoch,
        )  # fmt: skip

    def _attached(self, connection: Connection, success: pb.CommandProducerSuccess) -> None:
        first = not self._was_attached
        self.name = success.producer_name
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        if first and self._options.initial_sequence_id is None:
            self.last_sequence_id = success.last_sequence_id
            self._next_sequence_id = success.last_sequence_id + 1
        if first:
            self._encoder = self._new_encoder(success.schema_version)
            overhead_bytes = self._cipher.overhead_bytes if self._cipher is not None else 0
            self._chunker = Chunker(self.name, self._options, overhead_bytes)
            if self._options.batching is not None:
                self._container = BatchContainer(
                    self._options.batching, connection.max_message_bytes
                )
        else:
            self._stats.reconnects += 1
        if self._has_moved:
            self._has_moved = False
            self._use_schema_version(success.schema_version)
        self._was_attached, self._connection = True, connection
        for entry in self._pending:
            connection.write_parts(entry.frame)

    def moved(self) -> None:
        """Forgets what belongs to the cluster that is left; the next may use its generated name."""
        self._topic_epoch, self._has_moved, self.name = None, True, self._options.name
        if self._was_attached:
            self.close_batches()
        error = TransactionLost("The client has switched to another cluster", topic=self.topic)
        for entry in self._pending.take_transactional():
            self._fail(entry, error)

    def _new_encoder(self, schema_version: bytes) -> FrameEncoder:
        encrypt = self._cipher.encrypt if self._cipher is not None else None
        return FrameEncoder(self._producer_id, self.name, schema_version, encrypt)

    def _use_schema_version(self, version: bytes) -> None:
        """Encodes with the version that the schema has in another cluster from now on."""
        encoder = self._new_encoder(version)
        if self._pending and encoder.schema != self._encoder.schema:
            reason = "The schema has another version in the cluster that the client has switched to"
            self._fail_all(Disconnected(f"{reason}: send again", topic=self.topic))
        self._encoder = encoder

    def on_closed(self, redirect: str) -> None:
        self._lost(redirect)

    def on_disconnected(self) -> None:
        self._lost("")

    def _lost(self, redirect: str) -> None:
        self._connection = None
        self._lost_while_attaching = True
        if self._answer is not None and not self._answer.done():
            # The broker has forgotten the request as well: a wait for exclusive access would last.
            closed = Disconnected("The broker closed the producer", topic=self.topic)
            self._answer.set_exception(closed)
        if self.refusal is not None or not self._was_attached:
            return
        if self._reconnect is None or self._reconnect.done():
            self._reconnect = self._context.tasks.start(
                self._attach_again(redirect), f"attach producer to {self.topic}"
            )

    async def _attach_again(self, redirect: str) -> None:
        waits = self._options.access_mode == AccessMode.WAIT_FOR_EXCLUSIVE
        timeout_s = None if waits else self._context.options.operation_timeout_s

        async def attach(redirect: str) -> None:
            await self._attach(timeout_s, redirect)

        await attach_again(
            attach, self._refused, self._context, "producer", redirect, at_once=bool(redirect)
        )

    def _refused(self, error: ClientError) -> bool:
        """Whether the producer gives up after it could not attach."""
        if ends_attachment(error):
            self.end(error)
        elif isinstance(error, QuotaExceeded) and error.code == _QUOTA_EXCEPTION:
            self._fail_all(error)
        return self.refusal is not None

    # -- send ----------------------------------------------------------------------------------

    def enqueue(self, message: OutgoingMessage, *, eager: bool) -> MessageFuture:
        """Takes an admitted message; the future has its id once it is stored."""
        future: MessageFuture = self._loop.create_future()
        container = self._container
        size_bytes = len(message.payload) + 32 if message.plain else size_in_batch(message)
        if container is None or not message.batchable or size_bytes >= self._message_bytes_max:
            self.close_batches()
            self._send_single(message, future)
            return future
        if container.must_close_before(message, size_bytes):
            self._stats.batches_by_size += 1
            self.close_batches()
        if container.add(message, future, size_bytes):
            self._stats.batches_by_count += 1
            self.close_batches()
        elif eager and not self._pending:
            self._schedule_batch(0.0)
        else:
            self._eager |= eager
            if self._batch_timer is None:
                self._schedule_batch(self._batch_delay_s)
        return future

    @property
    def _message_bytes_max(self) -> int:
        connection = self._connection
        return connection.max_message_bytes if connection is not None else 5 * 1024 * 1024

    def _schedule_batch(self, delay_s: float) -> None:
        timer = self._batch_timer
        if delay_s:
            self._batch_timer = self._loop.call_later(delay_s, self._batch_is_due)
        elif timer is None or isinstance(timer, asyncio.TimerHandle):
            if timer is not None:
                timer.cancel()
            self._batch_timer = self._loop.call_soon(self._batch_is_due)

    def _batch_is_due(self) -> None:
        self._batch_timer = None
        if self._container:
            self._stats.batches_by_time += 1
            self.close_batches()

    def close_batches(self) -> None:
        """Sends the open batches now."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        self._eager = False
        if self._container:
            for batch in self._container.take():
                self._send_batch(batch)

    def _send_batch(self, batch: OpenBatch) -> None:
        payload_bytes = sum(len(message.payload) for message in batch.messages)
        size_bytes = payload_bytes + MESSAGE_OVERHEAD_BYTES * len(batch.messages)
        try:
            entry = self._batch_entry(batch, size_bytes)
        except Exception as error:  # noqa: BLE001  # compression and encryption are libraries
            self._refuse(batch.futures, size_bytes, error)
        else:
            self._submit(entry)

    def _batch_entry(self, batch: OpenBatch, size_bytes: int) -> PendingEntry:
        parts: list[bytes] = []
        messages = batch.messages
        first_id = sequence_id = -1
        for message in messages:
            sequence_id = self._sequence_id_of(message)
            if first_id < 0:
                first_id = sequence_id
            parts += (single_head(message, sequence_id), message.payload)
        plain = b"".join(parts)
        payload = plain if self._compress is None else self._compress(plain)
        frame = self._encoder.batch(
            messages[0] if batch.by_key else None,
            first_id,
            sequence_id,
            len(messages),
            self._context.clock.now_ms(),
            payload,
            int(self._options.compression),
            len(plain),
            wire_id_of(batch.transaction),
        )
        return PendingEntry(
            first_id, sequence_id, frame, batch.futures, True, size_bytes, len(messages), 0.0,
            transactional=batch.transaction is not None,
        )  # fmt: skip

    def _sequence_id_of(self, message: OutgoingMessage) -> int:
        sequence_id = message.sequence_id
        if sequence_id < 0:
            sequence_id = self._next_sequence_id
        self._next_sequence_id = max(self._next_sequence_id, sequence_id + 1)
        return sequence_id

    def _send_single(self, message: OutgoingMessage, future: MessageFuture) -> None:
        size_bytes = len(message.payload) + MESSAGE_OVERHEAD_BYTES
        try:
            entries = self._single_entries(message, future, size_bytes)
        except Exception as error:  # noqa: BLE001  # compression and encryption are libraries
            self._refuse([future], size_bytes, error)
            return
        for entry in entries:
            self._submit(entry)

    def _single_entries(
        self, message: OutgoingMessage, future: MessageFuture, size_bytes: int
    ) -> list[PendingEntry]:
        """Returns the entry of a message, or those of its chunks; raises MessageTooBig."""
        chunker, bytes_max = self._chunker, self._message_bytes_max
        payload = message.payload if self._compress is None else self._compress(message.payload)
        sequence_id = self._sequence_id_of(message)
        now_ms = self._context.clock.now_ms()

        def encoded(piece: bytes, place: ChunkPlace | None) -> tuple[bytes, bytes]:
            return self._encoder.single(
                message, sequence_id, now_ms, piece, int(self._options.compression),
                wire_id_of(message.transaction), place,
            )  # fmt: skip

        def entry(
            frame: tuple[bytes, bytes], chunked: ChunkedMessage | None, *, last: bool
        ) -> PendingEntry:
            return PendingEntry(
                sequence_id, sequence_id, frame, [future] if last else [], False,
                size_bytes if last else 0, int(last), 0.0, chunked,
                transactional=message.transaction is not None,
            )  # fmt: skip

        if len(payload) <= bytes_max - chunker.metadata_bytes(message):
            return [entry(encoded(payload, None), None, last=True)]
        chunker.check(message, payload, bytes_max, self.topic)
        chunked = ChunkedMessage()
        return [
            entry(encoded(piece, place), chunked, last=place.is_last)
            for place, piece in chunker.split(message, payload, sequence_id, bytes_max)
        ]

    def _refuse(self, futures: list[MessageFuture], size_bytes: int, error: Exception) -> None:
        """Fails messages that cannot be encoded."""
        self._return(len(futures), size_bytes)
        self._stats.messages_failed += len(futures)
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def _submit(self, entry: PendingEntry) -> None:
        entry.created_at = now = self._loop.time()
        timeout_s = self._options.send_timeout_s
        if timeout_s:
            entry.deadline = now + timeout_s
            if self._timeout is None:
                self._timeout = self._loop.call_at(entry.deadline, self._check_timeouts)
        self._pending.append(entry)
        if self._connection is not None:
            self._connection.write_parts(entry.frame)

    # -- answers -------------------------------------------------------------------------------

    def on_receipt(self, receipt: Receipt) -> None:
        pending = self._pending
        entry = pending.oldest
        if entry is None or receipt.sequence_id < entry.sequence_id:
            return  # of an entry whose send timeout has passed
        if receipt.sequence_id > entry.sequence_id:
            log.warning(
                "receipt out of step, reconnecting",
                topic=self.topic,
                received=receipt.sequence_id,
                expected=entry.sequence_id,
            )
            self._reset(f"Receipt {receipt.sequence_id} came before {entry.sequence_id}")
            return
        pending.pop()
        payload_bytes = entry.size_bytes - MESSAGE_OVERHEAD_BYTES * entry.permits
        elapsed_s = self._loop.time() - entry.created_at
        self._stats.entry_stored(entry.permits, payload_bytes, len(entry.frame[1]), elapsed_s)
        self.last_sequence_id = max(self.last_sequence_id, entry.highest_sequence_id)
        if entry.chunked is not None and entry.chunked.first is None:
            entry.chunked.first = MessageId(
                receipt.ledger_id, receipt.entry_id, self.partition, topic=self.topic
            )
        self._return(entry.permits, entry.size_bytes)
        succeed(entry, receipt.ledger_id, receipt.entry_id, self.partition, self.topic)
        if self._eager and not pending:
            self.close_batches()

    def on_send_error(self, error: pb.CommandSendError) -> None:
        entry = self._pending.oldest
        connection = self._connection
        broker = connection.address if connection is not None else ""
        refused = server_error(error.error, error.message, topic=self.topic, broker=broker)
        if error.error == _TERMINATED:
            self.end(TopicTerminated(error.message, topic=self.topic, code=_TERMINATED))
            return
        is_oldest = entry is not None and entry.sequence_id == error.sequence_id
        if entry is not None and is_oldest:
            entry.attempts += error.error == _CHECKSUM
            final = entry.attempts > CHECKSUM_ATTEMPTS_MAX
            if isinstance(refused, NotAllowed) or (final and isinstance(refused, ChecksumFailed)):
                self._drop_oldest(refused)
                return
        log.info("broker refused a message, reconnecting", topic=self.topic, error=str(refused))
        self._reset(f"The broker refused a message: {error.message}")

    def _reset(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort(reason)

    def _drop_oldest(self, error: Exception) -> None:
        """Fails the oldest entry, and the other chunks of its message: alone, they are none."""
        entry: PendingEntry | None = self._pending.pop()
        chunked = entry.chunked if entry is not None else None
        while entry is not None:
            self._fail(entry, error)
            following = self._pending.oldest
            shares = chunked is not None and following is not None and following.chunked is chunked
            entry = self._pending.pop() if shares else None

    def _fail(self, entry: PendingEntry, error: Exception) -> None:
        self._return(entry.permits, entry.size_bytes)
        self._stats.messages_failed += entry.permits
        fail(entry, error)

    def _check_timeouts(self) -> None:
        self._timeout = None
        now = self._loop.time()
        while (entry := self._pending.oldest) is not None and entry.deadline <= now:
            self._drop_oldest(
                SendTimeout(
                    f"No receipt in {self._options.send_timeout_s:g} s; "
                    "whether the message is stored is unknown",
                    topic=self.topic,
                )
            )
        if entry is not None:
            self._timeout = self._loop.call_at(entry.deadline, self._check_timeouts)

    def _return(self, messages: int, size_bytes: int) -> None:
        if size_bytes:
            self._context.memory.release(size_bytes)
        if messages and self.permits.limit:
            self.permits.release(messages)
            self._total.release(messages)

    # -- end -----------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Sends open batches and waits for all receipts; raises the last message's error."""
        self.close_batches()
        newest = self._pending.newest
        if newest is not None:
            await flush_waiter(newest, self._loop)

    def end(self, error: ClientError) -> None:
        """Refuses further messages and fails those without a receipt."""
        if self.refusal is None:
            self.refusal = error
            log.info("producer ended", topic=self.topic, error=str(error))
        if self._reconnect is not None and self._reconnect is not asyncio.current_task():
            self._reconnect.cancel()
        self.permits.fail_waiters(error)
        if self._connection is not None:
            self._connection.detach_producer(self._producer_id)
            self._connection = None
        self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        if self._was_attached:
            self.close_batches()
        while self._pending:
            self._drop_oldest(error)
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    async def close(self) -> None:
        """Closes the producer at the broker; messages without a receipt fail."""
        connection = self._connection
        self.end(AlreadyClosed("The producer is closed", topic=self.topic))
        if connection is None or connection.closed:
            return
        closing = pb.CommandCloseProducer(producer_id=self._producer_id, request_id=0)
        try:
            timeout_s = self._context.options.operation_timeout_s
            await connection.request(CommandType.CLOSE_PRODUCER, closing, timeout_s, self.topic)
        except ClientError as error:
            log.info("producer was not closed in order", topic=self.topic, error=str(error))

    def give_up(self) -> None:
        """Closes the producer without waiting for the broker; does nothing if it is closed."""
        connection = self._connection
        self.end(AlreadyClosed("The producer is closed", topic=self.topic))
        if connection is not None:
            close_unanswered(connection, self._producer_id)
