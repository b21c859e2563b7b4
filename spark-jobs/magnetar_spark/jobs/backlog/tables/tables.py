"""The tables that a run writes: one type of row each, with the columns and their meanings.

    {output}/tables/{table}/run={UTC time}/part-0.parquet

There is one file per table and run, so that any engine reads a table with the run as its partition,
and the next run finds the tables to compare with. Rows are bounded: lists by key, by hole and by
minute have the first rows of each topic or subscription. Times are timestamps in UTC, in rows ms
since 1970. docs/run/backlog.md repeats the docstrings and the meanings of columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

import msgspec
import pyarrow as pa

R = TypeVar("R", bound=msgspec.Struct)

TIME: Final = pa.timestamp("ms", tz="UTC")
INT: Final = pa.int32()
LONG: Final = pa.int64()
REAL: Final = pa.float64()
TEXT: Final = pa.string()
FLAG: Final = pa.bool_()
BINARY: Final = pa.binary()
COUNTS: Final = pa.map_(TEXT, LONG)

TopicName = Annotated[str, TEXT, "full name, a partition's with -partition-N"]
SubscriptionName = Annotated[str, TEXT, "its name"]
Parent = Annotated[str, TEXT, "the partitioned topic, or the topic itself"]
Partition = Annotated[int, INT, "-1: no partition"]
Namespace = Annotated[str, TEXT, "tenant/namespace"]
Key = Annotated[bytes | None, BINARY, "as the producer gave it; null: messages without a key"]
KeyText = Annotated[str | None, TEXT, "the same as text, to read"]


class TopicRow(msgspec.Struct, kw_only=True):
    """One row for each topic or partition."""

    topic: TopicName
    parent: Parent
    partition: Partition
    namespace: Namespace
    entries: Annotated[int, LONG, "kept in the log"]
    bytes: Annotated[int, LONG, "of those entries, one copy"]
    bytes_exact: Annotated[bool, FLAG, "false: the newest ledger's bytes are an estimate"]
    bytes_on_bookies: Annotated[int, LONG, "all copies, cursors' ledgers and ledgers to delete too"]
    bytes_cold: Annotated[int, LONG, "in the object store"]
    ledgers: Annotated[int, LONG, "in the list"]
    subscriptions: Annotated[int, LONG, "durable ones"]
    slowest: Annotated[str, TEXT, "the subscription that is furthest behind; empty: all caught up"]
    end_ledger: Annotated[int, LONG, "of the newest entry"]
    end_entry: Annotated[int, LONG, "of the newest entry"]
    retention_ms: Annotated[int, LONG, "in force; -1: for ever"]
    retention_bytes: Annotated[int, LONG, "in force; -1: any amount"]
    ttl_s: Annotated[int, LONG, "in force; 0: none"]
    asked: Annotated[bool, FLAG, "whether its broker was asked for stats and answered"]
    publishers: Annotated[int | None, INT, "connected now, by the broker; null: not asked"]
    scanned_entries: Annotated[int, LONG, "read by this run"]
    scanned_messages: Annotated[int, LONG, "in them"]
    scanned_bytes: Annotated[int, LONG, "their size"]
    scan_whole: Annotated[bool, FLAG, "whether all of the log was read; false: newest, or a sample"]
    sampled: Annotated[
        bool, FLAG, "true: not all of the backlog was read, so what is read is a sample"
    ]
    messages_per_s: Annotated[
        float | None, REAL, "published, the last 5 minutes; null: not all of them read"
    ]
    appended_per_s: Annotated[float | None, REAL, "entries, since the run before; null: first run"]


class SubscriptionRow(msgspec.Struct, kw_only=True):
    """One row for each durable subscription of a topic or partition."""

    topic: TopicName
    parent: Parent
    partition: Partition
    namespace: Namespace
    subscription: SubscriptionName
    error: Annotated[str, TEXT, "why its state cannot be read; empty: it was"]
    entries: Annotated[int | None, LONG, "not acknowledged: the broker's msgBacklog"]
    messages: Annotated[int | None, LONG, "in them, not acknowledged; null: nothing of it was read"]
    messages_exact: Annotated[bool, FLAG, "false: estimated from a sample"]
    bytes: Annotated[int | None, LONG, "of those entries: the broker's backlogSize"]
    bytes_exact: Annotated[bool, FLAG, "false: the newest ledger's bytes are an estimate"]
    bytes_scanned: Annotated[int, LONG, "exactly, of those that were read"]
    oldest: Annotated[int | None, TIME, "when the oldest of them was published"]
    age_s: Annotated[float | None, REAL, "since then"]
    expires_in_s: Annotated[
        float | None, REAL, "until the TTL takes it unread; null: no TTL, or no backlog"
    ]
    mark_ledger: Annotated[int | None, LONG, "of mark-delete: all before and at it is acknowledged"]
    mark_entry: Annotated[int | None, LONG, "of mark-delete"]
    oldest_ledger: Annotated[int | None, LONG, "of the first entry that is not acknowledged"]
    oldest_entry: Annotated[int | None, LONG, "of the first entry that is not acknowledged"]
    end_ledger: Annotated[int, LONG, "of the topic's newest entry"]
    end_entry: Annotated[int, LONG, "of the topic's newest entry"]
    acked_beyond: Annotated[int | None, LONG, "entries acknowledged behind the first that is not"]
    acked_ranges: Annotated[int | None, LONG, "runs they form: nonContiguousDeletedMessagesRanges"]
    partial_entries: Annotated[int | None, LONG, "batches acknowledged in part"]
    acked_in_batches: Annotated[
        int | None, LONG, "messages acknowledged in those; null: not all read"
    ]
    holds_bytes: Annotated[int, LONG, "on bookies, kept for it because it is furthest behind"]
    trend: Annotated[str, TEXT, "unknown, empty, growing, stalled, steady, draining or reset"]
    since_s: Annotated[float | None, REAL, "since the run before; null: there is none"]
    published_per_s: Annotated[float | None, REAL, "entries, since then"]
    consumed_per_s: Annotated[float | None, REAL, "entries, since then"]
    growth_per_s: Annotated[float | None, REAL, "entries, since then"]
    drains_in_s: Annotated[float | None, REAL, "at this rate; null: not known, or never"]
    asked: Annotated[bool, FLAG, "whether its broker was asked and answered"]
    type: Annotated[str, TEXT, "Exclusive, Shared, …, None without consumers; empty: not asked"]
    consumers: Annotated[int | None, INT, "connected; null: not asked"]
    unacked_messages: Annotated[int | None, LONG, "delivered, not acknowledged; null: not asked"]
    held_by: Annotated[str, TEXT, "consumers that have some of them, the most first"]


class ConsumerRow(msgspec.Struct, kw_only=True):
    """Connected consumers, where brokers were asked."""

    topic: TopicName
    subscription: SubscriptionName
    consumer: Annotated[str, TEXT, "its name"]
    address: Annotated[str, TEXT, "where it connects from"]
    unacked_messages: Annotated[int, LONG, "delivered to it, not acknowledged"]
    available_permits: Annotated[int, LONG, "it would take so many more"]
    last_acked: Annotated[int | None, TIME, "null: never"]


class AckHoleRow(msgspec.Struct, kw_only=True):
    """Runs of unacknowledged entries before acknowledged ones, the oldest of a subscription."""

    topic: TopicName
    subscription: SubscriptionName
    first_ledger: Annotated[int, LONG, "of the run's first entry"]
    first_entry: Annotated[int, LONG, "of the run's first entry"]
    last_ledger: Annotated[int, LONG, "of its last"]
    last_entry: Annotated[int, LONG, "of its last"]
    entries: Annotated[int, LONG, "in it"]
    held_by: Annotated[str, TEXT, "consumers that may have it; empty: none, or not asked"]


class UnreadKeyRow(msgspec.Struct, kw_only=True):
    """Keys of unacknowledged messages: those with the oldest, and those with the most."""

    topic: TopicName
    subscription: SubscriptionName
    key: Key
    key_text: KeyText
    messages: Annotated[int, LONG, "not acknowledged"]
    bytes: Annotated[int, LONG, "of their values"]
    oldest: Annotated[int | None, TIME, "when the first of them was published"]
    ledger_id: Annotated[int, LONG, "where that is"]
    entry_id: Annotated[int, LONG, "where that is"]
    rank_oldest: Annotated[int, INT, "1: the oldest of the subscription"]
    rank_messages: Annotated[int, INT, "1: the most messages of the subscription"]
    held_by: Annotated[str, TEXT, "consumers that may have them; empty: none, or not asked"]
    sampled: Annotated[bool, FLAG, "true: counted in a part of the backlog"]


class KeyRow(msgspec.Struct, kw_only=True):
    """The hottest keys of each topic or partition, in the messages read."""

    topic: TopicName
    key: Key
    key_text: KeyText
    messages: Annotated[int, LONG, "with it"]
    bytes: Annotated[int, LONG, "of their values"]
    share: Annotated[float, REAL, "of the messages that have a key"]
    rank: Annotated[int, INT, "1: the hottest"]


class KeySkewRow(msgspec.Struct, kw_only=True):
    """How keys spread, by topic or partition, in the messages read."""

    topic: TopicName
    parent: Parent
    partition: Partition
    messages: Annotated[int, LONG, "read"]
    keyed_messages: Annotated[int, LONG, "that have a key"]
    keys: Annotated[int, LONG, "different ones"]
    top1_share: Annotated[float | None, REAL, "of the hottest key in the keyed messages"]
    top10_share: Annotated[float | None, REAL, "of the ten hottest"]
    top100_share: Annotated[float | None, REAL, "of the hundred hottest"]
    partition_ratio: Annotated[
        float | None, REAL, "entries kept, by the mean of its partitions; 1: even"
    ]


class StorageRow(msgspec.Struct, kw_only=True):
    """Bytes by ledger and cause."""

    topic: TopicName
    ledger_id: Annotated[int, LONG, "-1: none of the log (cursors, compacted)"]
    cause: Annotated[str, TEXT, "see Causes"]
    subscription: Annotated[str, TEXT, "who needs it, where that is the cause"]
    entries: Annotated[int, LONG, "in it"]
    bytes: Annotated[int, LONG, "of its entries, one copy"]
    copies: Annotated[int, INT, "on bookies; 0: none any more"]
    bytes_on_bookies: Annotated[int, LONG, "bytes times copies"]
    bytes_cold: Annotated[int, LONG, "of its file in the object store"]
    created: Annotated[int | None, TIME, "when"]
    closed: Annotated[int | None, TIME, "null: it may grow"]


class FlowRow(msgspec.Struct, kw_only=True):
    """Messages published again: dead letters and retries, by origin, in the messages read."""

    topic: TopicName
    kind: Annotated[str, TEXT, "dead-letter, retry, or other (by the topic's name)"]
    origin: Annotated[str, TEXT, "the topic they were sent to first (REAL_TOPIC)"]
    subscription: Annotated[
        str, TEXT, "whose they were, by the topic's name; empty: it does not say"
    ]
    messages: Annotated[int, LONG, "read"]
    bytes: Annotated[int, LONG, "of their values"]
    first: Annotated[int, TIME, "published"]
    last: Annotated[int, TIME, "published"]
    per_hour: Annotated[float | None, REAL, "between those two; null: of one moment"]
    redeliveries_mean: Annotated[float, REAL, "RECONSUMETIMES, on average"]
    redeliveries_max: Annotated[int, LONG, "RECONSUMETIMES, at most"]
    whole: Annotated[bool, FLAG, "whether all of the topic was read"]


class SizeRow(msgspec.Struct, kw_only=True):
    """Sizes of messages' values, uncompressed, in the messages read."""

    topic: TopicName
    below_bytes: Annotated[int, LONG, "they are below this power of two, and not below its half"]
    messages: Annotated[int, LONG, "of that size"]
    bytes: Annotated[int, LONG, "together"]


