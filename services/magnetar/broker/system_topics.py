"""Which topics a broker keeps for itself: lists hide them, and no cap or rate holds for them."""

from magnetar.core.names import TopicName


def is_system_topic(name: TopicName) -> bool:
    """By its name, as in Pulsar."""
    return name.local.startswith("__") or "__transaction" in name.local
