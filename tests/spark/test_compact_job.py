"""The job `compact` against a real cluster: artifacts, the swap, and leftovers."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pulsar
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Log
from tests.support.compact_rig import Batch, CompactRig, write
from tests.support.compaction import compacted, messages

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.compaction.records import (
    CompactionRecord,
    CompactionRequest,
    request_key,
)
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.jobs.compaction import swap
from magnetar.jobs.compaction import topic as topics
from magnetar.jobs.compaction.topic import whole_log
from magnetar.jobs.log.topic_log import TopicLog
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import RequestState
from magnetar_spark.jobs.compact import engine
from magnetar_spark.jobs.compact import job as compact_job
from magnetar_spark.log import access

T = TypeVar("T")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def rig(log: Log, cluster: LocalCluster, folder: Path) -> CompactRig:
    return CompactRig(log, cluster, folder)


def history(topic_seed: int, count: int, keys: int) -> list[Batch]:
    """Publishes batches with tombstones, with and without keys."""
    made: list[Batch] = []
    for number in range(count):
        inside: Batch = []
        for step in range(1 + (number * 7 + topic_seed) % 9):
            mixed = (number * 31 + step * 17 + topic_seed) % (keys + 1)
            key = None if mixed == keys else f"key-{mixed}"
            gone = (number + step) % 10 == 0
            inside.append((key, b"" if gone else f"{number}/{step}".encode()))
        made.append(inside)
    return made


@pytest.mark.usefixtures("spark")
def test_by_spark_step_by_step(
    rig: CompactRig,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lz4, zstd = pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD
    write(client, topic, history(1, 60, 40), compression_type=lz4)
    done = rig.compact("--topic", topic, "--always-spark", capsys=capsys)
    assert (done["code"], done["state"], done["metrics"]["topicsCompacted"]) == (0, "succeeded", 1)
    first, log = rig.record(topic), rig.raw(topic)
    assert first is not None
    assert messages(rig.artifact(topic)) == compacted(log)
    assert first.horizon == log[-1].position
    assert done["metrics"]["messagesRead"] == len(messages(log))
    assert first.messages_removed == len(messages(log)) - len(compacted(log))
    # After further writes, the job reads only those from the log, and the old artifact's files.
    write(client, topic, history(5, 30, 60), compression_type=zstd)
    done = rig.compact("--topic", topic, "--always-spark", capsys=capsys)
    second, log = rig.record(topic), rig.raw(topic)
    assert second is not None
    assert messages(rig.artifact(topic)) == compacted(log)
    behind = [each for each in log if each.position > first.horizon]
    assert done["metrics"]["entriesRead"] == first.entries + len(behind) < len(log)
    # The replaced files stay for a while for their readers; no other files exist.
    assert {each.path for each in second.retired} == {each.path for each in first.files}
    assert rig.files() == {each.path for each in (*first.files, *second.files)}
    # Without new entries, nothing changes.
    done = rig.compact("--topic", topic, capsys=capsys)
    assert (done["code"], done["metrics"]["topicsUpToDate"]) == (0, 1)
    assert rig.record(topic) == second


def test_small_topics_without_spark(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(client, topic, history(2, 25, 15))
    done = rig.compact("--topic", topic, capsys=capsys)
    assert done["state"] == "succeeded"
    assert messages(rig.artifact(topic)) == compacted(rig.raw(topic))
    # All keys are deleted: the artifact exists and is empty.
    write(client, topic, [[(f"key-{number}", b"") for number in range(15)]])
    rig.compact("--topic", topic, capsys=capsys)
    record = rig.record(topic)
    assert record is not None
    assert record.files == ()
    assert record.last is None
    write(client, topic, [[("key-1", b"again")]])
    rig.compact("--topic", topic, capsys=capsys)
    assert [each[3] for each in messages(rig.artifact(topic))] == [b"again"]


@pytest.mark.parametrize("trimmed", ["never", "before", "as the job begins"])
def test_an_artifact_whose_files_are_deleted_is_written_again_from_a_whole_log(
    rig: CompactRig,
    client: pulsar.Client,
    topic: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trimmed: str,
) -> None:
    """Metadata restored from a backup names files that have been deleted."""
    write(client, topic, history(4, 30, 10))
    assert rig.compact("--topic", topic, capsys=capsys)["state"] == "succeeded"
    first = rig.record(topic)
    assert first is not None
    for file in first.files:
        (folder / file.path).unlink()

    async def trim(store: MetadataStore) -> None:
        stored = await store.get(managed_ledger_key(log_name(parse_topic(topic))))
        assert stored is not None
        record = decode_managed_ledger(stored.key, stored.value)
        oldest = record.ledgers[0]
        last = Position(oldest.ledger_id, oldest.entries - 1)
        record = msgspec.structs.replace(record, ledgers=record.ledgers[1:], last_position=last)
        await store.put(stored.key, encode_log(record), expected=stored.revision)

    async def read_after_retention(log: access.RegisteredLog, name: TopicName) -> TopicLog:
        """Retention trims the entries that the artifact covers until the new one is live."""
        await trim(log.store)
        return await whole_log(log, name)

    write(client, topic, history(5, 10, 10))
    if trimmed == "before":
        rig.in_store(trim)
    elif trimmed != "never":
        monkeypatch.setattr(topics, "whole_log", read_after_retention)
    done = rig.compact("--topic", topic, capsys=capsys)
    if trimmed != "never":
        assert (done["code"], done["state"]) == (3, "partial")
        assert "restore the file" in done["error"]
        assert rig.record(topic) == first
        return
    assert done["state"] == "succeeded", done
    assert messages(rig.artifact(topic)) == compacted(rig.raw(topic))


def test_a_ledger_that_cannot_be_found_is_not_left_out(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(client, topic, history(6, 30, 10))
    first = rig.raw(topic)[0].position.ledger_id

    async def hide(store: MetadataStore) -> bytes:
        stored = await store.get(ledger_key(first))
        assert stored is not None
        await store.delete(stored.key)
        return stored.value

    value = rig.in_store(hide)
    done = rig.compact("--topic", topic, capsys=capsys)
    assert (done["code"], done["state"]) == (3, "partial")
    assert f"ledgers [{first}]" in done["error"]
    assert rig.record(topic) is None
    told = rig.request(topic)
    assert told is not None
    assert (told.state, told.failed_ms > 0) == (RequestState.ERROR, True)
    rig.in_store(lambda store: store.put(ledger_key(first), value))
    assert rig.compact("--topic", topic, capsys=capsys)["state"] == "succeeded"
    assert messages(rig.artifact(topic)) == compacted(rig.raw(topic))


def test_two_at_once(
    rig: CompactRig,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One job completes while another is about to commit: the other fails and deletes its files."""
    write(client, topic, history(3, 10, 5))
    commit, inner = swap.commit, list[dict[str, Any]]()

    async def late(*args: Any, **kwargs: Any) -> CompactionRecord:
        monkeypatch.setattr(swap, "commit", commit)
        inner.append(await asyncio.to_thread(rig.compact, "--topic", topic, capsys=capsys))
        return await commit(*args, **kwargs)

    monkeypatch.setattr(swap, "commit", late)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # only the main thread may start it
    outer = rig.compact("--topic", topic, capsys=capsys)
    assert inner[0]["metrics"]["topicsCompacted"] == 1
    assert (outer["code"], outer["metrics"]["topicsCompactedByOthers"]) == (0, 1)
    record = rig.record(topic)
    assert record is not None
    assert rig.files() == {each.path for each in record.files}
    assert messages(rig.artifact(topic)) == compacted(rig.raw(topic))


