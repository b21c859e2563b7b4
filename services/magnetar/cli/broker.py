"""`magnetar broker`: a broker of a cluster, whose ledgers are on bookies."""

import argparse
from typing import TYPE_CHECKING, Final

from magnetar.cli import roles, run_loop
from magnetar.cli.cluster_process import ProcessCommand
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import SettingsError

if TYPE_CHECKING:
    from magnetar.cluster.broker_process import BrokerProcess

DESCRIPTION = """\
Serves producers and consumers, and the admin REST, as one of any number of brokers. It keeps
nothing on disk: bookies and the metadata store have all durable state.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `broker`."""
    parser = subparsers.add_parser(
        "broker", help="run a broker of a cluster", description=DESCRIPTION
    )
    roles.add_flags(parser, "broker")


def run(args: argparse.Namespace) -> int:
    """Runs the broker until a signal; returns the exit code."""
    return COMMAND.run(args)


def check_listeners(settings: BrokerProcessSettings) -> None:
    """Raises Refused if the advertised listeners are inconsistent."""
    from magnetar.broker.ownership.records import Urls
    from magnetar.cluster.listeners import advertised

    try:
        advertised(settings.advertised_listeners, settings.internal_listener_name, Urls("", ""))
    except SettingsError as error:
        raise roles.Refused(run_loop.refuse(str(error), code=2)) from error


def ports(settings: BrokerProcessSettings) -> dict[str, int | None]:
    """The broker's ports by setting."""
    return {
        "port": settings.port,
        "http_port": settings.http_port,
        "port_tls": settings.broker_tls.port_tls,
        "http_port_tls": settings.broker_tls.http_port_tls,
    }


async def start(settings: BrokerProcessSettings) -> "BrokerProcess":
    """Imports and starts the broker's process."""
    from magnetar.cluster import broker_process

    return await broker_process.start(settings)


def banner(broker: "BrokerProcess", _settings: BrokerProcessSettings) -> list[tuple[str, str]]:
    """The addresses for clients and for the admin REST."""
    return [
        ("clients", broker.service_url),
        ("admin", f"{broker.http_url}   (health: /readyz, metrics: /metrics)"),
    ]


COMMAND: Final = ProcessCommand(
    "broker",
    BrokerProcessSettings,
    ports=ports,
    start=start,
    banner=banner,
    check=check_listeners,
)
