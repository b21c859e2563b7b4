"""Compares Spark's source with the official Python consumer, plain Parquet, and Spark's limit.

    python -m tests.bench.spark [--mib 256] [--size 1024] [--bookies 2] [--rounds 3] [--json]

Runs a cluster of processes on this machine, with one topic of batched messages of random bytes.
Each reader reads all of it, `rounds` times in turn after one that does not count (the JVM compiles
then). The figures are CPU time: of the reader (this process and its children), of the broker, of
the bookies. Other load affects CPU time less than the wall clock.

"bookies to Arrow" runs the work of the source's tasks in this process. Spark readers write to the
`noop` sink, all columns or only `value`. "limit" is a source that yields the same Arrow batch of
these rows from memory again and again: the cost of Spark itself for rows from Python.
"""

import argparse
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pulsar
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tests.support.cluster_processes import brokers, running_cluster

import magnetar_spark
from magnetar.cluster.local.cluster import LocalCluster

MIB = 1 << 20
TOPIC = "persistent://public/default/bench"
SERVER = b"magnetar.cli.main"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, int, int, list[bytes]]]:
    """Yields id, parent, CPU ticks (with ended children) and command of each process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = stat.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        yield int(stat.parent.name), int(fields[1]), sum(map(int, fields[11:15])), command


def _role(command: list[bytes]) -> str:
    """Returns the role to which the CPU of a descendant counts."""
    if SERVER in command:
        return command[command.index(SERVER) + 1].decode()
    return "etcd" if Path(command[0].decode(errors="replace")).name == "etcd" else "reader"


def cpu_by_role() -> dict[str, float]:
    """CPU seconds of this process and all below it, those that have ended included: `reader`, and
    those of the cluster's members (`broker`, `bookie`, `etcd`)."""
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[str, int]] = {}
    for pid, parent, ticks, command in _processes():
        children.setdefault(parent, []).append(pid)
        found[pid] = _role(command), ticks
    waiting, total = [os.getpid()], {"reader": 0.0, "broker": 0.0, "bookie": 0.0}
    while waiting:
        pid = waiting.pop()
        role, ticks = found.get(pid, ("reader", 0))
        total[role] = total.get(role, 0.0) + ticks / CLOCK_TICKS
        waiting += children.get(pid, [])
    return total


def tree_cpu_s() -> float:
    """Returns the CPU seconds of this process and its descendants, without the cluster's."""
    return cpu_by_role()["reader"]


def produce(cluster: LocalCluster, mib: int, size: int) -> int:
    count = mib * MIB // size
    payload = os.urandom(size)
    with (
        closing(quiet_client(cluster)) as client,
        closing(
            client.create_producer(
                TOPIC,
                batching_enabled=True,
                batching_max_messages=1000,
                batching_max_publish_delay_ms=5,
                max_pending_messages=5000,
                block_if_queue_full=True,
            )
        ) as producer,
    ):
        for _ in range(count):
            producer.send_async(payload, lambda *_: None)
        producer.flush()
    return count


def quiet_client(cluster: LocalCluster) -> pulsar.Client:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(cluster.directory / "client.log"))
    return pulsar.Client(cluster.service_url, logger=logger)


def every_field(message: pulsar.Message) -> tuple[object, ...]:
    """Reads all the fields that the source has columns for."""
    return (
        message.data(),
        message.partition_key(),
        message.topic_name(),
        message.message_id().serialize(),
        message.publish_timestamp(),
        message.event_timestamp(),
        message.properties(),
    )


def consume(
    cluster: LocalCluster,
    count: int,
    subscription: str = "bench",
    use: Callable[[pulsar.Message], object] = pulsar.Message.data,
    *,
    acknowledge: bool = False,
) -> None:
    with (
        closing(quiet_client(cluster)) as client,
        closing(
            client.subscribe(
                TOPIC,
                subscription,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5000,
            )
        ) as consumer,
    ):
        for _ in range(count):
            message = consumer.receive(30_000)
            use(message)
            if acknowledge:
                consumer.acknowledge(message)


class Repeated(DataSource):
    """A source that repeats the rows of one Arrow file, up to `rows` of them in two tasks."""

    @classmethod
    def name(cls) -> str:
        return "repeated"

    def reader(self, schema: StructType) -> DataSourceReader:
        return RepeatedReader(self.options["path"], int(self.options["rows"]))


