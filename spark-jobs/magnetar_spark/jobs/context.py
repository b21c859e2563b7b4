"""The context that `run(job: JobContext) -> Summary` of every kind gets.

The first access to `job.spark` starts Spark: a job that has nothing to do according to metadata
never pays for a JVM. Topics are selected by flags, and resolved from metadata when requested.
"""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.core.clock import Clock
from magnetar.core.names import TopicName
from magnetar.jobs.log.topics import Selection, selected
from magnetar.metadata.store import MetadataStore
from magnetar_spark.jobs.progress import Progress
from magnetar_spark.jobs.session import Sessions
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.settings import LogSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JobContext:
    """The parameters and tools of one run of a job."""

    kind: str
    job_id: str
    """A hex uuid, unique to this run."""
    arguments: argparse.Namespace
    """All flags, including those of the kind."""
    log: LogSettings
    selection: Selection
    sessions: Sessions
    progress: Progress
    summary: Summary
    clock: Clock

    @property
    def spark(self) -> "SparkSession":
        """The Spark session, started on first access."""
        return self.sessions.get()

    async def topics(self, store: MetadataStore) -> list[TopicName]:
        """The selected topics, with partitions listed singly. Raises TopicNotFound."""
        return await selected(store, self.selection)