def test_requests(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(client, topic, history(4, 10, 5))
    name = log_name(parse_topic(topic))

    async def ask(store: MetadataStore) -> None:
        await store.put(request_key(name), encode(CompactionRequest(1)))

    done = rig.compact("--namespace", "public/default", capsys=capsys)
    assert rig.record(topic) is None
    rig.in_store(ask)
    done = rig.compact("--namespace", "public/default", capsys=capsys)
    assert done["metrics"]["topicsCompacted"] == 1
    asked = rig.request(topic)
    assert asked is not None
    assert asked.state is RequestState.SUCCESS
    assert asked.finished_ms > 0


@pytest.fixture(scope="session", autouse=True)
def _one_spark(spark: SparkSession) -> None:
    """Has jobs use the tests' Spark session."""


@pytest.mark.usefixtures("spark")
def test_what_a_task_of_spark_raises_is_its_topics_failure(
    rig: CompactRig,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job continues with the next topic."""
    both = [topic, f"{topic}-b"]
    for each in both:
        write(client, each, history(2, 5, 5))
    by_spark, asked = engine.compact_by_spark, 0

    def first_fails(session: SparkSession, *rest: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:

            def fails(_number: int) -> int:
                raise PersistenceError("entry 7:1 cannot be decoded")

            session.sparkContext.parallelize([1], 1).map(fails).collect()
        return by_spark(session, *rest)

    monkeypatch.setattr(compact_job, "compact_by_spark", first_fails)
    done = rig.compact("--topic", both[0], "--topic", both[1], "--always-spark", capsys=capsys)
    assert (done["code"], done["state"]) == (3, "partial")
    assert done["metrics"]["topicsCompacted"] == 1
    assert done["error"].endswith("PersistenceError: entry 7:1 cannot be decoded")
    failed, other = sorted(both, key=lambda each: rig.record(each) is not None)
    told = rig.request(failed)
    assert told is not None
    assert (told.state, told.error) == (RequestState.ERROR, done["error"])
    assert messages(rig.artifact(other)) == compacted(rig.raw(other))
