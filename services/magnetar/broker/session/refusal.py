"""Refuses commands with fields that request features the broker lacks.

With SUCCESS, the client would believe that the feature works.
"""

from typing import Final

from magnetar.core.errors import MagnetarError, MetadataError, NotAllowed
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.entry import in_transaction, parse_metadata
from magnetar.wire.events import Send
from magnetar.wire.framing import MalformedEntry

NO_REPLICATED_SUBSCRIPTIONS: Final = (
    "Replicated subscriptions are not supported by this broker: subscribe without "
    "replicateSubscriptionState"
)


def judged_send(event: Send) -> tuple[MagnetarError | None, int, int]:
    """Returns why the broker must not store a message, its delivery time and its publish time.

    None if it may be stored; 0 and 0 without a delivery time. Puts the transaction into the entry's
    metadata, if only SEND names it.
    """
    command = event.command
    txn = transaction_of(command)
    try:
        metadata = parse_metadata(event.entry)
        if txn is not None:
            event.entry = in_transaction(event.entry, metadata, *txn)
    except MalformedEntry as error:
        return MetadataError(str(error)), 0, 0
    if metadata.deliver_at_time <= 0:
        return None, 0, 0
    return None, metadata.deliver_at_time, metadata.publish_time


def transaction_of(command: pb.CommandSend | pb.CommandAck) -> tuple[int, int] | None:
    """Returns the transaction of a SEND or ACK, None if it has none."""
    if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
        return command.txnid_most_bits, command.txnid_least_bits
    return None


def check_subscribe(command: pb.CommandSubscribe) -> None:
    """Raises NotAllowed if SUBSCRIBE requests a feature that the broker lacks."""
    if command.replicate_subscription_state:
        raise NotAllowed(NO_REPLICATED_SUBSCRIPTIONS)
