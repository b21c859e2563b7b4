"""Refuses commands with fields that request features the broker lacks.

With SUCCESS, the client would believe that the feature works.
"""

from typing import Final

from magnetar.core.errors import MetadataError, NotAllowed
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.entry import in_transaction, parse_metadata
from magnetar.wire.framing import MalformedEntry

NO_REPLICATED_SUBSCRIPTIONS: Final = (
    "Replicated subscriptions are not supported: there is no geo-replication yet; subscribe "
    "without replicateSubscriptionState"
)


def checked_entry(entry: bytes, txn: tuple[int, int] | None) -> tuple[bytes, int, int]:
    """Returns the entry to store, its delivery time and its publish time.

    The times are 0 without a delivery time. Raises MetadataError if the entry cannot be read.

    Puts the transaction into the entry's metadata, if only SEND names it.
    """
    try:
        metadata = parse_metadata(entry)
        if txn is not None:
            entry = in_transaction(entry, metadata, *txn)
    except MalformedEntry as error:
        raise MetadataError(str(error)) from error
    if metadata.deliver_at_time <= 0:
        return entry, 0, 0
    return entry, metadata.deliver_at_time, metadata.publish_time


def transaction_of(command: pb.CommandSend | pb.CommandAck) -> tuple[int, int] | None:
    """Returns the transaction of a SEND or ACK, None if it has none."""
    if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
        return command.txnid_most_bits, command.txnid_least_bits
    return None


def check_subscribe(command: pb.CommandSubscribe) -> None:
    """Raises NotAllowed if SUBSCRIBE requests a feature that the broker lacks."""
    if command.replicate_subscription_state:
        raise NotAllowed(NO_REPLICATED_SUBSCRIPTIONS)