class RepeatedReader(DataSourceReader):
    def __init__(self, path: str, rows: int) -> None:
        self._path, self._rows = path, rows

    def partitions(self) -> list[InputPartition]:
        half = self._rows // 2
        return [InputPartition(half), InputPartition(self._rows - half)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        left: int = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


def repeated(spark: SparkSession, cluster: LocalCluster, count: int, path: str) -> DataFrame:
    """Writes the first batch of a task of the source: all columns, or those that the path names."""
    column = "value" if path.endswith("value") else ""
    schema, batches = batches_of(cluster, column)
    first = next(batches)
    with pa.ipc.new_file(path, first.schema) as file:
        file.write_batch(first)
    reader = spark.read.format("repeated").option("path", path).option("rows", count)
    return reader.schema(schema).load()


@dataclass
class Measure:
    """The figures of one reader over all rounds."""

    name: str
    run: Callable[[], None]
    messages: int = 0
    wall_s: float = 0.0
    reader_s: float = 0.0
    broker_s: float = 0.0
    bookie_s: float = 0.0

    def once(self, count: int) -> None:
        before, wall = cpu_by_role(), time.perf_counter()
        self.run()
        after = cpu_by_role()
        self.messages += count
        self.wall_s += time.perf_counter() - wall
        self.reader_s += after["reader"] - before["reader"]
        self.broker_s += after["broker"] - before["broker"]
        self.bookie_s += after["bookie"] - before["bookie"]

    def row(self, size: int) -> dict[str, float | str]:
        """Returns the row to print; `all` includes the broker and the bookies."""
        rate = self.messages / self.reader_s
        every = self.messages / (self.reader_s + self.broker_s + self.bookie_s)
        return {
            "reader": self.name,
            "k msg/s/core": round(rate / 1e3),
            "MB/s/core": round(rate * size / 1e6),
            "broker % of a core": round(100 * self.broker_s / self.wall_s, 1),
            "broker us/msg": round(1e6 * self.broker_s / self.messages, 2),
            "bookies us/msg": round(1e6 * self.bookie_s / self.messages, 2),
            "all, k msg/s/core": round(every / 1e3),
        }


def table(rows: list[dict[str, float | str]]) -> str:
    """Returns the rows as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def drain(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def options_of(cluster: LocalCluster) -> dict[str, str]:
    return {
        "metadata.url": cluster.metadata_url,
        "admin.url": brokers(cluster)[0].http_url,
        "topic": TOPIC,
    }


def batches_of(cluster: LocalCluster, column: str) -> tuple[StructType, Iterator[pa.RecordBatch]]:
    """Yields the batches of the source's tasks, one task after the other."""
    found = magnetar_spark.PulsarDataSource(options_of(cluster))
    schema = found.schema()
    wanted = StructType([schema[column]]) if column else schema
    reader = found.reader(wanted)
    return wanted, (batch for each in reader.partitions() for batch in reader.read(each))


def without_spark(cluster: LocalCluster, column: str) -> None:
    for _ in batches_of(cluster, column)[1]:
        pass


def source(spark: SparkSession, cluster: LocalCluster, schema: str = "") -> DataFrame:
    reader = spark.read.format("pulsar").options(**options_of(cluster))
    return (reader.schema(schema) if schema else reader).load()


def compared(spark: SparkSession, cluster: LocalCluster, count: int, rounds: int) -> list[Measure]:
    whole, value = source(spark, cluster), source(spark, cluster, "value binary")
    assert value.count() == count
    names = (f"bench-{number}" for number in itertools.count())
    with tempfile.TemporaryDirectory() as directory:
        whole.write.parquet(f"{directory}/rows")
        plain = spark.read.parquet(f"{directory}/rows")
        limits = {
            part: repeated(spark, cluster, count, f"{directory}/{part}")
            for part in ("all", "value")
        }
        measures = [
            Measure("official consumer, value", lambda: consume(cluster, count, next(names))),
            Measure(
                "official consumer, all fields",
                lambda: consume(cluster, count, next(names), every_field),
            ),
            Measure(
                "official consumer, all fields, acknowledged",
                lambda: consume(cluster, count, next(names), every_field, acknowledge=True),
            ),
            Measure("bookies to Arrow, all columns", lambda: without_spark(cluster, "")),
            Measure("bookies to Arrow, value", lambda: without_spark(cluster, "value")),
            Measure("source, all columns", lambda: drain(whole)),
            Measure("source, value", lambda: drain(value)),
            Measure("limit, all columns", lambda: drain(limits["all"])),
            Measure("limit, value", lambda: drain(limits["value"])),
            Measure("Parquet, all columns", lambda: drain(plain)),
            Measure("Parquet, value", lambda: drain(plain.select("value"))),
        ]
        for each in measures:
            each.run()
        for _ in range(rounds):
            for each in measures:
                each.once(count)
    return measures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="of values")
    parser.add_argument("--size", type=int, default=1024, help="of one value, in bytes")
    parser.add_argument("--bookies", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    magnetar_spark.register(spark)
    spark.dataSource.register(Repeated)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster(Path(directory), bookies=given.bookies, brokers=1) as cluster,
    ):
        consume(cluster, 0)  # a topic without any subscription would be deleted as idle
        count = produce(cluster, given.mib, given.size)
        rows = [each.row(given.size) for each in compared(spark, cluster, count, given.rounds)]
    spark.stop()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if given.json:
        print(json.dumps({"messages": count, "bytes": given.size, "readers": rows}, indent=2))
    else:
        print(table(rows), f"peak of this process: {peak_mib} MiB", sep="\n\n")


if __name__ == "__main__":
    main()
