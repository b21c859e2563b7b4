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

TopicName = Annotated[str, TEXT, "full name; of a partition with -partition-N"]
SubscriptionName = Annotated[str, TEXT, "name of the subscription"]
Parent = Annotated[str, TEXT, "the partitioned topic, or the topic itself"]
Partition = Annotated[int, INT, "number of the partition; -1: not partitioned"]
Namespace = Annotated[str, TEXT, "tenant/namespace"]
Key = Annotated[bytes | None, BINARY, "as the producer gave it; null: messages without a key"]
KeyText = Annotated[str | None, TEXT, "the key as text, for people"]


class TopicRow(msgspec.Struct, kw_only=True):
    """One row for each topic or partition."""

    topic: TopicName
    parent: Parent
    partition: Partition
    namespace: Namespace
    entries: Annotated[int, LONG, "entries in the log"]
    bytes: Annotated[int, LONG, "size of these entries, one copy"]
    bytes_exact: Annotated[bool, FLAG, "false: the newest ledger's bytes are an estimate"]
    bytes_on_bookies: Annotated[
        int, LONG, "size of all copies, including ledgers of cursors and ledgers to delete"
    ]
    bytes_cold: Annotated[int, LONG, "size of the files in the object store"]
    ledgers: Annotated[int, LONG, "ledgers in the topic's list"]
    subscriptions: Annotated[int, LONG, "durable subscriptions"]
    slowest: Annotated[
        str, TEXT, "the subscription that is furthest behind; empty: none has a backlog"
    ]
    end_ledger: Annotated[int, LONG, "ledger of the newest entry"]
    end_entry: Annotated[int, LONG, "id of the newest entry"]
    retention_ms: Annotated[int, LONG, "retention time in force; -1: no limit"]
    retention_bytes: Annotated[int, LONG, "retention size in force; -1: no limit"]
    ttl_s: Annotated[int, LONG, "TTL in force; 0: none"]
    asked: Annotated[bool, FLAG, "whether its broker returned stats"]
    publishers: Annotated[int | None, INT, "connected producers, by the broker; null: no stats"]
    scanned_entries: Annotated[int, LONG, "entries that this run read"]
    scanned_messages: Annotated[int, LONG, "messages in these entries"]
    scanned_bytes: Annotated[int, LONG, "size of these entries"]
    scan_whole: Annotated[
        bool, FLAG, "whether the run read the whole log; false: its newest part, or a sample"
    ]
    sampled: Annotated[bool, FLAG, "true: the run read a sample of the backlog"]
    messages_per_s: Annotated[
        float | None,
        REAL,
        "messages published per second in the last 5 minutes; null: not all were read",
    ]
    appended_per_s: Annotated[
        float | None, REAL, "entries per second since the last run; null: first run"
    ]


