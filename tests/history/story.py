"""Histories written by hand: each step is one line, and advances the clock by a second.

A step returns the event that it recorded. Times may be set, so that operations overlap.
"""

from dataclasses import replace
from itertools import count
from typing import TypeVar

from tests.history.check import check
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
    NamespaceDeleted,
    Outcome,
    Position,
    Produced,
    ProducerOpened,
    Received,
    Sought,
    Subscribed,
    TopicDeleted,
    Unsubscribed,
    fingerprint,
)

TOPIC = "persistent://public/default/t"
NAMESPACE = "public/default"
EARLIEST_ID: Id = (-1, -1, -1)


Noted = TypeVar("Noted", bound=Event)


class Story:
    """A history of one topic, in the order of its steps."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0.0
        self._sessions = count(1)
        self._entries = count()
        self._sequences: dict[str, int] = {}

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def note(self, event: Noted) -> Noted:
        self.events.append(event)
        return event

    def swap(self, old: Event, new: Event) -> None:
        """Replaces a recorded event by another."""
        self.events[self.events.index(old)] = new

    # -- producers

    def sent(
        self,
        producer: str = "p",
        key: str = "k",
        *,
        at: Id | None = None,
        outcome: Outcome = Outcome.OK,
        attempts: int = 1,
        sequence: int | None = None,
    ) -> Produced:
        if sequence is None:
            sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + 1
        own: Id = (1, next(self._entries), 0)
        return self.note(
            Produced(
                TOPIC,
                producer,
                sequence,
                key,
                fingerprint(f"{producer}|{sequence}".encode()),
                self.tick(),
                self.tick(),
                outcome,
                (at or own) if outcome is Outcome.OK else None,
                attempts,
            )
        )

    def opened(self, producer: str, *, exclusive: bool = True) -> ProducerOpened:
        begun, done = self.tick(), self.tick()
        return self.note(ProducerOpened(TOPIC, producer, exclusive, begun, done, Outcome.OK))

    # -- consumers

    def subscribed(
        self,
        kind: Kind = Kind.EXCLUSIVE,
        position: Position = Position.LATEST,
        *,
        name: str = "s",
        outcome: Outcome = Outcome.OK,
        reconnects: bool = False,
    ) -> str:
        session = f"{name}#{next(self._sessions)}"
        begun, done = self.tick(), self.tick()
        self.note(
            Subscribed(
                TOPIC, name, session, session, kind, position, begun, done, outcome, reconnects
            )
        )
        return session

    def got(
        self, session: str, sent: Produced, *, at: Id | None = None, redeliveries: int = 0
    ) -> Received:
        place = at or sent.id
        assert place is not None
        names = (sent.producer, sent.sequence, sent.key, sent.payload)
        return self.note(Received(session, place, *names, redeliveries, self.tick()))

    def acked(
        self,
        session: str,
        *messages: Produced,
        cumulative: bool = False,
        outcome: Outcome = Outcome.OK,
    ) -> None:
        for message in messages:
            assert message.id is not None
            entry = (*message.id[:2], WHOLE)
            begun, done = self.tick(), self.tick()
            self.note(Acked(session, entry, cumulative, begun, done, outcome))

    def nacked(self, session: str, *messages: Produced) -> None:
        ids = tuple(message.id for message in messages if message.id is not None)
        self.note(Nacked(session, ids, self.tick()))

    def sought(self, session: str, to: Id = EARLIEST_ID, outcome: Outcome = Outcome.OK) -> Sought:
        return self.note(Sought(session, to, self.tick(), self.tick(), outcome))

    def closed(self, session: str) -> Closed:
        return self.note(Closed(session, self.tick()))

    # -- deletions

    def unsubscribed(
        self, session: str = "", name: str = "s", outcome: Outcome = Outcome.OK
    ) -> Unsubscribed:
        begun, done = self.tick(), self.tick()
        return self.note(Unsubscribed(TOPIC, name, session, begun, done, outcome))

    def topic_deleted(self, outcome: Outcome = Outcome.OK) -> TopicDeleted:
        return self.note(TopicDeleted(TOPIC, self.tick(), self.tick(), outcome))

    def namespace_deleted(self) -> NamespaceDeleted:
        return self.note(NamespaceDeleted(NAMESPACE, self.tick(), self.tick(), Outcome.OK))

    # -- the whole

    def kept(self) -> None:
        self.note(Kept(TOPIC))

    def drained(self, name: str = "s") -> Drained:
        return self.note(Drained(TOPIC, name, self.tick()))

    def altered(self, event: Produced | Received, payload: bytes) -> None:
        self.swap(event, replace(event, payload=fingerprint(payload)))


def broken(story: Story) -> set[str]:
    """Returns the rules that a history contradicts."""
    return {finding.rule for finding in check(story.events)}
