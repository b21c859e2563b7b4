"""Runs of the job `backlog` from metadata to its tables, on a cluster in memory."""

from pathlib import Path

import pytest
from tests.spark.backlog_stage import (
    MINUTE_MS,
    NAME,
    NAMESPACE,
    SIZE,
    TOPIC,
    Backlogs,
    acked,
    holes,
    message,
    messages,
    nothing,
    policies,
)
from tests.spark.job_stage import COPIES, batch, entry

from magnetar.core.names import parse_topic
from magnetar.managed_ledger.record import cursor_key, decode_cursor
from magnetar_spark.jobs.backlog.report.numbers import time_text
from magnetar_spark.jobs.backlog.tables.tables import TABLES


@pytest.fixture
def backlogs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Backlogs:
    return Backlogs(monkeypatch, tmp_path, capsys)


def test_every_count_is_the_brokers_own(backlogs: Backlogs) -> None:
    data = messages(backlogs, 10)
    told = backlogs.topic(
        TOPIC, data, {"all": acked(3, 1), "holes": holes, "middle": acked(2, 0), "none": nothing}
    )
    found = backlogs.run()
    assert (found["code"], found["state"]) == (0, "succeeded")
    rows = {row["subscription"]: row for row in backlogs.rows("subscriptions")}
    assert list(rows) == ["all", "holes", "middle", "none"]
    size = len(data[0])
    for name, row in rows.items():
        assert {column: row[column] for column in told[name]} == told[name], name
        assert row["messages"] == row["entries"]
        assert row["bytes_scanned"] == row["entries"] * size
        first = None if row["oldest_ledger"] is None else told[name]
        number = None if first is None else 4 * (first["oldest_ledger"] - 1) + first["oldest_entry"]
        age_s = None if number is None else 10.0 - number
        assert row["age_s"] == age_s
        assert row["oldest"] == (None if age_s is None else backlogs.time(-int(age_s * 1000)))
        assert row["expires_in_s"] is None, "there is no TTL"
    same = {
        "topic": TOPIC,
        "parent": TOPIC,
        "partition": -1,
        "namespace": NAMESPACE,
        "error": "",
        "messages_exact": True,
        "bytes_exact": True,
        "acked_in_batches": 0,
        "end_ledger": 3,
        "end_entry": 1,
        "trend": "unknown",
        "since_s": None,
        "published_per_s": None,
        "consumed_per_s": None,
        "growth_per_s": None,
        "drains_in_s": None,
        "asked": False,
        "type": "",
        "consumers": None,
        "unacked_messages": None,
        "held_by": "",
    }
    for row in rows.values():
        assert {column: row[column] for column in same} == same
    assert [rows[name]["entries"] for name in rows] == [0, 5, 5, 10]
    assert rows["holes"]["acked_ranges"] == 3
    backlog = sum(row["entries"] for row in rows.values())
    assert found["metrics"] == {
        "topics": 1,
        "subscriptions": 4,
        "backlogEntries": backlog,
        "backlogBytes": sum(row["bytes"] for row in rows.values()),
        "oldestAgeSeconds": 10.0,
        "growing": 0,
        "stalled": 0,
        "unreadable": 0,
        "bytesOnBookies": sum(row["bytes_on_bookies"] for row in backlogs.rows("storage")),
        "bytesCold": 0,
        "bytesFreeable": 0,
        "deadLetters": 0,
        "scannedBytes": 10 * size,
        "findings": 0,
        "delayedMessages": 0,
        "backlogMessages": backlog,
        "backlogMessagesExact": 1,
    }
    assert [each["subscription"] for each in found["details"]] == ["none", "holes", "middle"]


