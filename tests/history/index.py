"""Arranges a history by topic, subscription, life and session, for the rules to judge.

A *life* is a time in which a subscription certainly exists: from the first receipt of a SUBSCRIBE
until a client begins to delete the subscription, its topic or its namespace. A SUBSCRIBE that is
receipted while a deletion is under way begins no life, because the deletion may come second. A
*session* is one attempt of a consumer to attach and all events that follow from it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from tests.history.events import (
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
)

Ending = Unsubscribed | TopicDeleted | NamespaceDeleted
Step = Received | Acked | Nacked | Sought


@dataclass(slots=True, eq=False)
class Session:
    """One attachment of a consumer, or several where the client library reconnects silently."""

    subscribed: Subscribed
    topic: "Topic"
    life: "Life | None" = None
    closed_at: float = inf
    steps: list[Step] = field(default_factory=list)
    """In the order in which the client recorded them."""
    alive_until: float = -inf
    """The broker answered a command that the client sent after this time."""
    asked_again: bool = False
    """The consumer moved the subscription or requested redelivery."""

    @property
    def received(self) -> Iterator[Received]:
        return (step for step in self.steps if isinstance(step, Received))


@dataclass(slots=True, eq=False)
class Life:
    """One life of a subscription."""

    topic: "Topic"
    subscription: str
    kind: Kind
    start: float
    first: Subscribed
    end: float = inf
    fresh_from: float | None = None
    """The subscription did not exist before this time, and began at the latest message."""
    from_earliest: bool = False
    """The subscription did not exist before, and began at the earliest message."""
    sessions: list[Session] = field(default_factory=list)
    acks: list[Acked] = field(default_factory=list)
    nacks: list[Nacked] = field(default_factory=list)
    seeks: list[Sought] = field(default_factory=list)
    drained: Drained | None = None

    @property
    def shown(self) -> str:
        return f"{self.topic.name}/{self.subscription}"

    def owes(self, message: Produced) -> bool:
        """Whether the life must deliver this message, if it lasts."""
        if message.outcome is not Outcome.OK:
            return False
        if message.begun > self.start:
            return True
        return self.topic.kept and self.from_earliest and message.begun > self.topic.empty_until


@dataclass(slots=True, eq=False)
class Topic:
    """All events of one topic."""

    name: str
    kept: bool = False
    messages: dict[tuple[str, int], Produced] = field(default_factory=dict)
    receipts: dict[Id, Produced] = field(default_factory=dict)
    producers: dict[str, list[Produced]] = field(default_factory=lambda: defaultdict(list))
    """Each producer's messages by sequence."""
    opens: list[ProducerOpened] = field(default_factory=list)
    attempts: dict[str, list[Subscribed]] = field(default_factory=lambda: defaultdict(list))
    endings: list[Unsubscribed] = field(default_factory=list)
    deletions: list[TopicDeleted] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return self.name.partition("://")[2].rpartition("/")[0]

    @property
    def empty_until(self) -> float:
        """Returns the time until which a deletion may have removed the topic's messages."""
        return max((one.done for one in self.deletions), default=-inf)


