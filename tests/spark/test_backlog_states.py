"""The job `backlog` on topics that are partly cold, broken, compacted or unavailable."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.spark.backlog_stage import (
    NAME,
    TOPIC,
    Backlogs,
    acked,
    holes,
    messages,
    nothing,
    policies,
)
from tests.spark.job_stage import COPIES, entry
from tests.support.offload_files import move

from magnetar.compaction import records as compaction
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import decode, ledger_key
from magnetar.managed_ledger.record import cursor_key, decode_cursor, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.records import OffloadRecord
from magnetar_spark.jobs.backlog.gather import cursors
from magnetar_spark.jobs.backlog.report.numbers import time_text
from magnetar_spark.jobs.backlog.scan.entry_times import EntryTimes


@pytest.fixture
def backlogs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Backlogs:
    return Backlogs(monkeypatch, tmp_path, capsys)


def moved(backlogs: Backlogs, ledger_id: int, *, release: bool) -> OffloadRecord:
    """Returns the ledger's file."""
    cluster = backlogs.cluster

    async def moving() -> OffloadRecord:
        client = LedgerClient(
            cluster.store, LocalBookies(cluster.bookies.disks), SystemClock(), COPIES
        )
        file = await move(cluster.store, client, NAME, ledger_id, cluster.spec, release=release)
        await client.close()
        return file

    return cluster.run(moving())


def test_a_position_that_its_file_does_not_have_has_no_time(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {})
    file = moved(backlogs, 1, release=True)
    cluster = backlogs.cluster

    async def ask() -> tuple[list[int | None], list[str]]:
        cold = ColdFiles()
        times = EntryTimes(cast("LedgerContext", None), cold, NAME, {}, {1: file, 2: file})
        places = [Position(1, 3), Position(1, 4), Position(2, 0), Position(3, 0)]
        found = [await times.publish_ms(each) for each in places]
        await cold.close()
        return found, times.troubles

    found, troubles = cluster.run(ask())
    assert found == [backlogs.clock.now_ms() - 7_000, None, None, None]
    assert [each.partition(" has no entry ")[2] for each in troubles] == ["1:4", "2:0"]


