"""`/admin/v2/namespaces`: namespaces, their bundles, and operations on all their topics."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster import namespaces as in_cluster
from magnetar.admin.cluster.deletion import remover_of
from magnetar.admin.cluster.namespaces import topic_names
from magnetar.admin.cluster.placement import at_owner, peers_of, planned
from magnetar.admin.context import (
    existing_namespace,
    has_subscription,
    namespace_of,
    refuse_broken,
    require_namespace,
    service_of,
    text_of,
)
from magnetar.admin.deletion import delete_namespace
from magnetar.admin.http import bodies, unknown_fields
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.not_offered import no_migration
from magnetar.admin.routers.policies.auth_document import checked_auth
from magnetar.admin.routers.policies.documents import (
    checked_document,
    document_fields,
    shown_document,
    value_in,
)
from magnetar.admin.routers.policies.fixed import OLD_STRATEGY, check_allowed, check_old_strategy
from magnetar.admin.routers.policies.offload_place import check_place
from magnetar.admin.routers.policies.rules import check_honored, check_quota
from magnetar.admin.routers.resource_groups import require_group
from magnetar.broker.catalog.namespace_policies import AUTH, default_policies
from magnetar.broker.catalog.resources import Document
from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.ownership import bundles
from magnetar.broker.ownership.split_algorithms import RANGE, check_algorithm
from magnetar.broker.policies.applied_policies import RESOURCE_GROUP
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.core.errors import (
    AuthorizationError,
    NotAllowed,
    NotFound,
    TopicNotFound,
)
from magnetar.core.names import DOMAINS, NamespaceName, TopicName
from magnetar.offload.policy import effective
from magnetar.policies.lifecycle import BACKLOG_QUOTA
from magnetar.policies.policy import Level
from magnetar.policies.registry import at

router = Routes(prefix="/admin/v2/namespaces", tags=("namespaces",), placement=at_owner)

_PATH: Final = "/{tenant:name}/{namespace:name}"
_NOT_TAKEN: Final = ("bundles", "clusterThatCanDeleteNamespace", "deleted", "migrated")
"""Fields of a namespace's document that a client cannot set when it creates the namespace.

Java's client computes the second from `replication_clusters` and sends it.
"""
_OLD_RATE: Final = "clusterDispatchRate"
_SAMPLE_RATE: Final = "latency_stats_sample_rate"
_OLD_STRATEGY_OF_GO: Final = "Full"
"""Go's admin client sends it with every new namespace that has policies, without being asked."""
_NOT_STORED: Final = (_OLD_RATE, OLD_STRATEGY, RESOURCE_GROUP)
"""Fields that are no policies, each with its own check."""
_KINDS: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
}
_MODES: Final = {
    "PERSISTENT": ("persistent",),
    "NON_PERSISTENT": ("non-persistent",),
    "ALL": DOMAINS,
}


@router.get("/{tenant:name}", summary="List a tenant's namespaces")
async def list_namespaces(request: Request) -> Response:
    resources, tenant = service_of(request).resources, text_of(request, "tenant")
    names = await resources.namespaces(tenant)
    if not names and tenant not in await resources.tenants():
        raise NotFound("Tenant not found")
    return answer(names)


@router.get(_PATH, summary="A namespace's policies")
async def get_policies(request: Request) -> Response:
    service = service_of(request)
    document = await service.resources.policies(namespace_of(request))
    auto_update = service.settings.schemas.schema_auto_update
    return answer(shown_document(document, auto_update=auto_update))


@router.put(
    _PATH,
    summary="Create a namespace",
    openapi_extra=described(body="Policies, or nothing", example={"bundles": {"numBundles": 4}}),
)
async def create_namespace(request: Request) -> Response:
    service, namespace = service_of(request), namespace_of(request)
    given = await bodies.parse(request, Document)
    policies = await _new_policies(service, namespace, given or {})
    defaults = service.offloading.defaults
    place, default = (effective(defaults, known, None).store for known in (policies, None))
    check_place(request, place, default)
    await service.resources.create_namespace(namespace, policies)
    return done()


@router.delete(_PATH, summary="Delete a namespace", openapi_extra=described(FORCE))
async def remove_namespace(request: Request) -> Response:
    force = bodies.flag(request, "force")
    namespace = namespace_of(request)
    await delete_namespace(service_of(request), remover_of(request), namespace, force=force)
    return done()


