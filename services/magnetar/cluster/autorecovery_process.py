"""An autorecovery process: autorecovery, a metadata session and health."""

from contextlib import AsyncExitStack

from magnetar.cluster.autorecovery_part import AutorecoveryPart
from magnetar.cluster.membership import join
from magnetar.cluster.nodes import Node, NodeHealth, launch, serve_health, session_reason
from magnetar.core.clock import SystemClock
from magnetar.settings.member import AutorecoveryProcessSettings


async def start(settings: AutorecoveryProcessSettings) -> Node:
    """Starts the process. Raises OSError for a port in use, or MetadataError."""
    return await launch(lambda opened: _start(opened, settings))


async def _start(opened: AsyncExitStack, settings: AutorecoveryProcessSettings) -> Node:
    clock = SystemClock()
    health = NodeHealth(role="autorecovery", cluster_name=settings.cluster_name)
    opened.push_async_callback(health.tls.stop)
    http_port = await serve_health(
        opened,
        settings.host,
        settings.http_port,
        health,
        settings.storage_tls.health_tls(settings.tls),
    )
    host = settings.advertised_host or settings.host
    name = f"autorecovery {host}:{http_port}"
    member = await join(opened, settings, clock, name, health.tls)
    health.session = member.session
    part = AutorecoveryPart(member, clock, settings.recovery, name)
    opened.push_async_callback(part.stop)
    await part.open()
    await member.session.start()
    await part.start()
    health.recovery = part
    health.readiness.open(lambda: session_reason(member.session), part.reason)
    scheme = "https" if settings.storage_tls.http_tls else "http"
    return Node(
        http_url=f"{scheme}://{host}:{http_port}", readiness=health.readiness, closing=opened
    )
