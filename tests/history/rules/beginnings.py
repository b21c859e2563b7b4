"""A subscription that is new, or whose topic was deleted, gets nothing from before.

A subscription is created and deleted as one step: nothing of an earlier life is left in it.
"""

from collections.abc import Iterator

from tests.history.events import Outcome, TopicDeleted
from tests.history.finding import Finding
from tests.history.index import Index, Life, Session

RULE = "beginnings"
PROMISE = (
    "Every subscription receives every message that got its receipt "
    "after the subscription's creation"
)


def check(index: Index) -> Iterator[Finding]:
    for life in index.lives:
        if life.fresh_from is not None and not life.seeks:
            yield from _fresh(life, life.fresh_from)
    for topic in index.topics.values():
        deleted = [one for one in topic.deletions if one.outcome is Outcome.OK]
        if deleted:
            for session in topic.sessions:
                yield from _of_deleted(session, deleted)


def _fresh(life: Life, since: float) -> Iterator[Finding]:
    for session in life.sessions:
        for received in session.received:
            sent = life.topic.receipts.get(received.id)
            if sent is not None and sent.done < since:
                text = f"{life.shown}: {received.id}, receipted at {sent.done:.3f}, came to a"
                text += f" subscription that was made after {since:.3f} at the latest message"
                yield Finding(RULE, PROMISE, text, (sent, life.first, received))


def _of_deleted(session: Session, deleted: list[TopicDeleted]) -> Iterator[Finding]:
    before = [one for one in deleted if one.done < session.subscribed.begun]
    if not before:
        return
    last = max(before, key=lambda one: one.begun)
    for received in session.received:
        sent = session.topic.receipts.get(received.id)
        if sent is not None and sent.done < last.begun:
            text = f"{session.topic.name}: {received.id}, receipted at {sent.done:.3f}, came after"
            text += f" the topic was deleted at {last.done:.3f}"
            yield Finding(RULE, PROMISE, text, (sent, last, session.subscribed, received))
