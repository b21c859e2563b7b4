"""Spark's source beside the official Python consumer and beside Spark on plain Parquet.

    python -m tests.bench.spark [--mib 256] [--size 1024] [--bookies 2]

A cluster of processes here, one topic of batched messages of random bytes. Each reader goes through
all of it; what counts is its own CPU time (of the process and of what it started), so that busy
neighbours matter less, and the wall clock is told beside. "bookies to Arrow" is what the source's
tasks do, in this process. Spark readers write to the `noop` sink, all columns or only `value`.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pulsar
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.support.cluster_processes import brokers, running_cluster

import magnetar_spark
from magnetar.cluster.local.cluster import LocalCluster

MIB = 1 << 20
TOPIC = "persistent://public/default/bench"
SERVER = b"magnetar.cli.main"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s() -> float:
    """CPU seconds of this process and all below it, those that have ended included; less those of
    the cluster's members, which are below it, too."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if SERVER in stat.with_name("cmdline").read_bytes():
                continue
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    waiting, total = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total / CLOCK_TICKS


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


def consume(cluster: LocalCluster, count: int) -> None:
    with (
        closing(quiet_client(cluster)) as client,
        closing(
            client.subscribe(
                TOPIC,
                "bench",
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5000,
            )
        ) as consumer,
    ):
        for _ in range(count):
            consumer.receive(30_000).data()


@contextmanager
def measured(name: str, count: int, size: int) -> Iterator[None]:
    """`name`, and what one core and the wall clock made of it."""
    cpu, wall = tree_cpu_s(), time.perf_counter()
    yield
    cpu, wall = tree_cpu_s() - cpu, time.perf_counter() - wall
    print(
        f"{name:30} {count / cpu / 1e3:8.0f} k msg/s/core {count * size / cpu / 1e6:8.0f} MB/s/core"
        f"   {count / wall / 1e3:8.0f} k msg/s wall",
        flush=True,
    )


def drain(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def options_of(cluster: LocalCluster) -> dict[str, str]:
    return {
        "metadata.url": cluster.metadata_url,
        "admin.url": brokers(cluster)[0].http_url,
        "topic": TOPIC,
    }


def without_spark(cluster: LocalCluster, column: str) -> None:
    found = magnetar_spark.PulsarDataSource(options_of(cluster))
    schema = found.schema()
    reader = found.reader(StructType([schema[column]]) if column else schema)
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def source(spark: SparkSession, cluster: LocalCluster, schema: str = "") -> DataFrame:
    reader = spark.read.format("pulsar").options(**options_of(cluster))
    return (reader.schema(schema) if schema else reader).load()


def compared(spark: SparkSession, cluster: LocalCluster, count: int, size: int) -> None:
    whole, value = source(spark, cluster), source(spark, cluster, "value binary")
    assert value.count() == count
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/rows"
        whole.write.parquet(path)
        plain = spark.read.parquet(path)
        cases: list[tuple[str, Callable[[], None]]] = [
            ("official consumer", lambda: consume(cluster, count)),
            ("bookies to Arrow, all columns", lambda: without_spark(cluster, "")),
            ("bookies to Arrow, value", lambda: without_spark(cluster, "value")),
            ("source, all columns", lambda: drain(whole)),
            ("source, value", lambda: drain(value)),
            ("parquet, all columns", lambda: drain(plain)),
            ("parquet, value", lambda: drain(plain.select("value"))),
        ]
        for name, run in cases:
            with measured(name, count, size):
                run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="of values")
    parser.add_argument("--size", type=int, default=1024, help="of one value, in bytes")
    parser.add_argument("--bookies", type=int, default=2)
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
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster(Path(directory), bookies=given.bookies, brokers=1) as cluster,
    ):
        count = produce(cluster, given.mib, given.size)
        compared(spark, cluster, count, given.size)
    spark.stop()
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
