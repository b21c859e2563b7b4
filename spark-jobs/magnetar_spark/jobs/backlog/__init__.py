"""Job `backlog`: explains backlogs, their causes, their age and their cost."""

import argparse
from typing import Final

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary

DESCRIPTION: Final = """\
Explains backlogs: entries, messages, bytes and age per subscription, growth since the last run in
the same output and time to drain; ack holes and their holders; hot keys; bytes on bookies by cause;
dead letters; sizes and rates; the effect of other TTLs and retentions. Writes Parquet tables,
report.html and metrics.prom. Reads metadata and bookies, and leaves no trace on topics.
"""

MIB: Final = 1 << 20
SCAN_MIB_DEFAULT: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `magnetar job backlog`."""
    flag = parser.add_argument_group("backlog").add_argument
    flag("--output", metavar="DIR|URL", help="where tables, report and metrics go (default: none)")
    flag(
        "--scan-bytes-max",
        type=int,
        default=SCAN_MIB_DEFAULT * MIB,
        metavar="BYTES",
        help="scan at most BYTES of each topic, as a sample if there is more (256 MiB); 0: nothing",
    )
    flag(
        "--what-if",
        action="append",
        default=[],
        metavar="POLICY",
        help="ttl=2h, retention=1d, retention=10G, retention=1d/10G, or several with commas",
    )
    flag("--top", type=int, default=20, metavar="N", help="rows of each chart and list (20)")
    flag(
        "--default-retention",
        metavar="TIME/SIZE",
        help="the brokers' default retention, if --admin-url is not given (0/0)",
    )
    flag("--default-ttl", metavar="TIME", help="the brokers' default TTL, likewise (0: none)")
    flag(
        "--no-publish",
        action="store_true",
        help="do not write a summary to the metadata store (/analytics/backlog)",
    )


def run(job: JobContext) -> Summary:
    """Analyses the selected topics."""
    from magnetar_spark.jobs.backlog.job import analyse

    return analyse(job)
