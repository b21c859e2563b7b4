"""Job `compact`: the latest value of each key of a topic becomes its compacted artefact."""

import argparse
import os
from typing import Final

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary

DESCRIPTION: Final = """\
Writes the latest value of each key, up to the last confirmed entry, to files that brokers serve to
readers with read_compacted. Topics that are named are compacted; of others those that were asked
for by pulsar-admin, or are over their compaction threshold. Goes on from where the last run ended.
Safe to run twice, by two at once, and after a run that was killed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module's text."""
    flag = parser.add_argument_group(
        "compact (by default as the offload policies say)"
    ).add_argument
    flag("--store", metavar="URL", help="where to: s3://BUCKET/PREFIX or file:///FOLDER")
    flag("--store-endpoint", metavar="URL", help="the address of an S3-compatible store")
    flag("--store-region", metavar="NAME", help="its region")
    flag(
        "--parallelism",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="tasks that run at once, by which the input is cut (the cores here)",
    )
    flag("--always-spark", action="store_true", help="start Spark for small topics, too")


def run(job: JobContext) -> Summary:
    """See DESCRIPTION."""
    from magnetar_spark.jobs.compact.job import run

    return run(job)
