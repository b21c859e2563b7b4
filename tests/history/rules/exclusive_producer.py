"""Once another producer attached, a producer that had the topic for itself gets no receipt."""

from collections.abc import Iterator

from tests.history.events import Outcome
from tests.history.finding import Finding
from tests.history.index import Index

RULE = "exclusive_producer"
PROMISE = "One process: At most one exclusive producer; waiting producers follow in order"


def check(index: Index) -> Iterator[Finding]:
    for topic in index.topics.values():
        opened = [one for one in topic.opens if one.outcome is Outcome.OK]
        for own in opened:
            if not own.exclusive:
                continue
            later = [one for one in opened if one.producer != own.producer and one.done > own.done]
            if not later:
                continue
            other = min(later, key=lambda one: one.done)
            again = min(
                (
                    one.begun
                    for one in topic.opens
                    if one.producer == own.producer and one.done > own.done
                ),
                default=float("inf"),
            )
            for message in topic.producers.get(own.producer, ()):
                receipted = message.outcome is Outcome.OK and message.done < again
                if receipted and message.begun > other.done:
                    text = f"{topic.name}: {own.producer}:{message.sequence} was receipted, and"
                    text += f" {other.producer} had the topic from {other.done:.3f} on"
                    yield Finding(RULE, PROMISE, text, (own, other, message))
                    break
