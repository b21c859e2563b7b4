"""A producer's receipts come in the order of its messages, with growing ids."""

from collections.abc import Iterator

from tests.history.events import Outcome
from tests.history.finding import Finding
from tests.history.index import Index

RULE = "receipt_order"
PROMISE = "One producer's messages keep their order"


def check(index: Index) -> Iterator[Finding]:
    for topic in index.topics.values():
        for name, messages in topic.producers.items():
            before = None
            for message in messages:
                if message.outcome is not Outcome.OK or message.id is None:
                    continue
                if before is not None:
                    assert before.id is not None
                    shown = f"{topic.name}: {name}:{before.sequence} and {message.sequence}"
                    if message.id <= before.id:
                        text = f"{shown} have ids in the other order"
                        yield Finding(RULE, PROMISE, text, (before, message))
                    elif message.done < before.done:
                        text = f"{shown} were receipted in the other order"
                        yield Finding(RULE, PROMISE, text, (before, message))
                before = message
