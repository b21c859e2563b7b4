"""Job `offload`: closed ledgers become Parquet files, and bookies let go of them."""

import argparse
from typing import Final

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary

DESCRIPTION: Final = """\
Writes closed ledgers past the thresholds to Parquet files, one each, checks them by reading back,
and has the bookies let go of those that were offloaded long enough ago. Safe to run twice, by two
at once, and after a run that was killed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module's text."""
    flag = parser.add_argument_group("offload (by default as the policies say)").add_argument
    flag("--store", metavar="URL", help="where to: s3://BUCKET/PREFIX or file:///FOLDER")
    flag("--threshold", type=int, metavar="BYTES", help="offload the oldest beyond so many bytes")
    flag("--threshold-age", type=int, metavar="S", help="offload what was closed so long ago")
    flag("--up-to", metavar="L:E", help="offload what is before this position")
    flag("--deletion-lag", type=int, metavar="S", help="bookies let go so long after; -1: never")


def run(job: JobContext) -> Summary:
    """See DESCRIPTION."""
    from magnetar_spark.jobs.offload.job import run

    return run(job)
