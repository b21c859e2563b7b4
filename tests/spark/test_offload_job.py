"""The job `offload` on a real cluster: files, records, and readers."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession
from tests.spark.conftest import Log
from tests.spark.offloading import (
    TO_FILES,
    TO_FILES_ONLY,
    Offload,
    counted,
    offloaded,
    planned,
    publish,
    read,
)

from magnetar.core.ids import Position
from magnetar.jobs.event_loop import run
from magnetar.jobs.offload.work import Result
from magnetar.offload.records import RequestState
from magnetar_spark.jobs.offload import job
from magnetar_spark.log.settings import LogSettings

COUNT = 120
QUERY_TIMEOUT_S = 150


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Starts an S3 server with an empty bucket `cold`; returns its address."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    httpx.put(f"{url}/cold", timeout=30).raise_for_status()
    yield url
    server.stop()


@pytest.fixture
def offload(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Offload:
    return Offload(log, f"file://{tmp_path}/cold", capsys)


def test_closed_ledgers_become_files(
    spark: SparkSession, offload: Offload, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, COUNT)
    code, summary = offload.run(topic, *TO_FILES)
    assert (code, summary["state"]) == (0, "succeeded"), summary
    metrics = summary["metrics"]
    ledgers = offload.ledgers(topic)
    assert metrics["ledgersOffloaded"] == len(ledgers.files) >= 4
    assert metrics["failed"] == metrics["ledgersReleased"] == 0
    assert sorted(ledgers.files) == ledgers.closed
    live = {str(tmp_path / "cold" / file.path) for file in ledgers.files.values()}
    assert {str(path) for path in (tmp_path / "cold").rglob("*") if path.is_file()} == live
    code, again = offload.run(topic, *TO_FILES)
    assert (code, again["metrics"]["ledgersOffloaded"]) == (0, 0), "there is nothing left to do"


def test_live_cold_and_released_ledgers_read_as_one(
    spark: SparkSession, offload: Offload, log: Log, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, COUNT)
    before = log.rows(topic)
    assert len(before) == COUNT
    assert offload.run(topic, *TO_FILES_ONLY)[0] == 0
    publish(client, topic, COUNT, COUNT)
    assert offload.run(topic, *TO_FILES)[0] == 0
    publish(client, topic, 30, 2 * COUNT)
    ledgers = offload.ledgers(topic)
    released = {each for each, file in ledgers.files.items() if file.released_ms}
    assert released
    assert released.isdisjoint(ledgers.on_bookies)
    assert ledgers.files.keys() & set(ledgers.on_bookies)
    assert set(ledgers.on_bookies) - ledgers.files.keys()
    rows = log.rows(topic)
    assert rows[:COUNT] == before
    expected = [f"message {index} ".encode() * 20 for index in range(2 * COUNT + 30)]
    assert [row["value"] for row in rows] == expected
    for size in (1500, 7000):  # ranges that begin within files, and row groups
        assert log.rows(topic, partition_bytes=str(size)) == rows
    table = spark.read.format("pulsar").options(**log.options(topic)).load()
    found = table.orderBy("__ledgerId", "__entryId").collect()
    assert [bytes(row["value"]) for row in found] == expected


def test_two_at_once_are_harmless(
    offload: Offload, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """Two processes offload the same ledgers, as executors of two jobs do."""
    publish(client, topic, COUNT)
    settings = LogSettings(offload.log.cluster.metadata_url)
    tasks, bookies = run(planned(settings, topic, offload.store))
    assert len(tasks) >= 4
    with get_context("spawn").Pool(2) as pool:
        both = pool.starmap(
            offloaded, [(settings, job, bookies, tasks) for job in ("one", "another")], chunksize=1
        )
    for outcomes in zip(*both, strict=True):
        assert sorted(each.result for each in outcomes) == [Result.ALREADY, Result.OFFLOADED]
    ledgers = offload.ledgers(topic)
    assert sorted(ledgers.files) == ledgers.closed
    live = {tmp_path / "cold" / file.path for file in ledgers.files.values()}
    assert {path for path in (tmp_path / "cold").rglob("*") if path.is_file()} == live
    assert not ledgers.attempts


def test_an_object_store_as_the_policies_say(
    spark: SparkSession,
    log: Log,
    client: pulsar.Client,
    topic: str,
    s3: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(client, topic, COUNT)
    before = log.rows(topic)
    offload = Offload(log, f"s3://cold/some/where?endpoint={s3}", capsys)
    code, summary = offload.run(topic, *TO_FILES_ONLY)
    assert (code, summary["metrics"]["failed"]) == (0, 0), summary
    assert summary["metrics"]["ledgersReleased"] == summary["metrics"]["ledgersOffloaded"] >= 4
    assert log.rows(topic) == before
    assert {file.store.driver for file in offload.ledgers(topic).files.values()} == {"aws-s3"}


def test_a_request_is_executed_and_its_result_recorded(
    spark: SparkSession, offload: Offload, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, COUNT)
    closed = offload.ledgers(topic).closed
    offload.ask(topic, Position(closed[2], 3))
    code, summary = offload.run(topic)
    assert code == 0, summary
    ledgers = offload.ledgers(topic)
    assert sorted(ledgers.files) == closed[:2]
    assert ledgers.request is not None
    assert ledgers.request.state is RequestState.SUCCESS
    assert ledgers.request.first_unoffloaded == Position(closed[2], 0)
    offload.ask(topic, Position(closed[-1], 0))
    nowhere = Offload(offload.log, "file:///proc/nowhere", offload.capsys)
    code, summary = nowhere.run(topic)
    assert (code, summary["state"]) == (3, "partial")
    told = offload.ledgers(topic).request
    assert told is not None
    assert (told.state, told.first_unoffloaded) == (RequestState.ERROR, Position(closed[2], 0))
    assert "nowhere" in told.error


def test_chunks_across_the_seam(
    spark: SparkSession, offload: Offload, log: Log, client: pulsar.Client, topic: str
) -> None:
    """The first chunks are in files, the last ones on bookies; ranges begin between them."""
    sent: list[bytes] = []
    with closing(
        client.create_producer(
            topic, batching_enabled=False, chunking_enabled=True, send_timeout_millis=120_000
        )
    ) as producer:
        for index in range(8):
            sent.append(bytes([65 + index]) * (11 << 20))
            producer.send(sent[-1])
    assert offload.run(topic, *TO_FILES_ONLY)[0] == 0
    ledgers = offload.ledgers(topic)
    assert len(ledgers.files) >= 1
    assert ledgers.on_bookies
    assert [row["value"] for row in log.rows(topic)] == sent
    assert [row["value"] for row in log.rows(topic, partition_bytes="6000000")] == sent


def test_a_ledger_that_is_deleted_while_it_is_read(
    spark: SparkSession, offload: Offload, log: Log, client: pulsar.Client, topic: str
) -> None:
    """The plan precedes the offload; and the reverse, a file that cannot be read."""
    publish(client, topic, COUNT)
    old = log.plan(topic)
    entries = read(offload, old)
    assert len(entries) == COUNT
    assert offload.run(topic, *TO_FILES)[0] == 0
    cold = log.plan(topic)
    (Path(offload.store.removeprefix("file://"))).rename(f"/{offload.store[7:]}-elsewhere")
    assert read(offload, cold) == entries, "the bookies have it still"
    (Path(f"{offload.store[7:]}-elsewhere")).rename(offload.store[7:])
    assert offload.run(topic, *TO_FILES_ONLY)[0] == 0
    assert read(offload, old) == entries, "the file has it by now"
    assert read(offload, cold) == entries


def test_row_groups_of_other_times_are_not_read(
    spark: SparkSession, offload: Offload, log: Log, client: pulsar.Client, topic: str
) -> None:
    """Entries have 1 MB, so that a file has several row groups."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for index in range(21):
            producer.send(index.to_bytes(4) * (1 << 18))
    assert offload.run(topic, *TO_FILES_ONLY)[0] == 0
    rows = log.rows(topic)
    cold = [row for row in rows if row["__ledgerId"] == offload.ledgers(topic).closed[0]]
    assert len(cold) == 20
    times = [round(row["__publishTime"].timestamp() * 1000) for row in cold]
    for wanted in (times[2], times[-1]):
        plan = log.plan(topic, startingTime=str(wanted), endingTime=str(wanted))
        entries, groups = counted(offload, plan)
        assert groups < 5, "of five and what is behind"
        assert entries < 20
        expected = [row for row, time in zip(cold, times, strict=True) if time == wanted]
        found = log.rows(topic, startingTime=str(wanted), endingTime=str(wanted))
        assert found == expected