def test_offloaded_ledgers_count_by_where_their_copies_are(backlogs: Backlogs) -> None:
    policies(backlogs, retention_policies={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    data = messages(backlogs, 14)
    told = backlogs.topic(TOPIC, data, {"none": nothing, "holes": holes})
    cold, warm = moved(backlogs, 1, release=True), moved(backlogs, 2, release=False)
    backlogs.clock.advance(2_000)
    found = backlogs.run("--what-if", "retention=0,ttl=1s")
    rows = {row["ledger_id"]: row for row in backlogs.rows("storage") if row["ledger_id"] > 0}
    size = len(data[0])
    assert {each: row["cause"] for each, row in rows.items()} == {
        1: "cold", 2: "offloaded", 3: "subscription", 4: "open"
    }  # fmt: skip
    assert {each: row["copies"] for each, row in rows.items()} == {1: 0, 2: 2, 3: 2, 4: 2}
    assert {each: row["bytes_on_bookies"] for each, row in rows.items()} == {
        1: 0, 2: 8 * size, 3: 8 * size, 4: 4 * size
    }  # fmt: skip
    assert {each: row["bytes_cold"] for each, row in rows.items()} == {
        1: cold.file_bytes, 2: warm.file_bytes, 3: 0, 4: 0
    }  # fmt: skip
    bytes_cold = cold.file_bytes + warm.file_bytes
    topic = backlogs.row("topics")
    assert (topic["bytes_cold"], topic["bytes"], topic["scan_whole"]) == (
        bytes_cold,
        14 * size,
        True,
    )
    assert found["metrics"]["bytesCold"] == bytes_cold
    for row in backlogs.rows("subscriptions"):
        assert {name: row[name] for name in told[row["subscription"]]} == told[row["subscription"]]
        assert (row["messages"], row["messages_exact"]) == (row["entries"], True)
    none = backlogs.row("subscriptions", subscription="none")
    assert (none["age_s"], none["holds_bytes"]) == (16.0, 8 * size), "read from the file"
    freed = backlogs.row("what_if", scenario="retention=0,ttl=1s")
    assert (freed["ledgers"], freed["entries"]) == (3, 12)
    assert freed["bytes_cold"] == bytes_cold
    assert freed["bytes_on_bookies"] == 16 * size
    assert freed["bytes"] == 12 * size


def test_an_unreadable_file_is_reported_and_figures_of_metadata_stay(
    backlogs: Backlogs,
) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {"none": nothing, "middle": acked(2, 0)})
    file = moved(backlogs, 1, release=True)
    (backlogs.cluster.folder / file.path).unlink()
    found = backlogs.run()
    assert (found["code"], found["state"]) == (3, "partial")
    errors = [each for each in found["details"] if "error" in each]
    assert {each["topic"] for each in errors} == {TOPIC}
    assert len(errors) == 2, "of its oldest entry's time, and of the scan"
    assert all(file.path in each["error"] for each in errors)
    none, middle = (backlogs.row("subscriptions", subscription=each) for each in ("none", "middle"))
    assert (none["entries"], none["oldest"], none["messages_exact"]) == (10, None, False)
    assert none["messages"] == 10, "as many as of those that were read"
    assert (middle["entries"], middle["messages"], middle["messages_exact"]) == (5, 5, True)
    assert "Of 1 topics not all could be read" in (backlogs.output / "report.html").read_text()


def test_ledgers_that_are_to_be_deleted_and_the_artifact_take_space_too(
    backlogs: Backlogs,
) -> None:
    data = messages(backlogs, 14)
    size = len(data[0])
    backlogs.topic(TOPIC, data, {"all": acked(4, 1)})
    file = moved(backlogs, 2, release=True)
    record = backlogs.cluster.record()
    trimmed = msgspec.structs.replace(
        record, ledgers=record.ledgers[2:], deleting=(1, 2, 77), last_position=Position(2, 3)
    )
    backlogs.put(managed_ledger_key(NAME), encode(trimmed))
    files = tuple(
        compaction.CompactedFile(f"{n}", 10 + n, 0, Position(n, 0), Position(n, 5), 5, 5, 50)
        for n in range(2)
    )
    artifact = compaction.CompactionRecord(
        Position(3, 1), record.created_ms, "a" * 32, backlogs.cluster.spec, 5, files
    )
    backlogs.put(compaction.compaction_key(NAME), encode(artifact))
    backlogs.run()
    beside = {
        (row["cause"], row["ledger_id"]): (row["bytes"], row["copies"], row["bytes_cold"])
        for row in backlogs.rows("storage")
        if row["cause"] in ("deleting", "compacted")
    }
    assert beside == {
        ("deleting", 1): (4 * size, 2, 0),
        ("deleting", 2): (0, 0, file.file_bytes),
        ("compacted", -1): (0, 0, 21),
    }
    # Only compaction keeps the entries that are not compacted yet.
    assert [row["cause"] for row in backlogs.rows("storage", ledger_id=3)] == ["compaction"]
    topic = backlogs.row("topics")
    assert topic["bytes_cold"] == file.file_bytes + 21
    (cursors,) = backlogs.rows("storage", cause="cursors")
    assert topic["bytes_on_bookies"] == 2 * 10 * size + cursors["bytes_on_bookies"]


@pytest.mark.parametrize("threshold", [0, 100])
def test_a_topic_that_is_compacted_by_policy_keeps_what_no_artifact_has(
    backlogs: Backlogs, threshold: int
) -> None:
    policies(backlogs, compaction_threshold=threshold)
    backlogs.topic(TOPIC, messages(backlogs, 10), {"all": acked(3, 1)})
    backlogs.run()
    causes = [row["cause"] for row in backlogs.rows("storage") if row["ledger_id"] > 0]
    assert causes == [*(["compaction"] if threshold else ["untrimmed"]) * 2, "open"]
    assert [row["ledgers"] for row in backlogs.rows("what_if")] == [0 if threshold else 2]


def test_a_cursor_that_cannot_be_read_counts_as_needing_everything(
    backlogs: Backlogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "READ_ATTEMPTS", 1)
    data = messages(backlogs, 10)
    backlogs.topic(TOPIC, data, {"broken": acked(2, 0), "all": acked(3, 1)})
    store = backlogs.cluster.store
    stored = backlogs.cluster.run(store.get(cursor_key(NAME, "broken")))
    assert stored is not None
    lost = decode_cursor(stored.key, stored.value).ledger_id
    backlogs.cluster.run(store.delete(ledger_key(lost)))
    found = backlogs.run("--what-if", "ttl=1s,retention=0")
    row = backlogs.row("subscriptions", subscription="broken")
    assert f"ledger {lost}" in row["error"]
    unknown = [
        "entries",
        "messages",
        "bytes",
        "mark_ledger",
        "mark_entry",
        "oldest_ledger",
        "oldest_entry",
    ]
    unknown += ["acked_beyond", "acked_ranges", "partial_entries", "age_s"]
    assert {row[name] for name in unknown} == {None}
    assert (row["trend"], row["messages_exact"]) == ("unknown", False)
    size = len(data[0])
    assert (row["holds_bytes"], backlogs.row("topics")["slowest"]) == (2 * 8 * size, "broken")
    causes = [r["cause"] for r in backlogs.rows("storage") if r["ledger_id"] > 0]
    assert causes == ["subscription", "subscription", "open"]
    # A limit expires known entries, but frees none that a subscription may need.
    freed = backlogs.row("what_if", scenario="ttl=1s,retention=0")
    assert (freed["ledgers"], freed["bytes"], freed["expired"]) == (0, 0, [])
    assert found["metrics"]["unreadable"] == 1
    assert found["metrics"]["backlogMessages"] == 0, "of those that can be read"
    assert found["details"][0]["subscription"] == "broken", "the worst first"
    assert found["metrics"]["findings"] == 1
    assert backlogs.rows("ack_holes") == []
    backlogs.clock.advance(1)
    backlogs.run("--scan-bytes-max", str(5 * size))
    assert backlogs.row("topics")["sampled"] is True, "all of it may be left"


def test_a_cursor_that_moves_to_another_ledger_meanwhile_is_read_there(
    backlogs: Backlogs,
) -> None:
    """The job reads its record before the old ledger is deleted."""
    told = backlogs.topic(TOPIC, messages(backlogs, 10), {"s": acked(2, 0)})
    key = cursor_key(NAME, "s")
    store = backlogs.cluster.store
    stored = backlogs.cluster.run(store.get(key))
    assert stored is not None
    record = decode_cursor(key, stored.value)
    gone = msgspec.structs.replace(record, ledger_id=record.ledger_id + 1_000)
    get, asked = store.get, 0

    async def changed(name: str) -> Any:
        nonlocal asked
        if name == ledger_key(gone.ledger_id):
            asked += 1
            await store.put(key, stored.value)
        return await get(name)

    backlogs.put(key, encode(gone))
    store.get = changed  # type: ignore[method-assign, assignment]
    backlogs.run()
    assert asked == 1
    row = backlogs.row("subscriptions")
    assert {name: row[name] for name in told["s"]} == told["s"]
    assert row["error"] == ""


def test_a_subscription_that_is_deleted_meanwhile_is_left_out(backlogs: Backlogs) -> None:
    """Its ledger is deleted first, so the job reads the record once more."""
    backlogs.topic(TOPIC, messages(backlogs, 10), {"gone": acked(2, 0), "stays": nothing})
    store = backlogs.cluster.store
    key = cursor_key(NAME, "gone")
    stored = backlogs.cluster.run(store.get(key))
    assert stored is not None
    lost = ledger_key(decode_cursor(key, stored.value).ledger_id)
    backlogs.cluster.run(store.delete(lost))
    get = store.get

    async def deleted(name: str) -> Any:
        if name == lost:
            await store.delete(key)
        return await get(name)

    store.get = deleted  # type: ignore[method-assign, assignment]
    found = backlogs.run()
    assert (found["code"], found["metrics"]["unreadable"]) == (0, 0)
    assert [row["subscription"] for row in backlogs.rows("subscriptions")] == ["stays"]


def test_a_subscription_without_acks_stands_where_its_record_says(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {"new": nothing})
    stored = backlogs.cluster.run(backlogs.cluster.store.get(cursor_key(NAME, "new")))
    assert stored is not None
    record = decode_cursor(stored.key, stored.value)
    beyond = msgspec.structs.replace(record, ledger_id=-1, mark_delete=Position(3, 99))
    backlogs.put(stored.key, encode(beyond))
    backlogs.run()
    row = backlogs.row("subscriptions")
    assert (row["entries"], row["mark_ledger"], row["mark_entry"]) == (0, 3, 1), (
        "not beyond the end"
    )
    assert (record.mark_delete, row["oldest"]) == (EARLIEST, None)
    assert backlogs.rows("storage", cause="cursors") == []


def test_an_unreadable_topic_keeps_no_other_from_being_reported(backlogs: Backlogs) -> None:
    other = f"{TOPIC}-other"
    backlogs.topic(TOPIC, messages(backlogs, 3), {"s": nothing})
    backlogs.topic(other, messages(backlogs, 5), {"s": nothing})
    cluster = backlogs.cluster
    (item,) = cluster.record().ledgers
    stored = cluster.run(cluster.store.get(ledger_key(item.ledger_id)))
    assert stored is not None
    metadata = decode(stored.key, stored.value)
    backlogs.put(managed_ledger_key(log_name(parse_topic(f"{TOPIC}-torn"))), b"{")
    found = backlogs.run()
    assert (found["code"], found["metrics"]["failed"]) == (3, 1)
    assert [each["topic"] for each in found["details"] if "error" in each] == [f"{TOPIC}-torn"]
    assert [row["topic"] for row in backlogs.rows("topics")] == [TOPIC, other]
    assert len(metadata.ensembles[-1].bookies) == 3
    cluster.bookies.away = {"b0", "b1", "b2"}
    backlogs.clock.advance(1)
    found = backlogs.run()
    assert found["metrics"]["failed"] == 3
    assert backlogs.rows("topics") == []


def test_a_topic_that_is_deleted_is_no_failure(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 3), {"s": nothing})
    gone = msgspec.structs.replace(backlogs.cluster.record(), deleted=True)
    backlogs.put(managed_ledger_key(NAME), encode(gone))
    found = backlogs.run()
    assert (found["code"], found["metrics"]["topics"]) == (0, 0)


