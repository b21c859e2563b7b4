"""Has Tenant, Namespace, Topic and Subscription resources looked at."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from magnetar_operator.api_kinds import NAMESPACE, SUBSCRIPTION, TENANT, TOPIC
from magnetar_operator.clock import utc
from magnetar_operator.context import Context
from magnetar_operator.resources.cluster_view import Clusters
from magnetar_operator.resources.reconcile import Reconciler


def register(
    context: Context, clusters: Clusters | None = None
) -> AbstractAsyncContextManager[None]:
    """A part of the operator (`main.PARTS`); beside it run the connections to the clusters."""
    clusters = clusters or Clusters(clock=context.clock)
    reconciler = Reconciler(
        context.kube, context.events, context.work, clusters, lambda: utc(context.clock)
    )
    for kind in (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION):
        context.watch(kind, reconciler.reconcile)

    @asynccontextmanager
    async def connections() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await clusters.close()

    return connections()
