"""`magnetar standalone`: runs a broker, a bookie and the metadata store in one process.

`run_loop` defines how the process runs, stops and exits. Settings, ports and the data directory are
checked before the server's modules are imported.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar import __version__
from magnetar.cli import run_loop
from magnetar.cli.first_message import first_message
from magnetar.core.log import get_logger
from magnetar.observe.logging import configure
from magnetar.settings.field import SettingsError
from magnetar.settings.load import load_standalone
from magnetar.settings.standalone import StandaloneSettings
from magnetar.standalone.data_dir import DataDir, DataDirError

if TYPE_CHECKING:
    from magnetar.standalone.server import Standalone

log = get_logger("magnetar.standalone.server")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `standalone`. Flags that are not given do not override other sources."""
    parser = subparsers.add_parser(
        "standalone",
        help="run a broker, a bookie and the metadata store in one process",
        argument_default=argparse.SUPPRESS,
        epilog="Every other setting: `magnetar config list`.",
    )
    parser.add_argument("--data-dir", type=Path, help="directory of all data (./data)")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", help="binary protocol (6650); 0: any free one, none: off")
    parser.add_argument("--http-port", help="admin REST (8080); 0: any free one, none: off")
    parser.add_argument("--port-tls", help="binary protocol with TLS (none; usually 6651)")
    parser.add_argument("--http-port-tls", help="admin REST with TLS (none; usually 8443)")
    parser.add_argument("--tls-cert-file", type=Path, help="certificate of the TLS ports (PEM)")
    parser.add_argument("--tls-key-file", type=Path, help="its private key (PEM)")
    parser.add_argument("--advertised-host", help="host name that clients connect to")
    parser.add_argument("--wipe", action="store_true", help="empty the data directory first")
    parser.add_argument("--config", type=Path, help="file of settings: broker.conf lines, or .toml")
    parser.add_argument("--log-format", choices=("auto", "console", "json"))


def run(args: argparse.Namespace) -> int:
    """Runs the server until a signal; returns the exit code."""
    flags = {key: value for key, value in vars(args).items() if key not in ("command", "config")}
    try:
        loaded = load_standalone(flags, os.environ, getattr(args, "config", None))
    except SettingsError as error:
        return run_loop.refuse(str(error), code=2)
    settings = loaded.settings
    configure(settings.log.log_format, settings.log.log_level, role_log=settings.security.role_log)
    for warning in loaded.warnings:
        log.warning(warning)
    ports = [
        (settings.port, "--port"),
        (settings.http_port, "--http-port"),
        (settings.broker_tls.port_tls, "--port-tls"),
        (settings.broker_tls.http_port_tls, "--http-port-tls"),
    ]
    problems = run_loop.ports_in_use(settings.host, ports)
    try:
        data_dir = DataDir.open(settings.data_dir, wipe=settings.wipe and not problems)
    except DataDirError as error:
        return run_loop.refuse("; ".join([*problems, str(error)]))
    try:
        if problems:
            return run_loop.refuse("; ".join(problems))
        return run_loop.run(serve(settings, data_dir))
    finally:
        data_dir.close()


async def serve(settings: StandaloneSettings, data_dir: DataDir) -> int:
    """Starts the server, waits for a signal and drains; returns the exit code."""

    async def start_standalone() -> "Standalone":
        from magnetar.standalone.server import start

        return await start(settings)

    def ready(standalone: "Standalone") -> None:
        data_dir.ready(standalone.service_url, standalone.http_url, __version__)
        print(banner(standalone.service_url, standalone.http_url, settings.data_dir), flush=True)

    return await run_loop.serve(
        start_standalone,
        on_ready=ready,
        on_stopping=data_dir.not_ready,
        shutdown_timeout_ms=settings.connections.shutdown_timeout_ms,
    )


def banner(service_url: str, http_url: str, data_dir: Path) -> str:
    """The addresses of the server, and commands to try next."""
    return f"""\
messaging service is ready
  clients   {service_url}
  admin     {http_url}   (OpenAPI: {http_url}/docs)
  data      {data_dir.absolute()}

Try next, in another terminal, in the same folder:
  {first_message(service_url)}
  curl {http_url}/admin/v2/persistent/public/default
With Pulsar's own tools, if you have them:
  pulsar-admin --admin-url {http_url} topics stats persistent://public/default/hello
Ctrl+C drains and stops the server; the data stays.
"""
