"""One Spark (`local[2]`) and one cluster of real processes for all tests of the data source.

Spark's Python workers are processes of their own, started as `PYSPARK_PYTHON`: this interpreter.
Topics are written by the official client. Most tests read them through `Log`, which does in this
process what Spark's workers do; those of Spark itself use the fixture `spark`.
"""

import os
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.support.cluster_processes import brokers, running_cluster

import magnetar_spark
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.jobs.event_loop import run
from magnetar_spark.filters import Bounds
from magnetar_spark.options import ReadOptions
from magnetar_spark.planner import Plan, plan_read
from magnetar_spark.source import PlainReader, PulsarDataSource

TIMEOUT_S = 180

# gRPC aborts a fork that has its threads; the process that becomes Spark's JVM execs at once.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# The keys of the S3 server that some tests start. Workers inherit the JVM's environment.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test pays for Spark's start, some 10 s on a quiet machine."""
    for item in items:
        if "tests/spark/" in str(item.path) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("magnetar tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    magnetar_spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalCluster]:
    """Starts a cluster with small ledgers, so that a short topic has several."""
    before = request.session.testsfailed
    with running_cluster(
        tmp_path_factory.mktemp("cluster"),
        bookies=3,
        brokers=1,
        failed=lambda: request.session.testsfailed > before,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        ledger_rollover_min_minutes=0,
        ledger_entries_max=20,
        retention_minutes=-1,
        retention_size_mb=-1,
        transactions=True,
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Iterator[pulsar.Client]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(cluster.directory / "client.log"))
    with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """Returns a new topic name for every test."""
    return f"persistent://public/default/spark-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Log:
    """Reads topics of the cluster as tasks of Spark do, in this process."""

    cluster: LocalCluster

    def options(self, topic: str, **options: str) -> dict[str, str]:
        """Returns the options; underscores in their names stand for dots."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        named = {"topic": topic} if topic else {}
        return {
            "service.url": self.cluster.service_url,
            "admin.url": brokers(self.cluster)[0].http_url,
            "metadata.url": self.cluster.metadata_url,
            **named,
            **given,
        }

    def plan(self, topic: str, bounds: Bounds | None = None, **options: str) -> Plan:
        read = ReadOptions.parse(self.options(topic, **options))
        return run(plan_read(read, bounds or Bounds()))

    def rows(
        self,
        topic: str,
        bounds: Bounds | None = None,
        columns: tuple[str, ...] = (),
        **options: str,
    ) -> list[dict[str, Any]]:
        """Returns all rows, task by task."""
        source = PulsarDataSource(self.options(topic, **options))
        whole = source.schema()
        wanted = StructType([whole[name] for name in columns]) if columns else whole
        reader = source.reader(wanted)
        assert isinstance(reader, PlainReader)
        reader._bounds = bounds or Bounds()
        rows: list[dict[str, Any]] = []
        for partition in reader.partitions():
            task = pickle.loads(pickle.dumps((reader, partition)))  # noqa: S301
            for batch in task[0].read(task[1]):
                batch.validate(full=True)
                rows += batch.to_pylist(maps_as_pydicts="strict")
        return rows


@pytest.fixture
def log(cluster: LocalCluster) -> Log:
    return Log(cluster)


@pytest.fixture
def messages(client: pulsar.Client) -> Callable[[str, int], list[Any]]:
    """Reads the first messages of a topic with the official client."""

    def read(topic: str, count: int) -> list[Any]:
        with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
            return [reader.read_next(30_000) for _ in range(count)]

    return read