def test_the_figures_of_a_whole_topic(backlogs: Backlogs) -> None:
    policies(
        backlogs,
        message_ttl_in_seconds=60,
        retention_policies={"retentionTimeInMinutes": 3, "retentionSizeInMB": 5},
    )
    data = messages(backlogs, 10)
    backlogs.topic(TOPIC, data, {"middle": acked(2, 0), "none": nothing})
    backlogs.run()
    size = len(data[0])
    (cursors,) = backlogs.rows("storage", cause="cursors")
    assert backlogs.row("topics") == {
        "topic": TOPIC,
        "parent": TOPIC,
        "partition": -1,
        "namespace": NAMESPACE,
        "entries": 10,
        "bytes": 10 * size,
        "bytes_exact": True,
        "bytes_on_bookies": 20 * size + cursors["bytes_on_bookies"],
        "bytes_cold": 0,
        "ledgers": 3,
        "subscriptions": 2,
        "slowest": "none",
        "end_ledger": 3,
        "end_entry": 1,
        "retention_ms": 3 * MINUTE_MS,
        "retention_bytes": 5 << 20,
        "ttl_s": 60,
        "asked": False,
        "publishers": None,
        "scanned_entries": 10,
        "scanned_messages": 10,
        "scanned_bytes": 10 * size,
        "scan_whole": True,
        "sampled": False,
        "messages_per_s": 10 / 300 if backlogs.clock.now_ms() % MINUTE_MS == 0 else 0.0,
        "appended_per_s": None,
    }
    left = {row["subscription"]: row["expires_in_s"] for row in backlogs.rows("subscriptions")}
    assert left == {"middle": 60.0 - 5, "none": 60.0 - 10}


def test_what_each_ledger_is_kept_for(backlogs: Backlogs) -> None:
    data = messages(backlogs, 10)
    backlogs.topic(TOPIC, data, {"middle": acked(2, 0), "later": acked(2, 1)})
    backlogs.run()
    size, now = len(data[0]), backlogs.time()
    assert backlogs.row("topics")["slowest"] == "middle"
    rows = {row["ledger_id"]: row for row in backlogs.rows("storage") if row["ledger_id"] > 0}
    causes = {each: (row["cause"], row["subscription"]) for each, row in rows.items()}
    assert causes == {1: ("untrimmed", ""), 2: ("subscription", "middle"), 3: ("open", "")}
    for ledger_id, entries in ((1, 4), (2, 4), (3, 2)):
        row = rows[ledger_id]
        assert (row["entries"], row["bytes"]) == (entries, entries * size)
        assert (row["copies"], row["bytes_on_bookies"]) == (2, 2 * entries * size)
        assert (row["created"], row["closed"]) == (now, None if ledger_id == 3 else now)
        assert (row["topic"], row["bytes_cold"]) == (TOPIC, 0)
    held = {row["subscription"]: row["holds_bytes"] for row in backlogs.rows("subscriptions")}
    assert held == {"later": 0, "middle": 2 * 4 * size}
    (cursors,) = backlogs.rows("storage", cause="cursors")
    ends = 0
    for name in ("middle", "later"):
        stored = backlogs.cluster.run(backlogs.cluster.store.get(cursor_key(NAME, name)))
        assert stored is not None
        ledger_id = decode_cursor(stored.key, stored.value).ledger_id
        copies = [disk.ledger(ledger_id).entries for disk in backlogs.cluster.bookies.disks]
        ends += sum(len(each) for copy in copies for each in copy.values()) // COPIES.write_quorum
    assert (cursors["bytes"], cursors["copies"], cursors["ledger_id"]) == (ends, 2, -1)
    assert (cursors["entries"], cursors["created"], cursors["closed"]) == (0, None, None)


def test_holes_lie_between_what_is_acknowledged(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {"holes": holes, "none": nothing})
    backlogs.run()
    assert backlogs.rows("ack_holes") == [
        {
            "topic": TOPIC,
            "subscription": "holes",
            "first_ledger": first[0],
            "first_entry": first[1],
            "last_ledger": last[0],
            "last_entry": last[1],
            "entries": count,
            "held_by": "",
        }
        for first, last, count in (((1, 1), (1, 1), 1), ((1, 3), (2, 0), 2), ((2, 3), (2, 3), 1))
    ]


