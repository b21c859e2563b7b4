"""Runs a server process: start, wait for a signal, drain, exit code.

Exit codes: 0 after SIGTERM or SIGINT and a complete drain; 1 if the process cannot start or does
not drain in time; 2 if a setting is wrong. A second signal ends the process at once with 128 + its
number. No receipted message is lost by that, or by any other way to end the process.

A start may be slow: a bookie replays its journal, or the metadata store is not available yet. A
signal ends it as well; then everything that was opened is closed, and the exit code is 0.
"""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from magnetar.core.errors import MagnetarError
from magnetar.core.garbage import garbage_policy
from magnetar.core.malloc import keep_freed_memory
from magnetar.core.tasks import TaskScope
from magnetar.observe.listen import bind
from magnetar.security.errors import ConfigurationError
from magnetar.settings.field import SettingsError

SWITCH_INTERVAL_S: Final = 0.0005
"""How long the loop may hold the interpreter while the journal's thread waits (default: 5 ms).

With loop turns of 2 ms, an add took 6.1 ms at the default and 4.9 ms at this value."""


class Running(Protocol):
    """A started process."""

    async def stop(self) -> None:
        """Drains and closes all components."""


R = TypeVar("R", bound=Running)


def refuse(text: str, *, code: int = 1) -> int:
    """Prints why the process does not start; returns the exit code."""
    print(f"magnetar: {text}", file=sys.stderr, flush=True)
    return code


def run(serving: Coroutine[object, object, int]) -> int:
    """Runs `serving` in an event loop (uvloop if it is installed); returns its exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)


async def serve(
    start: Callable[[], Coroutine[Any, Any, R]],
    *,
    on_ready: Callable[[R], None],
    on_stopping: Callable[[], None] = lambda: None,
    shutdown_timeout_ms: int,
) -> int:
    """Starts the process, waits for a signal and drains; returns the exit code."""
    stop_requested = _watch_signals()
    gc.disable()  # a start creates long-lived objects, so passes of the collector free nothing
    async with TaskScope("process") as tasks:
        starting = tasks.start(start(), "start")
        stopping = tasks.start(stop_requested.wait(), "stop requested")
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=shutdown_timeout_ms / 1000)
        if starting.cancelled() or not starting.done():
            return 0
        try:
            running = starting.result()
        except (SettingsError, ConfigurationError) as error:
            # Errors that only the start detects: keys, certificates, settings that conflict.
            return refuse(f"cannot start: {error}", code=2)
        except (OSError, MagnetarError) as error:
            # The ports were free a moment ago: another process took one, or the disk fails.
            return refuse(f"cannot start: {error}")
        gc.freeze()
        garbage_policy.begin()
        gc.enable()
        if not stopping.done():
            on_ready(running)
            await stopping
    on_stopping()
    return await _drain(running, shutdown_timeout_ms)


async def _drain(running: Running, shutdown_timeout_ms: int) -> int:
    async with TaskScope("process") as tasks:
        draining = tasks.start(running.stop(), "drain")
        done, _ = await asyncio.wait({draining}, timeout=shutdown_timeout_ms / 1000)
        if not done:
            code = refuse(f"did not drain within {shutdown_timeout_ms} ms; nothing is lost")
            # Cancelling would wait as well: a thread in a hanging disk operation cannot be
            # cancelled.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        draining.result()
    return 0


def _watch_signals() -> asyncio.Event:
    """Returns an event that the first signal sets; the second ends the process."""
    stop_requested = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop_requested.is_set():
            os._exit(128 + number)
        stop_requested.set()
        with contextlib.suppress(OSError):
            print("stopping: draining requests in flight", file=sys.stderr, flush=True)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop_requested


def ports_in_use(host: str, ports: Sequence[tuple[int | None, str]]) -> list[str]:
    """Returns one line per port that cannot be listened on.

    `ports` are pairs of port and flag; a port that is None is off.
    """
    problems: list[str] = []
    for port, flag in ports:
        if port is None:
            continue
        try:
            bind(host, port).close()
        except OSError as error:
            problems.append(_listen_error(host, port, flag, error))
    return problems


def _listen_error(host: str, port: int, flag: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with {flag}"
    return f"cannot listen on {host} port {port}: {error.strerror}"
