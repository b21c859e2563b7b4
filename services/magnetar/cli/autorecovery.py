"""`magnetar autorecovery`: makes lost copies of entries anew, in a process of its own.

Every bookie does so too, unless told otherwise; any number may run, they share the work.
"""

import argparse
from typing import TYPE_CHECKING

from magnetar.cli import roles, run_loop
from magnetar.cluster.settings import AutorecoveryProcessSettings

if TYPE_CHECKING:
    from magnetar.cluster.autorecovery_process import AutorecoveryProcess

DESCRIPTION = """\
Watches the bookies, finds what a lost one held, and copies it to others. Every bookie does so too
unless its `autorecovery` is off: a process of its own is for bookies that shall do nothing else.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `autorecovery`."""
    parser = subparsers.add_parser(
        "autorecovery", help="make lost copies of entries anew", description=DESCRIPTION
    )
    roles.add_flags(parser, "autorecovery")


def run(args: argparse.Namespace) -> int:
    """Runs it until a signal; returns the exit code."""
    try:
        settings = roles.settings("autorecovery", AutorecoveryProcessSettings, args)
        roles.check_ports(settings.host, {"http_port": settings.http_port})
    except roles.Refused as refused:
        return refused.code
    return run_loop.run(serve(settings))


async def serve(settings: AutorecoveryProcessSettings) -> int:
    """Starts, waits for a signal, drains. Returns the exit code."""

    async def starting() -> "AutorecoveryProcess":
        from magnetar.cluster.autorecovery_process import start

        return await start(settings)

    return await run_loop.serve(
        starting,
        on_ready=lambda process: print(banner(process, settings), flush=True),
        shutdown_timeout_ms=settings.shutdown_timeout_ms,
    )


def banner(process: "AutorecoveryProcess", settings: AutorecoveryProcessSettings) -> str:
    """What a newcomer needs to go on."""
    return f"""\
autorecovery is ready
  cluster   {settings.cluster_name}   (metadata: {settings.metadata_url})
  health    {process.http_url}   (/readyz, /metrics)
"""
