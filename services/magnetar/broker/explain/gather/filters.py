"""Gathers the entry filters of a subscription, and what they say about a message."""

from magnetar.broker.dispatch.filtering import as_filters_see, judge
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.state import FilterState
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.managed_ledger.entry import Entry
from magnetar.policies.filters import (
    ENTRY_FILTERS,
    EXPRESSION,
    PROPERTY,
    FilterInvalid,
    Predicate,
)
from magnetar.policies.selector import Message
from magnetar.wire.batch import messages_of
from magnetar.wire.entry import parse_metadata


def filter_state(
    parts: Parts, topic: PersistentTopic, subscription: PersistentSubscription
) -> FilterState | None:
    """Returns the filters, with their counts; None if every message passes."""
    spec = subscription.limits.entry_filters
    if spec is None or _predicate(subscription) is None:
        return None
    properties = subscription.cursor.properties
    own = {
        key: value
        for key, value in properties.items()
        if key == EXPRESSION or key.startswith(PROPERTY)
    }
    filters = None if subscription.dispatcher is None else subscription.dispatcher.filters
    return FilterState(
        names=spec.names,
        policy=parts.policy(topic.name, ENTRY_FILTERS),
        parameters=spec.parameters,
        properties=tuple(sorted(own.items())),
        accepted=0 if filters is None else filters.counts.accepted,
        rejected=0 if filters is None else filters.counts.rejected,
    )


def rejected_message(
    subscription: PersistentSubscription, entry: Entry, batch_index: int
) -> Message | None:
    """Returns what the filters see of the message, if they reject it, else None.

    With index -1, they must reject all messages of the entry; the first one is returned.
    """
    predicate = _predicate(subscription)
    if predicate is None:
        return None
    _, accepted = judge(entry.data, predicate)
    if accepted if batch_index < 0 else accepted >> batch_index & 1:
        return None
    # An entry that cannot be read is accepted, so this one can be.
    metadata = parse_metadata(entry.data)
    if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
        single = messages_of(entry.data)[1][max(batch_index, 0)].metadata
        return None if single is None else as_filters_see(single)
    return as_filters_see(metadata)


def _predicate(subscription: PersistentSubscription) -> Predicate | None:
    """Returns the filters; None if there are none, or if they cannot be used.

    A consumer is refused while they cannot be used, which is a finding of its own.
    """
    spec = subscription.limits.entry_filters
    if spec is None:
        return None
    try:
        return spec.predicate(subscription.cursor.properties)
    except FilterInvalid:
        return None
