"""Acknowledgments and redeliveries of one topic or partition.

An entry is acknowledged when all of its messages are. With `batch_index_ack`, the broker also
records the messages of a batch one by one. A redelivery of single entries needs a shared
subscription; otherwise everything that is not acknowledged is redelivered, under a new epoch.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from magnetar.client.consumer.ack_group import (
    AckGroup,
    ack_frame,
    cumulative_command,
    individual_commands,
)
from magnetar.client.consumer.entry import ReceivedEntry
from magnetar.client.consumer.redelivery import NegativeAcks, UnackedTracker
from magnetar.client.consumer.subscription import Letters, Shared
from magnetar.client.context import Context
from magnetar.client.errors import (
    AckFailed,
    ClientError,
    Disconnected,
    InvalidConfiguration,
    OperationTimeout,
)
from magnetar.client.interceptors import notify
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.network.connection import Connection
from magnetar.core.log import get_logger
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command
from magnetar.wire.message_id import ack_set_words, full_ack_set, unsigned64

if TYPE_CHECKING:
    from magnetar.client.consumer.partition import PartitionConsumer

log = get_logger("magnetar.client.consumer")

PARTIAL_BATCHES_MAX: Final = 10_000
"""Batches that were acknowledged in part by ids alone; the oldest is forgotten beyond that."""
IDS_PER_REDELIVERY_MAX: Final = 1000
CHUNK_REDELIVERY_DELAY_S: Final = 1.0
CHUNK_REDELIVERY_MAX_S: Final = 3600.0
"""An incomplete message comes again after twice the time, up to this, and to the nack delay."""
CHUNK_DOUBLINGS_MAX: Final = 16

Place = tuple[int, int]


class Acks:
    """The acknowledgments of one topic or partition."""

    def __init__(self, context: Context, shared: Shared, source: "PartitionConsumer") -> None:
        self._context = context
        self._shared = shared
        self._source = source
        options = shared.options
        self._index_ack = options.batch_index_ack
        self.group = AckGroup(context.loop, options.ack_group_s, options.ack_group_size, self.flush)
        self._nacks = NegativeAcks(
            context.loop,
            options.negative_ack_delay_s,
            options.negative_ack_backoff,
            self._nacks_due,
        )
        self.unacked: UnackedTracker | None = None
        if options.ack_timeout_s:
            self.unacked = UnackedTracker(
                context.loop,
                options.ack_timeout_s,
                options.ack_timeout_tick_s,
                options.ack_timeout_backoff,
                self._timed_out,
            )
        self._partial: dict[Place, int] = {}
        self._dying: dict[Place, list[Message[Any]]] = {}
        """Messages that go to the dead letter topic with their next redelivery."""
        self._pending: dict[asyncio.Future[None], list[asyncio.Future[Any]]] = {}
        """Whether the commands of a flush with receipts are recorded, and their answers."""
        self._soon: asyncio.Handle | None = None
        """A flush at the end of this turn of the loop."""
        self.held = False
        """Whether a seek is under way: an ack that arrives after it would count after it."""
        self.seeks = 0
        """The seeks that have undone acknowledgments."""
        self._retired = False
        """Whether the client has left the cluster of these messages."""
        self._ended: ClientError | None = None
        """Why nothing is acknowledged any more."""

    # -- individual ----------------------------------------------------------------------------

    def is_undone(self, entry: ReceivedEntry | None) -> bool:
        """Whether an entry came before the last seek: its acks would count after it."""
        return entry is not None and entry.seeks != self.seeks

    def ack(self, entry: ReceivedEntry, batch_index: int) -> None:
        """Acknowledges a message of a received entry, unless a seek has undone that."""
        if entry.seeks != self.seeks:
            return  # its messages come again, and have acks of their own
        if entry.batch_size:
            bit = 1 << batch_index
            if not entry.unacked & bit and not self._shared.options.ack_receipt:
                return  # with receipts it may be a repetition of an ack that was refused
            entry.unacked &= ~bit
            if entry.unacked:
                if self._index_ack:
                    self.group.add((entry.ledger_id, entry.entry_id), entry.unacked)
                return
        place = (entry.ledger_id, entry.entry_id)
        if self.unacked is not None:
            self.unacked.discard(place)
        if self._dying:
            self._dying.pop(place, None)
        if entry.chunk_ids:
            self.group.add_all(entry.chunk_ids)
        else:
            self.group.add(place)

    def ack_id(self, message_id: MessageId) -> None:
        """Acknowledges a message of which only the id is known."""
        if message_id.entry is not None:
            self.ack(message_id.entry, message_id.batch_index)
            return
        place = (message_id.ledger_id, message_id.entry_id)
        if message_id.batch_index >= 0 and message_id.batch_size > 1:
            left = self._partial.pop(place, full_ack_set(message_id.batch_size))
            left &= ~(1 << message_id.batch_index)
            if left:
                self._keep_partial(place, left)
                if self._index_ack:
                    self.group.add(place, left)
                return
        elif message_id.batch_index > 0:
            raise InvalidConfiguration(
                "The id has no batch size, so the rest of its batch is unknown: "
                "acknowledge the message itself"
            )
        if self.unacked is not None:
            self.unacked.discard(place)
        if message_id.first_chunk is not None:
            first = (message_id.first_chunk.ledger_id, message_id.first_chunk.entry_id)
            self.group.add_all((first, place))
            return
        self.group.add(place)

    def _keep_partial(self, place: Place, left: int) -> None:
        self._partial[place] = left
        if len(self._partial) > PARTIAL_BATCHES_MAX:
            del self._partial[next(iter(self._partial))]

    # -- cumulative ----------------------------------------------------------------------------

    def ack_cumulative(self, message_id: MessageId) -> None:
        """Acknowledges everything up to a message, unless a seek has undone that."""
        place = (message_id.ledger_id, message_id.entry_id)
        entry = message_id.entry
        if self.is_undone(entry):
            return
        left = 0
        if message_id.batch_index >= 0:
            if entry is not None:
                left = entry.unacked
            else:
                left = self._partial.get(place, full_ack_set(max(message_id.batch_size, 1)))
            left &= ~full_ack_set(message_id.batch_index + 1)
            if entry is not None:
                entry.unacked = left
        if self.unacked is not None:
            ledger_id, entry_id = place
            self.unacked.discard_until(place if not left else (ledger_id, entry_id - 1))
        if not left or self._index_ack:
            self.group.add_cumulative(place, left)
        elif message_id.entry_id > 0:
            self.group.add_cumulative((message_id.ledger_id, message_id.entry_id - 1))

    # -- send ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sends everything that is grouped; it stays grouped without a connection, and if held."""
        if self._retired:
            self.end(_left_cluster(self._source.topic))
            return
        connection = self._source.connection
        if connection is None or self.held or not self.group:
            return
        individual, cumulative, waiters = self.group.take()
        consumer_id = self._source.consumer_id
        commands = []
        if cumulative is not None:
            commands.append(cumulative_command(consumer_id, cumulative))
            until, rest = cumulative
            individual = {
                p: left for p, left in individual.items() if p > until or (rest and p == until)
            }
        commands += individual_commands(consumer_id, individual)
        stats = self._shared.stats
        stats.acks_sent += len(individual) + (cumulative is not None)
        stats.ack_commands_sent += len(commands)
        if not self._shared.options.ack_receipt:
            for command in commands:
                connection.write(ack_frame(command))
            return
        answers = [
            connection.start_request(CommandType.ACK, command, self._source.topic)
            for command in commands
        ]
        loop, timeout_s = self._context.loop, self._context.options.operation_timeout_s
        late = OperationTimeout(
            f"ACK was not answered in {timeout_s:g} s", topic=self._source.topic
        )
        timer = loop.call_later(timeout_s, _fail, answers, late)
        recorded: asyncio.Future[None] = loop.create_future()
        self._pending[recorded] = answers

        def answered(done: "asyncio.Future[list[Any]]") -> None:
            timer.cancel()
            errors = [answer for answer in done.result() if isinstance(answer, BaseException)]
            if errors:
                # The next ack of such a batch by id completes it again.
                for place in (place for place, left in individual.items() if not left):
                    self._keep_partial(place, 0)
            self._answered(recorded, errors[0] if errors else None, waiters)

        # All answers, also if one is an error: the others are not known to be recorded before.
        asyncio.gather(*answers, return_exceptions=True).add_done_callback(answered)

    def _answered(
        self,
        recorded: "asyncio.Future[None]",
        error: BaseException | None,
        waiters: "set[asyncio.Future[None]]",
    ) -> None:
        del self._pending[recorded]
        if error is not None and not waiters:
            log.warning("acks were refused", topic=self._source.topic, error=str(error))
        _settle([recorded, *waiters], error)
        if self.group.waiters:
            self._flush_soon()

    def lost(self) -> None:
        """Fails those that wait for answers: the broker has closed the consumer.

        It may not answer what it has not read, and delivers again what it has not recorded.
        """
        error = Disconnected("The broker closed the consumer", topic=self._source.topic)
        for answers in list(self._pending.values()):
            _fail(answers, error)

    def _flush_soon(self) -> None:
        """Sends acks that a caller waits for, unless answers are under way: then after them.

        So a caller that acknowledges one message after the other waits for the broker only, and
        callers that do so together share commands.
        """
        if self._soon is None and not self._pending:
            self._soon = self._context.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._soon = None
        self.flush()

    async def receipt(self) -> None:
        """Returns once the broker has recorded all acks so far; raises ClientError if it has not.

        The acks of one call may be in several commands, some of which are on their way already.
        """
        if self._ended is not None:
            raise self._ended
        answers: list[asyncio.Future[None]] = list(self._pending)
        waiter: asyncio.Future[None] = self._context.loop.create_future()
        if self.group:
            self.group.waiters.add(waiter)
            answers.append(waiter)
            self._flush_soon()
        try:
            if answers:
                await asyncio.wait(answers)
        finally:
            # Unless it is done: nothing waits for it any more, and an outage may last.
            waiter.cancel()
            self.group.waiters.discard(waiter)
        for answer in answers:
            if not answer.cancelled() and (error := answer.exception()) is not None:
                raise error

    def refuse(self, place: Place, fault: int, connection: Connection) -> None:
        """Acknowledges an entry that cannot be read, with its fault."""
        command = individual_commands(self._source.consumer_id, {place: 0})[0]
        command.validation_error = pb.CommandAck.ValidationError.ValueType(fault)
        connection.write(ack_frame(command))

    async def in_transaction(
        self, message_ids: list[MessageId], transaction: tuple[int, int], *, cumulative: bool
    ) -> None:
        """Acknowledges messages as part of a transaction; raises TransactionConflict."""
        if self._retired:
            raise _left_cluster(self._source.topic)
        if any(self.is_undone(message_id.entry) for message_id in message_ids):
            raise undone_by_seek(self._source.topic)
        kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        command = pb.CommandAck(consumer_id=self._source.consumer_id, ack_type=kind)
        command.txnid_most_bits, command.txnid_least_bits = transaction
        for message_id in message_ids:
            self._add_in_transaction(command, message_id, cumulative=cumulative)
            if self.unacked is not None:
                self.unacked.discard((message_id.ledger_id, message_id.entry_id))
        await self._source.request(CommandType.ACK, command)

    def _add_in_transaction(
        self, command: pb.CommandAck, message_id: MessageId, *, cumulative: bool
    ) -> None:
        entry = message_id.entry
        chunks = entry.chunk_ids if entry is not None else ()
        for place in chunks or ((message_id.ledger_id, message_id.entry_id),):
            wire = command.message_id.add()
            wire.ledgerId, wire.entryId = map(unsigned64, place)
        if message_id.batch_index >= 0 and message_id.batch_size > 0:
            done = (
                full_ack_set(message_id.batch_index + 1)
                if cumulative
                else 1 << message_id.batch_index
            )
            left = full_ack_set(message_id.batch_size) & ~done
            wire.ack_set.extend(ack_set_words(left))
            wire.batch_size = message_id.batch_size

    # -- redelivery ----------------------------------------------------------------------------

    def nack(self, message_id: MessageId, redelivery_count: int) -> None:
        """Redelivers a message after the delay of negative acknowledgments."""
        self._shared.stats.negative_acks += 1
        if self.is_undone(message_id.entry):
            return  # the seek delivers it again, and that delivery has a timeout of its own
        place = (message_id.ledger_id, message_id.entry_id)
        if self.unacked is not None:
            self.unacked.discard(place)
        self._nacks.add(place, redelivery_count)
        entry = message_id.entry
        for chunk in (entry.chunk_ids if entry is not None else ())[:-1]:
            self._nacks.add(chunk, redelivery_count)

    def unacked_chunk(self, place: Place, count: int) -> None:
        """Redelivers the chunk of a message that was discarded so often."""
        first_s = max(self._shared.options.negative_ack_delay_s, CHUNK_REDELIVERY_DELAY_S)
        delay_s = first_s * 2 ** min(count - 1, CHUNK_DOUBLINGS_MAX)
        self._nacks.add(place, 0, min(delay_s, max(first_s, CHUNK_REDELIVERY_MAX_S)))

    def _nacks_due(self, places: list[Place]) -> None:
        self.redeliver(places)

    def _timed_out(self, places: list[Place]) -> None:
        self._shared.stats.ack_timeouts += len(places)
        interceptors, source = self._shared.options.interceptors, self._source
        for ledger_id, entry_id in places if interceptors else ():
            message_id = MessageId(ledger_id, entry_id, source.partition, topic=source.topic)
            notify(interceptors, "on_ack_timeout", source.topic, message_id)
        self.redeliver(places)

    def redeliver(self, places: list[Place]) -> None:
        """Asks the broker for entries again; those delivered too often become dead letters."""
        if self._retired:
            return
        if not self._shared.acks_single:
            self.redeliver_all()
            return
        dead = [place for place in places if place in self._dying]
        if dead:
            messages = [m for place in dead for m in self._dying.pop(place)]
            self._send_dead(dead, messages)
            places = [place for place in places if place not in set(dead)]
        connection = self._source.connection
        if connection is None:
            return  # the broker delivers everything again when it is back
        for start in range(0, len(places), IDS_PER_REDELIVERY_MAX):
            command = pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=self._source.consumer_id
            )
            for place in places[start : start + IDS_PER_REDELIVERY_MAX]:
                wire = command.message_ids.add()
                wire.ledgerId, wire.entryId = map(unsigned64, place)
            connection.write(encode_command(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES, command))

    def redeliver_all(self) -> None:
        """Asks the broker for everything that is not acknowledged."""
        source = self._source
        connection = source.connection
        if connection is None:
            return
        self.flush()
        source.epoch += 1
        dropped = source.drop_received()
        self._nacks.clear()
        if self.unacked is not None:
            self.unacked.clear()
        command = pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=source.consumer_id, consumer_epoch=source.epoch
        )
        connection.write(encode_command(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES, command))
        if dropped:
            source.permits.dropped(dropped)

    # -- dead letters --------------------------------------------------------------------------

    def take_dead(self, entry: ReceivedEntry, messages: list[Message[Any]]) -> bool:
        """Notes messages that were delivered often; returns whether they are dead now."""
        policy = self._shared.options.dead_letter
        if policy is None or entry.redelivery_count < policy.max_redeliver_count:
            return False
        place = entry.place
        if entry.redelivery_count > policy.max_redeliver_count:
            self._send_dead([place], messages)
            return True
        self._dying[place] = messages
        return False

    def _send_dead(self, places: list[Place], messages: list[Message[Any]]) -> None:
        self._context.tasks.start(
            self._dead(places, messages), f"dead letters of {self._source.topic}"
        )

    async def _dead(self, places: list[Place], messages: list[Message[Any]]) -> None:
        letters = cast("Letters", self._shared.letters)
        unread = [m for m in messages if not m.entry.batch_size or _is_unacked(m)]
        try:
            await letters.dead(unread)
        except ClientError as error:
            log.error(
                "dead letters could not be sent, messages are redelivered",
                topic=self._source.topic,
                error=str(error),
            )
            await asyncio.sleep(CHUNK_REDELIVERY_DELAY_S)
            self.redeliver(places)
            return
        self._shared.stats.dead_letters += len(unread)
        for message in unread:
            self.ack(message.entry, message.batch_index)

    # -- end -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forgets what the broker delivers again after a reconnect."""
        self._nacks.clear()
        self._dying.clear()
        if self.unacked is not None:
            self.unacked.clear()

    def undo(self) -> None:
        """Drops what is acknowledged in part or not sent: a seek has undone all acknowledgments.

        It would otherwise complete batches, and drop messages, that are delivered after the seek.
        """
        self.seeks += 1
        self._partial.clear()
        _, _, waiters = self.group.take()
        _settle(waiters, undone_by_seek(self._source.topic))

    def retire(self) -> None:
        """Drops everything: the ids of these messages mean others in the next cluster."""
        self._retired = True
        self.end(_left_cluster(self._source.topic))

    async def finish(self) -> None:
        """Sends what is grouped and waits for the answers, with the operation timeout."""
        self.flush()
        if self._pending:
            timeout_s = self._context.options.operation_timeout_s
            await asyncio.wait(list(self._pending), timeout=timeout_s)
            self.flush()  # what was acknowledged meanwhile

    def end(self, error: ClientError) -> None:
        """Stops all timers and fails those that wait for answers."""
        self._ended = error
        self.forget()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        _, _, waiters = self.group.take()
        _settle(waiters, error)


def _fail(answers: list["asyncio.Future[Any]"], error: ClientError) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)


def _settle(waiters: "Iterable[asyncio.Future[None]]", error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()  # its caller may have another error, or be cancelled


def undone_by_seek(topic: str) -> AckFailed:
    """The error of an ack of a message that came before a seek."""
    return AckFailed(
        "A seek moved the subscription after the message was received: it is not acknowledged",
        topic=topic,
    )


def _left_cluster(topic: str) -> AckFailed:
    return AckFailed(
        "The message came from a cluster that the client has left: it is not acknowledged there",
        topic=topic,
    )


def _is_unacked(message: Message[Any]) -> bool:
    return bool(message.entry.unacked >> message.batch_index & 1)
