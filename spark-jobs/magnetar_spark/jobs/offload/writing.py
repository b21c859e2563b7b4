"""What an executor does: reads a closed ledger from the bookies, and makes a live file of it.

Entries go from the sockets of bookies into row groups and on to the store: nothing of them passes
through Spark. In memory are the reads ahead (`log.reading`), one row group, and the parts on their
way to the store (`offload.sinks`).

The steps: the attempt is put; the file is written, and brought to the disk where the store is a
folder; it is read back, whole; the attempt is committed. What goes wrong with one ledger is its
outcome, and the others go on.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore, MetadataUnavailable
from magnetar.offload.file_format import EntryFileWriter, WrittenFile
from magnetar.offload.records import OffloadRecord
from magnetar.offload.sinks import open_sink
from magnetar.offload.stores import open_object_store
from magnetar.offload.trash import delete_file
from magnetar.offload.verify import verify_file
from magnetar_spark.jobs.offload.attempts import (
    Attempt,
    begin,
    closed_ledger,
    commit,
    give_up,
    take_back,
)
from magnetar_spark.jobs.offload.work import LedgerTask, Outcome, Result
from magnetar_spark.jobs.sweeping import PROPERTY_CLUSTER
from magnetar_spark.log.ledgers import live_file
from magnetar_spark.log.planning import Range
from magnetar_spark.log.reading import EntryReader
from magnetar_spark.log.running import run
from magnetar_spark.log.settings import LogSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = get_logger("magnetar.offload")


class LedgerWriter:
    """Writes ledgers for one job, one after the other."""

    def __init__(
        self,
        settings: LogSettings,
        job: str,
        cluster_id: str,
        metadata: MetadataStore,
        reader: EntryReader,
    ) -> None:
        self._settings = settings
        self._job = job
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._reader = reader
        self._clock: Clock = SystemClock()

    def offload(self, task: LedgerTask) -> Outcome:
        """What became of the ledger; raises nothing that belongs to it alone."""
        cpu = time.process_time()
        try:
            outcome = self._offload(task)
        except Exception as error:
            text = str(error) or type(error).__name__
            if not isinstance(error, MagnetarError | TimeoutError | OSError):
                text = f"{type(error).__name__}: {error}"
                log.exception("not offloaded", ledger=task.ledger_id)
            outcome = Outcome(task.name, task.ledger_id, Result.FAILED, error=text)
        return replace(outcome, cpu_s=time.process_time() - cpu)

    def _offload(self, task: LedgerTask) -> Outcome:
        if run(live_file(self._metadata, task.name, task.ledger_id)) is not None:
            return Outcome(task.name, task.ledger_id, Result.ALREADY)
        found = run(closed_ledger(self._metadata, task.ledger_id))
        if found is None:
            return Outcome(task.name, task.ledger_id, Result.GONE)
        files = open_object_store(task.store)
        attempt = run(begin(self._metadata, task, self._job, self._clock.now_ms()))
        try:
            written = self._write(task, found[0], files, attempt)
            self._verify(found[0], files, attempt, written)
            file = self._record(task, attempt, written)
            result = run(commit(self._metadata, attempt, task.name, file))
        except MetadataUnavailable:
            raise  # nobody knows whether it is live: see `attempts`
        except BaseException:
            self._give_up(task, files, attempt)
            raise
        if result is not Result.OFFLOADED:
            self._give_up(task, files, attempt)
            return Outcome(task.name, task.ledger_id, result)
        return Outcome(
            task.name,
            task.ledger_id,
            result,
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
        """Against what the ledger's record says, and what was written."""
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

    def _record(self, task: LedgerTask, attempt: Attempt, written: WrittenFile) -> OffloadRecord:
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
            offloaded_ms=self._clock.now_ms(),
        )

    def _give_up(self, task: LedgerTask, files: "ObjectStore", attempt: Attempt) -> None:
        """Removes what was written, unless it is live, or leaves it to the next run."""
        try:
            mine = run(take_back(self._metadata, attempt, self._job))
            if mine is not None:
                run(give_up(self._metadata, files, mine))
                return
            live = run(live_file(self._metadata, task.name, task.ledger_id))
            if live is None or live.attempt != attempt.attempt:
                run(delete_file(files, attempt.path))
        except Exception as error:  # noqa: BLE001 - what it is given up for is what is told
            log.warning("left for the next run", attempt=attempt.key, error=str(error))


def offload_ledgers(
    settings: LogSettings,
    job: str,
    cluster_id: str,
    bookies: tuple[BookieRegistration, ...],
    tasks: Iterable[LedgerTask],
) -> Iterator[Outcome]:
    """A task of Spark: its ledgers, one after the other."""
    metadata = run(open_store(settings.metadata_url, SystemClock(), settings.store_options))
    try:
        with EntryReader(settings, bookies) as reader:
            writer = LedgerWriter(settings, job, cluster_id, metadata, reader)
            for task in tasks:
                yield writer.offload(task)
    finally:
        run(metadata.close())
