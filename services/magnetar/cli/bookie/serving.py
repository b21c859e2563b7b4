"""`magnetar bookie`: runs a storage node."""

import argparse
from typing import TYPE_CHECKING, Final

from magnetar.cli.cluster_process import ProcessCommand
from magnetar.settings.bookie import BookieProcessSettings

if TYPE_CHECKING:
    from magnetar.cluster.bookie_process import BookieProcess

DESCRIPTION = """\
Without an action: stores entries of ledgers on this machine's disk and serves them to brokers. The
disk keeps the bookie's id; an empty disk under an old id is another bookie.
"""


def run(args: argparse.Namespace) -> int:
    """Runs the bookie until a signal; returns the exit code."""
    return COMMAND.run(args)


async def start(settings: BookieProcessSettings) -> "BookieProcess":
    """Imports and starts the bookie's process."""
    from magnetar.cluster import bookie_process

    return await bookie_process.start(settings)


def banner(bookie: "BookieProcess", settings: BookieProcessSettings) -> list[tuple[str, str]]:
    """The bookie's identity, addresses and directory."""
    identity = bookie.identity
    return [
        ("bookie", f"{identity.bookie_id}, incarnation {identity.incarnation}"),
        ("brokers", bookie.address),
        ("health", f"{bookie.http_url}   (/readyz, /metrics)"),
        ("data", str(settings.data_dir.absolute())),
    ]


COMMAND: Final = ProcessCommand(
    "bookie",
    BookieProcessSettings,
    ports=lambda settings: {"port": settings.port, "http_port": settings.http_port},
    start=start,
    banner=banner,
)