def test_keys_of_all_messages_and_of_those_that_are_left(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {"middle": acked(2, 0)})
    backlogs.run()
    assert [(row["key_text"], row["messages"], row["bytes"], row["share"], row["rank"])
            for row in backlogs.rows("keys")] == [
        ("k0", 4, 4 * SIZE, 0.4, 1), ("k1", 3, 3 * SIZE, 0.3, 2), ("k2", 3, 3 * SIZE, 0.3, 3),
    ]  # fmt: skip
    columns = ("key", "messages", "rank_oldest", "rank_messages", "ledger_id", "entry_id", "oldest")
    assert [tuple(row[name] for name in columns) for row in backlogs.rows("unread_keys")] == [
        (b"k2", 2, 1, 2, 2, 1, backlogs.time(-5000)),
        (b"k0", 2, 2, 1, 2, 2, backlogs.time(-4000)),
        (b"k1", 1, 3, 3, 2, 3, backlogs.time(-3000)),
    ]
    assert [row["bytes"] for row in backlogs.rows("unread_keys")] == [2 * SIZE, 2 * SIZE, SIZE]
    assert {row["sampled"] for row in backlogs.rows("unread_keys")} == {False}
    assert backlogs.row("key_skew") == {
        "topic": TOPIC,
        "parent": TOPIC,
        "partition": -1,
        "messages": 10,
        "keyed_messages": 10,
        "keys": 3,
        "top1_share": 0.4,
        "top10_share": 1.0,
        "top100_share": 1.0,
        "partition_ratio": None,
    }
    (sizes,) = backlogs.rows("sizes")
    assert sizes == {"topic": TOPIC, "below_bytes": 256, "messages": 10, "bytes": 10 * SIZE}


def test_of_batches_the_messages_count_that_are_left(backlogs: Backlogs) -> None:
    data = [batch(n, ["a", "b", "b", "c"]) for n in range(3)]
    told = backlogs.topic(TOPIC, data, {"parts": lambda cursor: cursor.ack_batch(1, 1, 0b0110, 4)})
    found = backlogs.run()
    row = backlogs.row("subscriptions")
    assert (row["entries"], row["partial_entries"]) == (3, 1)
    assert told["parts"]["partial_entries"] == 1
    assert (row["messages"], row["messages_exact"], row["acked_in_batches"]) == (10, True, 2)
    assert found["metrics"]["backlogMessages"] == 10
    left = {each["key_text"]: each["messages"] for each in backlogs.rows("unread_keys")}
    assert left == {"b": 6, "a": 2, "c": 2}


def test_the_newest_minutes_make_the_rate(backlogs: Backlogs) -> None:
    minute = backlogs.clock.now_ms() // MINUTE_MS * MINUTE_MS
    backlogs.clock.time_ms = minute + 30_000
    times = [minute + 5, minute, minute - 1, minute - 5 * MINUTE_MS, minute - 5 * MINUTE_MS - 1]
    backlogs.topic(TOPIC, [message(n, at) for n, at in enumerate(times)], {})
    backlogs.run()
    assert backlogs.row("topics")["messages_per_s"] == 2 / 300, "of five whole minutes"
    rates = [(row["minute"], row["messages"], row["bytes"]) for row in backlogs.rows("rates")]
    assert rates == [
        (backlogs.time(at * MINUTE_MS - 30_000), count, count * SIZE)
        for at, count in ((0, 2), (-1, 1), (-5, 1), (-6, 1))
    ]


def test_partitions_are_compared_with_their_mean(backlogs: Backlogs) -> None:
    topic = parse_topic(TOPIC)
    for index, count in ((0, 2), (1, 6)):
        backlogs.topic(str(topic.partition(index)), messages(backlogs, count), {})
    backlogs.run()
    rows = backlogs.rows("key_skew")
    assert [(row["parent"], row["partition"]) for row in rows] == [(TOPIC, 0), (TOPIC, 1)]
    assert [row["partition_ratio"] for row in rows] == [0.5, 1.5]
    assert [row["partition"] for row in backlogs.rows("topics")] == [0, 1]


