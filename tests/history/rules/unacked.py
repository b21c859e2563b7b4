"""A message stays due until it is acked: what a consumer held when it went comes to another.

At the end a message that no consumer acked, or that came before the subscription was moved back, is
in the hands of a session that is open.
"""

from collections.abc import Iterator
from math import inf

from tests.history.coverage import Acks, Nacks
from tests.history.events import Id, Outcome, Received
from tests.history.finding import Finding
from tests.history.index import Index, Life

RULE = "unacked"
PROMISE = (
    "Every subscription receives every message that got its receipt "
    "after the subscription's creation"
)


def check(index: Index) -> Iterator[Finding]:
    for life in index.lives:
        if life.drained is not None:
            yield from _life(life, life.drained.at)


def _life(life: Life, at: float) -> Iterator[Finding]:
    acks = Acks(life.acks)
    again = max(
        (seek for seek in life.seeks if seek.outcome is Outcome.OK),
        key=lambda seek: seek.begun,
        default=None,
    )
    since = -inf if again is None else again.begun
    acked_since = since if life.topic.kept else -inf  # else acked messages may be trimmed
    skipped = max((seek.to for seek in life.seeks), default=(-1, -1, -1))
    held: dict[Id, float] = {}
    last: dict[Id, Received] = {}
    for session in life.sessions:
        open_still = session.closed_at >= at
        nacks = Nacks(session)
        for received in session.received:
            before = last.get(received.id)
            if before is None or before.at <= received.at:
                last[received.id] = received
            if open_still and nacks.first(received.id, received.at) == inf:
                held[received.id] = max(held.get(received.id, -inf), received.at)
    for message, received in last.items():
        if message < skipped:
            continue
        sent = life.topic.messages.get((received.producer, received.sequence))
        if sent is None or sent.begun <= life.start:
            continue  # a life begins with the acks of an earlier one
        if held.get(message, -inf) > since or acks.any_sent(message, acked_since):
            continue
        reason = "was not acked"
        if again is not None:
            reason = f"was due again by the seek at {again.begun:.3f}"
        text = f"{life.shown}: {message}, which came last at {received.at:.3f}, {reason}"
        text += " and did not come again"
        assert life.drained is not None
        events = (received, life.drained) if again is None else (received, again, life.drained)
        yield Finding(RULE, PROMISE, text, events)
