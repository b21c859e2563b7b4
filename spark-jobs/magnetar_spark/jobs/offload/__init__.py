"""Job `offload`: writes closed ledgers to Parquet files and has the bookies delete their copies."""

import argparse
from typing import Final

from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.store_flag import add_store_flag
from magnetar_spark.jobs.summary import Summary

DESCRIPTION: Final = """\
Writes closed ledgers past the thresholds to Parquet files, one file per ledger, verifies each file
by reading it back, and has the bookies delete ledgers that were offloaded long enough ago. Safe to
run again, in parallel with another run, and after a run that was killed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `magnetar job offload`."""
    group = parser.add_argument_group("offload (default: the offload policies)")
    add_store_flag(group)
    flag = group.add_argument
    flag(
        "--threshold",
        type=int,
        metavar="BYTES",
        help="offload the oldest ledgers until BYTES are left on bookies",
    )
    flag("--threshold-age", type=int, metavar="S", help="offload ledgers closed S seconds ago")
    flag("--up-to", metavar="L:E", help="offload all ledgers before this position")
    flag(
        "--roll",
        action="store_true",
        help="first close each topic's open ledger, so its messages count; needs --admin-url",
    )
    flag(
        "--deletion-lag",
        type=int,
        metavar="S",
        help="bookies delete a ledger S seconds after its offload; -1: never",
    )


def run(job: JobContext) -> Summary:
    """Offloads the selected topics."""
    from magnetar_spark.jobs.offload.job import offload

    return offload(job)
