"""The interfaces between coordinators, topics and subscriptions.

A coordinator decides the outcome of a transaction and writes it to the metadata store. The topics
and subscriptions that take part read the record (`TransactionRecords`) and are notified of the
outcome (`Participant`). This module imports no other part of the broker, so that both sides use it.
"""

from typing import Protocol

from magnetar.transactions.model import Outcome, TransactionRecord, TxnId


class TransactionRecords(Protocol):
    """The records of all coordinators, for topics and subscriptions on any broker."""

    enabled: bool
    """Whether clients may use transactions. Former ones are looked up even if not."""

    @property
    def immediate(self) -> bool:
        """Whether `record_at_once` may be called: the store is in this process."""

    def record_at_once(self, txn: TxnId) -> TransactionRecord | None:
        """Returns what `record` returns, without a wait. Raises MetadataError."""

    async def record(self, txn: TxnId) -> TransactionRecord | None:
        """Returns the newest record, None if there is none (any more).

        The read is linearizable and has a deadline. Raises MetadataError.
        """


class Participant(Protocol):
    """A topic's buffer or a subscription's pending acks."""

    async def end_transaction(self, txn: TxnId, outcome: Outcome) -> None:
        """Applies the outcome; it is durable on return.

        Idempotent. A transaction that is not known here needs nothing.
        """
