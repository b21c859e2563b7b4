"""Autorecovery in a process of its own: nothing but its part, a session and health."""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from magnetar import __version__
from magnetar.cluster.autorecovery_part import AutorecoveryPart
from magnetar.cluster.membership import join, session_families
from magnetar.cluster.nodes import Readiness, serve_health, session_reason
from magnetar.cluster.settings import AutorecoveryProcessSettings
from magnetar.core.clock import SystemClock
from magnetar.metadata.session import MetadataSession


@dataclass(slots=True)
class AutorecoveryProcess:
    """A running one."""

    http_url: str
    _parts: "_Parts"
    _closing: AsyncExitStack

    async def stop(self) -> None:
        """Lets go of what it worked at."""
        self._parts.readiness.close()
        await self._closing.aclose()


@dataclass(slots=True)
class _Parts:
    """What health and metrics look at; there bit by bit while the process starts."""

    settings: AutorecoveryProcessSettings
    readiness: Readiness = field(default_factory=Readiness)
    session: MetadataSession | None = None
    recovery: AutorecoveryPart | None = None

    def status(self) -> Mapping[str, object]:
        told: dict[str, object] = {
            "role": "autorecovery",
            "version": __version__,
            "cluster": self.settings.cluster_name,
        }
        return told if self.recovery is None else {**told, **self.recovery.status()}

    def metrics(self) -> Iterable[str]:
        if self.session is not None:
            yield from session_families(self.session)
        if self.recovery is not None:
            yield from self.recovery.families()


async def start(settings: AutorecoveryProcessSettings) -> AutorecoveryProcess:
    """Raises OSError for a port in use, or what is wrong with the metadata store."""
    clock = SystemClock()
    parts = _Parts(settings)
    async with AsyncExitStack() as opened:
        http_port = await serve_health(
            opened,
            settings.host,
            settings.http_port,
            parts.readiness,
            parts.status,
            parts.metrics,
        )
        host = settings.advertised_host or settings.host
        name = f"autorecovery {host}:{http_port}"
        member = await join(settings, settings.cluster_name, clock, name)
        parts.session = member.session
        opened.push_async_callback(member.store.close)
        opened.push_async_callback(member.session.stop)
        part = AutorecoveryPart(member, clock, settings, name)
        opened.push_async_callback(part.stop)
        await part.open()
        await member.session.start()
        await part.start()
        parts.recovery = part
        parts.readiness.open(lambda: session_reason(member.session), part.reason)
        return AutorecoveryProcess(f"http://{host}:{http_port}", parts, opened.pop_all())
    raise AssertionError("unreachable")