class RateRow(msgspec.Struct, kw_only=True):
    """Messages by the minute of their publishing, in the messages read; the newest minutes."""

    topic: TopicName
    minute: Annotated[int, TIME, "its beginning"]
    messages: Annotated[int, LONG, "published in it"]
    bytes: Annotated[int, LONG, "of their values"]


class WhatIfRow(msgspec.Struct, kw_only=True):
    """The bytes that the current limits, and those of --what-if, would free now."""

    topic: TopicName
    scenario: Annotated[str, TEXT, "now, or as given"]
    expired: Annotated[
        list[tuple[str, int]], COUNTS, "entries acknowledged by the TTL, by subscription"
    ]
    ledgers: Annotated[int, LONG, "that would go"]
    entries: Annotated[int, LONG, "in them"]
    bytes: Annotated[int, LONG, "one copy"]
    bytes_on_bookies: Annotated[int, LONG, "all copies"]
    bytes_cold: Annotated[int, LONG, "of their files in the object store"]


@dataclass(slots=True)
class Rows:
    """The rows of all tables of a run; the names of the fields are those of the tables."""

    topics: list[TopicRow] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    consumers: list[ConsumerRow] = field(default_factory=list)
    ack_holes: list[AckHoleRow] = field(default_factory=list)
    unread_keys: list[UnreadKeyRow] = field(default_factory=list)
    keys: list[KeyRow] = field(default_factory=list)
    key_skew: list[KeySkewRow] = field(default_factory=list)
    storage: list[StorageRow] = field(default_factory=list)
    flows: list[FlowRow] = field(default_factory=list)
    sizes: list[SizeRow] = field(default_factory=list)
    rates: list[RateRow] = field(default_factory=list)
    what_if: list[WhatIfRow] = field(default_factory=list)


