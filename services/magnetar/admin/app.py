"""The application: every router, the errors, the documentation, around one broker.

Starlette serves it; FastAPI only makes the documentation, when somebody opens it (`openapi.py`).
"""

from typing import Final

from starlette.applications import Starlette
from starlette.types import ASGIApp

from magnetar.admin import answers, openapi, paths
from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.routing import InCluster
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.probes import default_probes
from magnetar.admin.routes import MethodRoute, RouteTable
from magnetar.admin.steps import in_one_step
from magnetar.broker.service import BrokerService
from magnetar.observe.health import Probes

paths.register_converters()  # before the routers below are imported: their paths name converters

from magnetar.admin.routers import (  # noqa: E402
    all_policies,
    analytics,
    backlog,
    bookies,
    broker_stats,
    brokers,
    clusters,
    compaction,
    drain,
    effect,
    health,
    lookup,
    messages,
    metrics,
    namespaces,
    offload,
    partitioned,
    schemas,
    subscription_moves,
    subscriptions,
    tenants,
    topic_stats,
    topics,
)
from magnetar.admin.routers.policies import fixed, permissions  # noqa: E402
from magnetar.admin.routers.policies import namespaces as namespace_policies  # noqa: E402
from magnetar.admin.routers.policies import topics as topic_policies  # noqa: E402

ROUTERS: Final = (
    clusters.router,
    tenants.router,
    namespaces.router,
    namespace_policies.router,
    permissions.router,
    fixed.router,
    partitioned.router,
    topics.router,
    topic_stats.router,
    subscriptions.router,
    subscription_moves.router,
    messages.router,
    compaction.router,
    offload.router,
    backlog.router,
    effect.router,
    all_policies.router,
    topic_policies.router,
    schemas.router,
    brokers.router,
    bookies.router,
    broker_stats.router,
    lookup.router,
    metrics.router,
    health.router,
    drain.router,
    analytics.router,
)

DESCRIPTIONS: Final = tuple(each for router in ROUTERS for each in router.descriptions)
_TABLE: Final = RouteTable(
    [
        *openapi.ROUTES,
        *(MethodRoute(each.method, each.path, in_one_step(each)) for each in DESCRIPTIONS),
    ]
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
    app = Starlette(exception_handlers=answers.HANDLERS)
    app.router = _TABLE
    app.state.openapi = openapi.OpenApi(DESCRIPTIONS, service.version)
    app.state.service = service
    app.state.metrics = metrics_page or MetricsPage(
        service, balance=cluster.balance if cluster else None
    )
    app.state.probes = probes or default_probes(service)
    whole = answers.Contained(paths.RawPaths(app))
    app.state.peers = app.state.balance = app.state.bookies = None
    if cluster is not None:
        peers = app.state.peers = Peers(cluster.routing, whole)
        cluster.closing.append(peers.close)
        app.state.balance, app.state.bookies = cluster.balance, cluster.bookies
    return whole
