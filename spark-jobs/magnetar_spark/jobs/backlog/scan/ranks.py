"""Adds up and ranks the sums of a single scan task without Spark.

A scan that fits one task needs no shuffle, and a JVM would cost far more than the scan itself. The
rows are those of Spark's query (`sums`): a test compares both. The number of rows is bounded, since
they are all in memory.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    SCANNED,
    UNREAD,
    UNREAD_BY_KEY,
    SumRow,
)

ROWS_PENDING_MAX: Final = 1 << 18
"""Rows that are added before they are merged."""
ROWS_MAX: Final = 1 << 20
"""Rows that stay after a merge: about 100 bytes each, and the bytes of their keys."""

_BY: Final = ["kind", "topic", "subscription", "key", "group"]
_WINDOW: Final = _BY[:3]
_PLACE: Final = ["ledger_id", "entry_id", "first_ms"]
_SUMS: Final = ["number", "entries", "messages", "bytes"]

Numbers = NDArray[np.int64]


class TooManyRows(Exception):
    """There are more keys than fit into this process."""


def ranked(
    batches: Iterable[pa.RecordBatch], newest: int, keys_max: int, rows_max: int = ROWS_MAX
) -> Iterator[SumRow]:
    """Yields the sums with their ranks: the first `keys_max` keys by messages and by age for each
    topic or subscription, and the `newest` minutes of each topic. Raises TooManyRows."""
    sums = _summed(batches, rows_max)
    if not sums.num_rows:
        return
    down: list[tuple[str, str]] = [("messages", "descending"), ("key", "ascending")]
    sums = sums.take(_order(sums, down))
    starts, counts = _windows(sums)
    first = np.repeat(starts, counts)
    by_messages = np.arange(sums.num_rows) - first + 1
    kind = _numbers(sums["kind"])
    is_minute = kind == BY_MINUTE
    age = np.where(is_minute, -_numbers(sums["group"]), 0)
    up = [(name, "ascending") for name in ("age", *_PLACE, "key")]
    by_age = np.empty(sums.num_rows, np.int64)
    by_age[_order(sums.append_column("age", pa.array(age)), up)] = by_messages
    is_key = (kind == BY_KEY) | (kind == UNREAD_BY_KEY)
    kept = np.where(is_minute, by_age <= newest, ~is_key | (by_messages <= keys_max))
    kept |= (kind == UNREAD_BY_KEY) & (by_age <= keys_max)
    messages = np.add.reduceat(_numbers(sums["messages"]), starts)
    ranks = {
        "rank_messages": by_messages,
        "rank_oldest": by_age,
        "keys": np.repeat(counts, counts),
        "keyed_messages": np.repeat(messages, counts),
    }
    for name, values in ranks.items():
        sums = sums.append_column(name, pa.array(values))
    for row in sums.filter(pa.array(kept)).to_pylist():
        yield SumRow.of(row)


def _summed(batches: Iterable[pa.RecordBatch], rows_max: int) -> pa.Table:
    """Sums by kind, topic, subscription, key and group."""
    pending: list[pa.Table] = []
    rows = 0
    for batch in batches:
        pending.append(_grouped(pa.Table.from_batches([batch])))
        rows += batch.num_rows
        if rows > ROWS_PENDING_MAX + (pending[0].num_rows if pending else 0):
            pending = [_merged(pending)]
            rows = pending[0].num_rows
            if rows > rows_max:
                raise TooManyRows
    if not pending:
        return pa.table({})
    merged = _merged(pending)
    if merged.num_rows > rows_max:
        raise TooManyRows
    return merged


def _grouped(partials: pa.Table) -> pa.Table:
    """The partial sums with their group, and with the place and the time of their oldest message.

    Sums by key of messages without a key are left out.
    """
    by_entry = pc.is_in(partials["kind"], pa.array([SCANNED, UNREAD], pa.int32()))
    group = pc.if_else(by_entry, 0, partials["number"])
    added = partials.append_column("group", group).append_column("first_ms", partials["oldest_ms"])
    without = pc.and_(pc.equal(added["kind"], BY_KEY), pc.is_null(added["key"]))
    return added.filter(pc.invert(without))


def _merged(tables: list[pa.Table]) -> pa.Table:
    whole = pa.concat_tables(tables)
    oldest_first = whole.take(_sorted(whole, [(name, "ascending") for name in _PLACE]))
    also_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
    grouped = pa.TableGroupBy(oldest_first, _BY, use_threads=False).aggregate(
        [
            *((name, "sum") for name in _SUMS),
            ("oldest_ms", "min"),
            ("newest_ms", "max"),
            *((name, "first", also_nulls) for name in _PLACE),
        ]
    )
    names = {f"{name}_sum": name for name in _SUMS}
    names |= {"oldest_ms_min": "oldest_ms", "newest_ms_max": "newest_ms"}
    names |= {f"{name}_first": name for name in _PLACE}
    renamed = grouped.rename_columns([names.get(name, name) for name in grouped.column_names])
    return renamed.select(tables[0].column_names)  # to be merged with others again


def _order(sums: pa.Table, within: list[tuple[str, str]]) -> Numbers:
    """The rows by window, and within each window by these columns."""
    return _sorted(sums, [*((name, "ascending") for name in _WINDOW), *within])


def _sorted(table: pa.Table, by: list[tuple[str, str]]) -> Numbers:
    """The rows in this order, nulls before all values in either direction."""
    columns: list[Any] = []
    orders: list[tuple[str, str]] = []
    for name, order in by:
        column = table[name]
        missing: Any = "" if pa.types.is_string(column.type) else 0
        missing = b"" if pa.types.is_binary(column.type) else missing
        orders += [(str(len(columns)), "ascending"), (str(len(columns) + 1), order)]
        columns += [column.is_valid(), column.fill_null(missing)]
    flat = pa.table(columns, names=[str(number) for number in range(len(columns))])
    numbers: Numbers = pc.sort_indices(flat, sort_keys=orders).to_numpy().astype(np.int64)
    return numbers


def _windows(sums: pa.Table) -> tuple[Numbers, Numbers]:
    """The first row and the number of rows of each window, in a table that is sorted by them."""
    changed = np.zeros(sums.num_rows, bool)
    changed[0] = True
    for name in _WINDOW:
        codes = _numbers(sums[name].combine_chunks().dictionary_encode().indices)
        changed[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(changed)
    return starts, np.diff(starts, append=sums.num_rows)


def _numbers(column: Any) -> Numbers:
    numbers: Numbers = column.fill_null(0).to_numpy().astype(np.int64)
    return numbers
