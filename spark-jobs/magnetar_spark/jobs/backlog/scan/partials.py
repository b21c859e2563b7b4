"""The sums that scan tasks send to the driver: one schema for all kinds."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

SCANNED: Final = 1
"""Of a topic; `number`: markers, which are no messages."""
BY_MINUTE: Final = 2
"""`number`: the start of the minute, in ms since 1970."""
BY_SIZE: Final = 3
"""`number`: the exponent of a power of two; sizes are below it, and at least half of it."""
BY_KEY: Final = 4
UNREAD: Final = 5
"""Of a subscription; `number`: messages acknowledged within entries that are not."""
UNREAD_BY_KEY: Final = 6
FLOW: Final = 7
"""`key`: the topic that a message was first sent to; `number`: how often it was redelivered."""
FAILED: Final = 8
"""`key`: why a range could not be read completely."""

DELAYED: Final = 9
"""Of a subscription: unread messages with a delivery time that has not come; `oldest_ms`: the next
of these times."""

KEYS_PENDING_MAX: Final = 1 << 18

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.int32()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("key", pa.binary()),
        ("number", pa.int64()),
        ("entries", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("oldest_ms", pa.int64()),
        ("newest_ms", pa.int64()),
    ]
)
SPARK_SCHEMA: Final = (
    "kind int, topic string, subscription string, key binary, number long, entries long, "
    "messages long, bytes long, ledger_id long, entry_id long, oldest_ms long, newest_ms long"
)

KeyBytes = bytes


class SumRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over all tasks, with its ranks. `kind` decides which columns have a value."""

    kind: int
    topic: str
    subscription: str = ""
    key: KeyBytes | None = None
    group: int = 0
    number: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    rank_messages: int = 0
    rank_oldest: int = 0
    keys: int = 0
    keyed_messages: int = 0
    ledger_id: int = -1
    entry_id: int = -1
    first_ms: int = 0

    @classmethod
    def of(cls, columns: dict[str, Any]) -> "SumRow":
        """From a row of Spark, which has binary columns as `bytearray`."""
        key = columns["key"]
        return cls(**{**columns, "key": None if key is None else KeyBytes(key)})

    @property
    def text(self) -> str:
        """The key as text."""
        return (self.key or b"").decode(errors="replace")


def partial(kind: int, topic: str, count: int, **columns: Any) -> pa.RecordBatch:
    """A batch of one kind. Columns that are not given are null, the subscription is empty."""
    columns.setdefault("subscription", pa.repeat(pa.scalar(""), count))
    arrays = []
    for field in SCHEMA:
        if field.name == "kind":
            array = pa.repeat(pa.scalar(kind, field.type), count)
        elif field.name == "topic":
            array = pa.repeat(pa.scalar(topic, field.type), count)
        elif field.name in columns:
            array = _array(columns[field.name], field.type)
        else:
            array = pa.nulls(count, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values.cast(kind)
    return pa.array(values, kind)


class KeySums:
    """Sums of one task by kind, topic, subscription and key."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, str, str, int], list[pa.Table]] = {}
        self._rows = 0

    def add(
        self, kind: int, topic: str, subscription: str, ledger_id: int, table: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        """Adds messages (`key`, `bytes`, `ms`, `entry_id`); yields all sums if there are many."""
        sums = table.group_by("key").aggregate(
            [
                ("bytes", "sum"),
                ([], "count_all"),
                ("ms", "min"),
                ("ms", "max"),
                ("entry_id", "min"),
            ]
        )
        columns = ["key", "bytes_sum", "count_all", "ms_min", "ms_max", "entry_id_min"]
        names = ["key", "bytes", "messages", "oldest", "newest", "entry_id"]
        renamed = sums.select(columns).rename_columns(names)
        self._pending.setdefault((kind, topic, subscription, ledger_id), []).append(renamed)
        self._rows += renamed.num_rows
        if self._rows > KEYS_PENDING_MAX:
            yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yields all sums, and clears them."""
        pending, self._pending, self._rows = self._pending, {}, 0
        for (kind, topic, subscription, ledger_id), tables in pending.items():
            sums = (
                pa.concat_tables(tables)
                .group_by("key")
                .aggregate(
                    [
                        ("bytes", "sum"),
                        ("messages", "sum"),
                        ("oldest", "min"),
                        ("newest", "max"),
                        ("entry_id", "min"),
                    ]
                )
            )
            yield partial(
                kind,
                topic,
                sums.num_rows,
                subscription=pa.repeat(pa.scalar(subscription), sums.num_rows),
                key=sums["key"],
                bytes=sums["bytes_sum"],
                messages=sums["messages_sum"],
                oldest_ms=sums["oldest_min"],
                newest_ms=sums["newest_max"],
                entry_id=sums["entry_id_min"],
                ledger_id=pa.repeat(pa.scalar(ledger_id), sums.num_rows),
            )
