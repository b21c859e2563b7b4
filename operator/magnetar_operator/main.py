"""The operator's process: waits for the lease, watches, reconciles; ends when the lease is lost.

kopf runs embedded and only watches: what it sees goes into `Work`, whose workers call the parts'
reconcilers. Nothing is written before the lease is held nor after it is lost: every write
asks (`KubeClient.guard`). When the lease is lost, or at SIGTERM, the watches and workers are ended
first and the lease is given up last; a reconcile may be broken off at any await, for it begins anew
from what is there.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Final

import kopf

from magnetar_operator.api_kinds import Kind
from magnetar_operator.context import Context
from magnetar_operator.events import Events
from magnetar_operator.health import Health
from magnetar_operator.kube import KubeClient, Unreachable
from magnetar_operator.leading import Leadership
from magnetar_operator.settings import Settings
from magnetar_operator.work import Work

PARTS: Final = (
    "magnetar_operator.cluster.handlers",
    "magnetar_operator.resources.handlers",
    "magnetar_operator.sparkjobs.handlers",
    "magnetar_operator.autoscale.handlers",
)
"""Each offers `register(context) -> None`, or an asynchronous context manager from it that runs
beside (a server of its own)."""
QUIET_LIBRARIES: Final = ("kopf", "httpx", "httpcore")
"""What they say of each event and request at INFO says nothing of ours."""
KOPF_FINALIZER: Final = "magnetar.io/kopf"
"""Never on any object."""
WATCH_TIMEOUT_S: Final = 300
CLOSING_S: Final = 0.25
WATCH_CONNECT_TIMEOUT_S: Final = 30.0
CRD_RETRY_S: Final = 2.0

log = logging.getLogger(__name__)


async def run(
    settings: Settings,
    *,
    parts: tuple[str, ...] = PARTS,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[Context, int], None] = lambda _context, _port: None,
) -> int:
    """Runs until `stop` is set (0), or the lease is lost (1: start anew)."""
    stop = stop if stop is not None else asyncio.Event()
    kube = KubeClient.connect(settings.kubeconfig)
    # The lease has a connection of its own: its renewals never wait behind other requests.
    lease_kube = KubeClient.connect(settings.kubeconfig)
    identity = settings.identity or f"operator-{os.getpid()}"
    leadership = Leadership(lease_kube, settings.lease_namespace, settings.lease_name, identity)
    kube.guard = leadership.check
    work = Work(settings.workers, settings.resync_s)
    context = Context(settings, kube, Events(kube), work)
    health = Health(kube, work, lambda: leadership.held, context.figures)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(lease_kube.close)
        opened.push_async_callback(kube.close)
        port = await health.start(settings.host, settings.port)
        opened.push_async_callback(health.stop)
        for part in parts:
            beside = import_module(part).register(context)
            if beside is not None:
                await opened.enter_async_context(beside)
        if not await _first(leadership.take(), stop):
            return 0
        opened.push_async_callback(leadership.release)
        return await _lead(context, leadership, stop, lambda: on_ready(context, port))
    raise AssertionError("unreachable")


async def _first(waited: Coroutine[None, None, None], stop: asyncio.Event) -> bool:
    """Whether it ended before `stop` was set."""
    task = asyncio.create_task(waited, name="until stopped")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        await _end(task, stopping)


async def _lead(
    context: Context, leadership: Leadership, stop: asyncio.Event, on_ready: Callable[[], None]
) -> int:
    watching = _Watching(context)
    context.work.start()
    tasks: set[asyncio.Future[Any]] = {
        asyncio.create_task(watching.run(), name="watching"),
        asyncio.create_task(leadership.keep(), name="leadership"),
        asyncio.create_task(stop.wait(), name="stop"),
    }
    try:
        on_ready()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
        return 0 if stop.is_set() else 1
    finally:
        # Whoever acts ends first; the lease is given up by our caller, last.
        await context.work.stop()
        watching.stop()
        await _end(*tasks)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Watching:
    """kopf in its thread (see `context`)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Until `stop`; raises what ended it otherwise."""
        await self._wait_for_kinds()
        thread = threading.Thread(target=self._thread, name="kopf", daemon=True)
        thread.start()
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def _wait_for_kinds(self) -> None:
        """kopf looks for kinds once, at its start: to watch CRDs would be one permission more."""
        for kind in self._context.kinds:
            told = False
            while not await self._serves(kind):
                if not told:
                    log.warning("waits for the CRD of %s (%s)", kind.kind, kind.group)
                told = True
                await asyncio.sleep(CRD_RETRY_S)

    async def _serves(self, kind: Kind) -> bool:
        try:
            return await self._context.kube.serves(kind)
        except Unreachable as error:
            log.warning("Kubernetes cannot be asked: %s", error)
            return False

    def stop(self) -> None:
        """Does not wait: what it still sees is looked at by nobody."""
        self._stop.set()

    def _thread(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # noqa: BLE001  it is raised by `run`
            self._error = error
        finally:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._context.loop.call_soon_threadsafe(self._ended.set)

    async def _watch(self) -> None:
        settings = self._context.settings
        try:
            await kopf.operator(
                registry=_with_login(self._context.registry, settings.kubeconfig),
                settings=_kopf_settings(),
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=self._stop,
            )
        finally:
            # TLS connections are closed in some turns of the loop, which kopf does not wait for.
            await asyncio.sleep(CLOSING_S)


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # kopf takes its own finalizer off what it has no handlers for: it must never be ours.
    settings.persistence.finalizer = KOPF_FINALIZER
    settings.watching.server_timeout = WATCH_TIMEOUT_S  # it must be an integer
    settings.watching.connect_timeout = WATCH_CONNECT_TIMEOUT_S
    settings.scanning.disabled = True  # see `_wait_for_kinds`
    settings.process.ultimate_exiting_timeout = None
    return settings


def _with_login(registry: kopf.OperatorRegistry, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """kopf's watches use the same account as our own requests."""

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        if kubeconfig is not None:
            os.environ["KUBECONFIG"] = kubeconfig
        return kopf.login_via_client(**kwargs)

    kopf.on.login(registry=registry)(login)
    return registry


def set_up_logging() -> None:
    """Lines of ours from INFO on, and of QUIET_LIBRARIES from WARNING on."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for library in QUIET_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)


def main(settings: Settings) -> int:
    """The whole process, until SIGTERM or SIGINT; returns the exit code."""
    set_up_logging()

    async def whole() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        return await run(settings, stop=stop)

    return asyncio.run(whole())