@router.get(
    _PATH + "/topics",
    summary="List a namespace's topics, partitions one by one",
    openapi_extra=described(
        query("mode", "string", "PERSISTENT (default), NON_PERSISTENT or ALL"),
        query("includeSystemTopic", "boolean", "Also system topics"),
    ),
)
async def list_topics(request: Request) -> Response:
    service, namespace = service_of(request), namespace_of(request)
    await require_namespace(service, namespace, "Namespace does not exist")
    mode = request.query_params.get("mode", "PERSISTENT")
    if mode not in _MODES:
        raise HTTPException(400, f"mode must be one of {', '.join(_MODES)}, not {mode}")
    with_system = bodies.flag(request, "includeSystemTopic")
    names = [
        name for domain in _MODES[mode] for name in await topic_names(request, namespace, domain)
    ]
    return answer(sorted(str(name) for name in names if with_system or not is_system_topic(name)))


@router.get(_PATH + "/bundles", summary="A namespace's bundles")
async def get_bundles(request: Request) -> Response:
    policies = await service_of(request).resources.policies(namespace_of(request))
    return answer(policies["bundles"])


@router.put(_PATH + "/unload", summary="Unload a namespace's topics")
@router.put(
    _PATH + "/{bundle:bundle}/unload",
    summary="Unload a bundle, so that another broker serves it",
    openapi_extra=described(
        query("destinationBroker", "string", "The next owner, as host:port; by default the best"),
        AUTHORITATIVE,
    ),
)
@planned(in_cluster.unload)
async def unload(request: Request) -> Response:
    bundle = request.path_params.get("bundle")
    destination = request.query_params.get("destinationBroker") or None
    if bundle is not None and (destination is not None or peers_of(request) is not None):
        ownership = service_of(request).ownership
        await ownership.unload(f"{namespace_of(request)}/{bundle}", destination)
        return done()
    service, selects = service_of(request), await _selection(request)
    names = [topic.name for topic in service.topics if selects(topic.name)]
    await for_each(names, service.topics.unload)
    return done()


@router.post(_PATH + "/clearBacklog", summary="Skip all messages on all subscriptions")
@router.post(
    _PATH + "/clearBacklog/{subscription:name}", summary="Skip all messages on a subscription"
)
@router.post(_PATH + "/{bundle:bundle}/clearBacklog", summary="Skip all messages within a bundle")
@router.post(
    _PATH + "/{bundle:bundle}/clearBacklog/{subscription:name}",
    summary="Skip all messages on a subscription within a bundle",
)
@planned(in_cluster.for_stored_topics)
async def clear_backlog(request: Request) -> Response:
    chosen_name = request.path_params.get("subscription")

    async def clear(topic: Topic) -> None:
        chosen = [
            subscription
            for name, subscription in topic.subscriptions.items()
            if chosen_name in (None, name)
        ]
        await for_each(chosen, lambda subscription: subscription.clear_backlog())
        for name in topic.broken_subscriptions:
            if chosen_name in (None, name):
                refuse_broken(topic, name)

    await _on_each_topic(request, clear)
    return done()


@router.post(
    _PATH + "/unsubscribe/{subscription:name}", summary="Delete a subscription of all topics"
)
@router.post(
    _PATH + "/{bundle:bundle}/unsubscribe/{subscription:name}",
    summary="Delete a subscription of all topics within a bundle",
)
@planned(in_cluster.for_stored_topics)
async def unsubscribe(request: Request) -> Response:
    subscription = text_of(request, "subscription")

    async def delete(topic: Topic) -> None:
        if has_subscription(topic, subscription):
            await topic.delete_subscription(subscription)

    await _on_each_topic(request, delete)
    return done()


@router.put(
    _PATH + "/{bundle:bundle}/split",
    summary="Split a bundle at its owner",
    openapi_extra=described(
        query("unload", "boolean", "Also unload the parts, so that other brokers serve them"),
        query("splitAlgorithmName", "string", "By default range_equally_divide"),
        AUTHORITATIVE,
        body="Positions on the ring, for specified_positions_divide",
        example=[1073741824],
    ),
)
@planned(in_cluster.split)
async def split(request: Request) -> Response:
    algorithm = request.query_params.get("splitAlgorithmName") or RANGE
    check_algorithm(algorithm)
    bundle = f"{await existing_namespace(request)}/{text_of(request, 'bundle')}"
    positions = await bodies.parse(request, list[int]) or []
    ownership = service_of(request).ownership
    parts = await ownership.split(bundle, algorithm, positions)
    if bodies.flag(request, "unload"):
        for part in parts:
            await ownership.unload(part)
    return done()


