"""The steps of an offload: plan, write, release, clean."""

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.running import run as wait


def run(job: JobContext) -> Summary:
    """See the module's text."""
    job.summary.count("topics", wait(_topics(job)))
    return job.summary


async def _topics(job: JobContext) -> int:
    async with opened_log(job.log) as log:
        return len(await job.topics(log.store))