def test_a_stream_goes_over_the_seam(
    spark: SparkSession,
    offload: Offload,
    log: Log,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
) -> None:
    publish(client, topic, COUNT)
    assert offload.run(topic, *TO_FILES_ONLY)[0] == 0

    def follow() -> list[bytes]:
        query = (
            spark.readStream.format("pulsar")
            .options(**log.options(topic, startingOffsets="earliest"))
            .load()
            .select("value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return sorted(bytes(row[0]) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert len(follow()) == COUNT
    publish(client, topic, COUNT, COUNT)
    assert offload.run(topic, *TO_FILES_ONLY)[0] == 0  # after the stream's position
    publish(client, topic, 5, 2 * COUNT)
    assert follow() == sorted(row["value"] for row in log.rows(topic))


def test_a_deletion_lag_set_while_ledgers_are_written_holds_for_the_release(
    offload: Offload,
    log: Log,
    client: pulsar.Client,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writing may take hours, and a release is never undone."""
    path = topic.replace("://", "/")
    url = f"{log.options(topic)['admin.url']}/admin/v2/{path}/offloadPolicies"

    def set_lag(lag_ms: int) -> None:
        policies = {
            "managedLedgerOffloadDriver": "filesystem",
            "managedLedgerOffloadDeletionLagInMillis": lag_ms,
        }
        httpx.post(url, json=policies, timeout=30, follow_redirects=True).raise_for_status()

    publish(client, topic, COUNT)
    set_lag(0)
    write_files = job._write_files

    async def write_and_set(*arguments: Any) -> Any:
        outcomes = await write_files(*arguments)
        await asyncio.to_thread(set_lag, -1)
        return outcomes

    with monkeypatch.context() as during:
        during.setattr(job, "_write_files", write_and_set)
        code, summary = offload.run(topic, "--threshold", "0")
    metrics = summary["metrics"]
    assert (code, metrics["ledgersReleased"]) == (0, 0), summary
    assert metrics["ledgersOffloaded"] > 0
    set_lag(0)
    code, summary = offload.run(topic, "--threshold", "0")
    assert (code, summary["metrics"]["ledgersReleased"]) == (0, metrics["ledgersOffloaded"])
