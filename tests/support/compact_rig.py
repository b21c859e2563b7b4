"""Drives the job `compact` against the tests' cluster, and looks at what it leaves."""

import json
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest
from tests.support.compaction import LogEntry

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.compaction.records import (
    CompactionRecord,
    CompactionRequest,
    compaction_key,
    decode_compaction,
    decode_request,
    request_key,
)
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.topics import log_name
from magnetar.metadata.store import MetadataStore
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import open_object_store
from magnetar_spark.jobs import main as jobs
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings

T = TypeVar("T")

Batch = list[tuple[str | None, bytes]]


def write(client: pulsar.Client, topic: str, batches: list[Batch], **options: Any) -> None:
    """Each list as one batch; empty values are tombstones."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, **options
    )
    with closing(producer):
        for inside in batches:
            for key, value in inside:
                keyed = {} if key is None else {"partition_key": key}
                producer.send_async(value, lambda *_: None, **keyed)
            producer.flush()


class CompactRig:
    """The job, and what it leaves. `log` is the fixture of that name."""

    def __init__(self, log: Any, cluster: LocalCluster, folder: Path) -> None:
        self.log = log
        self.cluster = cluster
        self.folder = folder

    def compact(self, *args: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        """Runs the job; its summary."""
        options = self.log.options("")
        code = jobs.main(
            [
                *("compact", "--metadata-url", options["metadata.url"]),
                *("--admin-url", options["admin.url"]),
                *("--store", self.folder.as_uri(), "--json", "--no-progress", *args),
            ]
        )
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        document["code"] = code
        return document

    def in_store(self, body: Callable[[MetadataStore], Coroutine[Any, Any, T]]) -> T:
        async def opened() -> T:
            async with opened_log(LogSettings(self.cluster.metadata_url)) as log:
                return await body(log.store)

        return run(opened())

    def record(self, topic: str) -> CompactionRecord | None:
        async def read(store: MetadataStore) -> CompactionRecord | None:
            stored = await store.get(compaction_key(log_name(parse_topic(topic))))
            return None if stored is None else decode_compaction(stored.key, stored.value)

        return self.in_store(read)

    def request(self, topic: str) -> CompactionRequest | None:
        async def read(store: MetadataStore) -> CompactionRequest | None:
            stored = await store.get(request_key(log_name(parse_topic(topic))))
            return None if stored is None else decode_request(stored.key, stored.value)

        return self.in_store(read)

    def artifact(self, topic: str) -> list[LogEntry]:
        """Every entry of the live artifact, checked, in order."""
        record = self.record(topic)
        assert record is not None

        async def read() -> list[LogEntry]:
            found: list[LogEntry] = []
            store = open_object_store(record.store)
            for each in record.files:
                file = await EntryFile.open(store, each.path, file_bytes=each.file_bytes)
                for group in file.groups:
                    for ledger_id, entry_id, data in await file.read_group(group.number):
                        found.append(LogEntry(Position(ledger_id, entry_id), data))
            assert [each.position for each in found] == sorted({each.position for each in found})
            return found

        return run(read())

    def raw(self, topic: str) -> list[LogEntry]:
        """Every entry of the log."""
        plan = self.log.plan(topic)
        settings = LogSettings(self.cluster.metadata_url)
        with EntryReader(settings, plan.bookies) as reader:
            return [
                LogEntry(Position(ranged.ledger_id, entry_id), data)
                for task in plan.tasks
                for ranged in task
                for group in reader.read(ranged)
                for entry_id, data in group
            ]

    def files(self) -> set[str]:
        found = self.folder.rglob("*.parquet")
        return {str(path.relative_to(self.folder)) for path in found}
