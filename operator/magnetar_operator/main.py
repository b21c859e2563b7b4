"""The operator's process: waits for the lease, watches and reconciles until the lease is lost.

kopf watches (`engine.watches`); the workers of the `ReconcileQueue` call the reconcilers, in the
same event loop. The operator writes nothing before it holds the lease or after it has lost it:
every write checks (`KubeClient.guard`). When the lease is lost, or at SIGTERM, the workers and
watches end first, and the lease is released last. A reconcile may be cancelled at any await: the
next one starts from what exists then.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Final

from magnetar.core.tasks import TaskScope
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.cluster.access import ClusterAccess
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.health import Health
from magnetar_operator.engine.queue import ReconcileQueue
from magnetar_operator.engine.watches import watch
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.lease import Leadership
from magnetar_operator.settings import Settings

PARTS: Final = (
    "magnetar_operator.cluster.reconciler",
    "magnetar_operator.catalog.reconciler",
    "magnetar_operator.sparkjobs.reconciler",
    "magnetar_operator.autoscale.service",
)
"""Modules with `register(context)`, which may return an asynchronous context manager of a server
that runs beside the reconcilers."""
OWNER: Final = "operator"
"""The name of the process's own tasks."""
END_S_MAX: Final = 10.0
"""The wait for the watches to close; the lease is released after it at the latest."""
QUIET_LIBRARIES: Final = ("kopf", "httpx", "httpcore")
"""Libraries whose INFO lines, one per event or request, are not logged."""


async def run(
    settings: Settings,
    *,
    parts: tuple[str, ...] = PARTS,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[Context, int], None] = lambda _context, _port: None,
) -> int:
    """Runs the operator until it is stopped or loses its lease.

    Returns 0 after `stop` was set or a signal arrived, and 1 after the lease was lost: the caller
    starts the process again.
    """
    stop = stop if stop is not None else asyncio.Event()
    kube = KubeClient.connect(settings.kubeconfig)
    # Separate connections: renewals of the lease never wait behind other requests.
    lease_kube = KubeClient.connect(settings.kubeconfig)
    identity = settings.identity or f"operator-{os.getpid()}"
    leadership = Leadership(lease_kube, settings.lease_namespace, settings.lease_name, identity)
    kube.guard = leadership.check
    queue = ReconcileQueue(settings.workers, settings.resync_s)
    clients = AdminClients(access=ClusterAccess(kube, settings).of)
    context = Context(settings, kube, Events(kube), queue, clients)
    health = Health(kube, queue, lambda: leadership.held, context.figures)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(lease_kube.close)
        opened.push_async_callback(kube.close)
        opened.push_async_callback(clients.close)
        port = await health.start(settings.host, settings.port)
        opened.push_async_callback(health.stop)
        for part in parts:
            server = import_module(part).register(context)
            if server is not None:
                await opened.enter_async_context(server)
        if not await _first(leadership.take(), stop):
            return 0
        opened.push_async_callback(leadership.release)
        return await _lead(context, leadership, stop, lambda: on_ready(context, port))
    raise AssertionError("unreachable")


async def _first(coroutine: Coroutine[None, None, None], stop: asyncio.Event) -> bool:
    """Runs the coroutine until `stop` is set; returns whether it ended before."""
    async with TaskScope(OWNER, END_S_MAX) as scope:
        task = scope.start(coroutine, "until stopped")
        stopping = scope.start(stop.wait(), "stop")
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True


async def _lead(
    context: Context, leadership: Leadership, stop: asyncio.Event, on_ready: Callable[[], None]
) -> int:
    context.queue.start()
    async with TaskScope(OWNER, END_S_MAX) as scope:
        # The watches end without an error only if a signal ends the process (kopf handles it).
        watching = scope.start(watch(context), "watches")
        tasks: set[asyncio.Task[Any]] = {
            watching,
            scope.start(leadership.keep(), "leadership"),
            scope.start(stop.wait(), "stop"),
        }
        try:
            on_ready()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return 0 if stop.is_set() or watching in done else 1
        finally:
            # The writers end first; our caller releases the lease last.
            await context.queue.stop()


def set_up_logging() -> None:
    """Logs our lines from INFO on, and those of QUIET_LIBRARIES from WARNING on."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for library in QUIET_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)


def main(settings: Settings) -> int:
    """Runs the whole process until SIGTERM or SIGINT; returns the exit code."""
    set_up_logging()

    async def whole() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        return await run(settings, stop=stop)

    return asyncio.run(whole())
