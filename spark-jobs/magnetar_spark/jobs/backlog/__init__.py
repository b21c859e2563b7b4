"""Job `backlog`: what subscriptions have left unread, why, since when, and what it costs."""

import argparse
from typing import Final

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary

DESCRIPTION: Final = """\
Explains backlogs: per subscription in entries, messages, bytes and age, their growth since the last
run in the same output and the time to drain; ack holes and who holds them; hot keys; bytes on
bookies by cause; dead letters; sizes and rates; what TTL and retention would free. Writes Parquet
tables, report.html and metrics.prom. Reads metadata and bookies, leaves no trace on topics.
"""

MIB: Final = 1 << 20
SCAN_MIB_DEFAULT: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module's text."""
    flag = parser.add_argument_group("backlog").add_argument
    flag("--output", metavar="DIR|URL", help="where tables, report and metrics go (none: only sum)")
    flag(
        "--scan-bytes-max",
        type=int,
        default=SCAN_MIB_DEFAULT * MIB,
        metavar="BYTES",
        help="read at most so much of a topic's log, samples beyond (256 MiB); 0 reads nothing",
    )
    flag(
        "--what-if",
        action="append",
        default=[],
        metavar="POLICY",
        help="ttl=2h, retention=1d, retention=10G, retention=1d/10G, or several with commas",
    )
    flag("--top", type=int, default=20, metavar="N", help="rows shown of each chart and list (20)")
    flag(
        "--default-retention",
        metavar="TIME/SIZE",
        help="of brokers, where --admin-url is not given to ask them (0/0)",
    )
    flag("--default-ttl", metavar="TIME", help="likewise (0: none)")
    flag(
        "--no-publish",
        action="store_true",
        help="do not leave a summary in the metadata store (/analytics/backlog)",
    )


def run(job: JobContext) -> Summary:
    """See DESCRIPTION."""
    from magnetar_spark.jobs.backlog.job import run

    return run(job)
