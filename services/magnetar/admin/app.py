"""The ASGI application of a broker: all routers, the error handlers and the documentation.

Starlette serves it. FastAPI only generates the documentation, when a client opens it
(`openapi.py`).
"""

from typing import Final

from starlette.applications import Starlette
from starlette.types import ASGIApp

from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.routing import ClusterParts
from magnetar.admin.http import answers, openapi, paths
from magnetar.admin.http.ambiguous import Unambiguous
from magnetar.admin.http.limited import Limited
from magnetar.admin.http.routes import MethodRoute, RouteTable
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.probes import default_probes
from magnetar.admin.rights import table as rights
from magnetar.admin.rights.audit_trail import AuditTrail
from magnetar.admin.rights.caller import on_behalf_of_caller
from magnetar.admin.rights.guard import GuardedTable
from magnetar.admin.routers import (
    all_policies,
    analytics,
    backlog,
    bookie_racks,
    bookies,
    broker_figures,
    broker_stats,
    brokers,
    chosen_bundles,
    clusters,
    compaction,
    drain,
    due_jobs,
    effect,
    explain,
    failure_domains,
    health,
    isolation_policies,
    lookup,
    messages,
    metrics,
    namespace_bundles,
    namespaces,
    not_offered,
    offload,
    partitioned,
    redrive,
    resource_groups,
    resource_quotas,
    schemas,
    shutdown,
    subscription_moves,
    subscription_rates,
    subscriptions,
    tenants,
    topic_stats,
    topic_upkeep,
    topics,
    transaction_participants,
    transactions,
)
from magnetar.admin.routers.policies import fixed, permissions
from magnetar.admin.routers.policies import namespaces as namespace_policies
from magnetar.admin.routers.policies import topics as topic_policies
from magnetar.admin.shield import shielded
from magnetar.broker.service import BrokerService
from magnetar.observe.health import Probes

ROUTERS: Final = (
    clusters.router,
    isolation_policies.router,
    failure_domains.router,
    failure_domains.old_router,
    tenants.router,
    namespaces.router,
    namespace_bundles.router,
    chosen_bundles.router,
    namespace_policies.router,
    permissions.router,
    fixed.router,
    partitioned.router,
    topics.router,
    topic_stats.router,
    topic_upkeep.router,
    subscriptions.router,
    subscription_moves.router,
    subscription_rates.router,
    messages.router,
    compaction.router,
    offload.router,
    backlog.router,
    effect.router,
    explain.router,
    redrive.router,
    all_policies.router,
    topic_policies.router,
    schemas.router,
    shutdown.router,
    brokers.router,
    bookies.router,
    bookie_racks.router,
    resource_quotas.router,
    resource_groups.router,
    broker_stats.router,
    broker_figures.router,
    not_offered.router,
    transactions.router,
    transaction_participants.router,
    lookup.router,
    metrics.router,
    health.router,
    drain.router,
    due_jobs.router,
    analytics.router,
)

paths.register_converters()  # before the table is built: the routes' paths name them

DESCRIPTIONS: Final = tuple(
    description for router in ROUTERS for description in router.descriptions
)
_TABLE: Final = RouteTable(
    [
        *openapi.ROUTES,
        *(MethodRoute(route.method, route.path, shielded(route)) for route in DESCRIPTIONS),
    ]
)
rights.check((method, route.path) for route in _TABLE.table for method in route.methods)


def create_app(
    service: BrokerService,
    metrics_page: MetricsPage | None = None,
    probes: Probes | None = None,
    cluster: ClusterParts | None = None,
) -> ASGIApp:
    """Builds the admin REST of a broker; `cluster` is set if the broker is one of several.

    If the broker has security, a guard admits each request. A caller that passes `metrics_page`
    also runs its `keep_windows`.
    """
    app = Starlette(exception_handlers=answers.HANDLERS)
    security = service.security
    limit = service.request_limit
    app.router = _TABLE if security is None else GuardedTable(_TABLE, security, limit)
    app.state.openapi = openapi.OpenApi(DESCRIPTIONS, service.version)
    app.state.service = service
    app.state.authorizer = security.authorizer if security else None
    app.state.metrics = metrics_page or MetricsPage(
        service, balance=cluster.balance if cluster else None
    )
    app.state.probes = probes or default_probes(service)
    outermost: ASGIApp = answers.Contained(Unambiguous(paths.RawPaths(app)))
    if security is not None and security.audit is not None:
        outermost = AuditTrail(outermost, security.audit)
    app.state.peers = app.state.balance = app.state.bookies = None
    if cluster is not None:
        peers = app.state.peers = Peers(
            cluster.routing, on_behalf_of_caller(outermost), cluster.credentials, cluster.tls
        )
        cluster.closing.append(peers.close)
        app.state.balance, app.state.bookies = cluster.balance, cluster.bookies
    # Around the rest: requests of this broker to itself are not counted.
    return outermost if limit is None else Limited(outermost, limit)
