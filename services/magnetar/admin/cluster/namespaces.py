"""Requests about a whole namespace, whose bundles are on several brokers.

The broker splits such a request into one request per bundle and sends each to the bundle's owner.
If a bundle has no owner, it claims the bundle if the request changes stored data, and skips it
otherwise.
"""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import answers_of_peers, raise_refusal
from magnetar.admin.cluster.peers import Peers, gather_answers
from magnetar.admin.cluster.sender import PeerAnswer, query_of
from magnetar.admin.context import existing_namespace, service_of
from magnetar.admin.http.answers import done
from magnetar.admin.http.routes import Handler
from magnetar.broker.ownership.bundles import bundle_of, checked, ranges
from magnetar.broker.ownership.split_algorithms import RANGE, check_algorithm
from magnetar.core.names import NamespaceName, TopicName, parse_topic

_NAMESPACE_SEGMENTS: Final = 6
"""Segments of `/admin/v2/namespaces/tenant/namespace`, with the empty one before it."""


async def unload(peers: Peers, request: Request, handler: Handler) -> Response:
    """Unloads a bundle, or all bundles of a namespace.

    A bundle without an owner is unloaded already, unless it is to go to a destination.
    """
    namespace, bundle = await _namespace_and_bundle(request)
    if bundle is None:
        await _request_bundles(peers, request, namespace, claimed=frozenset())
        return done()
    full_name = f"{namespace}/{bundle}"
    if request.query_params.get("destinationBroker"):
        return await peers.at_bundle_owner(full_name, request, handler)
    return await peers.at_bundle_owner_if_any(full_name, request, handler, done())


async def for_stored_topics(peers: Peers, request: Request, handler: Handler) -> Response:
    """Applies a request to all stored topics of a bundle or of a namespace."""
    namespace, bundle = await _namespace_and_bundle(request)
    if bundle is not None:
        return await peers.at_bundle_owner(f"{namespace}/{bundle}", request, handler)
    service = service_of(request)
    policies = await service.resources.policies(namespace)
    names = await service.topics.names(namespace, "persistent")
    with_topics = frozenset(bundle_of(policies, name) for name in names)
    await _request_bundles(peers, request, namespace, claimed=with_topics)
    return done()


async def split(peers: Peers, request: Request, handler: Handler) -> Response:
    """Serves a split at the bundle's owner; refuses it first if its algorithm is unknown."""
    check_algorithm(request.query_params.get("splitAlgorithmName") or RANGE)
    return await at_existing_bundle(peers, request, handler)


async def at_existing_bundle(peers: Peers, request: Request, handler: Handler) -> Response:
    """Serves a request at the bundle's owner; refuses it first if the bundle does not exist."""
    namespace, bundle = await _namespace_and_bundle(request)
    return await peers.at_bundle_owner(f"{namespace}/{bundle}", request, handler)


async def topic_names(request: Request, namespace: NamespaceName, domain: str) -> list[TopicName]:
    """Returns all topics and partitions of the domain in the namespace, sorted.

    Non-persistent topics exist only in their brokers' memory, so this broker lists its own and
    requests the others' lists. A request from a peer gets this broker's topics only.
    """
    names = await service_of(request).topics.names(namespace, domain)
    if domain == "persistent":
        return names
    path = f"/admin/v2/{domain}/{namespace}"
    all_names = set(names)
    for answer in await answers_of_peers(request, path, "includeSystemTopic=true"):
        all_names.update(map(parse_topic, msgspec.json.decode(answer.body, type=list[str])))
    return sorted(all_names)


async def _namespace_and_bundle(request: Request) -> tuple[NamespaceName, str | None]:
    """Returns the path's namespace, and its bundle if it names one; raises if one is missing."""
    namespace = await existing_namespace(request)
    bundle = request.path_params.get("bundle")
    if bundle is not None:
        policies = await service_of(request).resources.policies(namespace)
        bundle = checked(policies, namespace, bundle)
    return namespace, bundle


async def _request_bundles(
    peers: Peers, request: Request, namespace: NamespaceName, claimed: frozenset[str]
) -> None:
    """Sends the request for each bundle of the namespace; raises the first refusal.

    This broker claims those bundles of `claimed` that have no owner, and skips others without one.
    """
    policies = await service_of(request).resources.policies(namespace)
    path: str = request.scope["path"]
    segments = path.split("/")
    head = "/".join(segments[:_NAMESPACE_SEGMENTS])
    tail = "/".join(segments[_NAMESPACE_SEGMENTS:])
    query = query_of(request)

    async def request_bundle(bundle: str) -> PeerAnswer:
        answer = await peers.request_bundle(
            f"{namespace}/{bundle}",
            request.method,
            f"{head}/{bundle}/{tail}",
            claim=bundle in claimed,
            query=query,
        )
        return answer or PeerAnswer(done().status_code, b"", bundle)

    raise_refusal(await gather_answers([request_bundle(bundle) for bundle in ranges(policies)]), ())
