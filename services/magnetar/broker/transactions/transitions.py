"""The rules of a transaction's life, without IO: each returns the next record, or raises.

    OPEN --> COMMITTING --> COMMITTED
      \\---> ABORTING ----> ABORTED

Source of the error codes: Pulsar's `TransactionMetaStoreHandler` and `TxnMetaImpl`.
"""

from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from magnetar.core.errors import InvalidTxnStatus, NotAllowed, TransactionNotFound
from magnetar.transactions.model import (
    Outcome,
    SubscriptionInTxn,
    TransactionRecord,
    TxnId,
    TxnState,
)

TIMEOUT_MS_MAX: Final = 30 * 24 * 3_600_000
"""An open transaction holds its topics back, so a timeout has a bound."""
PARTICIPANTS_MAX: Final = 2_000
NAMES_BYTES_MAX: Final = 256 << 10
"""Maximum size of the names of all participants: a record must fit a group of writes."""
JOINED_MAX: Final = 10_000
"""Maximum number of transactions that are committed with one: their numbers are in its record."""

_ENDING: Final = {Outcome.COMMIT: TxnState.COMMITTING, Outcome.ABORT: TxnState.ABORTING}
_ENDED: Final = {Outcome.COMMIT: TxnState.COMMITTED, Outcome.ABORT: TxnState.ABORTED}


def begun(owner: str | None, timeout_ms: int, now_ms: int) -> TransactionRecord:
    """Returns the record of a new transaction; raises NotAllowed for a timeout out of bounds."""
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise NotAllowed(
            f"The timeout of a transaction must be 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms}"
        )
    return TransactionRecord(
        state=TxnState.OPEN, opened_ms=now_ms, deadline_ms=now_ms + timeout_ms, owner=owner
    )


def with_participants(
    txn: TxnId,
    record: TransactionRecord,
    topics: Iterable[str] = (),
    subscriptions: Iterable[SubscriptionInTxn] = (),
) -> TransactionRecord:
    """Returns the record with more participants; the same record if it has them all.

    Raises TransactionNotFound if the transaction has ended, InvalidTxnStatus if it is ending, and
    NotAllowed if it would have too many participants.
    """
    _check_not_ended(txn, record)
    if record.state is not TxnState.OPEN:
        raise _wrong_state(txn, record, TxnState.OPEN)
    all_topics = tuple(dict.fromkeys((*record.topics, *topics)))
    all_subscriptions = tuple(dict.fromkeys((*record.subscriptions, *subscriptions)))
    if (all_topics, all_subscriptions) == (record.topics, record.subscriptions):
        return record
    if len(all_topics) + len(all_subscriptions) > PARTICIPANTS_MAX:
        raise NotAllowed(f"Transaction {txn} has {PARTICIPANTS_MAX} participants, the maximum")
    names = (*all_topics, *(name for pair in all_subscriptions for name in pair))
    if sum(len(name.encode()) for name in names) > NAMES_BYTES_MAX:
        raise NotAllowed(
            f"The names of the participants of transaction {txn} exceed {NAMES_BYTES_MAX} bytes"
        )
    return replace(record, topics=all_topics, subscriptions=all_subscriptions)


def ending(
    txn: TxnId,
    record: TransactionRecord,
    outcome: Outcome,
    now_ms: int,
    joined: tuple[int, ...] = (),
) -> TransactionRecord:
    """Returns the record with the decision; the same record if it has this decision already.

    A commit also decides the transactions in `joined`. Without participants the transaction has
    ended with the decision. Raises InvalidTxnStatus if the opposite was decided.
    """
    if record.state is not TxnState.OPEN:
        if record.state.outcome is not outcome:
            raise _wrong_state(txn, record, _ENDING[outcome])
        return record
    decided = replace(record, state=_ENDING[outcome], joined=joined)
    if record.topics or record.subscriptions or joined:
        return decided
    return ended(decided, now_ms)


def ended(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Returns the record of a transaction whose participants have all made its outcome durable.

    The record no longer lists them: only the outcome is needed, for a repeated END_TXN.
    """
    outcome = record.state.outcome
    assert outcome is not None  # noqa: S101 - only a decided transaction ends
    return TransactionRecord(
        state=_ENDED[outcome],
        opened_ms=record.opened_ms,
        deadline_ms=record.deadline_ms,
        owner=record.owner,
        ended_ms=now_ms,
    )


def check_joint(txn: TxnId, outcome: Outcome, joined: Collection[int]) -> None:
    """Raises NotAllowed unless a transaction may be ended together with these."""
    if not joined:
        return
    if outcome is not Outcome.COMMIT:
        raise NotAllowed("Transactions are committed together, but aborted one by one")
    if txn.least in joined:
        raise NotAllowed(f"Transaction {txn} cannot be joined to itself")
    if len(joined) > JOINED_MAX:
        raise NotAllowed(
            f"At most {JOINED_MAX} transactions can be committed with another, not {len(joined)}"
        )


def check_joinable(txn: TxnId, record: TransactionRecord) -> None:
    """Raises InvalidTxnStatus or TransactionNotFound unless the transaction is open."""
    _check_not_ended(txn, record)
    if record.state is not TxnState.OPEN:
        raise _wrong_state(txn, record, TxnState.OPEN)


def check_committed(txn: TxnId, record: TransactionRecord) -> None:
    """Raises InvalidTxnStatus unless the transaction is committed, or is being committed."""
    if record.state.outcome is not Outcome.COMMIT:
        raise _wrong_state(txn, record, TxnState.COMMITTED)


def not_found(txn: TxnId) -> TransactionNotFound:
    """Returns the error for a transaction without a record."""
    return TransactionNotFound(f"Transaction {txn} not found: it has ended, or never existed")


def _check_not_ended(txn: TxnId, record: TransactionRecord) -> None:
    if record.state.ended:
        raise not_found(txn)


def _wrong_state(txn: TxnId, record: TransactionRecord, expected: TxnState) -> InvalidTxnStatus:
    return InvalidTxnStatus(
        f"Expect transaction {txn} to be in {expected.value} status but it is in "
        f"{record.state.value} status"
    )
