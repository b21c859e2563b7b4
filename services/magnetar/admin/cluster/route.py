"""Where a request is served: decided for every route in one place, before its handler runs.

A route's plan is what a decorator (`planned`, `anywhere`) gave its endpoint; without one it follows
from the path: a topic's routes are served by its owner, a bundle's by its owner, all others here. A
broker alone has no peers, and runs the handler as it is.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.peers import Handler, Peers
from magnetar.admin.context import namespace_of, service_of, topic_of
from magnetar.core.errors import TopicNotFound

Plan = Callable[[Peers, Request, Handler], Awaitable[Response]]
Endpoint = TypeVar("Endpoint", bound=Handler)

_plans: dict[Handler, Plan] = {}


def planned(plan: Plan) -> Callable[[Endpoint], Endpoint]:
    """Below the route's own decorator: how the request is served in a cluster."""

    def mark(endpoint: Endpoint) -> Endpoint:
        _plans[endpoint] = plan
        return endpoint

    return mark


async def here(_: Peers, request: Request, handler: Handler) -> Response:
    """Metadata answers: every broker can."""
    return await handler(request)


anywhere = planned(here)


def peers_of(request: Request) -> Peers | None:
    """The cluster's brokers; None where there is only this one."""
    return cast("Peers | None", request.app.state.peers)


async def at_topic_owner(peers: Peers, request: Request, handler: Handler) -> Response:
    """What is about a partitioned topic as a whole is metadata, or is refused: by any broker."""
    name = topic_of(request)
    if name.partition_index < 0 and await service_of(request).resources.partitions(name):
        return await handler(request)
    try:
        return await peers.at_topic_owner(name, request, handler)
    except TopicNotFound:
        return await handler(request)  # which says in its own words what is not there


async def at_bundle_owner(peers: Peers, request: Request, handler: Handler) -> Response:
    """For a path with a bundle."""
    bundle = f"{namespace_of(request)}/{request.path_params['bundle']}"
    return await peers.at_bundle_owner(bundle, request, handler)


def at_owner(handler: Handler, path: str) -> Handler:
    """For `Routes(placing=…)`: the handler, where it belongs. See the module's text."""
    plan = _plans.get(handler)
    if plan is None and "{topic" in path:
        plan = at_topic_owner
    elif plan is None and "{bundle" in path:
        plan = at_bundle_owner
    if plan is None or plan is here:
        return handler
    chosen = plan

    async def placed(request: Request) -> Response:
        peers = peers_of(request)
        if peers is None:
            return await handler(request)
        return await chosen(peers, request, handler)

    return placed
