"""What stats show of subscriptions whose cursors cannot be read, so that an operator sees them.

Such a subscription has no cursor in memory. Shown is the position that its record has: the
subscription has consumed that much at least.
"""

from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.broker.topic.persistent import PersistentTopic

BROKEN = "Broken"
"""The state of such a cursor in the internal stats."""


def broken_subscription_stats(topic: PersistentTopic) -> dict[str, SubscriptionStats]:
    """By subscription, with the backlog that it has at most."""
    ledger = topic.managed_ledger
    found = {}
    for name, (cursor_log, error) in ledger.broken_cursors.items():
        record = cursor_log.record
        backlog = ledger.entries_between(record.mark_delete, ledger.last_confirmed)
        found[name] = SubscriptionStats(
            msg_backlog=backlog,
            msg_backlog_no_delayed=backlog,
            backlog_size=ledger.bytes_total,
            subscription_properties=dict(record.properties),
            cursor_error=error.message,
        )
    return found


def broken_cursor_stats(topic: PersistentTopic) -> dict[str, dict[str, object]]:
    """The same for the internal stats, under the names of cursors that can be read."""
    return {
        name: {
            "markDeletePosition": str(cursor_log.record.mark_delete),
            "cursorLedger": cursor_log.ledger_id,
            "state": BROKEN,
            "error": error.message,
            "properties": dict(cursor_log.record.properties),
        }
        for name, (cursor_log, error) in topic.managed_ledger.broken_cursors.items()
    }
