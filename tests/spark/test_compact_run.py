"""Runs of the job `compact`, from the due topics to the artifact, on a cluster in memory."""

from pathlib import Path

import msgspec
import pytest
from tests.spark.compact_stage import (
    KEYS,
    NAME,
    artifact,
    by_spark,
    compact,
    counts,
    keyed,
    readable,
    record,
)
from tests.spark.job_stage import CLUSTER_ID, NEWEST, TOPIC, JobCluster, entry
from tests.support.compaction import compacted, messages

from magnetar.compaction import records
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.compaction import chunks, plan
from magnetar.jobs.log.topics import log_name
from magnetar.metadata.records import encode
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import open_object_store
from magnetar_spark.jobs.compact import job


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    monkeypatch.setattr(job, "compact_by_spark", by_spark)
    return JobCluster(monkeypatch, tmp_path / "cold", capsys)


@pytest.mark.parametrize("spark", [False, True])
def test_the_latest_value_of_each_key_becomes_the_artifact(
    cluster: JobCluster, spark: bool
) -> None:
    cluster.write(TOPIC, keyed(0, 18))
    found = compact(cluster, *(["--always-spark"] if spark else []))
    assert (found["code"], found["state"], cluster.sessions) == (0, "succeeded", int(spark))
    newest = cluster.record().ledgers[-1].ledger_id
    assert not any(disk.ledger(newest).fenced for disk in cluster.bookies.disks)
    log, made = readable(cluster), record(cluster)
    kept = compacted(log)
    assert messages(artifact(cluster)) == kept
    assert made is not None
    assert made.horizon == log[-1].position
    assert (made.store, made.log_created_ms) == (cluster.spec, cluster.record().created_ms)
    assert found["startedMs"] <= made.compacted_ms <= found["finishedMs"]
    assert 0 <= made.duration_ms <= found["finishedMs"] - found["startedMs"]
    assert made.messages_removed == len(log) - len(kept)
    assert (made.marked, made.marked_ms) == (made.horizon, made.compacted_ms)
    sizes = {each.path: (cluster.folder / each.path).stat().st_size for each in made.files}
    assert set(sizes) == cluster.files()
    assert {each.path: each.file_bytes for each in made.files} == sizes
    assert found["metrics"] == {
        "topicsCompacted": 1,
        "topicsUpToDate": 0,
        "messagesRead": len(log),
        "messagesKept": len(kept),
        "leftoversDeleted": 0,
        "entriesRead": len(log),
        "bytesRead": sum(len(each.data) for each in log),
        "entriesKept": len(kept),
        "bytesWritten": sum(sizes.values()),
        "files": len(made.files),
    }
    assert found["details"] == [
        {
            "topic": TOPIC,
            "horizon": str(made.horizon),
            "read": len(log),
            "kept": len(kept),
            "files": len(made.files),
        }
    ]
    for each in made.files:
        assert each.path.startswith(f"{records.attempt_folder(NAME, made.attempt)}/")
        opened = cluster.run(EntryFile.open(open_object_store(cluster.spec), each.path))
        assert opened.properties["cluster"] == CLUSTER_ID
        assert opened.properties["horizon"] == str(made.horizon)
        content = cluster.content(each.path)
        assert (each.first, each.last) == tuple(Position(*content[n][:2]) for n in (0, -1))
        assert (each.entries, each.messages) == (len(content), len(content))
        assert each.length_bytes == sum(len(data) for _, _, data in content)
    assert cluster.keys(records.ATTEMPTS_PREFIX) == cluster.keys(records.JOBS_PREFIX) == []


