"""The job `offload`, as `magnetar job offload` runs it: files, records, and what readers see."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Log
from tests.spark.offloading import TO_FILES, TO_FILES_ONLY, Offload, publish

Messages = Callable[[str, int], list[Any]]

COUNT = 120


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
