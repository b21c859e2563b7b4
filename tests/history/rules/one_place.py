"""On Shared and Key_Shared subscriptions a message is in one place, and a key has one consumer.

A consumer holds a message from its delivery until an ack or a negative ack is sent, or its session
ends. What it holds does not come to it again. A client learns late that its session has ended at
the broker; so a hold counts against another consumer only until the last time at which an answer
proves that the broker still served the session.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from tests.history.coverage import Acks, Nacks
from tests.history.events import Id, Kind, Received
from tests.history.finding import Finding
from tests.history.index import Index, Life, Session

RULE = "one_place"
PROMISE = "One process: One consumer per key, each entry at one consumer, in any order of events"


@dataclass(frozen=True, slots=True)
class _Hold:
    session: Session
    received: Received
    until: float


def check(index: Index) -> Iterator[Finding]:
    for life in index.lives:
        if life.kind not in (Kind.SHARED, Kind.KEY_SHARED):
            continue
        acks = Acks(life.acks)
        for session in life.sessions:
            yield from _twice(life, session, acks)
        holds = sorted(_holds(life, acks), key=lambda hold: hold.received.at)
        yield from _apart(life, holds, "message")
        if life.kind is Kind.KEY_SHARED:
            yield from _apart(life, holds, "key")


def _twice(life: Life, session: Session, acks: Acks) -> Iterator[Finding]:
    """Over one attachment a message comes again only if its consumer does not hold it any more."""
    if session.subscribed.reconnects:
        return
    nacks = Nacks(session)
    until = min((seek.begun for seek in life.seeks), default=inf)
    first: dict[Id, Received] = {}
    for received in session.received:
        before = first.get(received.id)
        if before is not None and received.at < until:
            acked = min((ack.begun for ack in acks.of(received.id)), default=inf)
            if min(acked, nacks.first(received.id, before.at)) > received.at:
                text = f"{life.shown}: {received.id} came at {before.at:.3f} and {received.at:.3f}"
                text += " to one consumer, which held it meanwhile"
                yield Finding(RULE, PROMISE, text, (session.subscribed, before, received))
        first[received.id] = received


def _holds(life: Life, acks: Acks) -> Iterator[_Hold]:
    for session in life.sessions:
        nacks = Nacks(session)
        seen: set[Id] = set()
        seek = min((seek.begun for seek in life.seeks), default=inf)
        limit = min(session.closed_at, session.alive_until, life.end, seek)
        for received in session.received:
            if received.id in seen or received.at >= limit:
                continue
            seen.add(received.id)
            sent = min((ack.begun for ack in acks.of(received.id)), default=inf)
            until = min(limit, sent, nacks.first(received.id, received.at))
            if until > received.at:
                yield _Hold(session, received, until)


def _apart(life: Life, holds: Iterable[_Hold], what: str) -> Iterator[Finding]:
    """Two sessions never hold the same at the same time."""
    longest: dict[object, dict[str, _Hold]] = defaultdict(dict)
    for hold in holds:
        thing: object = hold.received.id if what == "message" else hold.received.key
        of = longest[thing]
        own = hold.session.subscribed.session
        for session, other in of.items():
            if session == own or other.until <= hold.received.at:
                continue
            if what == "key" and other.received.id == hold.received.id:
                continue
            text = f"{life.shown}: {what} {thing} came to a consumer at {hold.received.at:.3f}"
            text += f", and another held it until {other.until:.3f}"
            first = (other.session.subscribed, other.received)
            second = (hold.session.subscribed, hold.received)
            yield Finding(RULE, PROMISE, text, (*first, *second))
        if own not in of or of[own].until < hold.until:
            of[own] = hold