def test_a_later_run_reads_the_artifact_and_what_came_behind_its_horizon(
    cluster: JobCluster,
) -> None:
    cluster.write(TOPIC, keyed(0, 18))
    compact(cluster)
    first = record(cluster)
    assert first is not None
    again = compact(cluster)
    assert (again["code"], counts(again, "topicsUpToDate", "topicsCompacted")) == (0, [1, 0])
    assert record(cluster) == first
    cluster.write(TOPIC, keyed(18, 7))
    found, second = compact(cluster), record(cluster)
    assert second is not None
    assert messages(artifact(cluster)) == compacted(
        [each for each in cluster.log() if each.data != NEWEST or each.position < second.horizon]
    )
    behind = [e for e in cluster.log() if first.horizon < e.position <= second.horizon]
    assert counts(found, "entriesRead") == [first.entries + len(behind)]
    assert [(each.store, each.path) for each in second.retired] == [
        (cluster.spec, each.path) for each in first.files
    ]
    assert cluster.files() == {each.path for each in (*first.files, *second.files)}
    # Replaced files stay for readers, and are deleted later.
    old = msgspec.structs.replace(
        second,
        retired=tuple(
            msgspec.structs.replace(each, retired_ms=each.retired_ms - records.RETIRED_GRACE_MS)
            for each in second.retired
        ),
    )
    cluster.run(cluster.store.put(records.compaction_key(NAME), encode(old)))
    cleaned = compact(cluster)
    assert counts(cleaned, "leftoversDeleted", "topicsUpToDate") == [len(first.files), 1]
    assert cluster.files() == {each.path for each in second.files}


def test_where_all_keys_are_removed_the_artifact_is_empty(cluster: JobCluster) -> None:
    cluster.write(
        TOPIC, [entry(n, key=f"k{n % 2}", value=b"" if n > 2 else b"x") for n in range(5)]
    )
    found, made = compact(cluster), record(cluster)
    assert made is not None
    assert (counts(found, "messagesKept", "files"), made.files) == ([0, 0], ())
    assert cluster.files() == set()
    cluster.write(TOPIC, keyed(0, 5))
    compact(cluster)
    assert [each[2] for each in messages(artifact(cluster))] == ["k0", "k1", "k2", "k4"]


def chunk(message: str, key: str, number: int, of: int) -> bytes:
    return entry(
        number,
        key=key,
        value=f"{message} {number}".encode(),
        uuid=message,
        num_chunks_from_msg=of,
        chunk_id=number,
        total_chunk_msg_size=9 * of,
    )


@pytest.mark.parametrize("spark", [False, True])
def test_a_chunked_message_stays_whole_or_not_at_all(cluster: JobCluster, spark: bool) -> None:
    old = [chunk("old", "k", n, 3) for n in range(3)]
    new = [chunk("new", "k", n, 2) for n in range(2)]
    unfinished = chunk("open", "other", 0, 2)
    cluster.write(TOPIC, [*old, new[0], unfinished, new[1]])
    found = compact(cluster, *(["--always-spark"] if spark else []))
    assert found["state"] == "succeeded"
    assert [each.data for each in artifact(cluster)] == [new[0], unfinished, new[1]]
    assert counts(found, "messagesRead", "messagesKept", "entriesKept") == [2, 1, 3]
    # A week after the first run, messages that were never completed are dropped.
    made = record(cluster)
    assert made is not None
    marked = msgspec.structs.replace(made, marked_ms=made.marked_ms - chunks.OPEN_MS_MAX)
    cluster.run(cluster.store.put(records.compaction_key(NAME), encode(marked)))
    cluster.write(TOPIC, keyed(0, 1))
    compact(cluster, *(["--always-spark"] if spark else []))
    assert [each.data for each in artifact(cluster)] == [*new, *keyed(0, 1)]


def test_what_is_large_is_sparks(cluster: JobCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.write(TOPIC, keyed(0, KEYS))
    size = sum(len(each.data) for each in readable(cluster))
    for bound, started in ((size, 0), (size - 1, 1)):
        topic = f"{TOPIC}-of-{bound}"
        cluster.write(topic, keyed(0, KEYS))
        monkeypatch.setattr(job, "LOCAL_BYTES_MAX", bound)
        compact(cluster, topic=topic)
        assert cluster.sessions == started
        name = log_name(parse_topic(topic))
        assert messages(artifact(cluster, name)) == compacted(readable(cluster, topic))


def test_a_large_log_is_cut_into_parts_of_a_file_each(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PART_BYTES_MIN", 1)
    cluster.write(TOPIC, [entry(n, key=f"k{n}") for n in range(16)])
    found = compact(cluster, "--always-spark")
    log, made = readable(cluster), record(cluster)
    assert made is not None
    assert messages(artifact(cluster)) == compacted(log)
    assert counts(found, "files", "messagesKept") == [len(made.files), 16]
    bound = sum(len(each.data) for each in log) // (2 * plan.PARTS_PER_CORE)
    sizes = [each.length_bytes for each in made.files]
    assert bound / 2 < max(sizes) <= bound, "two tasks at once, a few for each"
