"""Topics with ledgers in files, and the job that puts them there, for tests."""

import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest
from tests.spark.conftest import Log

from magnetar.core.names import parse_topic
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.offload.records import OffloadRecord
from magnetar_spark.jobs.main import main
from magnetar_spark.jobs.offload.planning import live_records
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.running import run
from magnetar_spark.log.topics import log_name
from magnetar_spark.options import ReadOptions

TO_FILES = ("--threshold", "0", "--deletion-lag", "-1")
TO_FILES_ONLY = ("--threshold", "0", "--deletion-lag", "0")
"""The bookies let go at once."""


def publish(client: pulsar.Client, topic: str, count: int, first: int = 0) -> None:
    """Messages of their own entries: `ledger_entries_max` of the cluster make a ledger."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for index in range(first, first + count):
            producer.send(f"message {index} ".encode() * 20, partition_key=f"k{index % 7}")


@dataclass(frozen=True)
class Ledgers:
    """Of a topic: ids of the closed ones that have entries, and the live files by ledger."""

    closed: list[int]
    files: dict[int, OffloadRecord]
    on_bookies: list[int]


@dataclass(frozen=True)
class Offload:
    """`magnetar job offload` on a topic of the cluster."""

    log: Log
    store: str
    capsys: pytest.CaptureFixture[str]

    def run(self, topic: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit code and the summary."""
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
        """As metadata has them."""
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
                each: file for each, (file, _) in (await live_records(log.store, name)).items()
            }
            there = [i.ledger_id for i in items if await log.store.get(ledger_key(i.ledger_id))]
        return Ledgers([i.ledger_id for i in items if i.closed_ms and i.entries], files, there)
