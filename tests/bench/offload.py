"""Compares the job `offload` with Spark writing the same bytes to plain Parquet.

    python -m tests.bench.offload [--mib 512] [--size 1024] [--bookies 2] [--store URL] [--json]

Runs a cluster of processes on this machine, with one topic of batched messages of random bytes in
ledgers of LEDGER_MB. Both read from the same bookies: the job writes the ledgers to files with
index columns and verifies them; Spark reads `format("pulsar")` and writes the rows to Parquet. The
figures are CPU time of this process and its children, which depends less on other load. "of plain"
is Spark alone, from Parquet of the same rows to Parquet. Store and Parquet are on the same disk.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from pyspark.sql import SparkSession
from tests.bench.spark import TOPIC, options_of, produce, tree_cpu_s
from tests.support.cluster_processes import running_cluster

import magnetar_spark
from magnetar.cluster.local.cluster import LocalCluster
from magnetar_spark.jobs.main import main as job

MIB = 1 << 20
LEDGER_MB = 32


def measured(name: str, size_bytes: int, run: Callable[[], Any]) -> dict[str, Any]:
    """Returns the rate per core and by the wall clock."""
    cpu, wall = tree_cpu_s(), time.perf_counter()
    run()
    cpu, wall = tree_cpu_s() - cpu, time.perf_counter() - wall
    return {
        "name": name,
        "cpuSeconds": round(cpu, 2),
        "wallSeconds": round(wall, 2),
        "mbPerSecondPerCore": round(size_bytes / cpu / 1e6, 1),
        "mbPerSecond": round(size_bytes / wall / 1e6, 1),
    }


def offload(cluster: LocalCluster, store: str, summary: Path) -> None:
    arguments = ["offload", "--topic", TOPIC, "--store", store, "--threshold", "0"]
    arguments += ["--metadata-url", cluster.metadata_url, "--deletion-lag", "-1", "--no-progress"]
    output, sys.stdout = sys.stdout, summary.open("w")
    try:
        code = job([*arguments, "--json"])
    finally:
        sys.stdout.close()
        sys.stdout = output
    assert code == 0, summary.read_text()


def compared(
    spark: SparkSession, cluster: LocalCluster, directory: Path, store: str, size_bytes: int
) -> list[dict[str, Any]]:
    topic = spark.read.format("pulsar").options(**options_of(cluster)).load()
    plain = directory / "plain"
    summary = directory / "summary.json"
    value = topic.select("value")
    value.limit(1).collect()  # the JVM and the workers are warm
    found = [
        measured("source to parquet, value", size_bytes, lambda: value.write.parquet(str(plain)))
    ]
    rows = spark.read.parquet(str(plain))
    found.append(
        measured(
            "parquet to parquet, value",
            size_bytes,
            lambda: rows.write.parquet(str(directory / "again")),
        )
    )
    found.append(measured("offload", size_bytes, lambda: offload(cluster, store, summary)))
    metrics = json.loads(summary.read_text())["metrics"]
    found[-1]["share"] = round(metrics["bytesOffloaded"] / size_bytes, 3)
    found[-1]["mbPerSecondPerCore"] = round(
        metrics["bytesOffloaded"] / found[-1]["cpuSeconds"] / 1e6, 1
    )
    found[-1]["executorCpuSeconds"] = metrics["executorCpuSeconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512, help="of values")
    parser.add_argument("--size", type=int, default=1024, help="of one value, in bytes")
    parser.add_argument("--bookies", type=int, default=2)
    parser.add_argument("--store", default="", help="of the job (default: a folder)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.parquet.compression.codec", "none")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    magnetar_spark.register(spark)
    with (
        tempfile.TemporaryDirectory() as temporary,
        running_cluster(
            Path(temporary),
            bookies=given.bookies,
            brokers=1,
            ledger_size_max_mb=LEDGER_MB,
            ledger_rollover_min_minutes=0,
            retention_minutes=-1,
            retention_size_mb=-1,
        ) as cluster,
    ):
        count = produce(cluster, given.mib, given.size)
        directory = Path(temporary)
        store = given.store or (directory / "cold").as_uri()
        found = compared(spark, cluster, directory, store, count * given.size)
    spark.stop()
    if given.json:
        print(json.dumps(found))
        return
    for each in found:
        print(
            f"{each['name']:28} {each['mbPerSecondPerCore']:8} MB/s/core "
            f"{each['cpuSeconds']:8} s CPU {each['wallSeconds']:8} s"
        )
        if "executorCpuSeconds" in each:
            print(f"  of that in its tasks: {each['executorCpuSeconds']} s CPU")


if __name__ == "__main__":
    main()
