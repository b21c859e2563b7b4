"""`magnetar standalone`: starts the server, says where it is, and stops it in order.

Exit codes: 0 after SIGTERM or SIGINT once everything was drained; 1 where it cannot start (a port
or the data directory is in use) or could not drain in time; 2 where a setting is wrong. A second
signal ends the process at once with 128 + its number: nothing receipted is lost by that, as by no
other death. Whatever can be wrong is checked before anything slow is imported.
"""

import argparse
import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from pathlib import Path

from magnetar import __version__
from magnetar.broker.data_dir import DataDir, DataDirError
from magnetar.broker.setting import SettingsError
from magnetar.broker.settings import StandaloneSettings
from magnetar.broker.settings_load import load_standalone
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.observe.logging import configure

log = get_logger("magnetar.standalone")

SWITCH_INTERVAL_S = 0.0005
"""How long the loop may keep the interpreter from the journal's thread (Python's own: 5 ms).

Beside loop turns of 2 ms an add took 6.1 ms at 5 ms and 4.9 ms at this."""

_PORT_FLAGS = (("port", "--port"), ("http_port", "--http-port"))


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `standalone`. Flags that are not typed leave no trace, so that others may set them."""
    parser = subparsers.add_parser(
        "standalone",
        help="run a broker, a bookie and the metadata store in one process",
        argument_default=argparse.SUPPRESS,
        epilog="Every other setting: `magnetar config list`.",
    )
    parser.add_argument("--data-dir", type=Path, help="where everything is kept (./data)")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="binary protocol (6650); 0: any free one")
    parser.add_argument("--http-port", type=int, help="admin REST (8080); 0: any free one")
    parser.add_argument("--advertised-host", help="host name that clients are told")
    parser.add_argument("--wipe", action="store_true", help="empty the data directory first")
    parser.add_argument("--config", type=Path, help="file of settings: broker.conf lines, or .toml")
    parser.add_argument("--log-format", choices=("auto", "console", "json"))


def run(args: argparse.Namespace) -> int:
    """Runs the server until a signal; returns the exit code."""
    flags = {key: value for key, value in vars(args).items() if key not in ("command", "config")}
    try:
        loaded = load_standalone(flags, os.environ, getattr(args, "config", None))
    except SettingsError as error:
        return _refuse(str(error), code=2)
    settings = loaded.settings
    configure(settings.log_format, settings.log_level)
    for warning in loaded.warnings:
        log.warning(warning)
    problems = _ports_in_use(settings)
    try:
        data_dir = DataDir.open(settings.data_dir, wipe=settings.wipe and not problems)
    except DataDirError as error:
        return _refuse("; ".join([*problems, str(error)]))
    try:
        if problems:
            return _refuse("; ".join(problems))
        return _run_loop(settings, data_dir)
    finally:
        data_dir.close()


def _refuse(text: str, *, code: int = 1) -> int:
    print(f"magnetar: {text}", file=sys.stderr)
    return code


def _ports_in_use(settings: StandaloneSettings) -> list[str]:
    """One line for each port that cannot be listened on."""
    problems: list[str] = []
    for name, flag in _PORT_FLAGS:
        port: int = getattr(settings, name)
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            problems.append(_listen_error(settings.host, port, flag, error))
    return problems


def _listen_error(host: str, port: int, flag: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with {flag}"
    return f"cannot listen on {host} port {port}: {error.strerror}"


def _run_loop(settings: StandaloneSettings, data_dir: DataDir) -> int:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(settings, data_dir))
    return uvloop.run(serve(settings, data_dir))


async def serve(settings: StandaloneSettings, data_dir: DataDir) -> int:
    """Starts, waits for a signal, drains. Returns the exit code."""
    asked_to_stop = _watch_signals()
    gc.disable()  # what is imported and opened now stays: looking through it finds nothing
    from magnetar.standalone import start

    try:
        standalone = await start(settings)
    except (OSError, MagnetarError) as error:
        # The ports were free a moment ago: somebody else was faster, or the disk fails.
        return _refuse(f"cannot start: {error}")
    gc.freeze()
    gc.enable()
    data_dir.ready(standalone.service_url, standalone.http_url, __version__)
    print(banner(standalone.service_url, standalone.http_url, settings.data_dir), flush=True)
    await asked_to_stop.wait()
    data_dir.not_ready()
    stopping = asyncio.ensure_future(standalone.stop())
    done, _ = await asyncio.wait({stopping}, timeout=settings.shutdown_timeout_ms / 1000)
    if not done:
        code = _refuse(f"did not drain within {settings.shutdown_timeout_ms} ms; nothing is lost")
        # Nobody else may take any longer either: a disk that hangs hears of no cancellation.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    stopping.result()
    return 0


def _watch_signals() -> asyncio.Event:
    """An event for the first signal; the second ends the process."""
    asked_to_stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked_to_stop.is_set():
            os._exit(128 + number)
        asked_to_stop.set()
        with contextlib.suppress(OSError):
            print("stopping: draining what is under way", file=sys.stderr, flush=True)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return asked_to_stop


def banner(service_url: str, http_url: str, data_dir: Path) -> str:
    """What a newcomer needs to go on."""
    return f"""\
messaging service is ready
  clients   {service_url}
  admin     {http_url}   (OpenAPI: {http_url}/docs)
  data      {data_dir.absolute()}

Try next, in another terminal:
  python3 -c "import pulsar; c = pulsar.Client('{service_url}'); \
print(c.create_producer('hello').send(b'hi')); c.close()"
  curl {http_url}/admin/v2/persistent/public/default
  pulsar-admin --admin-url {http_url} topics stats persistent://public/default/hello
"""
