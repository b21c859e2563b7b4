"""Refuses commands with fields that request features the broker lacks.

With SUCCESS, the client would believe that the feature works.
"""

from typing import Final

from magnetar.core.errors import MagnetarError, MetadataError, NotAllowed
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.entry import parse_metadata
from magnetar.wire.events import Send
from magnetar.wire.framing import MalformedEntry

NO_DELAYED_DELIVERY: Final = (
    "Delayed delivery is not supported by this broker: send the message without a delivery time"
)
NO_REPLICATED_SUBSCRIPTIONS: Final = (
    "Replicated subscriptions are not supported by this broker: subscribe without "
    "replicateSubscriptionState"
)


def send_refusal(event: Send, now_ms: int) -> MagnetarError | None:
    """Returns why the broker must not store a message, None if it may."""
    command = event.command
    if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
        return NotAllowed("Transactions are not enabled on this broker")
    try:
        deliver_at_ms = parse_metadata(event.entry).deliver_at_time
    except MalformedEntry as error:
        return MetadataError(str(error))
    return NotAllowed(NO_DELAYED_DELIVERY) if deliver_at_ms > now_ms else None


def check_subscribe(command: pb.CommandSubscribe) -> None:
    """Raises NotAllowed if SUBSCRIBE requests a feature that the broker lacks."""
    if command.replicate_subscription_state:
        raise NotAllowed(NO_REPLICATED_SUBSCRIPTIONS)
