"""A model of a broker that keeps every promise, and random histories of its clients.

It has one topic and does one operation at a time. Operations overlap in time only if a client stops
waiting.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.history.events import (
    WHOLE,
    Acked,
    Closed,
    Drained,
    Event,
    Id,
    Kept,
    Kind,
    Nacked,
    Outcome,
    Position,
    Produced,
    Received,
    Sought,
    Subscribed,
    Unsubscribed,
    fingerprint,
)

TOPIC: Final = "persistent://public/default/model"
KEYS: Final = ("a", "b", "c")
BATCH_MAX: Final = 3
ACKED_WITH_RECEIPT: Final = 0.7


@dataclass(slots=True)
class _Subscription:
    name: str
    kind: Kind
    present: bool = False
    due: list[Id] = field(default_factory=list)
    """Neither acked nor held, in order."""
    held: dict[str, list[Id]] = field(default_factory=dict)
    """By session; sessions in the order in which they attached."""
    counts: dict[Id, int] = field(default_factory=dict)

    def release(self, session: str, ids: list[Id]) -> None:
        self.held[session] = [one for one in self.held[session] if one not in ids]
        for one in ids:
            self.counts[one] = self.counts.get(one, 0) + 1
        self.due = sorted({*self.due, *ids})

    def forget(self, ids: list[Id]) -> None:
        """They are acked."""
        self.due = [one for one in self.due if one not in ids]
        for session, held in self.held.items():
            self.held[session] = [one for one in held if one not in ids]


class Model:
    """Random clients on a broker without a fault."""

    def __init__(self, rng: Random) -> None:
        self.events: list[Event] = [Kept(TOPIC)]
        self._rng = rng
        self._now = 0.0
        self._numbers = 0
        self._ledger, self._entry = 1, 0
        self._stored: dict[Id, Produced] = {}
        self._sequences = {"p": 0, "q": 0}
        self._subscriptions = [_Subscription(kind.value, kind) for kind in Kind]

    def run(self, steps: int) -> list[Event]:
        actions = [self._produce, self._subscribe, self._ack, self._close, self._nack]
        actions += [self._deliver] * 4 + [self._produce] * 2 + [self._ack] * 2
        for _ in range(steps):
            self._rng.choice(actions)()
            if self._rng.random() < 0.03:
                self._rng.choice((self._seek, self._unsubscribe, self._roll))()
        for subscription in self._subscriptions:
            if not subscription.held:
                self._attach(subscription)
            while self._deliver_to(subscription):
                pass
            self.events.append(Drained(TOPIC, subscription.name, self._tick()))
        return self.events

    def _tick(self) -> float:
        self._now += 1.0
        return self._now

    def _present(self) -> _Subscription | None:
        present = [one for one in self._subscriptions if one.held]
        return self._rng.choice(present) if present else None

    def _roll(self) -> None:
        self._ledger, self._entry = self._ledger + 1, 0

    # -- producing

    def _produce(self) -> None:
        producer, key = self._rng.choice("pq"), self._rng.choice(KEYS)
        begun, done = self._tick(), self._tick()
        outcome = Outcome.OK if self._rng.random() < 0.9 else Outcome.UNKNOWN
        stored = outcome is Outcome.OK or self._rng.random() < 0.5
        for index in range(self._rng.randint(1, BATCH_MAX)):
            at: Id = (self._ledger, self._entry, index)
            sequence = self._sequences[producer]
            self._sequences[producer] += 1
            message = Produced(
                TOPIC,
                producer,
                sequence,
                key,
                fingerprint(f"{producer}{sequence}".encode()),
                begun,
                done,
                outcome,
                at if outcome is Outcome.OK else None,
                1,
            )
            self.events.append(message)
            if stored:
                self._stored[at] = message
                for subscription in self._subscriptions:
                    if subscription.present:
                        subscription.due.append(at)
        self._entry += 1

    # -- consuming

    def _subscribe(self) -> None:
        subscription = self._rng.choice(self._subscriptions)
        if subscription.kind is not Kind.EXCLUSIVE or not subscription.held:
            self._attach(subscription)

    def _attach(self, subscription: _Subscription) -> None:
        self._numbers += 1
        session = f"{subscription.name}#{self._numbers}"
        position = self._rng.choice(list(Position))
        begun, done = self._tick(), self._tick()
        where = (TOPIC, subscription.name, session, session, subscription.kind, position)
        self.events.append(Subscribed(*where, begun, done, Outcome.OK, reconnects=False))
        if not subscription.present:
            subscription.present = True
            subscription.due = list(self._stored) if position is Position.EARLIEST else []
        subscription.held[session] = []

    def _deliver(self) -> None:
        subscription = self._present()
        if subscription is not None:
            for _ in range(self._rng.randint(1, 4)):
                self._deliver_to(subscription)

    def _deliver_to(self, subscription: _Subscription) -> bool:
        for at in subscription.due:
            session = self._consumer(subscription, self._stored[at].key)
            if session is not None:
                subscription.due.remove(at)
                subscription.held[session].append(at)
                sent = self._stored[at]
                what = (sent.producer, sent.sequence, sent.key, sent.payload)
                count = subscription.counts.get(at, 0)
                self.events.append(Received(session, at, *what, count, self._tick()))
                return True
        return False

    def _consumer(self, subscription: _Subscription, key: str) -> str | None:
        sessions = list(subscription.held)
        if subscription.kind is Kind.SHARED:
            return self._rng.choice(sessions)
        if subscription.kind is not Kind.KEY_SHARED:
            return sessions[0]
        holders = [
            session
            for session, held in subscription.held.items()
            if any(self._stored[at].key == key for at in held)
        ]
        return holders[0] if holders else sessions[KEYS.index(key) % len(sessions)]

    def _ack(self) -> None:
        subscription = self._present()
        if subscription is None:
            return
        session, held = self._rng.choice(list(subscription.held.items()))
        if not held:
            return
        ordered = subscription.kind in (Kind.EXCLUSIVE, Kind.FAILOVER)
        cumulative = ordered and self._rng.random() < 0.3
        last = self._rng.choice(held)
        whole = cumulative or self._rng.random() < 0.5
        shown = (*last[:2], WHOLE) if whole else last
        covered = [
            at
            for at in self._stored
            if at == last or (whole and at[:2] == last[:2]) or (cumulative and at < last)
        ]
        if any(at in covered for at in subscription.due):
            return  # the rest of it is still to come
        begun, done = self._tick(), self._tick()
        receipted = self._rng.random() < ACKED_WITH_RECEIPT
        outcome = Outcome.OK if receipted else Outcome.UNKNOWN
        self.events.append(Acked(session, shown, cumulative, begun, done, outcome))
        if receipted or self._rng.random() < 0.5:
            subscription.forget(covered)

    def _nack(self) -> None:
        subscription = self._present()
        if subscription is None or subscription.kind is not Kind.SHARED:
            return
        session, held = self._rng.choice(list(subscription.held.items()))
        ids = [at for at in held if self._rng.random() < 0.5]
        if ids:
            self.events.append(Nacked(session, tuple(ids), self._tick()))
            subscription.release(session, ids)

    def _close(self) -> None:
        subscription = self._present()
        if subscription is not None:
            self._end(subscription, self._rng.choice(list(subscription.held)))

    def _end(self, subscription: _Subscription, session: str) -> None:
        self.events.append(Closed(session, self._tick()))
        subscription.release(session, subscription.held[session])
        del subscription.held[session]

    # -- moving and deleting

    def _seek(self) -> None:
        subscription = self._present()
        if subscription is None:
            return
        session, to = next(iter(subscription.held)), (-1, -1, -1)
        begun = self._tick()
        for each in list(subscription.held):
            self._end(subscription, each)
        self.events.append(Sought(session, to, begun, self._tick(), Outcome.OK))
        subscription.due = list(self._stored)
        subscription.counts.clear()

    def _unsubscribe(self) -> None:
        subscription = self._present()
        if subscription is None:
            return
        begun = self._tick()
        for each in list(subscription.held):
            self._end(subscription, each)
        name, done = subscription.name, self._tick()
        self.events.append(Unsubscribed(TOPIC, name, "", begun, done, Outcome.OK))
        subscription.present, subscription.due = False, []
        subscription.counts.clear()
