"""Refuses commands with fields that request features the broker lacks.

With SUCCESS, the client would believe that the feature works.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.core.errors import MetadataError, NotAllowed, drop_frames
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.entry import in_transaction, parse_metadata
from magnetar.wire.events import SendRun
from magnetar.wire.framing import MalformedEntry

NO_REPLICATED_SUBSCRIPTIONS: Final = (
    "Replicated subscriptions are not supported: there is no geo-replication yet; subscribe "
    "without replicateSubscriptionState"
)


def checked_parts(run: SendRun) -> Iterator[tuple[SendRun, MetadataError | None]]:
    """Reads the metadata of a run's entries, and splits the run; the parts are in its order.

    The entries of a part all have a delivery time, or none has one. An entry that cannot be read is
    a part of its own, with the error.
    """
    start = 0
    deliver_at_ms: list[int] = []
    delays_ms: list[int] = []

    def part(end: int) -> SendRun:
        piece = run.part(start, end)
        piece.deliver_at_ms, piece.delays_ms = tuple(deliver_at_ms), tuple(delays_ms)
        deliver_at_ms.clear()
        delays_ms.clear()
        return piece

    for index, entry in enumerate(run.entries):
        try:
            run.entries[index], at_ms, published_ms = _checked_entry(entry, run.txn)
        except MetadataError as error:
            if index > start:
                yield part(index), None
            drop_frames(error)
            yield run.part(index, index + 1), error
            start = index + 1
            continue
        if bool(at_ms) != bool(deliver_at_ms) and index > start:
            yield part(index), None
            start = index
        if at_ms:
            deliver_at_ms.append(at_ms)
            delays_ms.append(at_ms - published_ms)
    if start < len(run.entries):
        yield part(len(run.entries)), None


def _checked_entry(entry: bytes, txn: tuple[int, int] | None) -> tuple[bytes, int, int]:
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
