"""Spark itself: the format, its filters, and streams that are stopped and restarted."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pulsar
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Log

QUERY_TIMEOUT_S = 150


def publish(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    with closing(
        client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    ) as producer:
        results: list[pulsar.Result] = []
        for index in range(first, first + count):
            producer.send_async(
                str(index).encode(),
                lambda result, _: results.append(result),
                partition_key=f"k{index % 3}",
            )
        producer.flush()
        assert results == [pulsar.Result.Ok] * count


def test_a_topic_is_a_table(
    spark: SparkSession, log: Log, client: pulsar.Client, topic: str
) -> None:
    for first in range(0, 300, 10):  # ledgers of 20 entries
        publish(client, topic, first, 10)
    options = log.options(topic, partition_bytes="2000")
    table = spark.read.format("pulsar").options(**options).load()
    assert table.columns[:7] == [
        "value",
        "__key",
        "__topic",
        "__messageId",
        "__publishTime",
        "__eventTime",
        "__messageProperties",
    ]
    expected = log.rows(topic)
    found = table.orderBy("__ledgerId", "__entryId", "__batchIndex").collect()
    assert [bytes(row["value"]) for row in found] == [row["value"] for row in expected]
    assert [bytes(row["__messageId"]) for row in found] == [r["__messageId"] for r in expected]
    ledger = expected[-1]["__ledgerId"]
    condition = f"__ledgerId = {ledger} and cast(__key as string) = 'k1'"
    count = sum(row["__ledgerId"] == ledger and row["__key"] == b"k1" for row in expected)
    assert table.filter(condition).count() == count
    assert table.count() == len(expected), "what one query leaves out is there for the next"
    pushing = spark.read.format("pulsar").options(**options, filterPushdown="true").load()
    pruned = pushing.filter(condition)
    assert pruned.count() == count
    assert 1 <= pruned.rdd.getNumPartitions() < table.rdd.getNumPartitions()


def test_an_error_has_its_text(spark: SparkSession, log: Log, topic: str) -> None:
    with pytest.raises(AnalysisException, match="does not exist"):
        spark.read.format("pulsar").options(**log.options(topic)).load()


def stream(spark: SparkSession, log: Log, topic: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("pulsar")
        .options(**log.options(topic, startingOffsets="earliest", **options))
        .load()
        .selectExpr("cast(value as string) as text", "__messageId")
    )


def drained(table: DataFrame, out: Path, checkpoint: Path) -> int:
    """Writes all available rows to files; returns the number of micro-batches."""
    query = (
        table.writeStream.format("parquet")
        .option("path", str(out))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    return len(batches)


def test_a_stream_that_is_started_again_has_every_message_once(
    spark: SparkSession, log: Log, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    publish(client, topic, 0, 200)
    table = stream(spark, log, topic, maxBytesPerTrigger="1000")
    assert drained(table, out, checkpoint) > 1
    publish(client, topic, 200, 100)
    # As after a crash between the files and the commit: the last micro-batch is repeated.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    drained(stream(spark, log, topic), out, checkpoint)
    texts = Counter(row["text"] for row in spark.read.parquet(str(out)).collect())
    assert texts == Counter(str(index) for index in range(300))
    offsets = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    row = log.rows(topic)[-1]
    assert last == {topic: f"{row['__ledgerId']}:{row['__entryId']}"}
