"""The parts that all processes of a cluster share: start and stop, readiness, and health.

A process serves its health before it reaches the metadata store, so that probes show that it runs
and why it is not ready.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from magnetar import __version__
from magnetar.metadata.session import MetadataSession, SessionState
from magnetar.observe.health import HealthServer, Probes, Wrap
from magnetar.observe.listen import bind
from magnetar.observe.metrics import process_metrics, single
from magnetar.security.tls.process import ProcessTls
from magnetar.security.tls.settings import ServerTlsConfig
from magnetar.security.tls.transport import server_factory

if TYPE_CHECKING:
    from magnetar.cluster.autorecovery_part import AutorecoveryPart

NOT_STARTED = "waiting for the metadata store"
STOPPING = "stopping"

Check = Callable[[], str]
"""Returns why a part of the process is not ready, or an empty text."""


@dataclass(slots=True)
class Readiness:
    """Whether a process should get work: the answer of /readyz."""

    blocked: str = NOT_STARTED
    """Why it is not ready, whatever its parts say; empty once they have started."""
    checks: list[Check] = field(default_factory=list)

    def __call__(self) -> str:
        """Returns why the process is not ready, or an empty text."""
        if self.blocked:
            return self.blocked
        return next((reason for check in self.checks if (reason := check())), "")

    def open(self, *checks: Check) -> None:
        """Marks the process as started: from now on these checks decide."""
        self.checks.extend(checks)
        self.blocked = ""

    def close(self) -> None:
        """Marks the process as stopping."""
        self.blocked = STOPPING


@dataclass(slots=True, kw_only=True)
class Node:
    """A running process of a cluster."""

    http_url: str
    readiness: Readiness
    closing: AsyncExitStack
    """Everything that the start opened."""

    async def stop(self) -> None:
        """Reports not ready, then closes everything in the reverse order of the start."""
        self.readiness.close()
        await self.closing.aclose()


N = TypeVar("N", bound=Node)


async def launch(start: Callable[[AsyncExitStack], Awaitable[N]]) -> N:
    """Runs the start of a process, which registers everything that it opens on the stack.

    If the start succeeds, the node owns the stack. If it fails or is cancelled, `launch` closes it.
    """
    opened = AsyncExitStack()
    try:
        return await start(opened)
    except BaseException:
        await opened.aclose()
        raise


@dataclass(slots=True, kw_only=True)
class NodeHealth:
    """The state behind /readyz, /status and /metrics; its fields are set while the process starts.

    A broker has its admin REST for this instead.
    """

    role: str
    cluster_name: str
    readiness: Readiness = field(default_factory=Readiness)
    session: MetadataSession | None = None
    recovery: "AutorecoveryPart | None" = None
    tls: ProcessTls = field(default_factory=ProcessTls)

    def status(self) -> Mapping[str, object]:
        """The document of /status."""
        status: dict[str, object] = {
            "role": self.role,
            "version": __version__,
            "cluster": self.cluster_name,
        }
        return status if self.recovery is None else {**status, **self.recovery.status()}

    def metrics(self) -> Iterable[str]:
        """The families of /metrics."""
        if self.session is not None:
            yield from session_families(self.session)
        if self.recovery is not None:
            yield from self.recovery.families()


def session_reason(session: MetadataSession) -> str:
    """Returns why the session does not let the process work, or an empty text."""
    if session.state is SessionState.ESTABLISHED and session.valid:
        return ""
    return "the session with the metadata store is suspended"


def session_families(session: MetadataSession) -> Iterable[str]:
    """Returns the metrics of the lease: whether it is valid, and how often it was suspended."""
    yield single("magnetar_session_valid", "", int(session.valid))
    yield single("magnetar_session_suspensions_total", "", session.suspensions, "counter")


async def serve_health(
    opened: AsyncExitStack,
    host: str,
    port: int,
    health: NodeHealth,
    secure: ServerTlsConfig | None = None,
) -> int:
    """Answers probes and scrapes from now until `opened` is closed; returns the port.

    With `secure`, the port has TLS.
    """
    listener = bind(host, port)
    opened.callback(listener.close)
    wrap: Wrap | None = None
    if secure is not None:
        wrap = partial(server_factory, health.tls.server(secure, "health"))

    def families() -> Iterable[str]:
        yield from health.metrics()
        yield from health.tls.families()
        yield process_metrics()

    server = HealthServer(Probes(health.readiness, health.status), families)
    port = await server.start(listener, wrap)
    opened.push_async_callback(server.stop)
    return port
