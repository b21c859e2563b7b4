"""The ended transactions of a coordinator, kept for a client that repeats END_TXN.

A client whose answer was lost repeats END_TXN on another connection and succeeds, so it does not
send its messages again. On the connection that has the answer, the transaction is not found, as in
Pulsar. Participants no longer need ended records, so the number of outcomes has a bound, too.
"""

import weakref
from collections import OrderedDict
from typing import Final

from magnetar.transactions.model import TransactionRecord

OUTCOMES_MAX: Final = 20_000
"""Outcomes of a coordinator; beyond that, the oldest are deleted before their time."""


class EndedTransaction:
    """An outcome, and the connection that was answered with it."""

    __slots__ = ("_answered", "record")

    def __init__(self, record: TransactionRecord, connection: object | None = None) -> None:
        self.record = record
        self._answered: weakref.ref[object] | None = None
        if connection is not None:
            self.answered(connection)

    def was_answered(self, connection: object) -> bool:
        """Whether this connection has the outcome."""
        return self._answered is not None and self._answered() is connection

    def answered(self, connection: object) -> None:
        """Records the connection that has the outcome."""
        self._answered = weakref.ref(connection)


class Outcomes:
    """Ended transactions by number, in the order of their ends."""

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self._ended: OrderedDict[int, EndedTransaction] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def get(self, number: int) -> EndedTransaction | None:
        """Returns an ended transaction, None if it was dropped or has not ended."""
        return self._ended.get(number)

    def add(self, number: int, record: TransactionRecord) -> EndedTransaction:
        """Keeps an outcome."""
        ended = self._ended[number] = EndedTransaction(record)
        return ended

    def forget(self, now_ms: int) -> list[int]:
        """Drops expired outcomes, and the oldest beyond the bound; returns their numbers."""
        numbers: list[int] = []
        for number, ended in self._ended.items():
            expires_ms = (ended.record.ended_ms or 0) + self._retention_ms
            if len(self._ended) - len(numbers) <= OUTCOMES_MAX and expires_ms > now_ms:
                break
            numbers.append(number)
        for number in numbers:
            del self._ended[number]
        return numbers
