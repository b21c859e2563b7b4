"""The acks of transactions on one subscription (`Participant`).

The first ack of a transaction reads its record, which must be OPEN and list the subscription; later
acks wait for that. The acks are *pending* in the cursor until `end_transaction`, and stored with
its state: the client gets its answer once they are durable. An abort redelivers their messages.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.broker.dispatch.base import Dispatcher
from magnetar.broker.subscription.ack_admission import check_stored
from magnetar.broker.subscription.api import AckPosition, OnDone
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.detachment import closed_afterwards
from magnetar.broker.topic.transactions.attempts import Attempts
from magnetar.broker.topic.transactions.expiry import NOT_LOOKED_UP, Expiry
from magnetar.broker.topic.transactions.judgment import ack_refusal
from magnetar.broker.topic.transactions.questions import Questions
from magnetar.broker.topic.transactions.stats import PendingAckStats
from magnetar.broker.transactions.api import TransactionRecords
from magnetar.core.clock import Clock
from magnetar.core.errors import (
    ConsumerNotFound,
    MagnetarError,
    NotAllowed,
    ServiceNotReady,
    TooManyRequests,
)
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.names import parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.pending_acks import Part
from magnetar.transactions.model import Outcome, TransactionRecord, TxnId
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

WAITING_ACKS_MAX: Final = 10_000
"""Acks of one subscription that wait for records; each may name many messages."""
END_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 30.0

log = get_logger("magnetar.transactions")


class AckedSubscription(Protocol):
    """The subscription of the acks."""

    topic: str
    name: str
    ledger: ManagedLedger
    cursor: Cursor
    dispatcher: Dispatcher | None

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches the consumer."""

    def check_cumulative(self, positions: Sequence[AckPosition]) -> None:
        """Raises NotAllowed if the subscription's type has no cumulative acks."""


