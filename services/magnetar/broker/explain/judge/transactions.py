"""Transactions that hold messages back: open ones, and those that are being recovered. Pure."""

from collections.abc import Iterator

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import ended_by, finding, time, transaction_evidence
from magnetar.broker.explain.state import RecoveryState, SubscriptionState, TxnState
from magnetar.broker.topic.transactions.expiry import RETRY_MAX_S
from magnetar.core.ids import Position
from magnetar.documents.explain import Evidence, Finding, utc
from magnetar.transactions.model import TxnState as TxnRecordState

NAMED_MAX = 10
"""Transactions that get a finding of their own."""


def blocking(state: SubscriptionState) -> Iterator[Finding]:
    """Yields what keeps the rest of the log from being delivered, when nothing is readable."""
    if state.horizon is not None and state.horizon <= state.last_confirmed:
        if state.recovery is not None:
            # What the search has found so far may have ended long ago.
            yield recovery(state, state.recovery)
        else:
            for txn in state.transactions[:1]:
                yield open_transaction(state, txn, None)
    for txn in state.ack_transactions[:NAMED_MAX]:
        yield acked(txn)


def recovery(state: SubscriptionState, scan: RecoveryState) -> Finding:
    """Returns the finding for a log that is searched for open transactions."""
    evidence: Evidence = {
        "horizon": str(state.horizon),
        "last_message": str(state.last_confirmed),
        **_attempts(scan),
    }
    step = steps.advise(
        "Wait: after a crash the broker reads what has no watermark yet, about 10,000 entries or "
        "64 MiB."
    )
    why = ""
    if (read := scan.read) is not None:
        ledger = read.position.ledger_id
        missing = ", ".join(read.missing)
        why = f"{_failures(scan)}" + (f" (bookies {missing} do not run)" if missing else "")
        evidence |= {
            "position": str(read.position),
            "ledger": ledger,
            "ensemble": list(read.ensemble),
            "missing_bookies": list(read.missing),
        }
        step = steps.check_ledger(
            ledger,
            "Start the missing bookies; the broker reads again by itself. To see which copies "
            "exist, and to restore them:",
        )
    return finding(
        Code.TRANSACTION_RECOVERY,
        "The topic was opened lately; the broker reads its log for open transactions, and "
        f"delivers nothing from {state.horizon} on meanwhile{why}.",
        evidence,
        step,
        scan.began_ms,
    )


def _unresolved(txn: TxnState, scan: RecoveryState, effect: str) -> Finding:
    """Returns the finding for a transaction whose record was not read since the topic was opened.

    It may have ended meanwhile.
    """
    if txn.state:
        what = f"it is {txn.state} by its record, which the broker has yet to apply"
    else:
        what = "its record in the metadata store cannot be read"
    return finding(
        Code.TRANSACTION_RECOVERY,
        f"Transaction {txn} was open when the topic was last served, and {what}: {effect}"
        f"{_failures(scan)}.",
        {**transaction_evidence(txn), **_attempts(scan)},
        steps.advise(
            "Check that the metadata store answers the brokers (etcdctl endpoint health; "
            "docs/run/runbook.md). The broker repeats the read by itself, at most "
            f"{RETRY_MAX_S:g} s later."
        ),
        scan.began_ms,
    )


def _failures(scan: RecoveryState) -> str:
    if not scan.failures:
        return ""
    times = "1 attempt has" if scan.failures == 1 else f"{scan.failures} attempts have"
    return f"; {times} failed, the last one at {utc(scan.failed_ms)}: {scan.error}"


def _attempts(scan: RecoveryState) -> Evidence:
    return {
        "failed_attempts": scan.failures,
        "error": scan.error or None,
        "last_failure": time(scan.failed_ms),
        "retry_interval_max_s": RETRY_MAX_S,
    }


def open_transaction(state: SubscriptionState, txn: TxnState, position: Position | None) -> Finding:
    """Returns the finding for the transaction whose first message is the horizon."""
    if txn.recovery is not None and txn.state != TxnRecordState.OPEN.value:
        held = "nothing" if position is None else f"neither {position} nor anything else"
        return _unresolved(txn, txn.recovery, f"{held} from {txn.first} on is delivered")
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
    if txn.recovery is not None and txn.state != TxnRecordState.OPEN.value:
        return _unresolved(
            txn,
            txn.recovery,
            f"the {txn.acked_entries} entries that it has acknowledged are not delivered",
        )
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