class SubscriptionRow(msgspec.Struct, kw_only=True):
    """One row for each durable subscription of a topic or partition."""

    topic: TopicName
    parent: Parent
    partition: Partition
    namespace: Namespace
    subscription: SubscriptionName
    error: Annotated[str, TEXT, "why its state cannot be read; empty: no error"]
    entries: Annotated[int | None, LONG, "unacknowledged entries: the broker's msgBacklog"]
    messages: Annotated[int | None, LONG, "unacknowledged messages; null: none of them were read"]
    messages_exact: Annotated[bool, FLAG, "false: `messages` is estimated from a sample"]
    delayed_messages: Annotated[
        int | None,
        LONG,
        "unacknowledged messages whose delivery time has not come, exact as `messages`; "
        "subscriptions that are not shared get them at once; null: none were read",
    ]
    next_delivery: Annotated[
        int | None, TIME, "the earliest of these delivery times that was read; null: none"
    ]
    bytes: Annotated[
        int | None, LONG, "size of the unacknowledged entries: the broker's backlogSize"
    ]
    bytes_exact: Annotated[bool, FLAG, "false: the newest ledger's bytes are an estimate"]
    bytes_scanned: Annotated[int, LONG, "size of the unacknowledged entries that were read"]
    oldest: Annotated[int | None, TIME, "publish time of the oldest unacknowledged message"]
    age_s: Annotated[float | None, REAL, "age of that message"]
    expires_in_s: Annotated[
        float | None, REAL, "time until that message expires by TTL; null: no TTL, or no backlog"
    ]
    mark_ledger: Annotated[int | None, LONG, "ledger of the mark-delete position"]
    mark_entry: Annotated[int | None, LONG, "entry of the mark-delete position"]
    oldest_ledger: Annotated[int | None, LONG, "ledger of the first unacknowledged entry"]
    oldest_entry: Annotated[int | None, LONG, "id of the first unacknowledged entry"]
    end_ledger: Annotated[int, LONG, "ledger of the topic's newest entry"]
    end_entry: Annotated[int, LONG, "id of the topic's newest entry"]
    acked_beyond: Annotated[
        int | None, LONG, "acknowledged entries after the first unacknowledged one"
    ]
    acked_ranges: Annotated[
        int | None, LONG, "runs that these form: nonContiguousDeletedMessagesRanges"
    ]
    partial_entries: Annotated[int | None, LONG, "batches that are acknowledged in part"]
    acked_in_batches: Annotated[
        int | None, LONG, "acknowledged messages in these batches; null: not all were read"
    ]
    holds_bytes: Annotated[
        int, LONG, "bytes on bookies that are kept because this subscription is furthest behind"
    ]
    trend: Annotated[str, TEXT, "unknown, empty, growing, stalled, steady, draining or reset"]
    since_s: Annotated[float | None, REAL, "time since the last run; null: first run"]
    published_per_s: Annotated[
        float | None, REAL, "entries published per second since the last run"
    ]
    consumed_per_s: Annotated[float | None, REAL, "entries consumed per second since the last run"]
    growth_per_s: Annotated[
        float | None, REAL, "growth of the backlog since the last run, entries per second"
    ]
    drains_in_s: Annotated[
        float | None, REAL, "time until the backlog is empty at this rate; null: unknown, or never"
    ]
    asked: Annotated[bool, FLAG, "whether the topic's broker returned stats"]
    type: Annotated[str, TEXT, "Exclusive, Shared, …; None without consumers; empty: no stats"]
    consumers: Annotated[int | None, INT, "connected consumers; null: no stats"]
    unacked_messages: Annotated[
        int | None, LONG, "messages that are delivered and unacknowledged; null: no stats"
    ]
    held_by: Annotated[str, TEXT, "consumers with unacknowledged messages, the most first"]


class ConsumerRow(msgspec.Struct, kw_only=True):
    """Connected consumers, as brokers reported them."""

    topic: TopicName
    subscription: SubscriptionName
    consumer: Annotated[str, TEXT, "name of the consumer"]
    address: Annotated[str, TEXT, "address of the client"]
    unacked_messages: Annotated[int, LONG, "messages that are delivered to it and unacknowledged"]
    available_permits: Annotated[int, LONG, "messages that it accepts at present"]
    last_acked: Annotated[int | None, TIME, "time of its last acknowledgment; null: never"]


class AckHoleRow(msgspec.Struct, kw_only=True):
    """Runs of unacknowledged entries before acknowledged ones, the oldest of a subscription."""

    topic: TopicName
    subscription: SubscriptionName
    first_ledger: Annotated[int, LONG, "ledger of the first entry of the run"]
    first_entry: Annotated[int, LONG, "id of the first entry of the run"]
    last_ledger: Annotated[int, LONG, "ledger of the last entry of the run"]
    last_entry: Annotated[int, LONG, "id of the last entry of the run"]
    entries: Annotated[int, LONG, "entries in the run"]
    held_by: Annotated[str, TEXT, "consumers that may have these entries; empty: none, or no stats"]


class UnreadKeyRow(msgspec.Struct, kw_only=True):
    """Keys of unacknowledged messages: those with the oldest, and those with the most."""

    topic: TopicName
    subscription: SubscriptionName
    key: Key
    key_text: KeyText
    messages: Annotated[int, LONG, "unacknowledged messages of the key"]
    bytes: Annotated[int, LONG, "size of their values"]
    oldest: Annotated[int | None, TIME, "publish time of the oldest of these messages"]
    ledger_id: Annotated[int, LONG, "ledger of that message"]
    entry_id: Annotated[int, LONG, "entry of that message"]
    rank_oldest: Annotated[int, INT, "1: the key with the oldest message of the subscription"]
    rank_messages: Annotated[int, INT, "1: the key with the most messages of the subscription"]
    held_by: Annotated[
        str, TEXT, "consumers that may have these messages; empty: none, or no stats"
    ]
    sampled: Annotated[bool, FLAG, "true: counted in a sample of the backlog"]


