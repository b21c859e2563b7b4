"""Topics with offloaded ledgers, and the job that offloads them, for tests."""

import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest
from tests.spark.conftest import Log

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload.plan import (
    Override,
    topic_works,
)
from magnetar.jobs.offload.work import LedgerTask, Outcome
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.offload.records import (
    OffloadRecord,
    OffloadRequest,
    attempts_prefix,
    decode_request,
    request_key,
)
from magnetar.offload.repository import OffloadRepository
from magnetar.offload.stores import parse_store
from magnetar_spark.jobs.main import main
from magnetar_spark.jobs.offload.executor import offload_ledgers
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.options import ReadOptions
from magnetar_spark.planner import Plan

TO_FILES = ("--threshold", "0", "--deletion-lag", "-1")
TO_FILES_ONLY = ("--threshold", "0", "--deletion-lag", "0")
"""Bookies delete the ledgers at once."""


def publish(client: pulsar.Client, topic: str, count: int, first: int = 0) -> None:
    """Publishes messages, one entry each; `ledger_entries_max` of them fill a ledger."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for index in range(first, first + count):
            producer.send(f"message {index} ".encode() * 20, partition_key=f"k{index % 7}")


@dataclass(frozen=True)
class Ledgers:
    """The ledgers of a topic: ids of the closed ones with entries, and the live files by ledger."""

    closed: list[int]
    files: dict[int, OffloadRecord]
    on_bookies: list[int]
    attempts: list[str]
    request: OffloadRequest | None


@dataclass(frozen=True)
class Offload:
    """`magnetar job offload` on a topic of the cluster."""

    log: Log
    store: str
    capsys: pytest.CaptureFixture[str]

    def run(self, topic: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Runs the job; returns the exit code and the summary."""
        self.capsys.readouterr()
        code = main(self.arguments(topic, *arguments))
        return code, json.loads(self.capsys.readouterr().out)

    def arguments(self, topic: str, *arguments: str) -> list[str]:
        return [
            "offload",
            *("--topic", topic, "--store", self.store),
            *("--metadata-url", self.log.cluster.metadata_url),
            *("--json", "--no-progress", *arguments),
        ]

    def ledgers(self, topic: str) -> Ledgers:
        """Returns the topic's ledgers, from metadata."""
        return run(self._ledgers(topic))

    async def _ledgers(self, topic: str) -> Ledgers:
        settings = ReadOptions.parse(self.log.options(topic)).log
        name = log_name(parse_topic(topic))
        async with opened_log(settings) as log:
            key = managed_ledger_key(name)
            record = await log.store.get(key)
            assert record is not None
            items = decode_managed_ledger(key, record.value).ledgers
            files = {
                ledger_id: file.record
                for ledger_id, file in (await OffloadRepository(log.store).files(name)).items()
            }
            there = [i.ledger_id for i in items if await log.store.get(ledger_key(i.ledger_id))]
            attempts = [each.key for each in await log.store.list(attempts_prefix(name))]
            request = await log.store.get(request_key(name))
        return Ledgers(
            [i.ledger_id for i in items if i.closed_ms and i.entries],
            files,
            there,
            attempts,
            None if request is None else decode_request(request.key, request.value),
        )

    def ask(self, topic: str, up_to: Position) -> None:
        """Requests an offload as `pulsar-admin topics offload` does."""
        run(self._ask(topic, up_to))

    async def _ask(self, topic: str, up_to: Position) -> None:
        request = OffloadRequest(up_to, SystemClock().now_ms())
        async with opened_log(LogSettings(self.log.cluster.metadata_url)) as log:
            await log.store.put(request_key(log_name(parse_topic(topic))), encode(request))


async def planned(
    settings: LogSettings, topic: str, store: str
) -> tuple[list[LedgerTask], tuple[BookieRegistration, ...]]:
    """Returns the work that a job would give its executors."""
    override = Override(store=parse_store(store), threshold_bytes=0)
    async with opened_log(settings) as log:
        works = await topic_works(log.store, [parse_topic(topic)], override, 0)
        return list(works[0].tasks), tuple(log.bookies.registrations())


def offloaded(
    settings: LogSettings,
    job: str,
    bookies: tuple[BookieRegistration, ...],
    tasks: list[LedgerTask],
) -> list[Outcome]:
    """Offloads as an executor does, in a separate process."""
    return list(offload_ledgers(settings, job, "cluster", bookies, tasks))


def _read(offload: Offload, plan: Plan) -> tuple[list[tuple[int, int, bytes]], int]:
    settings = LogSettings(offload.log.cluster.metadata_url)
    found: list[tuple[int, int, bytes]] = []
    with EntryReader(settings, plan.bookies) as reader:
        for each in (ranged for task in plan.tasks for ranged in task):
            ranged = reader.narrowed(each)
            if ranged is None:
                continue
            for entries in reader.read(ranged):
                found += [(each.ledger_id, entry_id, data) for entry_id, data in entries]
        return found, reader.files.groups


def read(offload: Offload, plan: Plan) -> list[tuple[int, int, bytes]]:
    """Reads all entries of a plan."""
    return _read(offload, plan)[0]


def counted(offload: Offload, plan: Plan) -> tuple[int, int]:
    """Returns the number of entries of a plan, and of the row groups that are fetched for them."""
    found, groups = _read(offload, plan)
    return len(found), groups
