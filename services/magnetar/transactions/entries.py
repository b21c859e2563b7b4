"""The transaction of a stored entry. Pure."""

from magnetar.transactions.model import TxnId
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry


def transaction_of(data: bytes) -> TxnId | None:
    """Returns the transaction of a stored entry, None if it belongs to none."""
    try:
        metadata = parse_metadata(data)
    except MalformedEntry:
        return None
    if not metadata.HasField("txnid_most_bits"):
        return None
    return TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)
