"""`split-bundle --bundle-type`: the split of a bundle that the server chooses.

LARGEST is the bundle with the most stored topics, the lowest range if several have as many. Every
broker chooses the same one, so the owner that a request is redirected to serves it. HOT, the
bundle with the most traffic, is refused: each broker measures its own bundles only.
"""

from collections import Counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster import namespaces as in_cluster
from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import existing_namespace, service_of, text_of
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.paths import register_choice
from magnetar.admin.http.routes import Handler, Routes
from magnetar.admin.routers.namespaces import split
from magnetar.broker.ownership.bundles import bundle_of
from magnetar.core.errors import NotAllowed, NotFound

router = Routes(prefix="/admin/v2", tags=("namespaces",), placement=at_owner)

LARGEST: Final = "LARGEST"
HOT: Final = "HOT"
register_choice("chosen_bundle", (LARGEST, HOT))


async def _at_owner(peers: Peers, request: Request, handler: Handler) -> Response:
    await _choose(request)
    return await in_cluster.split(peers, request, handler)


@router.put(
    "/namespaces/{tenant:name}/{namespace:name}/{choice:chosen_bundle}/split",
    summary="Split the bundle with the most topics, at its owner",
    openapi_extra=described(
        query("unload", "boolean", "Also unload the parts, so that other brokers serve them"),
        query("splitAlgorithmName", "string", "By default range_equally_divide"),
        AUTHORITATIVE,
    ),
)
@planned(_at_owner)
async def split_chosen(request: Request) -> Response:
    await _choose(request)
    return await split(request)


async def _choose(request: Request) -> None:
    """Makes the request one about the chosen bundle."""
    if "bundle" not in request.path_params:
        request.path_params["bundle"] = await _largest(request)


async def _largest(request: Request) -> str:
    choice = text_of(request, "choice")
    if choice == HOT:
        raise NotAllowed(
            "Splitting the HOT bundle is not supported: choose LARGEST, or name the bundle that "
            "broker-stats topics shows with the highest rates"
        )
    service, namespace = service_of(request), await existing_namespace(request)
    policies = await service.resources.policies(namespace)
    names = await service.topics.names(namespace, "persistent")
    topics = Counter(bundle_of(policies, name) for name in names)
    if not topics:
        raise NotFound(f"Bundle range {choice} not found")
    return min(topics, key=lambda bundle: (-topics[bundle], bundle))
