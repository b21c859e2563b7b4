"""How every process of ours runs: starts, says so, waits for a signal, drains, and its exit codes.

Exit codes: 0 after SIGTERM or SIGINT once everything was drained; 1 where it cannot start or could
not drain in time; 2 where a setting is wrong. A second signal ends the process at once with 128 +
its number: nothing receipted is lost by that, as by no other death.

A start may be slow (a bookie replays its journal, a metadata store may not be there yet), and a
signal ends it as well: then what was opened so far is closed, and the code is 0.
"""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final, Protocol, TypeVar

from magnetar.bookie.malloc import keep_freed_memory
from magnetar.core.collecting import collecting
from magnetar.core.errors import MagnetarError

SWITCH_INTERVAL_S: Final = 0.0005
"""How long the loop may keep the interpreter from the journal's thread (Python's own: 5 ms).

Beside loop turns of 2 ms an add took 6.1 ms at 5 ms and 4.9 ms at this."""


class Running(Protocol):
    """What was started."""

    async def stop(self) -> None:
        """Drains and closes everything."""


R = TypeVar("R", bound=Running)


def refuse(text: str, *, code: int = 1) -> int:
    """Says on stderr why not; returns the exit code."""
    print(f"magnetar: {text}", file=sys.stderr, flush=True)
    return code


def run(serving: Coroutine[object, object, int]) -> int:
    """Runs the loop (uvloop where it is installed) until `serving` has its exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)


async def serve(
    start: Callable[[], Awaitable[R]],
    *,
    on_ready: Callable[[R], None],
    on_stopping: Callable[[], None] = lambda: None,
    shutdown_timeout_ms: int,
) -> int:
    """Starts, waits for a signal, drains. Returns the exit code."""
    asked_to_stop = _watch_signals()
    gc.disable()  # what is imported and opened now stays: looking through it finds nothing
    starting = asyncio.ensure_future(start())
    stopping = asyncio.ensure_future(asked_to_stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=shutdown_timeout_ms / 1000)
        if starting.cancelled() or not starting.done():
            return 0
        try:
            running = starting.result()
        except (OSError, MagnetarError) as error:
            # The ports were free a moment ago: somebody else was faster, or the disk fails.
            return refuse(f"cannot start: {error}")
        gc.freeze()
        collecting.begin()
        gc.enable()
        if not stopping.done():
            on_ready(running)
            await stopping
    finally:
        stopping.cancel()
    on_stopping()
    return await _drain(running, shutdown_timeout_ms)


async def _drain(running: Running, shutdown_timeout_ms: int) -> int:
    draining = asyncio.ensure_future(running.stop())
    done, _ = await asyncio.wait({draining}, timeout=shutdown_timeout_ms / 1000)
    if not done:
        code = refuse(f"did not drain within {shutdown_timeout_ms} ms; nothing is lost")
        # Nobody else may take any longer either: a disk that hangs hears of no cancellation.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    draining.result()
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


def ports_in_use(host: str, ports: Sequence[tuple[int, str]]) -> list[str]:
    """One line for each port that cannot be listened on; each comes with its flag."""
    problems: list[str] = []
    for port, flag in ports:
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            problems.append(_listen_error(host, port, flag, error))
    return problems


def _listen_error(host: str, port: int, flag: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with {flag}"
    return f"cannot listen on {host} port {port}: {error.strerror}"