class Index:
    """A whole history, by topic, subscription, life and session."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.topics: dict[str, Topic] = {}
        self.sessions: dict[str, Session] = {}
        self.namespaces_deleted: list[NamespaceDeleted] = []
        self.stray: list[Event] = []
        """Events of sessions that were never opened: the recorder is at fault."""
        self._drained: list[Drained] = []
        self._late: list[Step | Closed] = []
        for event in events:
            self._add(event)
        for event in self._late:
            self._add_to_session(event)
        for topic in self.topics.values():
            self._arrange(topic)
        for drained in self._drained:
            for life in self.topic(drained.topic).lives:
                if life.subscription == drained.subscription and life.end == inf:
                    life.drained = drained

    def topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name)
        return found

    @property
    def lives(self) -> Iterator[Life]:
        return (life for topic in self.topics.values() for life in topic.lives)

    # -- filling

    def _add(self, event: Event) -> None:
        match event:
            case Received() | Acked() | Nacked() | Sought() | Closed():
                if event.session in self.sessions:
                    self._add_to_session(event)
                else:
                    self._late.append(event)  # noted before the answer to SUBSCRIBE
            case Produced():
                topic = self.topic(event.topic)
                topic.messages[event.producer, event.sequence] = event
                topic.producers[event.producer].append(event)
                if event.outcome is Outcome.OK and event.id is not None:
                    topic.receipts.setdefault(event.id, event)
            case Subscribed():
                topic = self.topic(event.topic)
                session = Session(event, topic)
                self.sessions[event.session] = session
                topic.sessions.append(session)
                topic.attempts[event.subscription].append(event)
                if event.outcome is Outcome.OK:
                    session.alive_until = event.begun
            case ProducerOpened():
                self.topic(event.topic).opens.append(event)
            case Unsubscribed():
                self.topic(event.topic).endings.append(event)
            case TopicDeleted():
                self.topic(event.topic).deletions.append(event)
            case NamespaceDeleted():
                self.namespaces_deleted.append(event)
            case Kept():
                self.topic(event.topic).kept = True
            case Drained():
                self._drained.append(event)

    def _add_to_session(self, event: Step | Closed) -> None:
        session = self.sessions.get(event.session)
        if session is None:
            self.stray.append(event)
            return
        if isinstance(event, Closed):
            session.closed_at = min(session.closed_at, event.at)
            return
        session.steps.append(event)
        if isinstance(event, Nacked | Sought):
            session.asked_again = True
        elif isinstance(event, Acked) and event.outcome is Outcome.OK:
            session.alive_until = max(session.alive_until, event.begun)

    # -- lives

    def _arrange(self, topic: Topic) -> None:
        for messages in topic.producers.values():
            messages.sort(key=lambda message: message.sequence)
        by_name: dict[str, list[Session]] = defaultdict(list)
        for session in topic.sessions:
            by_name[session.subscribed.subscription].append(session)
        shared = [one for one in self.namespaces_deleted if one.namespace == topic.namespace]
        for name, sessions in by_name.items():
            own = [one for one in topic.endings if one.subscription == name]
            endings: list[Ending] = sorted(
                (*own, *topic.deletions, *shared), key=lambda ending: ending.begun
            )
            sessions.sort(key=lambda session: session.subscribed.done)
            topic.lives += _lives(topic, name, sessions, endings)


def _lives(
    topic: Topic, name: str, sessions: list[Session], endings: Sequence[Ending]
) -> list[Life]:
    begins = [ending.begun for ending in endings]
    lives: list[Life] = []
    for session in sessions:
        subscribed = session.subscribed
        if subscribed.outcome is not Outcome.OK:
            continue
        done = subscribed.done
        if any(one.begun <= done <= one.done for one in endings):
            continue
        life = lives[-1] if lives else None
        if life is None or life.end < done:
            life = Life(topic, name, subscribed.kind, done, subscribed)
            after = bisect_right(begins, done)
            life.end = begins[after] if after < len(begins) else inf
            _set_beginning(life, topic.attempts[name], endings)
            lives.append(life)
        session.life = life
        life.sessions.append(session)
    for life in lives:
        for session in life.sessions:
            for step in session.steps:
                if isinstance(step, Acked):
                    life.acks.append(step)
                elif isinstance(step, Nacked):
                    life.nacks.append(step)
                elif isinstance(step, Sought):
                    life.seeks.append(step)
        life.acks.sort(key=lambda ack: ack.done)
        life.seeks.sort(key=lambda seek: seek.begun)
    return lives


def _set_beginning(life: Life, attempts: list[Subscribed], endings: Sequence[Ending]) -> None:
    """Records the start of the life, if it certainly began with a new subscription."""
    before = [one for one in endings if one.begun < life.start]
    gone_from = -inf
    if before:
        deleted = [one for one in before if one.outcome is Outcome.OK]
        if not deleted:
            return
        gone_from = deleted[-1].begun
    earlier = [one for one in attempts if one.begun < life.start]
    receipted = [one for one in earlier if one.outcome is Outcome.OK and one is not life.first]
    if any(gone_from < one.done < life.start for one in receipted):
        return
    # An attempt without an answer may still have run when the deletion was over.
    last = max((one.done for one in receipted), default=-inf)
    makers = [
        one
        for one in earlier
        if one.done > gone_from or (one.outcome is Outcome.UNKNOWN and one.begun > last)
    ]
    life.from_earliest = all(one.position is Position.EARLIEST for one in makers)
    if all(one.position is Position.LATEST for one in makers):
        life.fresh_from = min(one.begun for one in makers)
