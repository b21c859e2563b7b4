"""What is compared of a topic's statistics: figures that steps determine, if not zero."""

from typing import Any

TOPIC = ("msgInCounter", "deduplicationStatus", "waitingPublishers")
# Pulsar's own cursor; Magnetar's compaction has none.
COMPACTION = "__compaction"
SUBSCRIPTION = (
    "type",
    "msgBacklog",
    "msgBacklogNoDelayed",
    "msgDelayed",
    "unackedMessages",
    "blockedSubscriptionOnUnackedMsgs",
    "isDurable",
    "allowOutOfOrderDelivery",
    "keySharedMode",
    "nonContiguousDeletedMessagesRanges",
    "subscriptionProperties",
    "totalMsgExpired",
)


def of_topic(document: dict[str, Any]) -> dict[str, object]:
    found = {name: document[name] for name in TOPIC if document.get(name)}
    found["publishers"] = sorted(
        [publisher["producerName"], publisher.get("accessMode")]
        for publisher in document["publishers"]
    )
    found["subscriptions"] = {
        name: _of_subscription(subscription)
        for name, subscription in sorted(document["subscriptions"].items())
        if name != COMPACTION
    }
    return found


def _of_subscription(document: dict[str, Any]) -> dict[str, object]:
    found = {name: document[name] for name in SUBSCRIPTION if document.get(name)}
    found["consumers"] = sorted(
        [consumer["consumerName"], consumer["unackedMessages"]]
        for consumer in document["consumers"]
    )
    return found
