"""Open transactions that hold messages back. Pure."""

from collections.abc import Iterator

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import ended_by, finding, transaction_evidence
from magnetar.broker.explain.state import SubscriptionState, TxnState
from magnetar.core.ids import Position
from magnetar.documents.explain import Finding, utc

NAMED_MAX = 10
"""Transactions that get a finding of their own."""


def blocking(state: SubscriptionState) -> Iterator[Finding]:
    """Yields what keeps the rest of the log from being delivered, when nothing is readable."""
    if state.horizon is not None and state.horizon <= state.last_confirmed:
        if state.recovering:
            yield recovery(state)
        for txn in state.transactions[:1]:
            yield open_transaction(state, txn, None)
    for txn in state.ack_transactions[:NAMED_MAX]:
        yield acked(txn)


def recovery(state: SubscriptionState) -> Finding:
    """Returns the finding for a log that is searched for open transactions."""
    return finding(
        Code.TRANSACTION_RECOVERY,
        "The topic was opened lately; the broker reads its log for open transactions, and "
        f"delivers nothing from {state.horizon} on meanwhile.",
        {"horizon": str(state.horizon), "last_message": str(state.last_confirmed)},
        steps.advise(
            "Wait. If it stays so, the log says why entries cannot be read (transactions not "
            "recovered)."
        ),
    )


def open_transaction(state: SubscriptionState, txn: TxnState, position: Position | None) -> Finding:
    """Returns the finding for the transaction whose first message is the horizon."""
    what = "it and all later messages wait" if position is None else f"{position} waits for its end"
    owner = f" of {txn.owner}" if txn.owner else ""
    since = f" since {utc(txn.opened_ms)}" if txn.opened_ms else ""
    return finding(
        Code.TRANSACTION_OPEN,
        f"Transaction {txn}{owner} is open{since}; its first message here is {txn.first}, and "
        f"{what}; {ended_by(txn)}.",
        {
            **transaction_evidence(txn),
            "horizon": None if state.horizon is None else str(state.horizon),
            "open_transactions": len(state.transactions),
        },
        steps.abort(
            txn.most, txn.least, "Have its client commit or abort it. To abort it yourself:"
        ),
        txn.opened_ms,
    )


def acked(txn: TxnState) -> Finding:
    """Returns the finding for messages that an open transaction has acknowledged."""
    owner = f" of {txn.owner}" if txn.owner else ""
    return finding(
        Code.ACKED_IN_TRANSACTION,
        f"Transaction {txn}{owner} has acknowledged {txn.acked_entries} entries and is open; "
        f"{ended_by(txn)}.",
        transaction_evidence(txn),
        steps.abort(
            txn.most,
            txn.least,
            "Have its client commit or abort it. To abort it, which delivers the messages again:",
        ),
        txn.opened_ms,
    )
