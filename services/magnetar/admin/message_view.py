"""A stored entry as an HTTP answer: the payload is the body, the metadata are headers.

The body is the decompressed payload. Of a batch it is the whole batch in its producer's layout:
tools split it by `X-Pulsar-num-batch-message`. Encrypted payloads are unchanged. Header names keep
Pulsar's upper and lower case, because Java's admin client compares them exactly. Values are UTF-8
without control characters: a producer chooses the text of a key, which must not end a header.
"""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Final, Protocol, cast

from starlette.responses import Response

from magnetar.admin.http.answers import JSON
from magnetar.admin.times import iso
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.wire._pb.PulsarApi_pb2 import BrokerEntryMetadata, CompressionType, MessageMetadata
from magnetar.wire.compression import decompress
from magnetar.wire.entry import parse_metadata, payload_of, split_entry
from magnetar.wire.framing import MalformedEntry

_PLAIN = (
    ("null-value", "null_value"),
    ("replicated-from", "replicated_from"),
    ("partition-key", "partition_key"),
    ("encryption-algo", "encryption_algo"),
    ("partition-key-b64-encoded", "partition_key_b64_encoded"),
    ("marker-type", "marker_type"),
    ("txnid-least-bits", "txnid_least_bits"),
    ("txnid-most-bits", "txnid_most_bits"),
    ("highest-sequence-id", "highest_sequence_id"),
    ("uuid", "uuid"),
    ("num-chunks-from-msg", "num_chunks_from_msg"),
    ("total-chunk-msg-size", "total_chunk_msg_size"),
    ("chunk-id", "chunk_id"),
    ("null-partition-key", "null_partition_key"),
)
"""Headers and metadata fields, for fields whose value is sent unchanged."""

_TIMES = (("event-time", "event_time"), ("deliver-at-time", "deliver_at_time"))

_BASE64 = (
    ("Base64-encryption-param", "encryption_param"),
    ("Base64-ordering-key", "ordering_key"),
    ("Base64-schema-version-b64encoded", "schema_version"),
)

_FRAME_BYTES: Final = 10
"""The magic number, the checksum and the metadata's size, which Pulsar counts in a batch's size."""


class TransactedLog(Protocol):
    """The log of the entry, with what its transactions hide."""

    @property
    def last_visible(self) -> Position:
        """The last position that consumers may read now."""

    def is_aborted(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry belongs to an aborted transaction."""


def message_response(entry: Entry, *, ledger: TransactedLog) -> Response:
    """Returns the answer to a peek; raises PersistenceError if the entry cannot be parsed.

    Its headers tell messages of open and of aborted transactions, which no consumer gets.
    """
    try:
        metadata = parse_metadata(entry.data)
        broker_metadata = split_entry(entry.data).broker_entry_metadata
        payload = payload_of(entry.data)
        body = _plain(metadata, payload)
    except MalformedEntry as error:
        raise PersistenceError(f"Message {entry.position} cannot be shown: {error}") from error
    response = Response(body, media_type=JSON)
    for name, value in _headers(metadata, broker_metadata, len(payload)):
        response.raw_headers.append((f"X-Pulsar-{name}".encode(), _value(value)))
    aborted = ledger.is_aborted(*entry.position)
    if aborted:
        response.raw_headers.append((b"X-Pulsar-txn-aborted", b"true"))
    open_txn = metadata.HasField("txnid_most_bits") and entry.position > ledger.last_visible
    uncommitted = _value(open_txn and not aborted)
    response.raw_headers.append((b"X-Pulsar-txn-uncommitted", uncommitted))
    response.raw_headers.append((b"X-Pulsar-Message-ID", str(entry.position).encode()))
    return response


def batch_size(entry: bytes) -> int | None:
    """Returns the number of messages in the entry's batch; None if it is not a batch."""
    try:
        metadata = parse_metadata(entry)
    except MalformedEntry:
        return None
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None


def _plain(metadata: MessageMetadata, payload: bytes) -> bytes:
    if metadata.encryption_keys:
        return payload
    return decompress(metadata.compression, payload, metadata.uncompressed_size)


def _headers(
    metadata: MessageMetadata, broker_metadata: BrokerEntryMetadata | None, payload_bytes: int
) -> Iterator[tuple[str, object]]:
    # The generated signature lists every field name; here they come from the tables above.
    has = cast("Callable[[str], bool]", metadata.HasField)
    properties = {pair.key: pair.value for pair in metadata.properties}
    # ASCII: Java's client reads headers as ISO 8859-1, others as UTF-8.
    yield "PROPERTY", json.dumps(properties, separators=(",", ":"))
    if broker_metadata is not None:
        if broker_metadata.HasField("broker_timestamp"):
            yield "Broker-Entry-METADATA-timestamp", iso(broker_metadata.broker_timestamp)
        if broker_metadata.HasField("index"):
            yield "Broker-Entry-METADATA-index", broker_metadata.index
    yield "publish-time", iso(metadata.publish_time)
    yield "producer-name", metadata.producer_name
    yield "sequence-id", metadata.sequence_id
    yield "Is-Encrypted", bool(metadata.encryption_keys)
    for name, field in _TIMES:
        if has(field):
            yield name, iso(getattr(metadata, field))
    if has("num_messages_in_batch"):
        yield "num-batch-message", metadata.num_messages_in_batch
        yield "batch-size", payload_bytes + _FRAME_BYTES
    for name, field in _PLAIN:
        if has(field):
            yield name, getattr(metadata, field)
    if has("compression"):
        yield "compression", CompressionType.Name(metadata.compression)
    if has("uncompressed_size"):
        yield "uncompressed-size", metadata.uncompressed_size
    for name, field in _BASE64:
        if has(field):
            yield name, base64.b64encode(getattr(metadata, field))
    if metadata.replicate_to:
        yield "replicated-to", ",".join(metadata.replicate_to)


def _value(value: object) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    # A header has no control characters, and no blanks around its value: HTTP cannot carry them,
    # and a producer chooses these texts.
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
    return bytes(byte if byte >= 0x20 and byte != 0x7F else 0x20 for byte in data).strip()
