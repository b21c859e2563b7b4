"""The job `offload`, as `magnetar job offload` runs it: files, records, and what readers see."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Log
from tests.spark.offloading import Offload, publish

Messages = Callable[[str, int], list[Any]]

COUNT = 120


@pytest.fixture
def offload(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Offload:
    return Offload(log, f"file://{tmp_path}/cold", capsys)


def test_closed_ledgers_become_files(
    spark: SparkSession, offload: Offload, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, COUNT)
    code, summary = offload.run(topic, "--threshold", "0", "--deletion-lag", "-1")
    assert (code, summary["state"]) == (0, "succeeded"), summary
    metrics = summary["metrics"]
    ledgers = offload.ledgers(topic)
    assert metrics["ledgersOffloaded"] == len(ledgers.files) >= 4
    assert metrics["failed"] == metrics["ledgersReleased"] == 0
    assert sorted(ledgers.files) == ledgers.closed
    live = {str(tmp_path / "cold" / file.path) for file in ledgers.files.values()}
    assert {str(path) for path in (tmp_path / "cold").rglob("*") if path.is_file()} == live
    code, again = offload.run(topic, "--threshold", "0", "--deletion-lag", "-1")
    assert (code, again["metrics"]["ledgersOffloaded"]) == (0, 0), "there is nothing left to do"
