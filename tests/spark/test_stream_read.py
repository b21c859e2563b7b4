"""A stream whose topics change while it runs, in this process."""

import json
import pickle
from contextlib import closing
from typing import Any

import httpx
import pulsar
from pulsar.schema import AvroSchema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.conftest import Log
from tests.support.cluster_processes import brokers

from magnetar_spark.source import PulsarDataSource
from magnetar_spark.stream import PulsarStreamReader

OLD = '{"name":"a","type":"int"}'
NEW = f'{{"name":"b","type":"string","default":"d"}},{OLD}'


class Topic:
    """A partitioned topic whose producers register schemas."""

    def __init__(self, log: Log, client: pulsar.Client, name: str) -> None:
        self._client = client
        self._name = name
        self._base = f"{brokers(log.cluster)[0].http_url}/admin/v2"

    def partitions(self, count: int, *, more: bool = False) -> None:
        url = f"{self._base}/{self._name.replace('://', '/')}/partitions"
        (httpx.post if more else httpx.put)(url, json=count, timeout=30).raise_for_status()

    def publish(self, partition: int, fields: str, value: dict[str, Any]) -> None:
        definition = f'{{"type":"record","name":"R","fields":[{fields}]}}'
        body = {"type": "AVRO", "schema": definition, "properties": {}}
        path = self._name.replace("persistent://", "schemas/")
        httpx.post(f"{self._base}/{path}/schema", json=body, timeout=30).raise_for_status()
        schema = AvroSchema(None, json.loads(definition))
        name = f"{self._name}-partition-{partition}"
        with closing(self._client.create_producer(name, schema=schema)) as producer:
            producer.send(value)


def micro_batch(
    reader: PulsarStreamReader, start: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the rows after an offset, and the offset after them."""
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions(start, end):
        task = pickle.loads(pickle.dumps((reader, partition)))  # noqa: S301
        for batch in task[0].read(task[1]):
            rows += batch.to_pylist()
    return rows, end


def test_partitions_and_versions_that_come_later_have_the_columns_of_the_beginning(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    world = Topic(log, client, topic)
    world.partitions(1)
    world.publish(0, OLD, {"a": 1})
    source = PulsarDataSource(log.options(topic, startingOffsets="earliest"))
    reader = source.streamReader(source.schema())
    rows, end = micro_batch(reader, reader.initialOffset())
    assert [row["a"] for row in rows] == [1]
    world.partitions(2, more=True)
    world.publish(0, NEW, {"a": 2, "b": "x"})
    world.publish(1, NEW, {"a": 3, "b": "x"})
    rows, end = micro_batch(reader, end)
    assert {(row["a"], row["__partition"]) for row in rows} == {(2, 0), (3, 1)}
    assert all("b" not in row for row in rows)
    assert micro_batch(reader, end) == ([], end)
    again = PulsarDataSource(log.options(topic, startingOffsets="earliest"))
    restarted = again.streamReader(again.schema())
    rows, _ = micro_batch(restarted, restarted.initialOffset())
    assert {(row["a"], row["b"]) for row in rows} == {(1, "d"), (2, "x"), (3, "x")}
