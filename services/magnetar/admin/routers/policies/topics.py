"""`…/{topic}/{policy}`: get, set and remove a topic's own policies.

Any broker can: they are in the metadata store, and a topic that exists has its record there. Only
non-persistent topics without partitions are asked for where they are served. A partitioned topic's
policies are set on the topic and hold for each partition; a partition has none of its own.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import done
from magnetar.admin.cluster.peers import Handler, Peers
from magnetar.admin.cluster.route import at_owner, at_topic_owner, planned
from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.routers.policies import forms, rules
from magnetar.admin.routers.policies.namespaces import holds as holds_for_namespace
from magnetar.admin.routers.policies.namespaces import shown
from magnetar.admin.routers.policies.table import PolicyTable
from magnetar.admin.routes import Routes
from magnetar.broker.policies.resolving import applied, of_topic
from magnetar.broker.policies.store import TopicPolicies
from magnetar.broker.resources import Document
from magnetar.broker.service import BrokerService
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import TopicName
from magnetar.policies.policy import Level, Policy

router = Routes(prefix="/admin/v2", tags=("topics",), placing=at_owner)

TOPIC_PATH: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"
_TABLE: Final = PolicyTable(Level.TOPIC)


async def where_known(peers: Peers, request: Request, handler: Handler) -> Response:
    """Here, unless only its owner knows whether the topic exists."""
    if topic_of(request).persistent:
        return await handler(request)
    return await at_topic_owner(peers, request, handler)


async def existing_topic(request: Request) -> TopicName:
    """The topic of the path, partitioned or not; raises where it has no policies."""
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    if name.partition_index >= 0:
        raise PreconditionFailed("Not allowed to set/get topic policy for a partition")
    if not await service.resources.partitions(name) and not await service.topics.exists(name):
        raise topic_not_found(name)
    return name


@planned(where_known)
async def get_policy(request: Request) -> Response:
    service, policy = service_of(request), _TABLE.gotten(request)
    name = await existing_topic(request)
    own = await service.policies.documents.read(name)
    if bodies.flag(request, "applied"):
        document = await service.resources.policies(name.namespace)
        return shown(policy, _holds(service, policy, own, document))
    value = own.get(policy.name, is_global=bodies.flag(request, "isGlobal"))
    return shown(policy, value, unset=_TABLE.rest(policy).unset)


@planned(where_known)
async def set_policy(request: Request) -> Response:
    policy = _TABLE.set(request)
    rest = _TABLE.rest(policy)
    key = forms.key_of(request, policy, rest)
    name = await existing_topic(request)
    await _change(request, name, policy, await forms.read(request, policy, rest), key)
    return Response(status_code=rest.done)


@planned(where_known)
async def remove_policy(request: Request) -> Response:
    policy = _TABLE.removed(request)
    key = forms.key_of(request, policy, _TABLE.rest(policy))
    await _change(request, await existing_topic(request), policy, None, key)
    return done()


async def _change(request: Request, name: TopicName, policy: Policy, value: Any, key: str) -> None:
    service, is_global = service_of(request), bodies.flag(request, "isGlobal")
    await rules.check_value(service, name.namespace, policy, value, Level.TOPIC)
    document = await service.resources.policies(name.namespace)

    def change(own: TopicPolicies) -> TopicPolicies:
        now = value
        if key:
            entries = {**(own.get(policy.name, is_global=is_global) or {}), key: value}
            now = {name: one for name, one in entries.items() if one is not None} or None
        changed = own.having(policy.name, now, is_global=is_global)
        if value is not None:
            rules.check_together(
                policy, lambda other: _holds(service, other, changed, document), Level.TOPIC
            )
        return changed

    await service.policies.update(name, change)


def _holds(service: BrokerService, policy: Policy, own: TopicPolicies, document: Document) -> Any:
    above = holds_for_namespace(service, policy, document)
    return applied(policy, above, of_topic(policy, own))


_TABLE.register(router, TOPIC_PATH, get=get_policy, set_=set_policy, remove=remove_policy)
