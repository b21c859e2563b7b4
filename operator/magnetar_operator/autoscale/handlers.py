"""The metrics API as a part of the operator's process: served beside the reconcilers.

Every operator serves, the one that waits for the lease as well: the Service leads to any that is
ready, and figures are only read. Certificate and registration are written by the leader; the others
take up what it wrote. Until all of that is there it is tried again every RETRY_S; once it is, what
is registered is looked at every LOOK_S, so that an APIService that somebody deleted comes back.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from magnetar.core.tasks import TaskSet
from magnetar_operator.api_kinds import CLUSTER
from magnetar_operator.autoscale.api import application
from magnetar_operator.autoscale.figures import Figures, NoFigure
from magnetar_operator.autoscale.serving import MetricsServer, Place
from magnetar_operator.context import Context
from magnetar_operator.kube import KubeClient, KubeError
from magnetar_operator.leading import NotLeading

RETRY_S: Final = 2.0
LOOK_S: Final = 60.0

log = logging.getLogger("magnetar.operator.metrics")


def register(context: Context) -> AbstractAsyncContextManager[None] | None:
    """The server, to run beside; None where it is switched off or has no Service of its own."""
    settings = context.settings
    if not settings.autoscaling or not settings.pod_namespace:
        return None
    place = Place(
        service=settings.service,
        namespace=settings.pod_namespace,
        host=settings.host,
        port=settings.metrics_api_port,
    )
    return _serving(context.kube, place)


@contextlib.asynccontextmanager
async def _serving(kube: KubeClient, place: Place) -> AsyncIterator[None]:
    figures = Figures(lambda namespace, name: admin_url(kube, namespace, name))
    server = MetricsServer(kube, application(figures), place)
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
        await asyncio.sleep(LOOK_S)


async def _until_done(step: Callable[[], Awaitable[object]]) -> None:
    told = ""
    while True:
        try:
            await step()
        except NotLeading:
            pass  # the leader does it
        except KubeError as error:
            if str(error) != told:
                told = str(error)
                log.warning("the metrics API cannot be offered yet: %s", error)
        else:
            return
        await asyncio.sleep(RETRY_S)


async def admin_url(kube: KubeClient, namespace: str, name: str) -> str | None:
    """Where the cluster of that name says its admin REST is; None where there is none."""
    try:
        found = await kube.find(CLUSTER, name, namespace)
    except KubeError as error:
        raise NoFigure(f"cluster {namespace}/{name} cannot be looked at: {error}") from error
    if found is None:
        return None
    said = found.get("spec", {}).get("adminUrl") or found.get("status", {}).get("adminUrl")
    return str(said) if said else f"http://{name}-broker.{namespace}.svc:8080"
