"""Serves the metrics API in the operator's process, beside the reconcilers.

Every operator serves it, also while it waits for the lease: the Service routes to any ready
operator, and serving only reads. The leader writes the certificate and the registration; the others
use them. Each step is retried every RETRY_S until it succeeds. Afterwards the registration is
checked every CHECK_S, so that an APIService that was deleted and created again is registered again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from magnetar.core.tasks import TaskSet
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.autoscale.api import application
from magnetar_operator.autoscale.figures import Figures, NoFigure
from magnetar_operator.autoscale.server import Endpoint, MetricsServer
from magnetar_operator.engine.context import Context
from magnetar_operator.kube.client import KubeClient, KubeError
from magnetar_operator.kube.kinds import CLUSTER
from magnetar_operator.kube.lease import NotLeading

RETRY_S: Final = 2.0
CHECK_S: Final = 60.0

log = logging.getLogger("magnetar.operator.metrics")


def register(context: Context) -> AbstractAsyncContextManager[None] | None:
    """The server; None if the settings switch it off or the operator runs outside of a pod."""
    settings = context.settings
    if not settings.autoscaling or not settings.pod_namespace:
        return None
    endpoint = Endpoint(
        service=settings.service,
        namespace=settings.pod_namespace,
        host=settings.host,
        port=settings.metrics_api_port,
    )
    return _serving(context.kube, context.clients, endpoint)


@contextlib.asynccontextmanager
async def _serving(
    kube: KubeClient, clients: AdminClients, endpoint: Endpoint
) -> AsyncIterator[None]:
    figures = Figures(lambda namespace, name: admin_url(kube, namespace, name), clients)
    server = MetricsServer(kube, application(figures), endpoint)
    tasks = TaskSet("metrics api")
    tasks.start(_run(server, tasks), "metrics api")
    try:
        yield
    finally:
        await server.stop()
        await tasks.stop()
        await figures.close()


async def _run(server: MetricsServer, tasks: TaskSet) -> None:
    await _until_done(server.prepare)
    tasks.start(server.serve(), "metrics api server")
    while True:
        await _until_done(server.register)
        await asyncio.sleep(CHECK_S)


async def _until_done(step: Callable[[], Awaitable[object]]) -> None:
    warned = ""
    while True:
        try:
            await step()
        except NotLeading:
            pass  # the leader does this step
        except KubeError as error:
            if str(error) != warned:
                warned = str(error)
                log.warning("the metrics API cannot be served yet: %s", error)
        else:
            return
        await asyncio.sleep(RETRY_S)


async def admin_url(kube: KubeClient, namespace: str, name: str) -> str | None:
    """The address of the cluster's admin REST; None if there is no such cluster."""
    try:
        cluster = await kube.find(CLUSTER, name, namespace)
    except KubeError as error:
        raise NoFigure(f"cluster {namespace}/{name} cannot be read: {error}") from error
    if cluster is None:
        return None
    url = cluster.get("spec", {}).get("adminUrl") or cluster.get("status", {}).get("adminUrl")
    return str(url) if url else f"http://{name}-broker.{namespace}.svc:8080"
