"""The transactions of one persistent topic.

- `admission` decides about a SEND. The first SEND of a transaction asks for its record; SENDs of
  its producer wait behind it (`PublishGate`). A SEND of an ended transaction is refused, so no late
  message can hold the topic back.
- Entries are appended at once. The log's horizon is the first entry of an open transaction.
- `end_transaction` waits for the appends in flight. A commit needs no write. An abort adds the
  entries to the log's aborted set first, which acks them on every cursor.
- `Watermark` bounds what `recover` reads after a crash.
- `Expiry` looks up a transaction that stays open.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from magnetar.broker.topic.transactions.admission import UNDECIDED, Admission
from magnetar.broker.topic.transactions.attempts import Attempts, Scan
from magnetar.broker.topic.transactions.buffer import OpenTxn, TxnBuffer
from magnetar.broker.topic.transactions.expiry import RETRY_MAX_S, RETRY_MIN_S, Expiry
from magnetar.broker.topic.transactions.judgment import ENDED_TEXT, send_refusal
from magnetar.broker.topic.transactions.questions import Questions
from magnetar.broker.topic.transactions.recovery import scan
from magnetar.broker.topic.transactions.stats import BufferStats, TxnInBuffer
from magnetar.broker.topic.transactions.watermark import Watermark
from magnetar.broker.transactions.api import TransactionRecords
from magnetar.core.backoff import Backoff
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, NotAllowed, ServiceNotReady
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.appender import OnAppended
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.transactions.model import Outcome, TransactionRecord, TxnId, outcome_of

END_TIMEOUT_S: Final = 30.0

log = get_logger("magnetar.transactions")


class TopicTransactions:
    """Admits messages of transactions, and applies outcomes (`Participant`)."""

    __slots__ = (
        "_answers",
        "_clock",
        "_closed",
        "_expiry",
        "_ledger",
        "_name",
        "_on_answer",
        "_questions",
        "_recovered",
        "_recovery_ms",
        "_scan",
        "_scanned_to",
        "_tasks",
        "_watermark",
        "aborted_total",
        "buffer",
        "committed_total",
    )

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        records: TransactionRecords | None,
        clock: Clock,
        tasks: TaskSet,
        on_answer: Callable[[], None],
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._clock = clock
        self._tasks = tasks
        self._on_answer = on_answer
        self._watermark = Watermark(ledger, clock, tasks, self._settled_to)
        self._questions = Questions(str(name), records, tasks, self._prepare)
        self._answers: dict[TxnId, MagnetarError] = {}
        self._recovered: asyncio.Event | None = None
        self._scanned_to: Position | None = None
        """While the log is being scanned, the last position that is known to be readable."""
        self._expiry = Expiry(str(name), clock, tasks, self._look_ups, self._apply_record)
        self._closed = False
        self._recovery_ms = (0, 0)
        self._scan: Scan | None = None
        self.buffer = TxnBuffer()
        self.committed_total = 0
        self.aborted_total = 0

    # -- messages

    def admission(self, txn: tuple[int, int]) -> Admission:
        """Returns whether a message of the transaction may be stored now."""
        if not self._questions.possible:
            return NotAllowed("Transactions are not enabled.")
        txn = TxnId(*txn)
        if (refusal := self._answers.get(txn)) is not None:
            return refusal
        open_txn = self.buffer.get(txn)
        if open_txn is not None and open_txn.outcome is not None:
            return NotAllowed(ENDED_TEXT.format(txn))
        if open_txn is not None and open_txn.looked_up:
            return None
        if txn in self._questions:
            return UNDECIDED
        if self._questions.immediate and self._watermark.stored and self._recovered is None:
            return self._admitted_at_once(txn)
        self._questions.ask(txn, lambda record, error: self._answered(txn, record, error))
        return UNDECIDED

    def _admitted_at_once(self, txn: TxnId) -> MagnetarError | None:
        """Admits the transaction, or returns why not, by a record that is read without a wait."""
        try:
            record = self._questions.read_at_once(txn)
        except MagnetarError as error:
            return ServiceNotReady(f"The record of transaction {txn} cannot be read: {error}")
        refusal = send_refusal(txn, record, self._name)
        if refusal is None and record is not None:
            self._admit(txn, record)
        return refusal

    def _admit(self, txn: TxnId, record: TransactionRecord) -> None:
        open_txn = self.buffer.admit(txn, record.deadline_ms)
        open_txn.look_up_ms = self._expiry.look_up_ms(record.deadline_ms)
        self._expiry.due(open_txn.look_up_ms)

    def _answered(
        self, txn: TxnId, record: TransactionRecord | None, error: MagnetarError | None
    ) -> None:
        """Admits the transaction, or refuses the messages that wait for the answer."""
        if error is None:
            error = send_refusal(txn, record, self._name)
        if error is None and record is not None:
            self._admit(txn, record)
            self._on_answer()
            return
        assert error is not None  # noqa: S101  (`send_refusal` refuses a missing record)
        self._answers[txn] = error
        try:
            self._on_answer()
        finally:
            del self._answers[txn]

    def appending(self, txn: tuple[int, int], entries: int, on_appended: OnAppended) -> OnAppended:
        """Counts an append of an admitted transaction; returns the callback for the log."""
        txn = TxnId(*txn)
        open_txn = self.buffer.open[txn]
        open_txn.in_flight += 1

        def appended(ledger_id: int, first_entry: int, error: MagnetarError | None) -> None:
            if error is None:
                # The log calls back in the turn that confirms the entries, before any read.
                self.buffer.appended(txn, ledger_id, first_entry, entries)
                self._move_horizon()
            else:
                open_txn.uncertain = True
            on_appended(ledger_id, first_entry, error)
            open_txn.append_done()

        return appended

    def _move_horizon(self) -> None:
        if self._scanned_to is not None:
            self._ledger.move_horizon(self._ledger.next_position(self._scanned_to))
        else:
            self._ledger.move_horizon(self.buffer.horizon)

    def _settled_to(self) -> Position:
        """The last position before which no entry belongs to an open transaction."""
        return self._scanned_to if self._scanned_to is not None else self._ledger.last_visible

    # -- ends

    async def end_transaction(self, txn: TxnId, outcome: Outcome) -> None:
        """See `Participant.end_transaction`. Raises ServiceNotReady if it must be repeated."""
        await self._tasks.finish(self._end(txn, outcome), f"end {txn} in {self._name}")

    def end_at_once(self, txn: TxnId, outcome: Outcome) -> bool:
        """Ends a transaction if that needs no wait; returns False if `end_transaction` must do it.

        A commit needs none: it writes nothing, unless appends are in flight or have failed.
        """
        if outcome is not Outcome.COMMIT or self._recovered is not None or self._closed:
            return False
        open_txn = self.buffer.get(txn)
        if open_txn is not None:
            if open_txn.in_flight or open_txn.uncertain or open_txn.outcome is not None:
                return False
            open_txn.outcome = outcome
            self._ended(txn, open_txn)
        self._questions.ended(txn)
        return True

    async def _end(self, txn: TxnId, outcome: Outcome) -> None:
        self._questions.ended(txn)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._when_recovered()
                open_txn = self.buffer.get(txn)
                if open_txn is not None:
                    await self._finish(txn, open_txn, open_txn.outcome or outcome)
                elif outcome is Outcome.ABORT:
                    await self._confirm_owner()
        except TimeoutError:
            raise ServiceNotReady(
                f"Transaction {txn} has not ended in {self._name} within {END_TIMEOUT_S:g} s"
            ) from None

    async def _finish(self, txn: TxnId, open_txn: OpenTxn, outcome: Outcome) -> None:
        open_txn.outcome = outcome
        await open_txn.when_drained()
        if open_txn.uncertain:
            # Otherwise an entry could appear once the record of an aborted transaction is deleted.
            await self._ledger.close_failed_ledger()
        if outcome is Outcome.ABORT:
            if open_txn.entries:
                await self._ledger.abort_entries(open_txn.entries)
            else:
                await self._confirm_owner()
        if self.buffer.get(txn) is open_txn:
            self._ended(txn, open_txn)

    def _ended(self, txn: TxnId, open_txn: OpenTxn) -> None:
        self.buffer.end(txn)
        if open_txn.outcome is Outcome.COMMIT:
            self.committed_total += 1
        else:
            self.aborted_total += 1
        self._move_horizon()

    async def _confirm_owner(self) -> None:
        """Raises ManagedLedgerFenced unless this broker still owns the topic.

        Called if an abort has nothing to write. A new owner may know entries of the transaction,
        and takes a deleted record for a commit, so a former owner must not confirm the end.
        """
        await self._ledger.tenure.confirm()

    # -- recovery

    def recover(self) -> None:
        """Starts to recover the open transactions of a log that has a watermark; returns at once.

        Until the recovery is complete, nothing after the watermark is dispatched, no message of a
        transaction is admitted, and `end_transaction` waits.
        """
        watermark = Watermark.of(self._ledger)
        if watermark is None:
            return
        self._watermark.start(watermark)
        if watermark >= self._ledger.last_confirmed:
            return
        self._scanned_to = watermark
        self._recovered = asyncio.Event()
        self._recovery_ms = (self._clock.now_ms(), 0)
        self._scan = Scan(self._clock.now_ms())
        self._move_horizon()
        self._tasks.start(self._recover(), f"transactions of {self._name}")

    async def _recover(self) -> None:
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S, random)
        end = self._ledger.last_confirmed
        while not self._closed and self._scanned_to is not None and self._scan is not None:
            try:
                await scan(self._ledger, self._scanned_to, end, self.buffer, self._scan)
                break
            except Exception as error:
                self.buffer = TxnBuffer()
                expected = isinstance(error, MagnetarError | TimeoutError)
                log.warning(
                    "transactions not recovered, will retry", topic=str(self._name),
                    error=self._scan.failed(error, self._clock.now_ms()),
                    exc_info=None if expected else error,
                )  # fmt: skip
            await asyncio.sleep(backoff.failed_s())
        if self._closed:
            return
        self._scanned_to = self._scan = None
        self._recovery_ms = (self._recovery_ms[0], self._clock.now_ms())
        self._move_horizon()
        if self._recovered is not None:
            self._recovered.set()
            self._recovered = None
        self._expiry.schedule()

    async def _when_recovered(self) -> None:
        if self._recovered is not None:
            await self._recovered.wait()
        if self._closed:
            raise ServiceNotReady(f"Topic {self._name} is being closed, please retry")

    async def _prepare(self) -> None:
        """Makes recovery possible, before the first message of a transaction is stored."""
        await self._when_recovered()
        await self._watermark.create()

    def _look_ups(self) -> dict[TxnId, int]:
        return {txn: open_txn.look_up_ms for txn, open_txn in self.buffer.open.items()}

    async def _apply_record(self, txn: TxnId) -> bool:
        """Applies the outcome in the record; returns False if that must be retried."""
        open_txn = self.buffer.get(txn)
        if open_txn is None:
            return True
        try:
            record = None if open_txn.outcome else await self._questions.read(txn)
            outcome = open_txn.outcome or outcome_of(record)
            if outcome is not None:
                await self._tasks.finish(
                    self._finish(txn, open_txn, outcome), f"end {txn} in {self._name}"
                )
                return True
        except Exception as error:
            expected = isinstance(error, MagnetarError | TimeoutError)
            log.warning(
                "transaction not ended, will retry", topic=str(self._name), transaction=str(txn),
                error=self._expiry.failed(error), exc_info=None if expected else error,
            )  # fmt: skip
            return False
        if record is None:
            return False
        open_txn.deadline_ms = record.deadline_ms
        open_txn.look_up_ms = self._expiry.look_up_ms(record.deadline_ms)
        return open_txn.look_up_ms > self._clock.now_ms()

    # -- statistics

    @property
    def scan(self) -> Scan | None:
        """The search of the log for open transactions; None once it is complete."""
        return self._scan

    @property
    def lookups(self) -> Attempts | None:
        """The look-ups of transactions that are due; None if none is."""
        return self._expiry.attempts

    def stats(self) -> BufferStats:
        """Returns the numbers of `topics transaction-buffer-stats`."""
        state = "Ready" if Watermark.of(self._ledger) is not None else "None"
        return BufferStats(
            state="Initializing" if self._recovered is not None else state,
            max_read_position=str(self._ledger.last_visible),
            open_count=len(self.buffer),
            committed_total=self.committed_total,
            aborted_total=self.aborted_total,
            recovery_started_ms=self._recovery_ms[0],
            recovery_ended_ms=self._recovery_ms[1],
        )

    def in_buffer(self, txn: TxnId) -> TxnInBuffer | None:
        """Returns an open transaction, None if it is not open here."""
        open_txn = self.buffer.get(txn)
        if open_txn is None:
            return None
        return TxnInBuffer(
            start_position=None if open_txn.first is None else str(open_txn.first),
            aborted=open_txn.outcome is Outcome.ABORT,
        )

    # -- close

    async def close(self) -> None:
        """Stores the watermark, so that the next owner reads few entries."""
        self.abandon()
        await self._watermark.close()

    def abandon(self) -> None:
        """Stops without writing."""
        self._closed = True
        if self._recovered is not None:
            self._recovered.set()
        self._watermark.stop()
        self._expiry.stop()
