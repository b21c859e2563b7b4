"""The consumer of one topic or partition: connection, received entries, permits.

Acknowledgments and redeliveries are in `acks.py`. After a reconnect the broker delivers again what
was not acknowledged, so everything that was received and not taken by the user is dropped then.
"""

import asyncio
import contextlib
from typing import Any

from magnetar.client.attachment import attach_again, ends_attachment
from magnetar.client.consumer.acks import Acks
from magnetar.client.consumer.chunks import ChunkAssembler
from magnetar.client.consumer.decryption import consumes_encrypted, discards_encrypted
from magnetar.client.consumer.entry import (
    DECRYPTION_ERROR,
    STAYS_UNREAD,
    BadEntry,
    ReceivedEntry,
    decompressed,
    read_entry,
    split,
)
from magnetar.client.consumer.permits import ReceivePermits, UnqueuedPermits
from magnetar.client.consumer.subscription import Shared, StartPosition, subscribe_command
from magnetar.client.consumer.writer_schemas import WriterSchemas
from magnetar.client.context import Context
from magnetar.client.errors import (
    AlreadyClosed,
    ClientError,
    Disconnected,
    EncryptionFailed,
    IncompatibleSchema,
    MissingExtra,
    OperationTimeout,
)
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.network.connection import Connection
from magnetar.client.network.retry import retrying
from magnetar.client.network.service_urls import broker_address
from magnetar.client.schema.api import Schema
from magnetar.client.schema.evolution import explained
from magnetar.core.log import get_logger
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Delivery
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

log = get_logger("magnetar.client.consumer")


