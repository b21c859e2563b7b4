"""An Exclusive subscription has one consumer; a Failover one changes its consumer with a reason.

Clients see the end of a session late, so both rules need proofs. Exclusive: after a second consumer
attached, the broker answered the first one. Failover: two consumers took turns, though no consumer
came or went; each turn is proven by a message that was sent after the turn before.
"""

from collections.abc import Iterator
from typing import Final

from tests.history.events import Kind, Received
from tests.history.finding import Finding
from tests.history.index import Index, Life, Session

RULE = "one_active"
PROMISE = "One process: One consumer on an Exclusive subscription, one active on a Failover one"
UNNOTICED_S: Final = 60.0
"""How long a broker may serve a session that its client gave up."""

Turn = tuple[Session, Received]


def check(index: Index) -> Iterator[Finding]:
    for life in index.lives:
        if life.kind is Kind.EXCLUSIVE:
            yield from _exclusive(life)
        elif life.kind is Kind.FAILOVER:
            yield from _failover(life)


def _exclusive(life: Life) -> Iterator[Finding]:
    longest: Session | None = None
    for session in life.sessions:  # in the order of their receipts
        if longest is not None:
            alive = min(longest.alive_until, longest.closed_at)
            if alive > session.subscribed.done:
                text = f"{life.shown}: a second consumer attached at {session.subscribed.done:.3f}"
                text += f", and the broker answered the first one's request of {alive:.3f}"
                yield Finding(RULE, PROMISE, text, (longest.subscribed, session.subscribed))
        if longest is None or session.alive_until > longest.alive_until:
            longest = session


def _failover(life: Life) -> Iterator[Finding]:
    if len(life.sessions) < 2:
        return
    turns = [(session, one) for session in life.sessions for one in session.received]
    turns.sort(key=lambda turn: turn[1].at)
    first: Turn | None = None
    second: Turn | None = None
    for turn in turns:
        if first is None:
            first = turn
        elif second is None:
            if turn[0] is first[0]:
                first = turn
            elif _sent_after(life, turn, first):
                second = turn
        elif turn[0] is second[0]:
            continue
        elif turn[0] is not first[0]:
            first, second = turn, None
        elif _sent_after(life, turn, second):
            if _still(life, first, turn):
                text = f"{life.shown}: the active consumer changed twice between "
                text += f"{first[1].at:.3f} and {turn[1].at:.3f}, and no consumer came or went"
                events = (first[0].subscribed, first[1], second[0].subscribed, second[1], turn[1])
                yield Finding(RULE, PROMISE, text, events)
            first, second = turn, None


def _sent_after(life: Life, turn: Turn, former: Turn) -> bool:
    sent = life.topic.messages.get((turn[1].producer, turn[1].sequence))
    return sent is not None and sent.begun > former[1].at


def _still(life: Life, first: Turn, last: Turn) -> bool:
    """Whether the consumers stayed the same, also those that clients gave up shortly before."""
    since, until = first[1].at, last[1].at
    name = life.subscription
    for session in life.topic.sessions:
        subscribed = session.subscribed
        if subscribed.subscription != name or subscribed.begun > until:
            continue
        if subscribed.reconnects or subscribed.done > since:
            return False
        if since - UNNOTICED_S < session.closed_at <= until:
            return False
    return True
