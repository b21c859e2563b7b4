"""`magnetar bookie`: runs a storage node."""

import argparse
from typing import TYPE_CHECKING

from magnetar.cli import roles, run_loop
from magnetar.cluster.bookie_settings import BookieProcessSettings

if TYPE_CHECKING:
    from magnetar.cluster.bookie_process import BookieProcess

DESCRIPTION = """\
Without an action: keeps entries of ledgers on this machine's disk and serves them to brokers. Its
disk remembers its id; an empty disk under an old id is another bookie.
"""


def run(args: argparse.Namespace) -> int:
    """Runs the bookie until a signal; returns the exit code."""
    try:
        settings = roles.settings("bookie", BookieProcessSettings, args)
        ports = {"port": settings.port, "http_port": settings.http_port}
        roles.check_ports(settings.host, ports)
    except roles.Refused as refused:
        return refused.code
    return run_loop.run(serve(settings))


async def serve(settings: BookieProcessSettings) -> int:
    """Starts, waits for a signal, drains. Returns the exit code."""

    async def starting() -> "BookieProcess":
        from magnetar.cluster.bookie_process import start

        return await start(settings)

    return await run_loop.serve(
        starting,
        on_ready=lambda bookie: print(banner(bookie, settings), flush=True),
        shutdown_timeout_ms=settings.shutdown_timeout_ms,
    )


def banner(bookie: "BookieProcess", settings: BookieProcessSettings) -> str:
    """What a newcomer needs to go on."""
    return f"""\
bookie is ready
  cluster   {settings.cluster_name}   (metadata: {settings.metadata_url})
  bookie    {bookie.identity.bookie_id}, incarnation {bookie.identity.incarnation}
  brokers   {bookie.address}
  health    {bookie.http_url}   (/readyz, /metrics)
  data      {settings.data_dir.absolute()}
"""
