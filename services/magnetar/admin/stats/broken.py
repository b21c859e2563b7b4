"""Stats of subscriptions whose cursors cannot be read, so that an operator notices them.

Such a subscription has no cursor in memory. The stats show the position in its record: the
subscription has consumed at least that much.
"""

from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.broker.topic.persistent import PersistentTopic

BROKEN = "Broken"
"""The state of such a cursor in the internal stats."""


def broken_subscription_stats(topic: PersistentTopic) -> dict[str, SubscriptionStats]:
    """Returns the stats of each broken subscription, with the upper bound of its backlog."""
    ledger = topic.managed_ledger
    stats = {}
    for name, (cursor_log, error) in ledger.broken_cursors.items():
        record = cursor_log.record
        backlog = ledger.entries_between(record.mark_delete, ledger.last_confirmed)
        stats[name] = SubscriptionStats(
            msg_backlog=backlog,
            msg_backlog_no_delayed=backlog,
            backlog_size=ledger.bytes_total,
            subscription_properties=dict(record.properties),
            cursor_error=error.message,
        )
    return stats


def broken_cursor_stats(topic: PersistentTopic) -> dict[str, dict[str, object]]:
    """Returns the internal stats of each broken cursor, with the fields of readable cursors."""
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
