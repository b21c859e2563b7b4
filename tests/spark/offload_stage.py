"""Runs the job `offload` on a cluster in memory, with Spark's part in plain Python."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from tests.spark.job_stage import TOPIC, JobCluster, entry

from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload.work import LedgerTask, Outcome
from magnetar.offload.records import OffloadRecord, decode_offload, offloads_prefix
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.offload import executor, job
from magnetar_spark.jobs.offload.job import slices_of

NAME = log_name(parse_topic(TOPIC))
TO_FILES = ("--threshold", "0", "--deletion-lag", "-1")
ENTRIES = [entry(number) for number in range(10)]
"""The entries of three ledgers: four, four and two."""


def on_this_process(monkeypatch: pytest.MonkeyPatch, cluster: JobCluster) -> JobCluster:
    """Returns the cluster; its jobs run the work of executors in this process."""

    def by_spark(
        context: JobContext,
        tasks: list[LedgerTask],
        work: Callable[[Iterable[LedgerTask]], Iterator[Outcome]],
    ) -> list[Outcome]:
        spark: object = context.spark
        assert spark is cluster
        return [outcome for some in slices_of(tasks, 1) for outcome in work(some)]

    monkeypatch.setattr(job, "_write_by_spark", by_spark)
    monkeypatch.setattr(executor, "open_store", cluster.opened_store)
    return cluster


def offload(cluster: JobCluster, *arguments: str, topic: str = TOPIC) -> dict[str, Any]:
    return cluster.job(
        "offload", "--topic", topic, "--store", f"file://{cluster.folder}", *arguments
    )


def live(cluster: JobCluster, name: str = NAME) -> dict[int, OffloadRecord]:
    stored = cluster.run(cluster.store.list(offloads_prefix(name)))
    files = [decode_offload(each.key, each.value) for each in stored]
    return {each.ledger_id: each for each in files}


def counts(found: dict[str, Any], *names: str) -> list[int]:
    return [found["metrics"][name] for name in names]


def only_the_first(cluster: JobCluster) -> int:
    """Writes one closed ledger."""
    cluster.write(TOPIC, ENTRIES[:4])
    (ledger_id,) = cluster.closed()
    return ledger_id