class _Selection:
    """Selects the topics of a request: those of a namespace, or of one of its bundles."""

    def __init__(self, namespace: NamespaceName, policies: Document, bundle: str | None):
        self.namespace = namespace
        self._policies = policies
        self._bundle = bundle and bundles.checked(policies, namespace, bundle)

    def __call__(self, name: TopicName) -> bool:
        if name.namespace != self.namespace:
            return False
        return not self._bundle or bundles.bundle_of(self._policies, name) == self._bundle


async def _selection(request: Request) -> _Selection:
    namespace = await existing_namespace(request)
    policies = await service_of(request).resources.policies(namespace)
    return _Selection(namespace, policies, request.path_params.get("bundle"))


async def _on_each_topic(request: Request, action: Callable[[Topic], Awaitable[None]]) -> None:
    """Runs the action on each selected topic; loads topics, which may have a backlog on disk.

    A topic that was deleted meanwhile is skipped.
    """
    service, selects = service_of(request), await _selection(request)

    async def open_and_act(name: TopicName) -> None:
        with contextlib.suppress(TopicNotFound):
            topic = await service.topics.get_or_open(name, create=False)
            await action(topic)

    names = [
        name
        for domain in DOMAINS
        for name in await service.topics.names(selects.namespace, domain)
        if selects(name)
    ]
    await for_each(names, open_and_act)


async def _new_policies(
    service: BrokerService, namespace: NamespaceName, given: Document
) -> Document:
    tenant = await service.resources.tenant(namespace.tenant)
    policies = default_policies(service.cluster)
    policy_fields = document_fields()
    fields = frozenset(policies.keys() | policy_fields)
    if group := given.get(RESOURCE_GROUP):
        await require_group(service, group)
    for key, value in checked_document(_known(given, fields)).items():
        if key not in policy_fields and type(value) is not type(policies[key]):
            raise HTTPException(400, f"{key} must be {_KINDS[type(policies[key])]}")
        policies[key] = checked_auth(value) if key == AUTH else value
    if group:
        policies[RESOURCE_GROUP] = group
    policies["bundles"] = bundles.requested(
        given.get("bundles"), service.settings.topics.default_namespace_bundles
    )
    allowed = tenant.get("allowedClusters") or []
    for cluster in policies["replication_clusters"]:
        if cluster not in allowed:
            raise AuthorizationError(
                f"Cluster [{cluster}] is not in the list of allowed clusters list for "
                f"tenant [{namespace.tenant}]"
            )
    if clusters := policies["allowed_clusters"]:
        replicating = policies["replication_clusters"]
        check_allowed(clusters, replicating, namespace, tenant, service.cluster)
    if (strategy := given.get(OLD_STRATEGY) or None) != _OLD_STRATEGY_OF_GO:
        check_old_strategy(strategy)
    if given.get("migrated"):
        raise NotAllowed(no_migration("namespace"))
    if given.get(_OLD_RATE):
        raise NotAllowed(f"{_OLD_RATE} is out of use: set topicDispatchRate")
    _refuse_unused(given, service.cluster)
    for kind, quota in policies[BACKLOG_QUOTA.document].items():
        check_quota(kind, quota)
    for policy in at(Level.NAMESPACE):
        if policy.document in given:
            check_honored(policy, value_in(policies, policy, service.cluster), service)
    return policies


def _refuse_unused(given: Document, cluster: str) -> None:
    """Raises NotAllowed for values that nothing would read."""
    if given.get("deleted"):
        raise NotAllowed("deleted marks a namespace whose deletion has begun: leave it out")
    if given.get(_SAMPLE_RATE):
        raise NotAllowed(
            f"{_SAMPLE_RATE} is not supported: latencies are not sampled; leave it out"
        )
    for policy in at(Level.NAMESPACE):
        value = given.get(policy.document) if policy.by_cluster else None
        if isinstance(value, dict) and (others := sorted(value.keys() - {cluster})):
            raise NotAllowed(
                f"{policy.document} has a value for {', '.join(others)}: there is no "
                f"geo-replication yet; name the local cluster, {cluster}, only"
            )


def _known(given: Document, fields: frozenset[str]) -> Document:
    """Returns the fields that are set and stored; raises 400 for an unknown one."""
    for key, value in given.items():
        if value and key not in fields and key not in _NOT_TAKEN and key not in _NOT_STORED:
            unknown_fields.refuse(key, fields)
    return {
        key: value
        for key, value in given.items()
        if key in fields and key not in _NOT_TAKEN and value is not None and value not in ({}, [])
    }
