"""The ended transactions of a coordinator, kept for a client that repeats END_TXN.

A client whose answer was lost repeats END_TXN on another connection and succeeds, so it does not
send its messages again. On the connection that has the answer, the transaction is not found, as in
Pulsar. Participants no longer need ended records, so the number of outcomes has a bound, too.

An outcome is kept by the monotonic clock. A wall clock that was ahead when a transaction ended
delays the deletion neither of its outcome nor of later ones.
"""

import weakref
from collections import OrderedDict
from typing import Final

from magnetar.core.steady_clock import SteadyClock
from magnetar.transactions.model import TransactionRecord

OUTCOMES_MAX: Final = 20_000
"""Outcomes of a coordinator; beyond that, the oldest are deleted before their time."""


class EndedTransaction:
    """An outcome, and the connection that was answered with it."""

    __slots__ = ("_answered", "expires_s", "record")

    def __init__(self, record: TransactionRecord, expires_s: float) -> None:
        self.record = record
        self.expires_s = expires_s
        """When the outcome is deleted, by the monotonic clock."""
        self._answered: weakref.ref[object] | None = None

    def was_answered(self, connection: object) -> bool:
        """Whether this connection has the outcome."""
        return self._answered is not None and self._answered() is connection

    def answered(self, connection: object) -> None:
        """Records the connection that has the outcome."""
        self._answered = weakref.ref(connection)


class Outcomes:
    """Ended transactions by number, in the order of their ends."""

    def __init__(self, retention_ms: int, clock: SteadyClock) -> None:
        self._retention_ms = retention_ms
        self._clock = clock
        self._ended: OrderedDict[int, EndedTransaction] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def get(self, number: int) -> EndedTransaction | None:
        """Returns an ended transaction, None if it was dropped or has not ended."""
        return self._ended.get(number)

    def add(self, number: int, record: TransactionRecord) -> None:
        """Keeps an outcome."""
        left_ms = (record.ended_ms or 0) + self._retention_ms - self._clock.judged_ms()
        expires_s = self._clock.monotonic() + min(left_ms, self._retention_ms) / 1000
        self._ended[number] = EndedTransaction(record, expires_s)

    def forget(self) -> list[int]:
        """Drops expired outcomes, and the oldest beyond the bound; returns their numbers."""
        numbers: list[int] = []
        now_s = self._clock.monotonic()
        for number, ended in self._ended.items():
            if len(self._ended) - len(numbers) <= OUTCOMES_MAX and ended.expires_s > now_s:
                break
            numbers.append(number)
        for number in numbers:
            del self._ended[number]
        return numbers
