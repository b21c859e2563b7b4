"""A message that comes was sent, comes as it was sent, and has its id for itself."""

from collections.abc import Iterator

from tests.history.events import Event, Id, Received
from tests.history.finding import Finding
from tests.history.index import Index, Topic

RULE = "invented"
PROMISE = "Flipped bits are detected, never served"
ID_PROMISE = "The message ids of a topic only grow, and a receipt's id is the message's position"


def check(index: Index) -> Iterator[Finding]:
    for topic in index.topics.values():
        at_id: dict[Id, tuple[tuple[str, int], Event]] = {}
        for name, message in topic.messages.items():
            if message.id is not None:
                before = at_id.setdefault(message.id, (name, message))
                if before[0] != name:
                    text = f"{topic.name}: {message.id} is the receipt of two messages"
                    yield Finding(RULE, ID_PROMISE, text, (before[1], message))
        for session in topic.sessions:
            for received in session.received:
                name = (received.producer, received.sequence)
                wrong = _wrong(topic, name, received)
                if wrong is not None:
                    yield wrong
                    continue
                before = at_id.setdefault(received.id, (name, received))
                if before[0] != name:
                    text = f"{topic.name}: two messages have the id {received.id}"
                    yield Finding(RULE, ID_PROMISE, text, (before[1], received))


def _wrong(topic: Topic, name: tuple[str, int], received: Received) -> Finding | None:
    sent = topic.messages.get(name)
    shown = f"{topic.name}: {name[0]}:{name[1]} at {received.id}"
    if sent is None:
        return Finding(RULE, PROMISE, f"{shown} was never sent", (received,))
    if received.payload != sent.payload:
        return Finding(RULE, PROMISE, f"{shown} has another payload", (sent, received))
    if received.key != sent.key:
        return Finding(RULE, PROMISE, f"{shown} has another key", (sent, received))
    if received.at < sent.begun:
        return Finding(RULE, PROMISE, f"{shown} came before it was sent", (sent, received))
    return None
