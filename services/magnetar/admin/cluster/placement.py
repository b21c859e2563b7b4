"""Placement of requests: chooses the broker that serves a request, before its handler runs.

A decorator (`planned`, `any_broker`) gives an endpoint its plan. Without one, the path decides: the
owner of a topic or bundle serves the routes about it, and any broker serves all other routes. A
single broker has no peers and runs every handler itself.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.peers import Peers
from magnetar.admin.context import namespace_of, service_of, topic_of
from magnetar.admin.http.routes import Handler
from magnetar.core.errors import TopicNotFound

Plan = Callable[[Peers, Request, Handler], Awaitable[Response]]
Endpoint = TypeVar("Endpoint", bound=Handler)

_plans: dict[Handler, Plan] = {}


def planned(plan: Plan) -> Callable[[Endpoint], Endpoint]:
    """Returns the decorator that sets an endpoint's plan; it is placed below the route's own."""

    def mark(endpoint: Endpoint) -> Endpoint:
        _plans[endpoint] = plan
        return endpoint

    return mark


async def locally(_: Peers, request: Request, handler: Handler) -> Response:
    """Runs the handler on this broker: the answer comes from metadata that every broker has."""
    return await handler(request)


any_broker = planned(locally)


def peers_of(request: Request) -> Peers | None:
    """Returns the cluster's brokers; None for a single broker."""
    return cast("Peers | None", request.app.state.peers)


async def at_topic_owner(peers: Peers, request: Request, handler: Handler) -> Response:
    """Serves a request at the topic's owner; one about a partitioned topic on this broker.

    A whole partitioned topic has no owner: the handler answers from metadata, or refuses.
    """
    name = topic_of(request)
    if name.partition_index < 0 and await service_of(request).resources.partitions(name):
        return await handler(request)
    try:
        return await peers.at_topic_owner(name, request, handler)
    except TopicNotFound:
        return await handler(request)  # answers with the reason that fits its request


async def at_bundle_owner(peers: Peers, request: Request, handler: Handler) -> Response:
    """Serves a request at the owner of the bundle in its path."""
    bundle = f"{namespace_of(request)}/{request.path_params['bundle']}"
    return await peers.at_bundle_owner(bundle, request, handler)


def at_owner(handler: Handler, path: str) -> Handler:
    """Wraps a handler with the plan of its route (`Routes.placement`)."""
    plan = _plans.get(handler)
    if plan is None and "{topic" in path:
        plan = at_topic_owner
    elif plan is None and "{bundle" in path:
        plan = at_bundle_owner
    if plan is None or plan is locally:
        return handler
    chosen = plan

    async def placed(request: Request) -> Response:
        peers = peers_of(request)
        if peers is None:
            return await handler(request)
        return await chosen(peers, request, handler)

    return placed
