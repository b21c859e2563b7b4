"""The application: every router, the errors, the documentation, around one broker."""

from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from magnetar.admin import answers, openapi, paths
from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.routing import InCluster
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.probes import default_probes
from magnetar.broker.service import BrokerService
from magnetar.observe.health import Probes

paths.register_converters()  # before the routers below are imported: their paths name converters

from magnetar.admin.routers import (  # noqa: E402
    backlog,
    broker_stats,
    brokers,
    clusters,
    health,
    lookup,
    messages,
    metrics,
    namespace_policies,
    namespaces,
    partitioned,
    schemas,
    subscription_moves,
    subscriptions,
    tenants,
    topic_policies,
    topic_stats,
    topics,
)

ROUTERS: Final = (
    clusters.router,
    tenants.router,
    namespaces.router,
    namespace_policies.router,
    partitioned.router,
    topics.router,
    topic_stats.router,
    subscriptions.router,
    subscription_moves.router,
    messages.router,
    backlog.router,
    topic_policies.router,
    schemas.router,
    brokers.router,
    broker_stats.router,
    lookup.router,
    metrics.router,
    health.router,
)


def create_app(
    service: BrokerService,
    metrics_page: MetricsPage | None = None,
    probes: Probes | None = None,
    cluster: InCluster | None = None,
) -> ASGIApp:
    """The admin REST of this broker. Who passes `metrics_page` turns its windows, too.

    With `cluster` it is one of several.
    """
    app = FastAPI(
        title="Magnetar admin REST",
        version=service.version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.metrics = metrics_page or MetricsPage(
        service, balance=cluster.balance if cluster else None
    )
    app.state.probes = probes or default_probes(service)
    answers.install(app)
    openapi.install(app)
    app.state.routers = ROUTERS
    for router in ROUTERS:
        app.include_router(router)
    whole = answers.Contained(paths.RawPaths(app))
    app.state.peers = app.state.balance = None
    if cluster is not None:
        peers = app.state.peers = Peers(cluster.routing, whole)
        cluster.closing.append(peers.close)
        app.state.balance = cluster.balance
    return whole
