"""Ids grow in real time, and a message is at its receipt's id, as often as it was sent at most."""

from collections import defaultdict
from collections.abc import Iterator

from tests.history.events import Id, Produced, Received
from tests.history.finding import Finding
from tests.history.index import Index, Topic

RULE = "ids"
PROMISE = "The message ids of a topic only grow, and a receipt's id is the message's position"


def check(index: Index) -> Iterator[Finding]:
    for topic in index.topics.values():
        yield from _growth(topic)
        yield from _copies(topic)


def _growth(topic: Topic) -> Iterator[Finding]:
    """A message that is sent after another's receipt has a greater id."""
    by_begin = sorted(topic.receipts.values(), key=lambda message: message.begun)
    by_receipt = iter(sorted(topic.receipts.values(), key=lambda message: message.done))
    following = next(by_receipt, None)
    greatest: Produced | None = None
    for message in by_begin:
        while following is not None and following.done < message.begun:
            if greatest is None or _id(following) > _id(greatest):
                greatest = following
            following = next(by_receipt, None)
        if greatest is not None and _id(message) <= _id(greatest):
            text = f"{topic.name}: {message.id} was given after {greatest.id}"
            yield Finding(RULE, PROMISE, text, (greatest, message))


def _id(message: Produced) -> Id:
    assert message.id is not None
    return message.id


def _copies(topic: Topic) -> Iterator[Finding]:
    places: dict[tuple[str, int], dict[Id, Received]] = defaultdict(dict)
    for session in topic.sessions:
        for received in session.received:
            name = (received.producer, received.sequence)
            places[name].setdefault(received.id, received)
    for name, found in places.items():
        message = topic.messages.get(name)
        if message is None or not message.attempts:
            continue
        copies = len(found) + (message.id is not None and message.id not in found)
        if copies > message.attempts:
            text = f"{topic.name}: {name[0]}:{name[1]} has {copies} ids"
            text += f" and was sent {message.attempts} times"
            yield Finding(RULE, PROMISE, text, (message, *found.values()))
