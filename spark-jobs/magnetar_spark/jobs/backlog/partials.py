"""Sums on their way from tasks to the driver: one table for all kinds, and a task's by key."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

SCANNED: Final = 1
"""Of a topic; `number`: markers, which are no messages."""
BY_MINUTE: Final = 2
"""`number`: the minute's beginning, ms since 1970."""
BY_SIZE: Final = 3
"""`number`: sizes are below this power of two, and not below the one before."""
BY_KEY: Final = 4
UNREAD: Final = 5
"""Of a subscription; `number`: messages acknowledged within entries that are not."""
UNREAD_BY_KEY: Final = 6
FLOW: Final = 7
"""`key`: the topic that a message was sent to first; `number`: times it was delivered again."""

FAILED: Final = 8
"""`key`: why a range could not be read to its end."""

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


def partial(kind: int, topic: str, count: int, **columns: Any) -> pa.RecordBatch:
    """Rows of one kind; columns that are not given are null, the subscription is empty."""
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
    """Sums by kind, topic, subscription and key, of one task."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, str, str, int], list[pa.Table]] = {}
        self._rows = 0

    def add(
        self, kind: int, topic: str, subscription: str, ledger_id: int, table: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        """Takes messages (`key`, `bytes`, `ms`, `entry_id`); gives sums where they are too many."""
        sums = table.group_by("key").aggregate(
            [
                ("bytes", "sum"),
                ([], "count_all"),
                ("ms", "min"),
                ("ms", "max"),
                ("entry_id", "min"),
            ]
        )
        made = sums.select(["key", "bytes_sum", "count_all", "ms_min", "ms_max", "entry_id_min"])
        made = made.rename_columns(["key", "bytes", "messages", "oldest", "newest", "entry_id"])
        self._pending.setdefault((kind, topic, subscription, ledger_id), []).append(made)
        self._rows += made.num_rows
        if self._rows > KEYS_PENDING_MAX:
            yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """All of them; there are none then."""
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
