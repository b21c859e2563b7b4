"""Exclusive and Failover subscriptions deliver in order, Key_Shared in order for each key.

Two rules. Within one attachment ids grow; a Failover consumer that becomes active again, and a
client library that reconnects, may get old messages again, but no new message behind a later one.
Delayed messages have no order on Key_Shared.
Within a life no message comes for the first time behind a later message of its order: the broker
sent a session the earlier message first, or another session had it.
"""

from collections.abc import Iterator
from math import inf

from tests.history.events import Id, Kind, Received, Sought
from tests.history.finding import Finding
from tests.history.index import Index, Life, Session, Topic

RULE = "delivery_order"
PROMISE = "One producer's messages keep their order"


def check(index: Index) -> Iterator[Finding]:
    for topic in index.topics.values():
        for session in topic.sessions:
            if session.subscribed.kind is not Kind.SHARED and not session.asked_again:
                yield from _session(session)
    for life in index.lives:
        if life.kind is not Kind.SHARED:
            yield from _life(life)


def _lane(kind: Kind, received: Received) -> str:
    """What is delivered in order among itself."""
    return received.key if kind is Kind.KEY_SHARED else ""


def _at_its_time(kind: Kind, received: Received, topic: Topic) -> bool:
    """Whether the message comes at its delivery time, whatever its id."""
    sent = topic.messages.get((received.producer, received.sequence))
    return kind is Kind.KEY_SHARED and sent is not None and sent.delayed


def _session(session: Session) -> Iterator[Finding]:
    kind, name = session.subscribed.kind, session.subscribed.subscription
    again = kind is Kind.FAILOVER or session.subscribed.reconnects
    seen: set[Id] = set()
    last: dict[str, Received] = {}
    for received in session.received:
        if _at_its_time(kind, received, session.topic):
            continue
        lane = _lane(kind, received)
        before = last.get(lane)
        if before is not None and received.id <= before.id:
            if not (again and received.id in seen):
                text = f"{session.topic.name}/{name}: {received.id} came behind {before.id}"
                yield Finding(RULE, PROMISE, text, (session.subscribed, before, received))
        else:
            last[lane] = received
        if again:
            seen.add(received.id)


def _life(life: Life) -> Iterator[Finding]:
    until = min((seek.begun for seek in life.seeks), default=inf)
    receives = [one for session in life.sessions for one in _before_seek(session)]
    receives.sort(key=lambda received: received.at)
    seen: set[Id] = set()
    names: set[tuple[str, int]] = set()
    last: dict[str, Received] = {}
    last_of: dict[tuple[str, str], Received] = {}
    for received in receives:
        if received.at >= until:
            return
        if received.id in seen or _at_its_time(life.kind, received, life.topic):
            continue
        seen.add(received.id)
        name = (received.producer, received.sequence)
        sent = life.topic.messages.get(name)
        due = sent is not None and sent.begun > life.start
        lane = _lane(life.kind, received)
        before = last.get(lane)
        if before is None or received.id > before.id:
            last[lane] = received
        elif due:
            text = f"{life.shown}: {received.id} came for the first time behind {before.id}"
            yield Finding(RULE, PROMISE, text, (life.first, before, received))
        if name in names:
            continue  # another copy of a message that was sent again
        names.add(name)
        before = last_of.get((lane, received.producer))
        if before is None or received.sequence > before.sequence:
            last_of[lane, received.producer] = received
        elif due:
            text = f"{life.shown}: {name[0]}:{name[1]} came for the first time"
            text += f" behind {name[0]}:{before.sequence}"
            yield Finding(RULE, PROMISE, text, (life.first, before, received))


def _before_seek(session: Session) -> Iterator[Received]:
    for step in session.steps:
        if isinstance(step, Sought):
            return
        if isinstance(step, Received):
            yield step
