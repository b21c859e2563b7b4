"""An executor's part in an offload: the body of a Spark task. No entry passes through Spark."""

from collections.abc import Iterable, Iterator

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.jobs.event_loop import run
from magnetar.jobs.offload.file_writer import LedgerOffloader
from magnetar.jobs.offload.work import LedgerTask, Outcome
from magnetar.metadata.store_url import open_store
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings


def offload_ledgers(
    settings: LogSettings,
    job: str,
    cluster_id: str,
    bookies: tuple[BookieRegistration, ...],
    tasks: Iterable[LedgerTask],
) -> Iterator[Outcome]:
    """Offloads the task's ledgers one after the other."""
    metadata = run(open_store(settings.metadata_url, SystemClock(), settings.store_options))
    try:
        with EntryReader(settings, bookies) as reader:
            offloader = LedgerOffloader(job, cluster_id, metadata, reader)
            for task in tasks:
                yield offloader.offload(task)
    finally:
        run(metadata.close())
