"""Decodes entries into rows: metadata, decompression, batches, chunks.

Markers are skipped. Encrypted messages stay encrypted, as one row each. A chunked message is one
row, at its last chunk. Messages published outside a range's times are skipped.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from magnetar.bookie.api import StoredEntry
from magnetar.core.errors import PersistenceError
from magnetar.jobs.log.ranges import Interval, Range
from magnetar.offload.file_layout import time_or_none
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.compression import decompress
from magnetar.wire.entry import split_entry
from magnetar.wire.framing import MalformedEntry
from magnetar_spark.decode.batches import add_batch
from magnetar_spark.decode.chunks import Chunks
from magnetar_spark.decode.rows import NO_BATCH, Rows

UNCOMPRESSED_BYTES_MAX: Final = 512 << 20
"""Bytes of one entry or chunked message; a chunked message may be larger than any entry."""

_metadata_from = MessageMetadata.FromString


class EntryDecoder:
    """Appends entries of one range, in their order, to `rows`."""

    def __init__(self, ranged: Range, rows: Rows, chunks: Chunks) -> None:
        self._ledger_id = ranged.ledger_id
        self._publish_ms = ranged.publish_ms
        self._rows = rows
        self._chunks = chunks

    def add(self, entry_id: int, entry: bytes) -> None:
        """Decodes one entry. Raises PersistenceError naming an entry that is malformed."""
        try:
            self._add(entry_id, entry)
        except MalformedEntry as error:
            raise PersistenceError(
                f"entry {self._ledger_id}:{entry_id} cannot be decoded: {error}"
            ) from error

    def _add(self, entry_id: int, entry: bytes) -> None:
        parts = split_entry(entry)
        payload_at = parts.payload_start
        metadata = _metadata_from(entry[parts.metadata_start : payload_at])
        has = metadata.HasField
        if has("marker_type"):
            return
        first_chunk = None
        if metadata.num_chunks_from_msg > 1:
            joined = self._chunks.add(self._ledger_id, entry_id, metadata, entry[payload_at:])
            if joined is None:
                return
            entry, first_chunk = joined
            payload_at = 0
        if self._publish_ms != Interval():
            time_ms = time_or_none(metadata.publish_time)  # null in its column: matches no filter
            if time_ms is None or not self._publish_ms.has(time_ms):
                return
        rows = self._rows
        encrypted = bool(metadata.encryption_keys)
        if not encrypted and metadata.compression:
            entry = decompress(
                metadata.compression,
                entry[payload_at:],
                metadata.uncompressed_size,
                UNCOMPRESSED_BYTES_MAX,
            )
            payload_at = 0
        if encrypted or not has("num_messages_in_batch"):
            rows.begin(
                self._ledger_id,
                entry_id,
                metadata,
                0,
                encrypted=encrypted,
                first_chunk=first_chunk,
            )
            rows.add_message(
                metadata, None if metadata.null_value else entry[payload_at:], NO_BATCH
            )
        else:
            count = metadata.num_messages_in_batch
            rows.begin(self._ledger_id, entry_id, metadata, count)
            add_batch(rows, entry, count, payload_at)  # in place: copying it costs as much
        rows.end(len(entry) - payload_at)


def decoded(
    decoder: EntryDecoder, groups: Iterable[list[StoredEntry]], rows: Rows
) -> Iterator[None]:
    """Decodes all entries; yields whenever the rows are enough for a batch."""
    for group in groups:
        for entry_id, data in group:
            decoder.add(entry_id, data)
            if rows.ready:
                yield
