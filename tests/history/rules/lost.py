"""A receipted message comes to every subscription that existed when the message was sent."""

from collections.abc import Iterator

from tests.history.coverage import Acks
from tests.history.events import Id, Outcome, Received
from tests.history.finding import Finding
from tests.history.index import Index, Life

RULE = "lost"
PROMISE = (
    "Every subscription receives every message that got its receipt "
    "after the subscription's creation"
)


def check(index: Index) -> Iterator[Finding]:
    for life in index.lives:
        if life.drained is None:
            continue
        came = {one.id for session in life.sessions for one in session.received}
        skipped, acks = _skipped(life), Acks(life.acks)
        for at, message in life.topic.receipts.items():
            if at in came or at < skipped or message.done > life.drained.at:
                continue
            if message.delayed and acks.of(at):
                continue  # acked before its time
            if life.owes(message):
                text = f"{life.shown}: {message.producer}:{message.sequence}, receipted as {at}"
                text += f" at {message.done:.3f}, never came"
                copies = [
                    one
                    for session in life.sessions
                    for one in session.received
                    if (one.producer, one.sequence) == (message.producer, message.sequence)
                ]
                events: list[Received] = copies[:1]
                yield Finding(RULE, PROMISE, text, (message, life.first, *events, life.drained))


def _skipped(life: Life) -> Id:
    """A consumer may have skipped everything before this."""
    targets = [seek.to for seek in life.seeks if seek.outcome is not Outcome.FAILED]
    return max(targets, default=(-1, -1, -1))
