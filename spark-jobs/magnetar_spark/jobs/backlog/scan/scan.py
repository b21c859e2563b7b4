"""The body of a scan task: sums of its ranges by minute, size, key and subscription.

Entries are read as by the data source, and leave the task only as sums (`partials`). Sums by key
are merged until there are KEYS_PENDING_MAX, which together with one Arrow batch bounds the memory,
regardless of the number of keys.

Messages are counted as brokers count them: each message of a batch, each chunk of a chunked
message, no markers. An encrypted entry is counted by its outer metadata: without keys in a batch,
as one size.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap

from magnetar.bookie.api import BookieError, NoSuchLedger
from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.compression import decompress
from magnetar.wire.entry import split_entry
from magnetar.wire.framing import MalformedEntry
from magnetar_spark.decode.batches import add_batch
from magnetar_spark.decode.entries import UNCOMPRESSED_BYTES_MAX
from magnetar_spark.decode.rows import NO_BATCH, TIMESTAMP, Rows
from magnetar_spark.jobs.backlog.scan.flows import MARK, flow_sums
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    DELAYED,
    FAILED,
    SCANNED,
    UNREAD,
    UNREAD_BY_KEY,
    KeySums,
    partial,
)
from magnetar_spark.jobs.backlog.scan.plan import ScanRange, View
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.table import BATCH_INDEX, ENTRY_ID, KEY, PROPERTIES, PUBLISH_TIME, VALUE
from magnetar_spark.values import Values

MINUTE_MS: Final = 60_000
ERROR_CHARS_MAX: Final = 400
_COLUMNS: Final = [
    (VALUE, pa.binary()),
    (KEY, pa.binary()),
    (ENTRY_ID, pa.int64()),
    (BATCH_INDEX, pa.int32()),
    (PUBLISH_TIME, TIMESTAMP),
]
_SCHEMA: Final = pa.schema(_COLUMNS)
_FLOW_SCHEMA: Final = pa.schema([*_COLUMNS, (PROPERTIES, pa.map_(pa.string(), pa.string()))])

Mask = NDArray[np.bool_]


def scan_ranges(
    settings: LogSettings,
    ranges: tuple[ScanRange, ...],
    bookies: tuple[BookieRegistration, ...],
) -> Iterator[pa.RecordBatch]:
    """Yields the sums of a task's ranges. Parts that cannot be read are reported as FAILED."""
    now_ms = SystemClock().now_ms()
    with EntryReader(settings, bookies) as reader:
        keys = KeySums()
        for scan_range in ranges:
            scan = RangeScan(scan_range, keys, now_ms)
            error = ""
            try:
                for group in reader.read(scan_range.ranged):
                    for entry_id, data in group:
                        scan.add(entry_id, data)
                        if scan.rows.ready:
                            yield from scan.take()
            except NoSuchLedger:
                pass  # trimmed since the scan was planned
            except (BookieError, MagnetarError) as failure:
                error = str(failure)
            yield from scan.finish()
            if error:
                text = error[:ERROR_CHARS_MAX].encode()
                topic = scan_range.ranged.topic
                yield partial(FAILED, topic, 1, key=[text], number=[1], messages=[1])
        yield from keys.take()