class KeyRow(msgspec.Struct, kw_only=True):
    """The most frequent keys of each topic or partition, in the messages read."""

    topic: TopicName
    key: Key
    key_text: KeyText
    messages: Annotated[int, LONG, "messages of the key"]
    bytes: Annotated[int, LONG, "size of their values"]
    share: Annotated[float, REAL, "share of the messages that have a key"]
    rank: Annotated[int, INT, "1: the key with the most messages"]


class KeySkewRow(msgspec.Struct, kw_only=True):
    """The distribution of keys by topic or partition, in the messages read."""

    topic: TopicName
    parent: Parent
    partition: Partition
    messages: Annotated[int, LONG, "messages read"]
    keyed_messages: Annotated[int, LONG, "messages with a key"]
    keys: Annotated[int, LONG, "distinct keys"]
    top1_share: Annotated[
        float | None, REAL, "share of the most frequent key in the messages with a key"
    ]
    top10_share: Annotated[float | None, REAL, "share of the ten most frequent keys"]
    top100_share: Annotated[float | None, REAL, "share of the hundred most frequent keys"]
    partition_ratio: Annotated[
        float | None, REAL, "entries of the partition, relative to the mean of all partitions"
    ]


class StorageRow(msgspec.Struct, kw_only=True):
    """Bytes by ledger and cause."""

    topic: TopicName
    ledger_id: Annotated[int, LONG, "-1: no ledger of the log (cursors, compacted files)"]
    cause: Annotated[str, TEXT, "see Causes"]
    subscription: Annotated[
        str, TEXT, "the subscription that needs the ledger, if that is the cause"
    ]
    entries: Annotated[int, LONG, "entries in the ledger"]
    bytes: Annotated[int, LONG, "size of these entries, one copy"]
    copies: Annotated[int, INT, "copies on bookies"]
    bytes_on_bookies: Annotated[int, LONG, "size of all copies on bookies"]
    bytes_cold: Annotated[int, LONG, "size of the file in the object store"]
    created: Annotated[int | None, TIME, "creation time"]
    closed: Annotated[int | None, TIME, "time of the close; null: still open"]


class FlowRow(msgspec.Struct, kw_only=True):
    """Messages published again: dead letters and retries, by origin, in the messages read."""

    topic: TopicName
    kind: Annotated[str, TEXT, "dead-letter, retry, or other (by the topic's name)"]
    origin: Annotated[str, TEXT, "the topic of the first publish (REAL_TOPIC)"]
    subscription: Annotated[
        str, TEXT, "the subscription that republished them, by the topic's name; empty: unknown"
    ]
    messages: Annotated[int, LONG, "messages read"]
    bytes: Annotated[int, LONG, "size of their values"]
    first: Annotated[int, TIME, "publish time of the first message"]
    last: Annotated[int, TIME, "publish time of the last message"]
    per_hour: Annotated[
        float | None, REAL, "messages per hour between these times; null: one time only"
    ]
    redeliveries_mean: Annotated[float, REAL, "mean of RECONSUMETIMES"]
    redeliveries_max: Annotated[int, LONG, "maximum of RECONSUMETIMES"]
    whole: Annotated[bool, FLAG, "whether the run read the whole topic"]


class SizeRow(msgspec.Struct, kw_only=True):
    """Sizes of messages' values, uncompressed, in the messages read."""

    topic: TopicName
    below_bytes: Annotated[
        int, LONG, "upper bound of the sizes, a power of two; the lower bound is its half"
    ]
    messages: Annotated[int, LONG, "messages of such a size"]
    bytes: Annotated[int, LONG, "size of their values"]


class RateRow(msgspec.Struct, kw_only=True):
    """Messages by the minute of their publishing, in the messages read; the newest minutes."""

    topic: TopicName
    minute: Annotated[int, TIME, "start of the minute"]
    messages: Annotated[int, LONG, "messages published in this minute"]
    bytes: Annotated[int, LONG, "size of their values"]


class WhatIfRow(msgspec.Struct, kw_only=True):
    """The bytes that the current limits, and those of --what-if, would free now."""

    topic: TopicName
    scenario: Annotated[str, TEXT, "`now`, or the value of --what-if"]
    expired: Annotated[
        list[tuple[str, int]], COUNTS, "entries that the TTL acknowledges, by subscription"
    ]
    ledgers: Annotated[int, LONG, "ledgers that would be deleted"]
    entries: Annotated[int, LONG, "entries in these ledgers"]
    bytes: Annotated[int, LONG, "size of these entries, one copy"]
    bytes_on_bookies: Annotated[int, LONG, "size of all copies on bookies"]
    bytes_cold: Annotated[int, LONG, "size of their files in the object store"]


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
