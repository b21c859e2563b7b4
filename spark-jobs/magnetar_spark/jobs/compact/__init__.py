"""Job `compact`: writes the latest value of each key of a topic to its compacted artifact."""

import argparse
import os
from typing import Final

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.store_flag import add_address_flags, add_store_flag
from magnetar_spark.jobs.summary import Summary

DESCRIPTION: Final = """\
Writes the latest value of each key, up to the last confirmed entry, to files that brokers serve to
readers with read_compacted. Compacts topics named by --topic, and of the others those with a
request from pulsar-admin or beyond their compaction threshold. Continues from the last run's
horizon. Safe to run again, in parallel with another run, and after a run that was killed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `magnetar job compact`."""
    group = parser.add_argument_group("compact (default: the offload policies)")
    add_store_flag(group)
    add_address_flags(group)
    flag = group.add_argument
    flag(
        "--parallelism",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="number of tasks that run at once, which divides the input (default: cores here)",
    )
    flag("--always-spark", action="store_true", help="use Spark for small topics, too")


def run(job: JobContext) -> Summary:
    """Compacts the selected topics."""
    from magnetar_spark.jobs.compact.job import compact

    return compact(job)