class SubscriptionTransactions:
    """Takes acks of transactions, and applies outcomes."""

    __slots__ = (
        "_clock",
        "_expiry",
        "_open",
        "_questions",
        "_subscription",
        "_tasks",
        "_topic",
        "_waiting",
        "aborted_total",
        "committed_total",
    )

    def __init__(
        self,
        subscription: AckedSubscription,
        records: TransactionRecords | None,
        clock: Clock,
        tasks: TaskSet,
    ) -> None:
        self._subscription = subscription
        self._topic = parse_topic(subscription.topic)
        self._clock = clock
        self._tasks = tasks
        where = f"{subscription.topic} {subscription.name}"
        self._questions = Questions(where, records, tasks)
        self._expiry = Expiry(where, clock, tasks, self._look_ups, self._apply_record)
        self._open: dict[TxnId, int] = {}
        """The open transactions, and when their records are read next (`Expiry`)."""
        self._waiting = 0
        self.committed_total = 0
        self.aborted_total = 0

    @property
    def _cursor(self) -> Cursor:
        return self._subscription.cursor

    def recover(self) -> None:
        """Looks up the transactions whose acks the cursor had when it was loaded."""
        if self._cursor.pending is not None:
            for txn in self._cursor.pending.by_txn:
                self._open.setdefault(TxnId(*txn), NOT_LOOKED_UP)
            self._expiry.schedule()

    # -- acks

    def ack(
        self,
        consumer: Consumer,
        txn: TxnId,
        positions: Sequence[AckPosition],
        cumulative: bool,
        on_done: OnDone,
    ) -> None:
        """Acks in a transaction; `on_done` gets the answer once the acks are durable.

        The errors are TransactionConflict, TransactionNotFound, NotAllowed, ConsumerNotFound,
        TooManyRequests, and ServiceNotReady if the record cannot be read, or this broker does not
        know the entry (`check_stored`).
        """
        if not self._questions.possible:
            on_done(NotAllowed("Transactions are not enabled."))
        elif self._open.get(txn, NOT_LOOKED_UP) != NOT_LOOKED_UP:
            self._ack(consumer, txn, positions, cumulative, on_done)
        elif self._waiting >= WAITING_ACKS_MAX:
            on_done(TooManyRequests(f"{WAITING_ACKS_MAX} acks wait for records of transactions"))
        else:
            self._waiting += 1

            def answered(record: TransactionRecord | None, error: MagnetarError | None) -> None:
                self._waiting -= 1
                name = self._subscription.name
                error = error or ack_refusal(txn, record, self._topic, name)
                if error is not None:
                    on_done(error)
                elif record is not None:
                    self._open[txn] = due_ms = self._expiry.look_up_ms(record.deadline_ms)
                    self._expiry.due(due_ms)
                    self._ack(consumer, txn, positions, cumulative, on_done)

            self._questions.ask(txn, answered)

    def _ack(
        self,
        consumer: Consumer,
        txn: TxnId,
        positions: Sequence[AckPosition],
        cumulative: bool,
        on_done: OnDone,
        *,
        exact: bool = True,
    ) -> None:
        """`exact`: the client names the sizes of batches, as Java's does; see `Part.is_new`."""
        if any(ack_set is not None and size <= 0 for _, _, ack_set, size in positions):
            reading = self._with_sizes(consumer, txn, positions, cumulative, on_done)
            if self._tasks.start(reading, f"batch sizes for {txn}") is None:
                on_done(ServiceNotReady("The broker is stopping"))
            return
        try:
            if not consumer.attached:
                raise ConsumerNotFound("Consumer not found")
            subscription = self._subscription
            check_stored(positions, subscription.ledger.last_confirmed, subscription.name)
            if cumulative:
                self._ack_cumulative(txn, positions)
            else:
                self._ack_individually(consumer, txn, positions, exact)
        except MagnetarError as error:
            on_done(error)
            return
        if (dispatcher := self._subscription.dispatcher) is not None:
            dispatcher.joined(consumer, txn)
            dispatcher.woken()
        self._cursor.when_durable(on_done)

    async def _with_sizes(
        self,
        consumer: Consumer,
        txn: TxnId,
        positions: Sequence[AckPosition],
        cumulative: bool,
        on_done: OnDone,
    ) -> None:
        """Acks once the sizes of batches that the client has not named are known."""
        sized: list[AckPosition] = []
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                for ledger_id, entry_id, ack_set, size in positions:
                    if ack_set is not None and size <= 0:
                        position = Position(ledger_id, entry_id)
                        entry = await self._subscription.ledger.read_entry(position)
                        size = max(parse_metadata(entry.data).num_messages_in_batch, 1)
                    sized.append((ledger_id, entry_id, ack_set, size))
        except (MagnetarError, TimeoutError, MalformedEntry) as error:
            on_done(ServiceNotReady(f"An acked batch cannot be read, please retry: {error}"))
            return
        if txn in self._open:
            self._ack(consumer, txn, sized, cumulative, on_done, exact=False)
        else:
            on_done(ack_refusal(txn, None, self._topic, self._subscription.name))

    def _ack_individually(
        self, consumer: Consumer, txn: TxnId, positions: Sequence[AckPosition], exact: bool
    ) -> None:
        cursor, dispatcher = self._cursor, self._subscription.dispatcher
        cursor.add_pending(
            txn,
            [(at[0], at[1], _part(ack_set, size)) for *at, ack_set, size in positions],
            exact=exact,
        )
        if dispatcher is None:
            return
        for ledger_id, entry_id, _, _ in positions:
            left = cursor.remaining_batch(ledger_id, entry_id)
            if left is None or cursor.is_done(ledger_id, entry_id):
                dispatcher.withhold(consumer, ledger_id, entry_id)
            else:
                dispatcher.settle_part(consumer, ledger_id, entry_id, left.bit_count())

    def _ack_cumulative(self, txn: TxnId, positions: Sequence[AckPosition]) -> None:
        self._subscription.check_cumulative(positions)
        ((ledger_id, entry_id, ack_set, size),) = positions
        self._cursor.add_pending_cumulative(
            txn, Position(ledger_id, entry_id), _part(ack_set, size)
        )

    # -- ends

    async def end_transaction(self, txn: TxnId, outcome: Outcome) -> None:
        """See `Participant.end_transaction`. Raises ServiceNotReady if it must be repeated."""
        self._questions.ended(txn)
        self._open.pop(txn, None)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._tasks.finish(self._end(txn, outcome), f"end {txn}")
        except TimeoutError:
            raise ServiceNotReady(
                f"Transaction {txn} has not ended in {self._subscription.name} within "
                f"{END_TIMEOUT_S:g} s"
            ) from None

    async def _end(self, txn: TxnId, outcome: Outcome) -> None:
        commit = outcome is Outcome.COMMIT
        acks = self._cursor.end_pending(txn, commit=commit)
        if acks is not None:
            if commit:
                self.committed_total += 1
            else:
                self.aborted_total += 1
            if (dispatcher := self._subscription.dispatcher) is not None:
                if commit:
                    dispatcher.committed(acks)
                    dispatcher.announce_end_if_terminated()
                else:
                    bypassed = dispatcher.bypassed(txn, acks)
                    with closed_afterwards(bypassed, self._subscription.remove_consumer):
                        dispatcher.aborted(acks)
        elif commit:
            # A former owner of the topic does not know acks at its successor, which takes a deleted
            # record for an abort.
            await self._subscription.ledger.tenure.confirm()
        # Store it even without acks: an earlier attempt may have changed the cursor and failed to
        # store it.
        await self._cursor.flush()

    # -- transactions that stay open

    def _look_ups(self) -> dict[TxnId, int]:
        return self._open

    async def _apply_record(self, txn: TxnId) -> bool:
        """Applies the outcome in the record; returns False if that must be retried."""
        try:
            record = await self._questions.read(txn)
            if txn not in self._open:
                return True
            if record is not None and record.state.outcome is None:
                self._open[txn] = due_ms = self._expiry.look_up_ms(record.deadline_ms)
                return due_ms > self._clock.now_ms()
            # A record is deleted only after this subscription has stored the outcome, so without
            # one, the acks are not those of a committed transaction.
            outcome = Outcome.ABORT if record is None else record.state.outcome
            assert outcome is not None  # noqa: S101  (not OPEN)
            await self.end_transaction(txn, outcome)
        except Exception as error:
            expected = isinstance(error, MagnetarError | TimeoutError)
            log.warning(
                "acks of a transaction not ended, will retry",
                subscription=self._subscription.name, topic=self._subscription.topic,
                transaction=str(txn), error=self._expiry.failed(error),
                exc_info=None if expected else error,
            )  # fmt: skip
            return False
        return True

    # -- statistics

    @property
    def lookups(self) -> Attempts | None:
        """The look-ups of transactions that are due; None if none is."""
        return self._expiry.attempts

    def is_looked_up(self, txn: TxnId) -> bool:
        """Whether the record of a transaction was read since the cursor was loaded."""
        return self._open.get(txn) != NOT_LOOKED_UP

    def stats(self) -> PendingAckStats:
        """Returns the numbers of `topics pending-ack-stats`."""
        used = self._open or self.committed_total or self.aborted_total
        return PendingAckStats(
            state="Ready" if used else "None",
            open_count=len(self._open),
            committed_total=self.committed_total,
            aborted_total=self.aborted_total,
        )

    def cumulative_of(self, txn: TxnId) -> str | None:
        """Returns the position of the transaction's cumulative ack, None without one."""
        pending = self._cursor.pending
        acks = None if pending is None else pending.by_txn.get(txn)
        if acks is None or acks.cumulative is None:
            return None
        return str(acks.cumulative[0])

    def state_of(self, position: Position, batch_index: int | None) -> str:
        """Returns Pulsar's name for the state of an entry, or of a message in its batch."""
        cursor = self._cursor
        if position > self._subscription.ledger.last_confirmed:
            return "InvalidPosition"
        if cursor.is_acked(*position):
            return "MarkDelete"
        pending = cursor.pending
        if pending is None:
            return "NotInPendingAck"
        if pending.withholds(*position):
            return "PendingAck"
        left = None if batch_index is None else pending.left_of(position, None)
        if left is not None and batch_index is not None and not left >> batch_index & 1:
            return "PendingAck"
        return "NotInPendingAck"

    def close(self) -> None:
        """Cancels the timer; the cursor keeps the acks."""
        self._expiry.stop()


def _part(ack_set: int | None, batch_size: int) -> Part:
    if ack_set is None:
        return Part(0, 0)
    return Part(ack_set & ((1 << batch_size) - 1), batch_size)
