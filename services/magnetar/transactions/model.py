"""Transactions as the metadata store keeps them: ids, states, outcomes, records.

A coordinator writes the records. Topics and subscriptions of all brokers read them, and so do jobs
that read ledgers without a broker.
"""

from enum import Enum
from typing import Final, NamedTuple

import msgspec

NOT_OWNER_TEXT: Final = "is neither the owner of the transaction"
"""In Pulsar's TransactionNotFound for a transaction of another role, which may be open."""


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
    joined: tuple[int, ...] = ()
    """The numbers of the coordinator's transactions that are committed with this one. It is set
    while this one is COMMITTING: then they are committed, too, even if their own records say OPEN.
    """


def outcome_of(record: TransactionRecord | None) -> Outcome | None:
    """Returns the outcome of a transaction that has entries in a log; None while it is open.

    A record is deleted only after every participant has made the outcome durable. So a missing
    record means a commit, unless the log's aborted set, read after the record, has the entries.
    """
    return Outcome.COMMIT if record is None else record.state.outcome
