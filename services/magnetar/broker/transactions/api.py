"""The terms that coordinators, topics and subscriptions share: ids, states, records, interfaces.

A coordinator decides the outcome of a transaction and writes it to the metadata store. The topics
and subscriptions that take part read the record (`TransactionRecords`) and are notified of the
outcome (`Participant`). This module imports no other part of the broker, so that both sides use it.
"""

from enum import Enum
from typing import NamedTuple, Protocol

import msgspec


class TxnId(NamedTuple):
    """A transaction's id: `most` is its coordinator, `least` its number there. Never reused."""

    most: int
    least: int

    def __str__(self) -> str:
        """Returns Pulsar's text of an id: `(most,least)`."""
        return f"({self.most},{self.least})"


class Outcome(Enum):
    """The decision on a transaction."""

    COMMIT = "commit"
    ABORT = "abort"


class TxnState(Enum):
    """The state of a transaction; its names are those of Pulsar's REST answers."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"

    @property
    def outcome(self) -> Outcome | None:
        """The decision, None while there is none. It never changes once it is made."""
        if self is TxnState.OPEN:
            return None
        committed = self in (TxnState.COMMITTING, TxnState.COMMITTED)
        return Outcome.COMMIT if committed else Outcome.ABORT

    @property
    def ended(self) -> bool:
        """Whether every participant has made the outcome durable."""
        return self in (TxnState.COMMITTED, TxnState.ABORTED)


class SubscriptionInTxn(NamedTuple):
    """A subscription that takes part: the topic as the client named it, and its own name."""

    topic: str
    name: str


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transaction as the metadata store keeps it. Times are in ms since 1970."""

    state: TxnState
    opened_ms: int
    deadline_ms: int
    """From then on the coordinator aborts an open transaction."""
    owner: str | None = None
    """The role that began it; None without authentication."""
    topics: tuple[str, ...] = ()
    """The topics with entries, as the client named them."""
    subscriptions: tuple[SubscriptionInTxn, ...] = ()
    """The subscriptions with acks."""
    ended_ms: int | None = None
    """When every participant had answered."""


class TransactionRecords(Protocol):
    """The records of all coordinators, for topics and subscriptions on any broker."""

    enabled: bool
    """Whether clients may use transactions. Former ones are looked up even if not."""

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
