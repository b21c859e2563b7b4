"""What a job has in its hands: `run(job: JobContext) -> Summary` of every kind takes it.

Spark is started by the first look at `job.spark`: a job that finds nothing to do in metadata never
pays for a JVM. Topics are named by the flags, and resolved from metadata alone, when asked for.
"""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.core.clock import Clock
from magnetar.core.names import TopicName
from magnetar.metadata.store import MetadataStore
from magnetar_spark.jobs.progress import Progress
from magnetar_spark.jobs.session import Sessions
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.log.topics import Selection, selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JobContext:
    """See the module's text."""

    kind: str
    job_id: str
    """Of this run alone: a hex uuid."""
    arguments: argparse.Namespace
    """All flags, those of the kind included."""
    log: LogSettings
    selection: Selection
    sessions: Sessions
    progress: Progress
    summary: Summary
    clock: Clock

    @property
    def spark(self) -> "SparkSession":
        """The session, started when it is first asked for."""
        return self.sessions.get()

    async def topics(self, store: MetadataStore) -> list[TopicName]:
        """The logs that the flags mean, partitions one by one; raises TopicNotFound."""
        return await selected(store, self.selection)
