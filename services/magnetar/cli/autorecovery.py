"""`magnetar autorecovery`: replicates lost copies of entries, in a process of its own.

Every bookie also does this unless its `autorecovery` is off. Any number of processes share the
work.
"""

import argparse
from typing import TYPE_CHECKING, Final

from magnetar.cli import roles
from magnetar.cli.cluster_process import ProcessCommand
from magnetar.settings.member import AutorecoveryProcessSettings

if TYPE_CHECKING:
    from magnetar.cluster.nodes import Node

DESCRIPTION = """\
Watches the bookies and copies the ledgers of a lost bookie to others. Every bookie also does this
unless its `autorecovery` is off; use a separate process to keep this work away from the bookies.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `autorecovery`."""
    parser = subparsers.add_parser(
        "autorecovery",
        help="replicate lost copies of entries, in a process of its own",
        description=DESCRIPTION,
    )
    roles.add_flags(parser, "autorecovery")


def run(args: argparse.Namespace) -> int:
    """Runs autorecovery until a signal; returns the exit code."""
    return COMMAND.run(args)


async def start(settings: AutorecoveryProcessSettings) -> "Node":
    """Imports and starts the autorecovery process."""
    from magnetar.cluster import autorecovery_process

    return await autorecovery_process.start(settings)


def banner(process: "Node", _settings: AutorecoveryProcessSettings) -> list[tuple[str, str]]:
    """The address of the health endpoints."""
    return [("health", f"{process.http_url}   (/readyz, /metrics)")]


COMMAND: Final = ProcessCommand(
    "autorecovery",
    AutorecoveryProcessSettings,
    ports=lambda settings: {"http_port": settings.http_port},
    start=start,
    banner=banner,
)