class RangeScan:
    """The scan of one range: `add` its entries in order, `take` sums in between, then `finish`."""

    def __init__(self, scan: ScanRange, keys: KeySums, now_ms: int) -> None:
        """`now_ms`: messages with a later delivery time count as delayed."""
        ranged = scan.ranged
        self._topic, self._ledger_id = ranged.topic, ranged.ledger_id
        self._first, self._last = ranged.first, ranged.last
        self._keys = keys
        self._now_ms = now_ms
        self._views = [(view, self._acked(view)) for view in scan.views]
        self.rows = Rows(ranged.topic, ranged.partition, _SCHEMA, Values())
        self._flow_rows = Rows(ranged.topic, ranged.partition, _FLOW_SCHEMA, Values())
        count = ranged.last - ranged.first + 1
        self._messages = np.zeros(count, np.int64)
        self._bytes = np.zeros(count, np.int64)
        self._publish_ms = np.zeros(count, np.int64)
        self._deliver_ms = np.zeros(count, np.int64)
        self._markers = 0

    def _acked(self, view: View) -> Mask:
        """A mask of the acknowledged entries of the range."""
        acked = np.arange(self._first, self._last + 1) <= view.mark
        if view.holes:
            bitmap = BitMap.deserialize(view.holes) & BitMap(range(self._first, self._last + 1))
            acked[np.array(bitmap, np.int64) - self._first] = True
        return acked

    def add(self, entry_id: int, data: bytes) -> None:
        """Adds one entry. Raises PersistenceError naming an entry that is malformed."""
        try:
            self._add(entry_id, data)
        except MalformedEntry as error:
            raise PersistenceError(
                f"entry {self._ledger_id}:{entry_id} cannot be decoded: {error}"
            ) from error

    def _add(self, entry_id: int, data: bytes) -> None:
        parts = split_entry(data)
        metadata = MessageMetadata.FromString(data[parts.metadata_start : parts.payload_start])
        at = entry_id - self._first
        self._bytes[at] = len(data)
        self._publish_ms[at] = min(metadata.publish_time, TIME_MS_MAX)
        if metadata.HasField("marker_type"):
            self._markers += 1
            return
        self._deliver_ms[at] = min(max(metadata.deliver_at_time, 0), TIME_MS_MAX)
        self._messages[at] = max(1, metadata.num_messages_in_batch)
        encrypted = bool(metadata.encryption_keys)
        whole = encrypted or metadata.num_chunks_from_msg > 1
        if metadata.compression and not whole:
            plain, start = (
                decompress(
                    metadata.compression,
                    data[parts.payload_start :],
                    metadata.uncompressed_size,
                    UNCOMPRESSED_BYTES_MAX,
                ),
                0,
            )
        else:
            plain, start = data, parts.payload_start
        self._decode(self.rows, entry_id, metadata, plain, start, whole=whole)
        if MARK in plain or MARK in data:
            self._decode(self._flow_rows, entry_id, metadata, plain, start, whole=whole)

    def _decode(
        self,
        rows: Rows,
        entry_id: int,
        metadata: MessageMetadata,
        plain: bytes,
        start: int,
        *,
        whole: bool,
    ) -> None:
        if whole or not metadata.HasField("num_messages_in_batch"):
            rows.begin(self._ledger_id, entry_id, metadata, 0)
            rows.add_message(metadata, plain[start:], NO_BATCH)
        else:
            count = metadata.num_messages_in_batch
            rows.begin(self._ledger_id, entry_id, metadata, count)
            add_batch(rows, plain, count, start)
        rows.end(len(plain) - start)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yields the sums of the messages so far; `finish` yields those by entry."""
        if self._flow_rows.count:
            yield from flow_sums(self._topic, self._flow_rows.take())
        if not self.rows.count:
            return
        batch = self.rows.take()
        entries = batch.column(ENTRY_ID).to_numpy()
        sizes = pc.fill_null(pc.binary_length(batch.column(VALUE)), 0).cast(pa.int64())
        micros = batch.column(PUBLISH_TIME).cast(pa.int64())
        publish_ms = micros.fill_null(TIME_MS_MAX * 1000).to_numpy() // 1000
        yield self._by(BY_MINUTE, publish_ms // MINUTE_MS * MINUTE_MS, sizes)
        yield self._by(BY_SIZE, _buckets(sizes.to_numpy()), sizes)
        table = pa.table(
            {
                "key": batch.column(KEY),
                "bytes": sizes,
                "ms": publish_ms,
                "entry_id": entries,
            }
        )
        yield from self._keys.add(BY_KEY, self._topic, "", self._ledger_id, table)
        for view, acked in self._views:
            left = self._left(view, acked, entries, batch.column(BATCH_INDEX).to_numpy())
            if left.any():
                unread = table.filter(pa.array(left))
                yield from self._keys.add(
                    UNREAD_BY_KEY, self._topic, view.subscription, self._ledger_id, unread
                )

    def _left(
        self, view: View, acked: Mask, entries: NDArray[np.int64], indexes: NDArray[np.int32]
    ) -> Mask:
        """A mask of the unacknowledged messages."""
        left: Mask = ~acked[entries - self._first]
        for entry_id, bits in view.remains.items():
            for row in np.flatnonzero(entries == entry_id):
                index = int(indexes[row])
                left[row] = left[row] and (index < 0 or bool(bits >> index & 1))
        return left

    def _by(self, kind: int, numbers: NDArray[np.int64], sizes: pa.Array) -> pa.RecordBatch:
        sums = (
            pa.table({"number": numbers, "bytes": sizes})
            .group_by("number")
            .aggregate([("bytes", "sum"), ([], "count_all")])
        )
        return partial(
            kind,
            self._topic,
            sums.num_rows,
            number=sums["number"],
            messages=sums["count_all"],
            bytes=sums["bytes_sum"],
        )

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the remaining sums, and the sums by entry."""
        yield from self.take()
        present = self._bytes > 0
        yield partial(
            SCANNED,
            self._topic,
            1,
            number=[self._markers],
            entries=[int(present.sum())],
            messages=[int(self._messages.sum())],
            bytes=[int(self._bytes.sum())],
        )
        for view, acked in self._views:
            left = present & ~acked
            entries = int(left.sum())
            if not entries:
                continue
            in_batches = self._acked_in_batches(view, left)
            yield partial(
                UNREAD,
                self._topic,
                1,
                subscription=[view.subscription],
                number=[in_batches],
                entries=[entries],
                messages=[int(self._messages[left].sum()) - in_batches],
                bytes=[int(self._bytes[left].sum())],
                oldest_ms=[int(self._publish_ms[left].min())],
            )
            yield from self._delayed(view, left & (self._deliver_ms > self._now_ms))

    def _delayed(self, view: View, left: Mask) -> Iterator[pa.RecordBatch]:
        """Yields the sum of unread messages that are not due; nothing if there are none."""
        if not left.any():
            return
        in_batches = self._acked_in_batches(view, left)
        yield partial(
            DELAYED,
            self._topic,
            1,
            subscription=[view.subscription],
            number=[0],
            entries=[int(left.sum())],
            messages=[int(self._messages[left].sum()) - in_batches],
            bytes=[int(self._bytes[left].sum())],
            oldest_ms=[int(self._deliver_ms[left].min())],
        )

    def _acked_in_batches(self, view: View, left: Mask) -> int:
        """The acknowledged messages of these entries, which are not acknowledged as a whole."""
        remains = {
            at: bits
            for entry_id, bits in view.remains.items()
            if left[at := entry_id - self._first]
        }
        return sum(
            int(self._messages[at]) - (bits & ((1 << int(self._messages[at])) - 1)).bit_count()
            for at, bits in remains.items()
        )


def _buckets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The exponent of the power of two that a size is below: 0 for 0, 1 for 1, 2 for 2 and 3, …"""
    return np.frexp(sizes.astype(np.float64))[1].astype(np.int64)
