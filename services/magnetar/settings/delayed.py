"""The settings of delayed delivery, and the defaults of the policy that governs it."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, setting

DELAYED_DELIVERY: Final = "Delayed delivery"
INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class DelayedDeliverySettings:
    """The defaults of delayed delivery, and the bound of its memory per topic."""

    delayed_delivery: bool = setting(
        True,
        "Whether Shared and Key_Shared subscriptions deliver a message at its delivery time, "
        "unless a policy says otherwise.",
        group=DELAYED_DELIVERY,
        pulsar="delayedDeliveryEnabled",
    )
    delayed_delivery_tick_ms: int = setting(
        1_000,
        "The precision of delivery times, unless a policy says otherwise.",
        group=DELAYED_DELIVERY,
        unit="ms",
        within=(0, INT64_MAX),
        pulsar="delayedDeliveryTickTimeMillis",
    )
    delayed_delivery_strict: bool = setting(
        False,
        "Whether no message is delivered before its time; otherwise up to a tick earlier.",
        group=DELAYED_DELIVERY,
        pulsar="isDelayedDeliveryDeliverAtTimeStrict",
    )
    delayed_delivery_delay_ms_max: int = setting(
        0,
        "The longest delay of a message, unless a policy says otherwise; 0: no limit.",
        group=DELAYED_DELIVERY,
        unit="ms",
        within=(0, INT64_MAX),
        pulsar="delayedDeliveryMaxDelayInMillis",
    )
    delayed_delivery_memory_messages: int = setting(
        50_000,
        "Delivery times of a topic's messages in memory, above which bookies store them.",
        group=DELAYED_DELIVERY,
        unit="messages",
        within=(1_000, UNLIMITED),
        pulsar="delayedDeliveryMinIndexCountPerBucket",
    )