class PartitionConsumer:
    """Receives the messages of one topic or partition."""

    def __init__(
        self,
        context: Context,
        shared: Shared,
        topic: str,
        partition: int,
        queue_size: int,
        start: StartPosition,
    ) -> None:
        self.topic = topic
        self.partition = partition
        # Messages that are not persistent all have the same id.
        self._has_ids = topic.startswith("persistent://")
        # After a reconnect, the broker delivers again what was not acknowledged.
        self._redelivered = self._has_ids and shared.options.durable
        self.schema: Schema[Any] = shared.schema.for_topic()
        self._context = context
        self._loop = context.loop
        self.shared = shared
        self.start = start
        self.consumer_id = context.next_consumer_id()
        self.epoch = 0
        """Raised with each redelivery of everything; older deliveries are dropped."""
        self.connection: Connection | None = None
        self.permits = (
            ReceivePermits(
                queue_size, self._grant, auto_scale=shared.options.auto_scale_receiver_queue
            )
            if queue_size
            else UnqueuedPermits(self._grant, lambda: shared.queue.waiting)
        )
        self.permits.paused = shared.options.start_paused
        self.acks = Acks(context, shared, self)
        options = shared.options
        self._chunks = ChunkAssembler(
            self._loop,
            options.chunks_pending_max,
            options.chunk_expiry_s,
            self._discard_chunks,
            self._ack_orphan,
        )
        self._writers = WriterSchemas(context, topic, self.schema, self._deliver)
        self.refusal: ClientError | None = None
        self.last_taken: MessageId | None = None
        """The last message that the user took, for readers."""
        self.given_back: MessageId | None = None
        """The first message that the user took and returned since, for readers."""
        self.ended = False
        """Whether the topic is terminated and was read to its end."""
        self._was_attached = False
        self._lost_while_attaching = False
        self.attachments = 0
        """How often it was attached: the broker delivers again what came before the last."""
        self._attached_event = asyncio.Event()
        self._reconnect: asyncio.Task[Any] | None = None
        self._at_once = False
        """Whether the next reconnect follows a seek, and needs no pause."""

    # -- attach --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Attaches to the topic's broker for the first time."""
        options = self._context.options
        try:
            await retrying(
                lambda: self._attach(""),
                what="The subscription",
                timeout_s=options.operation_timeout_s,
                random=self._context.random,
                topic=self.topic,
                backoff_max_s=options.backoff_max_s,
            )
        except IncompatibleSchema as error:
            info = self.schema.info
            raise await explained(self._context.lookup, self.topic, info, error) from error

    async def _attach(self, redirect: str) -> None:
        context = self._context
        if redirect:
            broker = broker_address(redirect, self.topic, "")
            connection = await context.pool.get(broker)
        else:
            connection = await context.lookup.connection(self.topic)
        self._lost_while_attaching = False
        self._forget_received()
        connection.attach_consumer(self.consumer_id, self)
        start = self.start
        if self._was_attached and not self.shared.options.durable:
            if self.given_back is not None:
                start = StartPosition(self.given_back, inclusive=True)
            elif self.last_taken is not None:
                start = StartPosition(self.last_taken)
        command = subscribe_command(self.shared, self.topic, self.consumer_id, start, self.epoch)
        if self._was_attached:
            command.ClearField("start_message_rollback_duration_sec")
        try:
            await connection.request(
                CommandType.SUBSCRIBE, command, context.options.operation_timeout_s, self.topic
            )
        except BaseException as error:
            connection.detach_consumer(self.consumer_id)
            if not isinstance(error, ClientError) or isinstance(error, TimeoutError):
                self._close_on(connection)
            raise
        if connection.closed or self._lost_while_attaching:
            raise Disconnected(
                "The consumer was closed as it was created",
                topic=self.topic,
                broker=connection.address,
            )
        if self._was_attached:
            self.shared.stats.reconnects += 1
        if self._was_attached and self._redelivered:
            self.drop_received()  # what calls that were cancelled meanwhile have returned
        self._was_attached = True
        self.attachments += 1
        self._at_once = False
        self.connection = connection
        self._attached_event.set()
        if self.acks.held:
            self.acks.undo()
        self.acks.flush()  # before the permits, for which the broker would deliver these again
        self.permits.start()

    def _forget_received(self) -> None:
        self.drop_received()
        self.acks.forget()

    def drop_received(self) -> int:
        """Drops what the broker delivers again; returns the number of messages."""
        removed = self.shared.queue.remove(lambda message: message.entry.source is self)
        self._context.received_bytes -= sum(len(message.data) for message in removed)
        self._chunks.clear()
        return len(removed) + self._writers.clear()

    def on_closed(self, redirect: str) -> None:
        self._lost(redirect)

    def on_disconnected(self) -> None:
        self._lost("")

    def _lost(self, redirect: str) -> None:
        self.connection = None
        self._lost_while_attaching = True
        self._attached_event.clear()
        self.acks.lost()
        if self.refusal is not None or not self._was_attached:
            return
        if self._reconnect is None or self._reconnect.done():
            self._reconnect = self._context.tasks.start(
                self._attach_again(redirect), f"attach consumer to {self.topic}"
            )

    async def _attach_again(self, redirect: str) -> None:
        at_once = bool(redirect) or self._at_once
        await attach_again(
            self._attach, self._refused, self._context, "consumer", redirect, at_once=at_once
        )

    def _refused(self, error: ClientError) -> bool:
        """Whether the consumer gives up after it could not attach."""
        if ends_attachment(error):
            self.end(error)
            self.shared.ended(error)
        return self.refusal is not None

    def moved(self) -> None:
        """Forgets the cluster that the client leaves."""
        retired, self.acks = self.acks, Acks(self._context, self.shared, self)
        retired.retire()
        self.schema = self.shared.schema.for_topic()
        self._writers = WriterSchemas(self._context, self.topic, self.schema, self._deliver)
        if not self.shared.options.durable:
            error = ClientError(
                "The client has switched to another cluster, where message ids are others: "
                "open a new reader",
                topic=self.topic,
            )
            self.end(error)
            self.shared.ended(error)

    async def attached(self) -> Connection:
        """Waits for a connection and returns it; raises the refusal."""
        while True:
            if self.refusal is not None:
                raise self.refusal
            if self.connection is not None:
                return self.connection
            await self._attached_event.wait()

    # -- receive -------------------------------------------------------------------------------

    def _grant(self, count: int) -> None:
        if self.connection is not None and count > 0:
            flow = pb.CommandFlow(consumer_id=self.consumer_id, messagePermits=count)
            self.connection.write(encode_command(CommandType.FLOW, flow))

    def on_delivery(self, delivery: Delivery) -> None:
        shared = self.shared
        if -1 < delivery.epoch < self.epoch and not shared.acks_single:
            self._drop_stale(delivery)
            return
        place, count = (delivery.ledger_id, delivery.entry_id), 1
        try:
            entry, payload = read_entry(self, delivery)
            count = max(entry.metadata.num_messages_in_batch, 1)  # what the broker has counted
            if self._has_ids and self.acks.group.covers(place):
                shared.stats.duplicates_dropped += 1
                self.permits.dropped(count)
                return
            if entry.metadata.encryption_keys:
                decrypted = self._decrypted(entry, payload)
                if decrypted is None:
                    # The broker has counted the messages of the batch, of which the user gets one.
                    self._take(entry, [Message(payload, entry)], count - 1)
                    return
                payload = decrypted
            if entry.metadata.HasField("num_chunks_from_msg") and (
                entry.metadata.num_chunks_from_msg > 1
            ):
                self._take_chunk(entry, payload)
                return
            if entry.metadata.compression:
                payload = decompressed(entry.metadata, payload)
            messages, left_out = split(entry, payload, delivery.ack_set)
        except BadEntry as error:
            self._refuse_entry(place, count, error)
            return
        except MissingExtra as error:
            shared.queue.fail(error)
            return
        self._take(entry, messages, left_out)

    def _drop_stale(self, delivery: Delivery) -> None:
        """Drops what was sent before the broker read the redelivery of everything."""
        count = 1
        with contextlib.suppress(BadEntry):
            count = max(read_entry(self, delivery)[0].metadata.num_messages_in_batch, 1)
        self.permits.dropped(count)

    def _decrypted(self, entry: ReceivedEntry, payload: bytes) -> bytes | None:
        """Returns a payload decrypted, None to deliver it as it is; raises BadEntry."""
        shared = self.shared
        try:
            if shared.decrypt is None:
                raise EncryptionFailed("it is encrypted, and the consumer has no `decryption`")
            return shared.decrypt(entry.metadata, payload)
        except EncryptionFailed as error:
            action = getattr(shared.options.decryption, "on_failure", None)
            if consumes_encrypted(action, entry.metadata):
                entry.sealed = True
                return None
            if not discards_encrypted(action) and self.acks.unacked is not None:
                self.acks.unacked.add(entry.place, entry.redelivery_count)
            fault = DECRYPTION_ERROR if discards_encrypted(action) else STAYS_UNREAD
            raise BadEntry(fault, f"it cannot be decrypted: {error.message}") from error

    def _take(self, entry: ReceivedEntry, messages: list[Message[Any]], left_out: int) -> None:
        if self.start.message_id is not None and entry.place == (
            self.start.message_id.ledger_id,
            self.start.message_id.entry_id,
        ):
            kept = [m for m in messages if not self.start.skips(entry.place, m.batch_index)]
            left_out += len(messages) - len(kept)
            messages = kept
        if left_out:
            self.permits.dropped(left_out)
        self.shared.stats.entries_received += 1
        if messages:
            self._writers.deliver(entry, messages)

    def _deliver(self, entry: ReceivedEntry, messages: list[Message[Any]]) -> None:
        """Puts messages into the queue; their writer's schema is known."""
        shared = self.shared
        if shared.letters is not None and self.acks.take_dead(entry, messages):
            self.permits.dropped(len(messages))
            return
        for interceptor in shared.options.interceptors:
            messages = [_intercepted(interceptor, message) for message in messages]
        self._context.received_bytes += sum(len(message.data) for message in messages)
        shared.queue.put(messages)
        self.permits.check_memory(
            self._context.received_bytes, self._context.options.memory_limit_bytes
        )

    def taken(self, message: Message[Any]) -> None:
        """Records that the user took a message of this topic."""
        size_bytes = len(message.data)
        stats = self.shared.stats
        stats.messages_received += 1
        stats.bytes_received += size_bytes
        self._context.received_bytes -= size_bytes
        self.permits.consumed()
        if self.acks.unacked is not None:
            entry = message.entry
            self.acks.unacked.add(entry.place, entry.redelivery_count)
        if not self.shared.options.durable:
            self.last_taken, self.given_back = message.id, None

    def untake(self, message: Message[Any]) -> None:
        """Returns a message to the front of the queue: its receiver was cancelled."""
        if self.refusal is not None:
            return  # the broker has it, and no call takes it from here
        size_bytes = len(message.data)
        self.shared.stats.messages_received -= 1
        self.shared.stats.bytes_received -= size_bytes
        if self._comes_again(message.entry):
            return
        self._context.received_bytes += size_bytes
        self.permits.unconsumed()
        if self.acks.unacked is not None:
            self.acks.unacked.discard(message.entry.place)
        if not self.shared.options.durable:
            self.given_back = message.id
            if not self.acks.group.waiters:
                # That of the reader; a later one covers it.
                self.acks.group.cumulative = None
        self.shared.queue.put_back(message)

    def _comes_again(self, entry: ReceivedEntry) -> bool:
        """Whether the broker delivers an entry again, so that ours would come twice."""
        if self._redelivered and entry.attachment != self.attachments:
            return True
        return bool(entry.acks.is_undone(entry))

    def _take_chunk(self, entry: ReceivedEntry, payload: bytes) -> None:
        metadata = entry.metadata
        assembled = self._chunks.add(metadata, payload, entry.place)
        if assembled is None:
            self.permits.dropped()
            return
        try:
            plain = decompressed(metadata, assembled.payload)
        except BadEntry as error:
            for place in assembled.places[:-1]:  # the caller refuses the last one
                self._ack_refused(place, error)
            raise
        entry.chunk_ids = assembled.places
        ledger_id, entry_id = assembled.places[0]
        entry.first_chunk = MessageId(ledger_id, entry_id, self.partition, topic=self.topic)
        self._take(entry, [Message(plain, entry)], 0)

    def _ack_orphan(self, place: tuple[int, int]) -> bool:
        """Acknowledges a chunk without a beginning; returns whether it may.

        Entries come in order to the only consumer of a subscription, so the beginning is
        acknowledged, or lies before the subscription's start. It may be with another consumer of a
        shared one.
        """
        if self.shared.acks_single:
            return False
        self.acks.group.add(place)
        return True

    def _discard_chunks(self, places: list[tuple[int, int]], count: int) -> None:
        self.shared.stats.chunks_discarded += len(places)
        log.warning("incomplete chunks discarded", topic=self.topic, chunks=len(places))
        if self.shared.options.chunk_ack_oldest:
            for place in places:
                self.acks.group.add(place)
        else:
            for place in places:
                self.acks.unacked_chunk(place, count)

    def _refuse_entry(self, place: tuple[int, int], count: int, error: BadEntry) -> None:
        """Acknowledges an entry that cannot be read, with its fault; encrypted entries stay."""
        self.shared.stats.entries_bad += 1
        log.error(
            "entry cannot be read",
            topic=self.topic,
            ledger_id=place[0],
            entry_id=place[1],
            error=str(error),
        )
        self.permits.dropped(count)
        self._ack_refused(place, error)

    def _ack_refused(self, place: tuple[int, int], error: BadEntry) -> None:
        if error.fault != STAYS_UNREAD and self.connection is not None:
            self.acks.refuse(place, error.fault, self.connection)

    def on_end_of_topic(self) -> None:
        self.ended = True
        self.shared.end_of_topic(self.topic)

    def on_active_change(self, active: bool) -> None:
        callback = self.shared.options.on_active_change
        if callback is not None:
            try:
                callback(self.topic, active)
            except Exception as error:  # noqa: BLE001  # users' code may raise anything
                log.error("on_active_change failed", topic=self.topic, error=repr(error))

    # -- requests ------------------------------------------------------------------------------

    async def request(self, command_type: int, message: Any) -> Any:
        """Sends a request of this consumer and returns the answer."""
        timeout_s = self._context.options.operation_timeout_s
        return await retrying(
            lambda: self.request_once(command_type, message),
            what="The request",
            timeout_s=timeout_s,
            random=self._context.random,
            topic=self.topic,
            backoff_max_s=self._context.options.backoff_max_s,
        )

    async def request_once(self, command_type: int, message: Any) -> Any:
        """Sends a request without repeating it if the broker refuses it."""
        timeout_s = self._context.options.operation_timeout_s
        connection = await self.attached()
        return await connection.request(command_type, message, timeout_s, self.topic)

    async def seek(self, message_id: MessageId | None, time_ms: int, *, inclusive: bool) -> None:
        """Moves the subscription; what was received before is dropped."""
        seek = pb.CommandSeek(consumer_id=self.consumer_id, request_id=0)
        start = StartPosition(message_id, inclusive=inclusive)
        if message_id is None:
            seek.message_publish_time = time_ms
        elif (wire := start.to_wire()) is not None:
            seek.message_id.CopyFrom(wire)
        self._at_once = True
        previous, self.start = self.start, StartPosition(message_id, inclusive=inclusive)
        taken, self.last_taken = (self.last_taken, self.given_back), None
        ended, self.given_back, self.ended = self.ended, None, False
        try:
            attachments = await retrying(
                lambda: self._seek_once(seek),
                what="The seek",
                timeout_s=self._context.options.operation_timeout_s,
                random=self._context.random,
                topic=self.topic,
                backoff_max_s=self._context.options.backoff_max_s,
            )
        except BaseException:
            self.start, (self.last_taken, self.given_back) = previous, taken
            self.ended = ended
            self.acks.held = False
            self.acks.flush()
            raise
        finally:
            self._at_once = self.acks.held = False
        if self.attachments == attachments:
            self.acks.undo()
            self._forget_received()
            self.last_taken = self.given_back = None
        else:
            # The messages that are here were delivered after the seek, and acknowledged so.
            self.acks.flush()
        await self._attached_in_time()

    async def _attached_in_time(self) -> None:
        timeout_s = self._context.options.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.attached()
        except TimeoutError:
            raise OperationTimeout(
                f"The subscription has moved, and was not attached again in {timeout_s:g} s",
                topic=self.topic,
            ) from None

    async def _seek_once(self, seek: pb.CommandSeek) -> int:
        """Returns the attachment to which the seek was sent."""
        connection = await self.attached()
        self.acks.flush()  # what was acknowledged before the seek is so at the broker
        self.acks.held = True
        timeout_s = self._context.options.operation_timeout_s
        attachment = self.attachments
        await connection.request(CommandType.SEEK, seek, timeout_s, self.topic)
        return attachment

    # -- end -----------------------------------------------------------------------------------

    def end(self, error: ClientError) -> None:
        """Ends the consumer; callers that wait for its connection get the error."""
        if self.refusal is None:
            self.refusal = error
        if self._reconnect is not None and self._reconnect is not asyncio.current_task():
            self._reconnect.cancel()
        self._attached_event.set()
        self._forget_received()
        self.last_taken = self.given_back = None  # they refer to their entry, and it to this
        self.acks.end(error)
        if self.connection is not None:
            self.connection.detach_consumer(self.consumer_id)
            self.connection = None

    async def close(self) -> None:
        """Sends what is acknowledged and closes the consumer at the broker.

        A cancelled call also closes it, without waiting for the broker.
        """
        try:
            if self.refusal is None:
                await self.acks.finish()
        except BaseException:
            self.give_up()
            raise
        connection = self.connection
        self.end(AlreadyClosed("The consumer is closed", topic=self.topic))
        if connection is None or connection.closed:
            return
        closing = pb.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=0)
        try:
            await connection.request(
                CommandType.CLOSE_CONSUMER,
                closing,
                self._context.options.operation_timeout_s,
                self.topic,
            )
        except ClientError as error:
            log.info("consumer was not closed in order", topic=self.topic, error=str(error))

    def give_up(self) -> None:
        """Closes the consumer without waiting for anything; does nothing if it is closed."""
        connection = self.connection
        self.end(AlreadyClosed("The consumer is closed", topic=self.topic))
        if connection is not None:
            self._close_on(connection)

    def _close_on(self, connection: Connection) -> None:
        closing = pb.CommandCloseConsumer(
            consumer_id=self.consumer_id, request_id=connection.next_request_id()
        )
        connection.write(encode_command(CommandType.CLOSE_CONSUMER, closing))


def _intercepted(interceptor: Any, message: Message[Any]) -> Message[Any]:
    try:
        changed = interceptor.before_consume(message)
        if isinstance(changed, Message):
            return changed
        error = f"before_consume has returned {type(changed).__name__}, and not a message"
    except Exception as raised:  # noqa: BLE001  # users' code may raise anything
        error = repr(raised)
    log.error("interceptor failed", topic=message.topic, error=error)
    return message
