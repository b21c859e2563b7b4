"""Entries that cannot be read. Pure."""

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import finding
from magnetar.broker.explain.state import ReadFailureState
from magnetar.core.names import TopicName
from magnetar.documents.explain import Finding


def unreadable(topic: TopicName, failure: ReadFailureState) -> Finding:
    """Returns the finding for an entry that the broker tries to read in vain."""
    ledger = failure.position.ledger_id
    why = f": bookies {', '.join(failure.missing)} do not run" if failure.missing else ""
    return finding(
        Code.LEDGER_UNREADABLE,
        f"Entry {failure.position} of {topic} cannot be read{why}: {failure.error} "
        f"({failure.attempts} attempts).",
        {
            "position": str(failure.position),
            "ledger": ledger,
            "error": failure.error,
            "attempts": failure.attempts,
            "ensemble": list(failure.ensemble),
            "missing_bookies": list(failure.missing),
            "write_quorum": failure.write_quorum,
        },
        steps.check_ledger(
            ledger,
            "Start the missing bookies; the broker reads again by itself. To see which copies "
            "exist, and to restore them:",
        ),
    )
