"""What a receipted ack covers never comes again, unless a consumer moved the subscription back.

An ack holds for a session that began to attach after the receipt. It also holds for the session
that got the receipt, because the broker sends receipts and messages over one connection in order.
"""

from collections.abc import Iterator

from tests.history.coverage import Receipts, reaches
from tests.history.events import WHOLE, Acked, Id, Outcome, Received
from tests.history.finding import Finding
from tests.history.index import Index, Life, Session

RULE = "acks"
PROMISE = "An acknowledgment with a receipt is never lost"


def check(index: Index) -> Iterator[Finding]:
    for life in index.lives:
        if not any(ack.outcome is Outcome.OK for ack in life.acks):
            continue
        receipts = Receipts(life)
        for session in life.sessions:
            yield from _session(life, session, receipts)


def _session(life: Life, session: Session, receipts: Receipts) -> Iterator[Finding]:
    own: dict[Id, Acked] = {}
    greatest: Acked | None = None
    for step in session.steps:
        if isinstance(step, Acked) and step.outcome is Outcome.OK:
            if not step.cumulative:
                own[step.id] = step
            elif greatest is None or not reaches(greatest, step.id):
                greatest = step
        elif isinstance(step, Received):
            ack = receipts.breached(step.id, session.subscribed.begun, step.at)
            if ack is None:
                ledger, entry, _ = step.id
                ack = own.get(step.id) or own.get((ledger, entry, WHOLE))
                if ack is None and greatest is not None and reaches(greatest, step.id):
                    ack = greatest
                if ack is not None and not receipts.holds(ack, step.at):
                    ack = None
            if ack is not None:
                text = f"{life.shown}: {step.id} came at {step.at:.3f}, and "
                text += f"its ack {ack.id} was receipted at {ack.done:.3f}"
                yield Finding(RULE, PROMISE, text, (ack, session.subscribed, step))
