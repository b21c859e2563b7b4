"""A cluster under varied load, and a Prometheus that scrapes its members."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pulsar
import pulsar.schema
from tests.support.cluster_processes import brokers, running_cluster
from tests.support.transactional import TransactionalClient

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Member, Role

from .prometheus import Prometheus, Target

CLUSTER: Final = "test"
NAMESPACE: Final = "public/default"
TOPIC: Final = f"persistent://{NAMESPACE}/orders"
TRANSACTED: Final = f"persistent://{NAMESPACE}/transacted"
JOBS: Final = {Role.BROKER: "broker", Role.BOOKIE: "bookie", Role.AUTORECOVERY: "recovery"}
"""The label `component` of the chart's pods, which PodMonitors make the job."""
SETTINGS: Final[dict[str, Any]] = {
    "transactions": True,
    "consumer_metrics": True,
    "backlog_quota_bytes": 1_000_000_000,
    "cache_size_mb": 0,  # so that dispatch reads from bookies
}
PAUSE_S: Final = 0.05
"""Between two messages of the load: a panel needs some, and CI's CPU is scarce."""
RECEIVE_TIMEOUT_MS: Final = 30_000
JOIN_TIMEOUT_S: Final = 60.0
HTTP_TIMEOUT_S: Final = 30.0
VARIABLES: Final = {
    "cluster": CLUSTER,
    "tenant": "public",
    "instance": ".*",
    "broker": ".*",
    "cache": ".*",
    "coordinator_id": "0",
    "topic": f"{TOPIC}-partition-0",
}


class Order(pulsar.schema.Record):  # type: ignore[misc]
    """A value with a schema."""

    number = pulsar.schema.Integer()


SCHEMA: Final = pulsar.schema.AvroSchema(Order)


def variables(board: str) -> dict[str, str]:
    """What a person chooses on a board: one cluster, namespace and topic, and all instances."""
    owner, name = board.split("/")
    namespace = NAMESPACE if owner == "streamnative" else NAMESPACE.split("/")[1]
    job = "bookie" if name.startswith("bookkeeper") else "broker"
    return {**VARIABLES, "namespace": namespace, "job": job}


@contextlib.contextmanager
def scraped(directory: Path, rules: Path | None = None) -> Iterator[Prometheus]:
    """A Prometheus beside a cluster that serves clients until the context ends."""
    with (
        running_cluster(directory, bookies=2, brokers=1, **SETTINGS) as cluster,
        Prometheus(directory, CLUSTER, targets(cluster), rules) as prometheus,
        loaded(brokers(cluster)[0]),
    ):
        yield prometheus


def targets(cluster: LocalCluster) -> Iterator[Target]:
    """The members that have a page of metrics."""
    for member in cluster.members:
        if member.role in JOBS:
            address = member.http_url.removeprefix("http://")
            yield Target(address, JOBS[member.role], member.name)


@contextlib.contextmanager
def loaded(broker: Member) -> Iterator[None]:
    """Messages flow while the context lasts: acknowledged, rejected, delayed, and left."""
    asyncio.run(_transactions(broker))
    created = put(f"{broker.http_url}/admin/v2/{TOPIC.replace('://', '/')}/partitions", 2)
    assert created == HTTPStatus.NO_CONTENT, created
    client = pulsar.Client(
        f"pulsar://{broker.address}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    ended = threading.Event()
    try:
        with ThreadPoolExecutor(1, "load") as pool:
            load = pool.submit(_load, client, ended)
            try:
                yield
            finally:
                ended.set()
                load.result(JOIN_TIMEOUT_S)
    finally:
        client.close()


async def _transactions(broker: Member) -> None:
    """One transaction is committed, one is aborted, one stays open."""
    async with TransactionalClient((broker.host, broker.ports["port"])) as client:
        for commit in (True, False, None):
            txn = await client.begin()
            await client.add(txn, TRANSACTED)
            await client.send(TRANSACTED, txn, b"message")
            if commit is not None:
                await client.end(txn, commit=commit)


def _load(client: pulsar.Client, ended: threading.Event) -> None:
    """Of ten messages, one is delayed, one is rejected and one is left; the others are acked."""
    client.subscribe(TOPIC, "idle").close()
    consumer = client.subscribe(
        TOPIC,
        "worker",
        consumer_type=pulsar.ConsumerType.Shared,
        schema=SCHEMA,
        negative_ack_redelivery_delay_ms=100,
    )
    producer = client.create_producer(TOPIC, schema=SCHEMA)
    for number in itertools.count():
        kind = number % 10
        delay = timedelta(hours=1) if kind == 0 else None
        producer.send(Order(number=number), deliver_after=delay)
        if kind:
            message = consumer.receive(RECEIVE_TIMEOUT_MS)
            if kind == 1:
                consumer.negative_acknowledge(message)
            elif kind != 2:
                consumer.acknowledge(message)
        if ended.wait(PAUSE_S):
            return


def put(url: str, document: int) -> int:
    """The status of a PUT of a document."""
    return httpx.put(url, json=document, timeout=HTTP_TIMEOUT_S).status_code