def test_dead_letters_are_counted_by_their_origin(backlogs: Backlogs) -> None:
    properties = [
        [{"key": "REAL_TOPIC", "value": TOPIC}, {"key": "RECONSUMETIMES", "value": str(times)}]
        for times in (3, 5)
    ]
    now_ms = backlogs.clock.now_ms()
    data = [
        entry(n, value=b"poison", time_ms=now_ms + n * 1_800_000, properties=each)
        for n, each in enumerate(properties)
    ]
    backlogs.topic(f"{TOPIC}-billing-DLQ", data, {})
    found = backlogs.run()
    assert backlogs.row("flows") == {
        "topic": f"{TOPIC}-billing-DLQ",
        "kind": "dead-letter",
        "origin": TOPIC,
        "subscription": "billing",
        "messages": 2,
        "bytes": 12,
        "first": backlogs.time(),
        "last": backlogs.time(1_800_000),
        "per_hour": 4.0,
        "redeliveries_mean": 4.0,
        "redeliveries_max": 5,
        "whole": True,
    }
    assert found["metrics"]["deadLetters"] == 2


def test_the_next_run_tells_how_backlogs_moved(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 8), {"drains": nothing, "stalls": nothing})
    first = backlogs.run()
    backlogs.clock.advance(10_000)
    told = backlogs.topic(
        TOPIC,
        messages(backlogs, 2),
        {"drains": acked(2, 1), "stalls": nothing, "new": nothing},
    )
    found = backlogs.run()
    rows = {row["subscription"]: row for row in backlogs.rows("subscriptions")}
    columns = ("trend", "since_s", "published_per_s", "consumed_per_s", "growth_per_s")
    assert {name: [row[column] for column in columns] for name, row in rows.items()} == {
        "drains": ["draining", 10.0, 0.2, 0.6, -0.4],
        "new": ["unknown", None, None, None, None],
        "stalls": ["stalled", 10.0, 0.2, 0.0, 0.2],
    }
    assert [rows[name]["drains_in_s"] for name in rows] == [10.0, None, None]
    assert {name: row["entries"] for name, row in rows.items()} == {
        name: each["entries"] for name, each in told.items()
    }
    assert backlogs.row("topics")["appended_per_s"] == 0.2
    assert (first["metrics"]["stalled"], found["metrics"]["stalled"]) == (0, 1)
    (stalled,) = (each for each in found["details"] if each["trend"] == "stalled")
    assert stalled == {
        "topic": TOPIC,
        "subscription": "stalls",
        "entries": 10,
        "bytes": told["stalls"]["bytes"],
        "delayedMessages": 0,
        "nextDeliveryMs": None,
        "ageSeconds": 18.0,
        "trend": "stalled",
        "growthPerSecond": 0.2,
        "drainsInSeconds": None,
    }
    for table in TABLES:
        assert len(list((backlogs.output / "tables" / table).iterdir())) == 2, table
    page, metrics = (backlogs.output / each for each in ("report.html", "metrics.prom"))
    assert "stalls" in page.read_text()
    at, before = (time_text(backlogs.clock.now_ms() - ago_ms) for ago_ms in (0, 10_000))
    assert f"As of {at}. Compared with the run of {before}." in page.read_text()
    labels = f'{{namespace="{NAMESPACE}",topic="{TOPIC}",subscription="stalls"}}'
    assert f"magnetar_backlog_entries{labels} 10" in metrics.read_text().splitlines()


def test_a_run_is_whole_once_its_table_of_subscriptions_is_there(backlogs: Backlogs) -> None:
    """The next run compares with the newest run that has this table."""
    backlogs.topic(TOPIC, messages(backlogs, 2), {"s": nothing})
    backlogs.run()
    (whole,) = (backlogs.output / "tables" / "subscriptions").iterdir()
    at_ns = {
        name: next((backlogs.output / "tables" / name).rglob("*.parquet")).stat().st_mtime_ns
        for name in TABLES
    }
    assert max(at_ns, key=lambda name: at_ns[name]) == "subscriptions"
    assert at_ns["subscriptions"] <= (backlogs.output / "report.html").stat().st_mtime_ns
    backlogs.clock.advance(10_000)
    (whole / "part-0.parquet").unlink()
    whole.rmdir()
    backlogs.run()
    assert backlogs.row("subscriptions")["trend"] == "unknown"
