"""The tables that a run writes: their columns, and what each means. docs/backlog.md has the same.

    {output}/tables/{table}/run={UTC time}/part-0.parquet

One file for each table and run, so that any engine reads a table with the run as its partition, and
the next run finds what it compares with. Rows are bounded: lists by key, by hole and by minute have
the first of each topic or subscription. Times are timestamps in UTC.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

TIME: Final = pa.timestamp("ms", tz="UTC")
LONG: Final = pa.int64()
REAL: Final = pa.float64()
TEXT: Final = pa.string()
FLAG: Final = pa.bool_()

Column = tuple[str, pa.DataType, str]

_TOPIC: Final[Column] = ("topic", TEXT, "full name, a partition's with -partition-N")
_SUBSCRIPTION: Final[Column] = ("subscription", TEXT, "its name")
_KEY: Final[list[Column]] = [
    ("key", pa.binary(), "as the producer gave it; null: messages without a key"),
    ("key_text", TEXT, "the same as text, to read"),
]

_TABLES: Final[dict[str, tuple[str, list[Column]]]] = {
    "topics": (
        "One row for each topic or partition.",
        [
            _TOPIC,
            ("parent", TEXT, "the partitioned topic, or the topic itself"),
            ("partition", pa.int32(), "-1: no partition"),
            ("namespace", TEXT, "tenant/namespace"),
            ("entries", LONG, "kept in the log"),
            ("bytes", LONG, "of those entries, one copy"),
            ("bytes_exact", FLAG, "false: the newest ledger's bytes are an estimate"),
            ("bytes_on_bookies", LONG, "all copies, cursors' ledgers and ledgers to delete too"),
            ("bytes_cold", LONG, "in the object store"),
            ("ledgers", LONG, "in the list"),
            ("subscriptions", LONG, "durable ones"),
            ("slowest", TEXT, "the subscription that is furthest behind; empty: all caught up"),
            ("end_ledger", LONG, "of the newest entry"),
            ("end_entry", LONG, "of the newest entry"),
            ("retention_ms", LONG, "in force; -1: for ever"),
            ("retention_bytes", LONG, "in force; -1: any amount"),
            ("ttl_s", LONG, "in force; 0: none"),
            ("asked", FLAG, "whether its broker was asked for stats and answered"),
            ("publishers", pa.int32(), "connected now, by the broker; null: not asked"),
            ("scanned_entries", LONG, "read by this run"),
            ("scanned_messages", LONG, "in them"),
            ("scanned_bytes", LONG, "their size"),
            ("scan_whole", FLAG, "whether all of the log was read; false: newest, or a sample"),
            ("sampled", FLAG, "true: not all of the backlog was read, so what is read is a sample"),
            ("messages_per_s", REAL, "published, the last 5 minutes; null: not all of them read"),
            ("appended_per_s", REAL, "entries, since the run before; null: first run"),
        ],
    ),
    "subscriptions": (
        "One row for each durable subscription of a topic or partition.",
        [
            _TOPIC,
            ("parent", TEXT, "the partitioned topic, or the topic itself"),
            ("partition", pa.int32(), "-1: no partition"),
            ("namespace", TEXT, "tenant/namespace"),
            _SUBSCRIPTION,
            ("error", TEXT, "why its state cannot be read; empty: it was"),
            ("entries", LONG, "not acknowledged: the broker's msgBacklog"),
            ("messages", LONG, "in them, not acknowledged; null: nothing of it was read"),
            ("messages_exact", FLAG, "false: estimated from a sample"),
            ("bytes", LONG, "of those entries: the broker's backlogSize"),
            ("bytes_exact", FLAG, "false: the newest ledger's bytes are an estimate"),
            ("bytes_scanned", LONG, "exactly, of those that were read"),
            ("oldest", TIME, "when the oldest of them was published"),
            ("age_s", REAL, "since then"),
            ("expires_in_s", REAL, "until the TTL takes it unread; null: no TTL, or no backlog"),
            ("mark_ledger", LONG, "of mark-delete: all before and at it is acknowledged"),
            ("mark_entry", LONG, "of mark-delete"),
            ("oldest_ledger", LONG, "of the first entry that is not acknowledged"),
            ("oldest_entry", LONG, "of the first entry that is not acknowledged"),
            ("end_ledger", LONG, "of the topic's newest entry"),
            ("end_entry", LONG, "of the topic's newest entry"),
            ("acked_beyond", LONG, "entries acknowledged behind the first that is not"),
            ("acked_ranges", LONG, "runs they form: nonContiguousDeletedMessagesRanges"),
            ("partial_entries", LONG, "batches acknowledged in part"),
            ("acked_in_batches", LONG, "messages acknowledged in those; null: not all read"),
            ("holds_bytes", LONG, "on bookies, kept for it because it is furthest behind"),
            ("trend", TEXT, "unknown, empty, growing, stalled, steady, draining or reset"),
            ("since_s", REAL, "since the run before; null: there is none"),
            ("published_per_s", REAL, "entries, since then"),
            ("consumed_per_s", REAL, "entries, since then"),
            ("growth_per_s", REAL, "entries, since then"),
            ("drains_in_s", REAL, "at this rate; null: not known, or never"),
            ("asked", FLAG, "whether its broker was asked and answered"),
            ("type", TEXT, "Exclusive, Shared, …, None without consumers; empty: not asked"),
            ("consumers", pa.int32(), "connected; null: not asked"),
            ("unacked_messages", LONG, "delivered, not acknowledged; null: not asked"),
            ("held_by", TEXT, "consumers that have some of them, the most first"),
        ],
    ),
    "consumers": (
        "Connected consumers, where brokers were asked.",
        [
            _TOPIC,
            _SUBSCRIPTION,
            ("consumer", TEXT, "its name"),
            ("address", TEXT, "where it connects from"),
            ("unacked_messages", LONG, "delivered to it, not acknowledged"),
            ("available_permits", LONG, "it would take so many more"),
            ("last_acked", TIME, "null: never"),
        ],
    ),
    "ack_holes": (
        "Runs of unacknowledged entries before acknowledged ones, the oldest of a subscription.",
        [
            _TOPIC,
            _SUBSCRIPTION,
            ("first_ledger", LONG, "of the run's first entry"),
            ("first_entry", LONG, "of the run's first entry"),
            ("last_ledger", LONG, "of its last"),
            ("last_entry", LONG, "of its last"),
            ("entries", LONG, "in it"),
            ("held_by", TEXT, "consumers that may have it; empty: nobody, or not asked"),
        ],
    ),
    "unread_keys": (
        "Keys of unacknowledged messages: those with the oldest, and those with the most.",
        [
            _TOPIC,
            _SUBSCRIPTION,
            *_KEY,
            ("messages", LONG, "not acknowledged"),
            ("bytes", LONG, "of their values"),
            ("oldest", TIME, "when the first of them was published"),
            ("ledger_id", LONG, "where that is"),
            ("entry_id", LONG, "where that is"),
            ("rank_oldest", pa.int32(), "1: the oldest of the subscription"),
            ("rank_messages", pa.int32(), "1: the most messages of the subscription"),
            ("held_by", TEXT, "consumers that may have them; empty: nobody, or not asked"),
            ("sampled", FLAG, "true: counted in a part of the backlog"),
        ],
    ),
    "keys": (
        "The hottest keys of each topic or partition, of what was read.",
        [
            _TOPIC,
            *_KEY,
            ("messages", LONG, "with it"),
            ("bytes", LONG, "of their values"),
            ("share", REAL, "of the messages that have a key"),
            ("rank", pa.int32(), "1: the hottest"),
        ],
    ),
    "key_skew": (
        "How keys spread, by topic or partition, of what was read.",
        [
            _TOPIC,
            ("parent", TEXT, "the partitioned topic, or the topic itself"),
            ("partition", pa.int32(), "-1: no partition"),
            ("messages", LONG, "read"),
            ("keyed_messages", LONG, "that have a key"),
            ("keys", LONG, "different ones"),
            ("top1_share", REAL, "of the hottest key in the keyed messages"),
            ("top10_share", REAL, "of the ten hottest"),
            ("top100_share", REAL, "of the hundred hottest"),
            ("partition_ratio", REAL, "entries kept, by the mean of its partitions; 1: even"),
        ],
    ),
    "storage": (
        "Bytes by ledger and cause.",
        [
            _TOPIC,
            ("ledger_id", LONG, "-1: none of the log (cursors, compacted)"),
            ("cause", TEXT, "see Causes"),
            ("subscription", TEXT, "who needs it, where that is the cause"),
            ("entries", LONG, "in it"),
            ("bytes", LONG, "of its entries, one copy"),
            ("copies", pa.int32(), "on bookies; 0: none any more"),
            ("bytes_on_bookies", LONG, "bytes times copies"),
            ("bytes_cold", LONG, "of its file in the object store"),
            ("created", TIME, "when"),
            ("closed", TIME, "null: it may grow"),
        ],
    ),
    "flows": (
        "Messages published again: dead letters and retries, of what was read, by origin.",
        [
            _TOPIC,
            ("kind", TEXT, "dead-letter, retry, or other (by the topic's name)"),
            ("origin", TEXT, "the topic they were sent to first (REAL_TOPIC)"),
            ("subscription", TEXT, "whose they were, by the topic's name; empty: it does not say"),
            ("messages", LONG, "read"),
            ("bytes", LONG, "of their values"),
            ("first", TIME, "published"),
            ("last", TIME, "published"),
            ("per_hour", REAL, "between those two; null: of one moment"),
            ("redeliveries_mean", REAL, "RECONSUMETIMES, on average"),
            ("redeliveries_max", LONG, "RECONSUMETIMES, at most"),
            ("whole", FLAG, "whether all of the topic was read"),
        ],
    ),
    "sizes": (
        "Sizes of messages' values, uncompressed, of what was read.",
        [
            _TOPIC,
            ("below_bytes", LONG, "they are below this power of two, and not below its half"),
            ("messages", LONG, "of that size"),
            ("bytes", LONG, "together"),
        ],
    ),
    "rates": (
        "Messages by the minute of their publishing, of what was read; the newest minutes.",
        [
            _TOPIC,
            ("minute", TIME, "its beginning"),
            ("messages", LONG, "published in it"),
            ("bytes", LONG, "of their values"),
        ],
    ),
    "what_if": (
        "What the limits in force, and those of --what-if, would free now.",
        [
            _TOPIC,
            ("scenario", TEXT, "now, or as given"),
            ("expired", pa.map_(TEXT, LONG), "entries acknowledged by the TTL, by subscription"),
            ("ledgers", LONG, "that would go"),
            ("entries", LONG, "in them"),
            ("bytes", LONG, "one copy"),
            ("bytes_on_bookies", LONG, "all copies"),
            ("bytes_cold", LONG, "of their files in the object store"),
        ],
    ),
}

TABLES: Final = tuple(_TABLES)
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    name: pa.schema([(column, kind) for column, kind, _ in columns])
    for name, (_, columns) in _TABLES.items()
}

Rows = dict[str, list[dict[str, Any]]]
"""By table."""


def described() -> Mapping[str, tuple[str, list[tuple[str, str, str]]]]:
    """What docs say of each table, and of each column its type."""
    return {
        name: (text, [(column, str(kind), meaning) for column, kind, meaning in columns])
        for name, (text, columns) in _TABLES.items()
    }


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """The rows in the table's columns; a row has exactly these."""
    schema = SCHEMAS[name]
    for row in rows:
        if row.keys() != set(schema.names):
            different = sorted(row.keys() ^ set(schema.names))
            raise ValueError(f"a row of table {name} has other columns: {', '.join(different)}")
    return pa.Table.from_pylist(rows, schema=schema)
