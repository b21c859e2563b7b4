"""Requests about a namespace as a whole, whose bundles are on several brokers.

Each is sent to the owners as the request about one bundle that it amounts to. Bundles that nobody
owns are taken where the request changes what is stored in them, and left alone otherwise.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import done
from magnetar.admin.cluster.partitions import raise_refusal
from magnetar.admin.cluster.peers import Handler, Peers, together
from magnetar.admin.cluster.sending import Answer, query_of
from magnetar.admin.context import existing_namespace, service_of
from magnetar.broker.ownership.bundles import bundle_of, checked, ranges
from magnetar.core.names import NamespaceName

_NAMESPACE_SEGMENTS: Final = 6
"""`/admin/v2/namespaces/tenant/namespace`, with what is before the first slash."""


async def unload(peers: Peers, request: Request, handler: Handler) -> Response:
    """One bundle at its owner, or all of a namespace's; what nobody owns is unloaded already."""
    namespace, bundle = await _asked(request)
    if bundle is None:
        await _each_bundle(peers, request, namespace, taken=frozenset())
        return done()
    full = f"{namespace}/{bundle}"
    return await peers.at_bundle_owner_if_any(full, request, handler, done())


async def in_stored_topics(peers: Peers, request: Request, handler: Handler) -> Response:
    """What is done to all topics of a bundle or a namespace: for each bundle that has any."""
    namespace, bundle = await _asked(request)
    if bundle is not None:
        return await peers.at_bundle_owner(f"{namespace}/{bundle}", request, handler)
    service = service_of(request)
    policies = await service.resources.policies(namespace)
    names = await service.topics.names(namespace, "persistent")
    taken = frozenset(bundle_of(policies, name) for name in names)
    await _each_bundle(peers, request, namespace, taken)
    return done()


async def at_known_bundle(peers: Peers, request: Request, handler: Handler) -> Response:
    """At the bundle's owner; a bundle that there is not is refused first."""
    namespace, bundle = await _asked(request)
    return await peers.at_bundle_owner(f"{namespace}/{bundle}", request, handler)


async def _asked(request: Request) -> tuple[NamespaceName, str | None]:
    """The namespace, and the bundle where the path has one; raises where they do not exist."""
    namespace = await existing_namespace(request)
    bundle = request.path_params.get("bundle")
    if bundle is not None:
        policies = await service_of(request).resources.policies(namespace)
        bundle = checked(policies, namespace, bundle)
    return namespace, bundle


async def _each_bundle(
    peers: Peers, request: Request, namespace: NamespaceName, taken: frozenset[str]
) -> list[Answer]:
    """The request as one about each bundle; those in `taken` are taken where nobody has them."""
    policies = await service_of(request).resources.policies(namespace)
    path: str = request.scope["path"]
    segments = path.split("/")
    head = "/".join(segments[:_NAMESPACE_SEGMENTS])
    tail = "/".join(segments[_NAMESPACE_SEGMENTS:])
    query = query_of(request)

    async def ask(bundle: str) -> Answer:
        answer = await peers.ask_bundle(
            f"{namespace}/{bundle}",
            request.method,
            f"{head}/{bundle}/{tail}",
            take=bundle in taken,
            query=query,
        )
        return answer or Answer(done().status_code, b"", bundle)

    answers = await together([ask(bundle) for bundle in ranges(policies)])
    raise_refusal(answers, ())
    return answers
