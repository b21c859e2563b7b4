"""Within one attachment a message's redelivery count never goes down."""

from collections.abc import Iterator

from tests.history.events import Id, Received, Sought
from tests.history.finding import Finding
from tests.history.index import Index

RULE = "redelivery_counts"
PROMISE = "What is not guaranteed: Redelivery counts are kept in memory only"


def check(index: Index) -> Iterator[Finding]:
    for session in index.sessions.values():
        if session.subscribed.reconnects:
            continue
        last: dict[Id, Received] = {}
        for step in session.steps:
            if isinstance(step, Sought):
                break
            if not isinstance(step, Received):
                continue
            before = last.get(step.id)
            if step.redeliveries < (0 if before is None else before.redeliveries):
                text = f"{session.topic.name}: {step.id} came with a redelivery count of"
                text += f" {step.redeliveries}, below that of the time before"
                events = (step,) if before is None else (before, step)
                yield Finding(RULE, PROMISE, text, (session.subscribed, *events))
            last[step.id] = step
