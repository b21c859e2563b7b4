"""`magnetar broker`: a broker of a cluster, whose ledgers are on bookies."""

import argparse
from typing import TYPE_CHECKING

from magnetar.broker.setting import SettingsError
from magnetar.cli import roles, run_loop
from magnetar.cluster.settings import BrokerProcessSettings

if TYPE_CHECKING:
    from magnetar.cluster.broker_process import BrokerProcess

DESCRIPTION = """\
Serves producers and consumers, and the admin REST, as one of any number of brokers. It keeps
nothing on disk: what must last is on bookies and in the metadata store.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `broker`."""
    parser = subparsers.add_parser(
        "broker", help="run a broker of a cluster", description=DESCRIPTION
    )
    roles.add_flags(parser, "broker")


def run(args: argparse.Namespace) -> int:
    """Runs the broker until a signal; returns the exit code."""
    try:
        settings = roles.settings("broker", BrokerProcessSettings, args)
        ports = {"port": settings.port, "http_port": settings.http_port}
        roles.check_ports(settings.host, ports)
        check_listeners(settings)
    except roles.Refused as refused:
        return refused.code
    return run_loop.run(serve(settings))


def check_listeners(settings: BrokerProcessSettings) -> None:
    """Raises Refused where the advertised listeners make no sense."""
    from magnetar.cluster.listeners import advertised

    try:
        advertised(settings.advertised_listeners, settings.internal_listener_name, "", 1, 1)
    except SettingsError as error:
        raise roles.Refused(run_loop.refuse(str(error), code=2)) from error


async def serve(settings: BrokerProcessSettings) -> int:
    """Starts, waits for a signal, drains. Returns the exit code."""

    async def starting() -> "BrokerProcess":
        from magnetar.cluster.broker_process import start

        return await start(settings)

    return await run_loop.serve(
        starting,
        on_ready=lambda broker: print(banner(broker, settings), flush=True),
        shutdown_timeout_ms=settings.shutdown_timeout_ms,
    )


def banner(broker: "BrokerProcess", settings: BrokerProcessSettings) -> str:
    """What a newcomer needs to go on."""
    return f"""\
broker is ready
  cluster   {settings.cluster_name}   (metadata: {settings.metadata_url})
  clients   {broker.service_url}
  admin     {broker.http_url}   (health: /readyz, metrics: /metrics)
"""
