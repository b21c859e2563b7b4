"""Offloads one ledger: reads a closed ledger from the bookies and makes a live file.

Entries go from the reader into row groups and on to the store. Memory holds the reader's groups,
one row group, and the parts in flight to the store (`offload.sinks`).

The steps: record the attempt; write the file, and sync it if the store is a folder; read the whole
file back; commit the attempt. A failure of one ledger is its outcome, and does not stop the others.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.range_reader import OpenReader, RangeReader
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.offload.work import LedgerTask, Outcome, Result
from magnetar.jobs.sweeper import PROPERTY_CLUSTER
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore, MetadataUnavailable
from magnetar.offload.file_format import EntryFileWriter, WrittenFile
from magnetar.offload.records import OffloadRecord
from magnetar.offload.repository import Attempt, CommitResult, OffloadRepository
from magnetar.offload.sinks import open_sink
from magnetar.offload.stores import open_object_store
from magnetar.offload.trash import delete_file
from magnetar.offload.verify import verify_file

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = get_logger("magnetar.offload")


class LedgerOffloader:
    """Offloads ledgers of one job, one after the other."""

    def __init__(
        self,
        job: str,
        cluster_id: str,
        metadata: MetadataStore,
        reader: RangeReader,
    ) -> None:
        self._job = job
        self._cluster_id = cluster_id
        self._repository = OffloadRepository(metadata)
        self._reader = reader
        self._clock: Clock = SystemClock()

    def offload(self, task: LedgerTask) -> Outcome:
        """Offloads a ledger. An error that concerns only this ledger becomes its outcome."""
        cpu = time.process_time()
        try:
            outcome = self._offload(task)
        except Exception as error:
            text = str(error) or type(error).__name__
            if not isinstance(error, MagnetarError | TimeoutError | OSError):
                text = f"{type(error).__name__}: {error}"
                log.exception("the ledger was not offloaded", ledger=task.ledger_id)
            outcome = Outcome(task.name, task.ledger_id, Result.FAILED, error=text)
        return replace(outcome, cpu_s=time.process_time() - cpu)

    def _offload(self, task: LedgerTask) -> Outcome:
        if run(self._repository.file(task.name, task.ledger_id)) is not None:
            return Outcome(task.name, task.ledger_id, Result.ALREADY)
        ledger = run(self._repository.closed_ledger(task.ledger_id))
        if ledger is None:
            return Outcome(task.name, task.ledger_id, Result.GONE)
        metadata, _ = ledger
        files = open_object_store(task.store)
        attempt = run(
            self._repository.begin_attempt(
                task.name, task.ledger_id, task.store, self._job, self._clock.now_ms()
            )
        )
        try:
            written = self._write(task, metadata, files, attempt)
            self._verify(metadata, files, attempt, written)
            file = record_of(task, attempt, written, self._clock.now_ms())
            result = run(self._repository.commit(task.name, attempt, file))
        except MetadataUnavailable:
            raise  # the file may be live: it must not be deleted (see `offload.repository`)
        except BaseException:
            self._give_up(task, files, attempt)
            raise
        if result is not CommitResult.OFFLOADED:
            self._give_up(task, files, attempt)
            return Outcome(task.name, task.ledger_id, Result(result))
        return Outcome(
            task.name,
            task.ledger_id,
            Result.OFFLOADED,
            written.entries,
            written.length_bytes,
            written.file_bytes,
        )

    def _write(
        self, task: LedgerTask, metadata: LedgerMetadata, files: "ObjectStore", attempt: Attempt
    ) -> WrittenFile:
        sink = open_sink(task.store, files, attempt.path)
        whole = Range(
            task.topic, task.partition, metadata, 0, metadata.last_entry, metadata.length_bytes
        )
        properties = {PROPERTY_CLUSTER: self._cluster_id, "attempt": attempt.attempt}
        writer = EntryFileWriter(sink, managed_ledger=task.name, properties=properties)
        try:
            for entries in self._reader.read(whole):
                writer.add_entries(task.ledger_id, entries)
            return writer.close()
        except BaseException:
            writer.abandon()
            sink.abandon()
            raise

    def _verify(
        self,
        metadata: LedgerMetadata,
        files: "ObjectStore",
        attempt: Attempt,
        written: WrittenFile,
    ) -> None:
        """Reads the file back, and compares it with the ledger's record and the written bytes."""
        run(
            verify_file(
                files,
                attempt.path,
                ledger_id=metadata.ledger_id,
                last_entry=metadata.last_entry,
                length_bytes=metadata.length_bytes,
                checksum=written.checksum,
            )
        )

    def _give_up(self, task: LedgerTask, files: "ObjectStore", attempt: Attempt) -> None:
        """Deletes the file unless it is live; on failure leaves it to the next run."""
        try:
            mine = run(self._repository.reclaim_attempt(attempt, self._job))
            if mine is not None:
                run(self._repository.discard_attempt(files, mine))
                return
            live = run(self._repository.file(task.name, task.ledger_id))
            if live is None or live.attempt != attempt.attempt:
                run(delete_file(files, attempt.path))
        except Exception as error:  # noqa: BLE001 - the caller reports why the attempt failed
            log.warning("an attempt is left to the next run", attempt=attempt.key, error=str(error))


def record_of(
    task: LedgerTask, attempt: Attempt, written: WrittenFile, now_ms: int
) -> OffloadRecord:
    """The record of a file that was written and verified."""
    return OffloadRecord(
        ledger_id=task.ledger_id,
        attempt=attempt.attempt,
        store=task.store,
        path=attempt.path,
        file_bytes=written.file_bytes,
        entries=written.entries,
        length_bytes=written.length_bytes,
        checksum=written.checksum,
        created_ms=task.created_ms,
        closed_ms=task.closed_ms,
        offloaded_ms=now_ms,
    )


def write_verified(
    open_reader: OpenReader,
    cluster_id: str,
    task: LedgerTask,
    metadata: LedgerMetadata,
    attempt: Attempt,
) -> WrittenFile:
    """The part of an offload without metadata, for a worker process: the file, read back."""
    files = open_object_store(task.store)
    with open_reader() as reader:
        steps = LedgerOffloader("", cluster_id, MemoryStore(SystemClock()), reader)
        written = steps._write(task, metadata, files, attempt)
        steps._verify(metadata, files, attempt, written)
    return written
