"""What the processes of a cluster are made of beside their work: health early, all closed in order.

Health is served before the metadata store is reached, so that whoever started the process sees that
it lives and what it waits for.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from magnetar.metadata.session import MetadataSession, SessionState
from magnetar.observe.health import HealthServer, Probes
from magnetar.observe.listen import bind
from magnetar.observe.metrics import process_metrics

NOT_STARTED = "waiting for the metadata store"
STOPPING = "stopping"

Asked = Callable[[], str]


@dataclass(slots=True)
class Readiness:
    """Why a process should get no work: what it says of itself until all of it has started."""

    blocked: str = NOT_STARTED
    """Why it is not ready, whatever its parts say; empty once they have started."""
    asked: list[Asked] = field(default_factory=list)
    """Each says why not, or nothing."""

    def __call__(self) -> str:
        if self.blocked:
            return self.blocked
        return next((reason for asked in self.asked if (reason := asked())), "")

    def open(self, *asked: Asked) -> None:
        """All has started: from now on these say."""
        self.asked.extend(asked)
        self.blocked = ""

    def close(self) -> None:
        """Stopping begins with this."""
        self.blocked = STOPPING


def session_reason(session: MetadataSession) -> str:
    """Why the session does not let the process work, or nothing."""
    if session.state is SessionState.ESTABLISHED and session.valid:
        return ""
    return "the session with the metadata store is suspended"


async def serve_health(
    opened: AsyncExitStack,
    host: str,
    port: int,
    readiness: Readiness,
    status: Callable[[], Mapping[str, object]],
    metrics: Callable[[], Iterable[str]],
) -> int:
    """Answers probes and scrapes from now until `opened` is closed; returns the port."""
    listener = bind(host, port)
    opened.callback(listener.close)

    def families() -> Iterable[str]:
        yield from metrics()
        yield process_metrics()

    server = HealthServer(Probes(readiness, status), families)
    port = await server.start(listener)
    opened.push_async_callback(server.stop)
    return port
