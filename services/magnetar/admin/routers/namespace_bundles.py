"""One bundle of a namespace: the positions of its topics, its non-persistent topics, its deletion.

A bundle is a range of the ring and exists as long as its namespace, so its deletion releases its
topics and its ownership, as in Pulsar.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster import namespaces as in_cluster
from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import existing_namespace, service_of, text_of
from magnetar.admin.deletion import delete_topic
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.ownership import bundles
from magnetar.core.errors import Conflict, NotAllowed
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import DOMAINS, NamespaceName, TopicName

router = Routes(prefix="/admin/v2", tags=("namespaces",), placement=at_owner)

_BUNDLE: Final = "/namespaces/{tenant:name}/{namespace:name}/{bundle:bundle}"


@router.get(
    _BUNDLE + "/topicHashPositions",
    summary="The positions of a bundle's topics on the namespace's ring",
    openapi_extra=described(query("topics", "string", "Only these topics, separated by commas")),
)
@planned(in_cluster.at_existing_bundle)
async def positions(request: Request) -> Response:
    namespace = await existing_namespace(request)
    bundle, names = await _topics(request, namespace, ("persistent",))
    wanted = [name for name in request.query_params.get("topics", "").split(",") if name]
    chosen = [name for name in map(str, names) if not wanted or name in wanted]
    return answer(
        {
            "namespace": str(namespace),
            "bundle": bundle,
            "topicHashPositions": {name: bundle_hash(name) for name in chosen},
        }
    )


@router.get(
    "/non-persistent/{tenant:name}/{namespace:name}/{bundle:bundle}",
    summary="The non-persistent topics of a bundle",
)
@planned(in_cluster.at_existing_bundle)
async def non_persistent_topics(request: Request) -> Response:
    _, names = await _topics(request, await existing_namespace(request), ("non-persistent",))
    return answer(sorted(map(str, names)))


@router.delete(
    _BUNDLE,
    summary="Unload a bundle without topics; with force, delete its topics first",
    openapi_extra=described(FORCE, AUTHORITATIVE),
)
@planned(in_cluster.at_existing_bundle)
async def delete_bundle(request: Request) -> Response:
    service, namespace = service_of(request), await existing_namespace(request)
    force = bodies.flag(request, "force")
    if force and not service.settings.operation.force_delete_namespace:
        raise NotAllowed("Broker doesn't allow forced deletion of namespaces")
    bundle, names = await _topics(request, namespace, DOMAINS)
    if not force and any(not is_system_topic(name) for name in names):
        raise Conflict("Cannot delete non empty bundle")
    await for_each(names, lambda name: delete_topic(service, name, force=True))
    if request.app.state.peers is not None:
        await service.ownership.unload(f"{namespace}/{bundle}", None)
    return done()


async def _topics(
    request: Request, namespace: NamespaceName, domains: tuple[str, ...]
) -> tuple[str, list[TopicName]]:
    """Returns the checked bundle of the path, and its topics."""
    service = service_of(request)
    policies = await service.resources.policies(namespace)
    bundle = bundles.checked(policies, namespace, text_of(request, "bundle"))
    names = [
        name
        for domain in domains
        for name in await service.topics.names(namespace, domain)
        if bundles.bundle_of(policies, name) == bundle
    ]
    return bundle, names
