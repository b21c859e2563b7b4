"""Keeps the messages of dead letter topics: a first subscription for those that have none.

Without it, Pulsar deletes a dead letter as soon as it is stored, unless the application has named
an initial subscription or subscribed before (PIP-124).
"""

from typing import Final

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.broker.topic.subscribe import SubscriptionExists
from magnetar.core.ids import EARLIEST

SUFFIX: Final = "-DLQ"
"""The end of a dead letter topic's name, as all of Pulsar's clients choose it by default."""


async def keep_dead_letters(topic: Topic, subscription: str) -> None:
    """Creates `subscription` on a dead letter topic that never had a message or a subscription.

    Call it before a producer attaches. Does nothing if policies forbid that subscriptions are
    created by use, so that such a producer is admitted as in Pulsar.
    """
    log = as_persistent(topic)
    if log is None or not subscription or not log.name.base.local.endswith(SUFFIX):
        return
    unused = not (log.subscriptions or log.broken_subscriptions)
    if log.managed_ledger.last_confirmed.entry_id >= 0 or not unused:
        return
    if is_system_topic(log.name) or not log.makes_subscriptions:
        return
    try:
        await log.create_subscription(subscription, EARLIEST, {})
    except SubscriptionExists:
        return  # a consumer was faster
