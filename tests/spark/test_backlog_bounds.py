"""The bounds of the job `backlog`, the policies it applies, and its records in metadata."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.backlog_stage import (
    NAME,
    NAMESPACE,
    TOPIC,
    Backlogs,
    acked,
    message,
    messages,
    nothing,
    policies,
)

from magnetar.offload.policy import topic_policies_key
from magnetar_spark.jobs.backlog.scan import sums


@pytest.fixture
def backlogs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Backlogs:
    return Backlogs(monkeypatch, tmp_path, capsys)


def test_a_bound_of_nothing_reads_nothing_and_starts_no_spark(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 10), {"none": nothing, "all": acked(3, 1)})
    found = backlogs.run("--scan-bytes-max", "0")
    assert (backlogs.cluster.sessions, backlogs.tasks) == (0, [])
    rows = {row["subscription"]: row for row in backlogs.rows("subscriptions")}
    unread = rows["none"]
    assert (unread["entries"], unread["messages"], unread["bytes_scanned"]) == (10, None, 0)
    assert (rows["all"]["messages"], rows["all"]["messages_exact"]) == (0, True)
    topic = backlogs.row("topics")
    assert (topic["scanned_entries"], topic["scanned_bytes"], topic["scan_whole"]) == (0, 0, False)
    assert (topic["sampled"], topic["messages_per_s"]) == (False, None)
    assert not {"backlogMessages", "backlogMessagesExact"} & set(found["metrics"])


def test_topics_without_entries_start_no_spark(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, [], {"silent": nothing})
    backlogs.run()
    assert backlogs.cluster.sessions == 0
    row = backlogs.row("subscriptions")
    assert (row["entries"], row["messages"], row["oldest"]) == (0, 0, None)


def test_what_is_left_unread_is_read_before_the_rest(backlogs: Backlogs) -> None:
    data = messages(backlogs, 12)
    size = len(data[0])
    backlogs.topic(TOPIC, data, {"middle": acked(2, 1)})
    for entries, read in ((6, [(2, 2, 3), (3, 0, 3)]), (8, [(2, 0, 1), (2, 2, 3), (3, 0, 3)])):
        backlogs.run("--scan-bytes-max", str(entries * size))
        ranges = [each.ranged for task in backlogs.tasks for each in task]
        assert [(each.ledger_id, each.first, each.last) for each in ranges] == read
        topic, row = backlogs.row("topics"), backlogs.row("subscriptions")
        assert (topic["scanned_entries"], topic["sampled"]) == (entries, False)
        assert (row["messages"], row["messages_exact"]) == (6, True)
        assert topic["scan_whole"] is False
        backlogs.clock.advance(1_000)


@pytest.mark.parametrize(("mark", "left", "read"), [((1, 1), 10, 5), ((3, 0), 3, 2)])
def test_of_more_than_the_bound_a_sample_is_read_and_said_so(
    backlogs: Backlogs, mark: tuple[int, int], left: int, read: int
) -> None:
    data = messages(backlogs, 12)
    size = len(data[0])
    backlogs.topic(TOPIC, data, {"middle": acked(*mark)})
    found = backlogs.run("--scan-bytes-max", str(read * size))
    topic, row = backlogs.row("topics"), backlogs.row("subscriptions")
    assert (topic["scanned_entries"], topic["sampled"]) == (read, True)
    assert topic["messages_per_s"] is None
    assert (row["entries"], row["messages"], row["messages_exact"]) == (left, left, False)
    assert (row["acked_in_batches"], row["bytes_scanned"]) == (None, read * size)
    assert {each["sampled"] for each in backlogs.rows("unread_keys")} == {True}
    assert found["metrics"]["backlogMessagesExact"] == 0


def test_minutes_of_many_topics_are_fewer_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.spark.test_backlog_sums import ranged

    one = ranged(1)
    assert sums.minutes_max([(one,)]) == sums.MINUTES_MAX
    monkeypatch.setattr(sums, "MINUTE_ROWS_MAX", sums.MINUTES_MAX)
    assert sums.minutes_max([(one, one), (one,)]) == sums.MINUTES_MAX
    monkeypatch.setattr(sums, "MINUTE_ROWS_MAX", 0)
    assert sums.minutes_max([(one,)]) == 1


def test_what_other_limits_would_free(backlogs: Backlogs) -> None:
    now_ms = backlogs.clock.now_ms()
    data = [message(n, now_ms + 1_000 * n) for n in range(10)]
    size = len(data[0])
    keeps = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    policies(backlogs, retention_policies=keeps)
    backlogs.topic(TOPIC, data, {"middle": acked(2, 0), "none": nothing}, every_ms=1_000)
    backlogs.clock.advance(10_000)
    wanted = ["retention=0", "ttl=14s,retention=0", "ttl=15s", "ttl=1s,retention=0", "ttl=20s"]
    found = backlogs.run(*(f"--what-if={each}" for each in wanted))
    rows = {row["scenario"]: row for row in backlogs.rows("what_if")}
    assert list(rows) == ["now", *wanted]
    expired = {name: dict(row["expired"]) for name, row in rows.items()}
    assert expired == {
        "now": {},
        "retention=0": {},
        "ttl=14s,retention=0": {"middle": 1, "none": 6},
        "ttl=15s": {"none": 5},
        "ttl=1s,retention=0": {"middle": 5, "none": 10},
        "ttl=20s": {},
    }
    columns = ("ledgers", "entries", "bytes", "bytes_on_bookies", "bytes_cold")
    assert {name: [row[each] for each in columns] for name, row in rows.items()} == {
        "now": [0, 0, 0, 0, 0],
        "retention=0": [0, 0, 0, 0, 0],
        "ttl=14s,retention=0": [1, 4, 4 * size, 8 * size, 0],
        "ttl=15s": [0, 0, 0, 0, 0],
        "ttl=1s,retention=0": [2, 8, 8 * size, 16 * size, 0],
        "ttl=20s": [0, 0, 0, 0, 0],
    }
    assert found["metrics"]["bytesFreeable"] == 0


def test_what_nothing_keeps_is_free_now(backlogs: Backlogs) -> None:
    data = messages(backlogs, 10)
    backlogs.topic(TOPIC, data, {"middle": acked(2, 0)})
    found = backlogs.run()
    assert found["metrics"]["bytesFreeable"] == 8 * len(data[0])


@pytest.mark.parametrize(
    ("arguments", "retention_ms", "retention_bytes", "ttl_s"),
    [
        ((), 0, 0, 0),
        (("--default-retention", "1d/10M"), 86_400_000, 10 << 20, 0),
        (("--default-ttl", "90s"), 0, 0, 90),
        (("--default-ttl", "-1"), 0, 0, 0),
    ],
)
def test_what_holds_where_nothing_is_set(
    backlogs: Backlogs,
    arguments: tuple[str, ...],
    retention_ms: int,
    retention_bytes: int,
    ttl_s: int,
) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 1), {})
    backlogs.run(*arguments)
    row = backlogs.row("topics")
    assert (row["retention_ms"], row["retention_bytes"]) == (retention_ms, retention_bytes)
    assert row["ttl_s"] == ttl_s
    assert ("No broker was asked" in (backlogs.output / "report.html").read_text()) is not bool(
        arguments
    )
    own = {"local": {"message_ttl": 7}}
    backlogs.put(topic_policies_key(NAME), json.dumps(own).encode())
    backlogs.clock.advance(1)
    backlogs.run(*arguments)
    assert backlogs.row("topics")["ttl_s"] == 7


def trace(backlogs: Backlogs) -> Any:
    """Returns everything in metadata and on bookies, and which ledgers are fenced."""
    cluster = backlogs.cluster
    return cluster.run(cluster.store.list("/")), copy.deepcopy(
        [disk._ledgers for disk in cluster.bookies.disks]
    )


def test_a_run_leaves_no_trace_on_topics(backlogs: Backlogs) -> None:
    """Their brokers continue to write to the same ledgers, which are not fenced."""
    backlogs.topic(TOPIC, messages(backlogs, 10), {"none": nothing, "middle": acked(2, 0)})
    before = trace(backlogs)
    backlogs.run("--no-publish", "--what-if", "ttl=1s,retention=0")
    assert trace(backlogs) == before


def test_a_namespaces_summary_is_left_in_metadata(backlogs: Backlogs) -> None:
    other = "persistent://public/other/t"
    backlogs.topic(TOPIC, messages(backlogs, 8), {"none": nothing, "all": acked(2, 3)})
    backlogs.topic(other, messages(backlogs, 2), {"none": nothing})
    store = backlogs.cluster.store
    for arguments in (("--no-publish",), ("--topic", TOPIC)):
        backlogs.run(*arguments)
        assert backlogs.cluster.keys("/analytics/") == []
        backlogs.clock.advance(1_000)
    backlogs.run("--namespace", "public/other")
    assert backlogs.cluster.keys("/analytics/") == [
        "/analytics/backlog/public/default",
        "/analytics/backlog/public/other",
    ]
    stored = backlogs.cluster.run(store.get("/analytics/backlog/public/default"))
    assert stored is not None
    found = json.loads(stored.value)
    expected = {
        "atMs": backlogs.clock.now_ms(),
        "topics": 1,
        "subscriptions": 2,
        "behind": 1,
        "backlogEntries": 8,
        "backlogMessages": 8,
        "oldestAgeSeconds": 10.0,
        "stalled": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert [each["subscription"] for each in found["worst"]] == ["none"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--what-if", "forget=all"), "write ttl=TIME or retention=TIME/SIZE"),
        (("--scan-bytes-max", "-1"), "--scan-bytes-max must be 0 or more, --top 1 or more"),
        (("--top", "0"), "--scan-bytes-max must be 0 or more, --top 1 or more"),
        (("--default-ttl", "long"), "time 'long'"),
        (("--default-retention", "1y"), "retention '1y'"),
        (("--output", "ftp://x/y"), "--output ftp://x/y"),
    ],
)
def test_flags_that_are_not_understood_end_it(
    backlogs: Backlogs,
    arguments: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        backlogs.cluster.job("backlog", "--namespace", NAMESPACE, *arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_smallest_of_each_flag_will_do(backlogs: Backlogs) -> None:
    backlogs.topic(TOPIC, messages(backlogs, 1), {})
    assert backlogs.run("--scan-bytes-max", "0", "--top", "1")["code"] == 0
    assert backlogs.cluster.job("backlog", "--namespace", NAMESPACE)["code"] == 0, "no output"
