"""Reads the records of transactions for a topic or a subscription, once per transaction at a time.

While a read is under way, the end of the transaction may arrive. The record that the read returns
may be older than the end, so it is discarded (`ended`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.broker.transactions.api import TransactionRecords
from magnetar.core.errors import MagnetarError, NotAllowed, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.transactions.model import TransactionRecord, TxnId

QUESTION_TIMEOUT_S: Final = 30.0
QUESTIONS_AT_ONCE_MAX: Final = 64
"""Maximum number of concurrent reads of one topic or subscription; more wait."""

OnAnswer = Callable[[TransactionRecord | None, MagnetarError | None], None]
"""Called with the record, None if there is none or its transaction ended during the read; or with
the reason why it could not be read."""

log = get_logger("magnetar.transactions")


class Questions:
    """The reads of records that are under way, by transaction."""

    __slots__ = ("_at_once", "_prepare", "_records", "_tasks", "_waiting", "_where")

    def __init__(
        self,
        where: str,
        records: TransactionRecords | None,
        tasks: TaskSet,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._where = where
        self._records = records
        self._tasks = tasks
        self._prepare = prepare
        self._waiting: dict[TxnId, list[OnAnswer]] = {}
        self._at_once: asyncio.Semaphore | None = None

    def __contains__(self, txn: TxnId) -> bool:
        return txn in self._waiting

    @property
    def possible(self) -> bool:
        """Whether clients may use transactions."""
        return self._records is not None and self._records.enabled

    @property
    def immediate(self) -> bool:
        """Whether `read_at_once` may be called."""
        return self._records is not None and self._records.immediate

    def read_at_once(self, txn: TxnId) -> TransactionRecord | None:
        """Returns the record as it is now, without a wait. Raises MagnetarError."""
        assert self._records is not None  # noqa: S101 - `immediate` says so
        return self._records.record_at_once(txn)

    def ask(self, txn: TxnId, on_answer: OnAnswer) -> None:
        """Calls `on_answer` once the record has been read, never before this returns."""
        waiting = self._waiting.get(txn)
        if waiting is not None:
            waiting.append(on_answer)
            return
        self._waiting[txn] = waiting = [on_answer]
        if self._tasks.start(self._ask(txn, waiting), f"record {txn} for {self._where}") is None:
            del self._waiting[txn]

    def ended(self, txn: TxnId) -> None:
        """Discards the result of the read under way, if any: the transaction has ended."""
        waiting = self._waiting.pop(txn, None)
        for on_answer in waiting or ():
            on_answer(None, None)

    async def _ask(self, txn: TxnId, waiting: list[OnAnswer]) -> None:
        record: TransactionRecord | None = None
        error: MagnetarError | None = None
        try:
            record = await self.read(txn)
        except Exception as failure:
            expected = isinstance(failure, MagnetarError | TimeoutError)
            log.warning(
                "record of a transaction not read",
                transaction=str(txn), where=self._where, error=str(failure),
                exc_info=None if expected else failure,
            )  # fmt: skip
            error = ServiceNotReady(f"The record of transaction {txn} cannot be read, please retry")
        if self._waiting.get(txn) is waiting:
            del self._waiting[txn]
            for on_answer in waiting:
                on_answer(record, error)

    async def read(self, txn: TxnId) -> TransactionRecord | None:
        """Returns the record as it is now. Raises MagnetarError and TimeoutError."""
        if self._records is None:
            raise NotAllowed("Transactions are not enabled.")
        if self._at_once is None:
            self._at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX)
        async with asyncio.timeout(QUESTION_TIMEOUT_S), self._at_once:
            if self._prepare is not None:
                await self._prepare()
            return await self._records.record(txn)
