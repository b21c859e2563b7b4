"""What is deleted is gone, and a namespace that is deleted as an empty one was empty."""

from collections.abc import Iterator

from tests.history.events import NamespaceDeleted, Outcome, TopicDeleted
from tests.history.finding import Finding
from tests.history.index import Index, Topic

RULE = "deletions"
STEP_PROMISE = (
    "Every subscription receives every message that got its receipt "
    "after the subscription's creation"
)
PROMISE = "Nothing is created in a namespace, tenant or topic during its deletion"


def check(index: Index) -> Iterator[Finding]:
    for topic in index.topics.values():
        yield from _unsubscribed(topic, index)
        for deleted in index.namespaces_deleted:
            if deleted.outcome is Outcome.OK and deleted.namespace == topic.namespace:
                yield from _not_empty(topic, deleted, index.namespaces_deleted)


def _unsubscribed(topic: Topic, index: Index) -> Iterator[Finding]:
    """Nothing comes to a consumer behind the answer to its UNSUBSCRIBE."""
    for ending in topic.endings:
        session = index.sessions.get(ending.session)
        if ending.outcome is not Outcome.OK or session is None:
            continue
        for received in session.received:
            if received.at > ending.done:
                text = f"{topic.name}/{ending.subscription}: {received.id} came after the"
                text += f" subscription was deleted at {ending.done:.3f}"
                yield Finding(RULE, STEP_PROMISE, text, (ending, received))


def _not_empty(
    topic: Topic, deleted: NamespaceDeleted, all_deleted: list[NamespaceDeleted]
) -> Iterator[Finding]:
    """A message that was receipted before the end, and that no other deletion took."""
    others = [one for one in all_deleted if one.namespace == deleted.namespace]
    takers: list[TopicDeleted | NamespaceDeleted] = [*topic.deletions]
    takers += [one for one in others if one is not deleted]
    for message in topic.receipts.values():
        if message.done > deleted.done or any(
            one.begun <= deleted.done
            and (one.done >= message.begun or one.outcome is Outcome.UNKNOWN)
            for one in takers
        ):
            continue
        text = f"{topic.name}: {message.id} was receipted at {message.done:.3f}, and the namespace"
        text += f" was deleted as an empty one until {deleted.done:.3f}"
        yield Finding(RULE, PROMISE, text, (message, deleted))
        return