TABLES: Final = tuple(table.name for table in fields(Rows))
ROW_TYPES: Final[Mapping[str, type[msgspec.Struct]]] = {
    name: get_args(rows)[0] for name, rows in get_type_hints(Rows).items()
}


TABLE_NAMES: Final[Mapping[type[msgspec.Struct], str]] = {
    row_type: name for name, row_type in ROW_TYPES.items()
}


def _columns(name: str) -> dict[str, tuple[pa.DataType, str]]:
    """The Arrow type and the meaning of each column."""
    hints = get_type_hints(ROW_TYPES[name], include_extras=True)
    return {column: get_args(hint)[1:] for column, hint in hints.items()}


SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    name: pa.schema([(column, kind) for column, (kind, _) in _columns(name).items()])
    for name in TABLES
}


def described() -> Mapping[str, tuple[str, list[tuple[str, str, str]]]]:
    """The documentation of all tables: their text, and name, type and meaning of each column."""
    return {
        name: (
            ROW_TYPES[name].__doc__ or "",
            [(column, str(kind), meaning) for column, (kind, meaning) in _columns(name).items()],
        )
        for name in TABLES
    }


def arrow_table(name: str, rows: Sequence[msgspec.Struct]) -> pa.Table:
    """The rows as an Arrow table of the table's schema."""
    columns: list[dict[str, Any]] = [msgspec.structs.asdict(row) for row in rows]
    return pa.Table.from_pylist(columns, schema=SCHEMAS[name])


def rows_from(row_type: type[R], table: pa.Table) -> list[R]:
    """The inverse of `arrow_table`, except that times stay `datetime`."""
    return [row_type(**row) for row in table.to_pylist()]
