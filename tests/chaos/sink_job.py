"""The query of `sink_kills`: copies a topic to its present end, exactly once."""

import argparse
import os
import sys

from pyspark.sql import SparkSession

import magnetar_spark


def main() -> int:
    """Runs the query to its end; 0 if it succeeded."""
    parser = argparse.ArgumentParser()
    for name in ("service-url", "metadata-url", "admin-url", "source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--trigger-bytes", required=True)
    parser.add_argument("--partition-bytes", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--no-progress", action="store_true")
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(args.master).appName("sink kills")
    for setting in args.conf:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    magnetar_spark.register(spark)
    rows = (
        spark.readStream.format("pulsar")
        .option("metadata.url", args.metadata_url)
        .option("admin.url", args.admin_url)
        .option("topic", args.source)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", args.trigger_bytes)
        .option("partition.bytes", args.partition_bytes)
        .schema("value binary, __key binary")
        .load()
    )
    query = (
        rows.writeStream.format("pulsar")
        .option("service.url", args.service_url)
        .option("topic", args.target)
        .option("exactlyOnce", "true")
        .option("transactionTimeoutMs", "600000")
        .option("pulsar.client.operationTimeoutMs", "120000")
        .option("pulsar.producer.sendTimeoutMs", "120000")
        .option("pulsar.producer.batchingMaxMessages", "20")
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
