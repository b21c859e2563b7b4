"""The sink with Spark and a cluster: what official clients read, and what a failure leaves."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Log
from tests.support.cluster_processes import brokers

from magnetar.core.hashing import java_string_hash

QUERY_TIMEOUT_S = 150
RECEIVE_MS = 30_000
TEST_TIMEOUT_S = 400

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


def write(table: DataFrame, log: Log, topic: str | None, **options: str) -> None:
    given = {name.replace("__", "."): value for name, value in options.items()}
    if topic is not None:
        given["topic"] = topic
    (
        table.write.format("pulsar")
        .mode("append")
        .option("service.url", log.cluster.service_url)
        .options(**given)
        .save()
    )


def partitioned(log: Log, topic: str, count: int) -> None:
    url = f"{brokers(log.cluster)[0].http_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    httpx.put(url, json=count, timeout=30).raise_for_status()


class Order(Record):  # type: ignore[misc]
    item = String()
    count = Integer()


@pytest.mark.parametrize("schema", [AvroSchema(Order), JsonSchema(Order)], ids=["avro", "json"])
def test_an_official_consumer_gets_typed_values(
    spark: SparkSession, log: Log, client: pulsar.Client, topic: str, schema: Any
) -> None:
    table = spark.createDataFrame([("apple", 3), ("pear", None)], "item string, count int")
    kind = "avro" if isinstance(schema, AvroSchema) else "json"
    write(table.coalesce(1), log, topic, schemaType=kind, recordName="Order")
    with closing(client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)) as reader:
        read = [reader.read_next(RECEIVE_MS) for _ in range(2)]
    assert [(one.value().item, one.value().count) for one in read] == [("apple", 3), ("pear", None)]
    again = spark.createDataFrame([(5,)], "item int")
    with pytest.raises(PySparkException, match=r"IncompatibleSchema"):
        write(again, log, topic, schemaType=kind, recordName="Order")


def test_keys_properties_times_and_topics_come_back_as_they_were_written(
    spark: SparkSession, log: Log, topic: str
) -> None:
    time_written = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    rows = [
        (b"one", b"k", topic, time_written, {"a": "b"}, b"o"),
        (None, b"\xff\x00", topic, None, {}, None),
        (b"three", None, f"{topic}-other", None, {"c": "d", "e": ""}, None),
    ]
    columns = (
        "value binary, __key binary, __topic string, __eventTime timestamp, "
        "__messageProperties map<string,string>, __orderingKey binary"
    )
    table = spark.createDataFrame(rows, columns)
    write(table, log, None, pulsar__producer__compressionType="ZSTD")
    found = {}
    for name in (topic, f"{topic}-other"):
        found.update({row["value"]: row for row in log.rows(name)})
    for value, key, name, written, properties, ordering_key in rows:
        row = found[value]
        assert row["__key"] == key
        assert row["__topic"] == name
        assert row["__eventTime"] == written
        assert row["__messageProperties"] == properties
        assert row["__orderingKey"] == ordering_key
    # All columns that the source gives can be written back.
    source = spark.read.format("pulsar").options(**log.options(topic)).load()
    write(source, log, f"{topic}-copy")
    copied = {row["value"]: row for row in log.rows(f"{topic}-copy")}
    assert set(copied) == {b"one", None}
    assert copied[None]["__key"] == b"\xff\x00"


def test_keys_go_to_the_partition_of_the_java_client(
    spark: SparkSession, log: Log, topic: str
) -> None:
    partitioned(log, topic, 4)
    keys = [f"key-{number}" for number in range(40)]
    table = spark.createDataFrame([(key, key) for key in keys], "__key string, value string")
    write(table, log, topic)
    rows = log.rows(topic)
    assert sorted(row["value"] for row in rows) == sorted(keys)
    assert [row["__partition"] for row in rows] == [
        java_string_hash(row["value"]) % 4 for row in rows
    ]
    assert len({row["__partition"] for row in rows}) == 4


def test_a_batch_with_a_failing_task_leaves_nothing(
    spark: SparkSession, log: Log, topic: str
) -> None:
    # Small Arrow batches: the failing task has written some rows before it fails.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    table = spark.range(0, 100, 1, 2).selectExpr(
        "if(id = 99, raise_error('cannot be computed'), cast(id as string)) as value"
    )
    with pytest.raises(PySparkException, match="cannot be computed"):
        write(table, log, topic, exactlyOnce="true", pulsar__producer__batchingMaxMessages="5")
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert log.rows(topic) == []
    good = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value")
    write(good, log, topic, exactlyOnce="true")
    # The aborted messages do not hold the topic back.
    assert sorted(int(row["value"]) for row in log.rows(topic)) == list(range(100))


def test_a_named_batch_is_written_once(spark: SparkSession, log: Log, topic: str) -> None:
    table = spark.range(0, 50, 1, 2).selectExpr("cast(id as string) as value")
    for batch in ("7", "7", "6", "8"):
        write(table, log, topic, exactlyOnce="true", sinkId=f"job-{topic[-8:]}", batchId=batch)
    assert sorted(int(row["value"]) for row in log.rows(topic)) == sorted([*range(50), *range(50)])


def test_a_stream_that_is_started_again_writes_every_message_once(
    spark: SparkSession,
    log: Log,
    topic: str,
    tmp_path: Path,
    messages: Callable[[str, int], list[Any]],
) -> None:
    source, target = topic, f"{topic}-copy"

    def copied() -> None:
        reader = spark.readStream.format("pulsar")
        for name, value in log.options(
            source, startingOffsets="earliest", maxBytesPerTrigger="2000"
        ).items():
            reader = reader.option(name, value)
        query = (
            reader.load()
            .writeStream.format("pulsar")
            .option("service.url", log.cluster.service_url)
            .option("topic", target)
            .option("exactlyOnce", "true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        assert query.exception() is None

    def rows(first: int, count: int) -> DataFrame:
        return spark.range(first, first + count, 1, 1).selectExpr(
            "cast(cast(id as string) as binary) as value", "cast(id % 7 as string) as __key"
        )

    write(rows(0, 200), log, source)
    copied()
    # As after a crash between the commit of the sink and that of the checkpoint.
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    write(rows(200, 100), log, source)
    copied()
    values = [int(message.data()) for message in messages(target, 300)]
    assert sorted(values) == list(range(300))
    assert len(log.rows(target)) == 300