def test_a_range_that_cannot_be_read_to_its_end_is_reported(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {"none": nothing})
    for disk in backlogs.cluster.bookies.disks:
        disk.ledger(2).entries.pop(1, None)
    found = backlogs.run()
    (told,) = (each for each in found["details"] if "error" in each)
    assert (found["code"], told["topic"]) == (3, TOPIC)
    assert backlogs.row("topics")["scanned_entries"] < 10
    row = backlogs.row("subscriptions")
    assert (row["entries"], row["messages"], row["messages_exact"]) == (10, 10, False)
    assert backlogs.row("topics")["messages_per_s"] is None


def test_delayed_messages_are_counted_for_each_subscription(backlogs: Backlogs) -> None:
    later_ms = SystemClock().now_ms() + 3_600_000
    data = [entry(number, deliver_at_time=later_ms + number) for number in range(6)]
    data += [entry(6, deliver_at_time=1), *messages(backlogs, 3, 7)]
    backlogs.topic(TOPIC, data, {"all": nothing, "five": acked(2, 0), "none": acked(3, 1)})
    found = backlogs.run()
    for name, count, first in (("all", 6, 0), ("five", 1, 5), ("none", 0, None)):
        row = backlogs.row("subscriptions", subscription=name)
        next_ms = None if first is None else later_ms + first
        at = row["next_delivery"]
        assert (row["delayed_messages"], row["messages_exact"]) == (count, True)
        assert (None if at is None else round(at.timestamp() * 1000)) == next_ms
        details = [each for each in found["details"] if each.get("subscription") == name]
        assert [each["nextDeliveryMs"] for each in details] == ([] if first is None else [next_ms])
    assert found["metrics"]["delayedMessages"] == 7
    page = (backlogs.output / "report.html").read_text()
    assert "Next delivery" in page
    assert time_text(later_ms) in page
