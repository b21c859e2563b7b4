"""Messages that are alike, of one entry after the other, gathered to be taken apart together.

Each batch is a table of bytes, one message to a line. Of the tables whose heads are laid out in the
same way, numbers and keys are read all at once; values are copied once, from the entry to the
column (`BytesColumn.table`). So entries are kept until then: as many as one Arrow batch is made of.
"""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from magnetar_spark.decode.builders import NULL_NUMBER, Numbers, PropertiesColumn, Table
from magnetar_spark.decode.heads import Head, Span

if TYPE_CHECKING:
    from magnetar_spark.decode.rows import Rows

_LOW_BITS: Final = 0x7F


class Alike:
    """See the module's text. `head` is of the tables that were added last, settled or not."""

    __slots__ = ("_firsts", "_tables", "head")

    def __init__(self) -> None:
        self.head: Head | None = None
        self._tables: list[Table] = []
        self._firsts: list[int] = []

    def add(self, rows: "Rows", head: Head, table: Table, first: int) -> None:
        """Messages of one entry, one to a line; `first` is the first one's index in the batch."""
        if head is not self.head:
            self.settle(rows)
            self.head = head
        self._tables.append(table)
        self._firsts.append(first)

    def settle(self, rows: "Rows") -> None:
        """Appends what was gathered to the columns of `rows`."""
        tables, firsts, head = self._tables, self._firsts, self.head
        if not tables or head is None:
            return
        self._tables, self._firsts = [], []
        if rows.batch_index is not None:
            counts = [(first, len(table)) for first, table in zip(firsts, tables, strict=True)]
            rows.batch_index.run(
                np.concatenate([np.arange(first, first + n) for first, n in counts])
            )
        if rows.value is not None:
            if head.null_value:
                rows.value.nulls(sum(map(len, tables)))
            else:
                rows.value.tables([table[:, head.size :] for table in tables])
        if rows.metadata_wanted:
            cut = [table[:, : head.size] for table in tables]
            _add_heads(rows, np.concatenate(cut) if len(cut) > 1 else cut[0], head)


def _add_heads(rows: "Rows", heads: Table, head: Head) -> None:
    count = len(heads)
    for builder, span in ((rows.key, head.key), (rows.ordering_key, head.ordering_key)):
        if builder is not None:
            if span is None:
                builder.nulls(count)
            else:
                builder.tables([heads[:, span.start : span.end]])
    if rows.event_time is not None:
        rows.event_time.run(_event_times(heads, head.event_time))
    if rows.sequence is not None:
        rows.sequence.run(_numbers(heads, head.sequence))
    if rows.properties is not None:
        _add_properties(rows.properties, heads, head)


def _add_properties(properties: PropertiesColumn, heads: Table, head: Head) -> None:
    count = len(heads)
    if not head.properties:
        properties.empty(count)
        return
    keys = np.concatenate([heads[:, k.start : k.end] for k, _ in head.properties], axis=1)
    values = np.concatenate([heads[:, v.start : v.end] for _, v in head.properties], axis=1)
    key_lengths = np.array([k.end - k.start for k, _ in head.properties], np.int64)
    lengths = np.array([v.end - v.start for _, v in head.properties], np.int64)
    properties.run(
        count,
        keys.tobytes(),
        np.tile(key_lengths, count),
        values.tobytes(),
        np.tile(lengths, count),
    )


def _numbers(heads: NDArray[np.uint8], span: Span | None) -> Numbers:
    """The varints in these columns of the table; 0 where there are none."""
    if span is None:
        return np.zeros(len(heads), np.int64)
    total = (heads[:, span.start] & _LOW_BITS).astype(np.int64)
    for step, column in enumerate(range(span.start + 1, span.end), 1):
        total |= (heads[:, column] & _LOW_BITS).astype(np.int64) << (7 * step)
    return total


def _event_times(heads: NDArray[np.uint8], span: Span | None) -> Numbers:
    if span is None:
        return np.full(len(heads), NULL_NUMBER, np.int64)
    times = _numbers(heads, span)
    return np.where(times == 0, NULL_NUMBER, times)
