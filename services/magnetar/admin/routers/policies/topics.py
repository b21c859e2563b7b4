"""`…/{topic}/{policy}`: get, set and remove a topic's own policies.

Any broker serves these routes, from the metadata store, which has a record of every persistent
topic. Only the owner of an unpartitioned non-persistent topic knows whether it exists. The policies
of a partitioned topic apply to each partition; a partition has none of its own.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.placement import at_owner, at_topic_owner, planned
from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import done
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Handler, Routes
from magnetar.admin.routers.policies import forms, rules
from magnetar.admin.routers.policies.namespaces import in_force as in_force_for_namespace
from magnetar.admin.routers.policies.namespaces import shown
from magnetar.admin.routers.policies.offload_place import check_place
from magnetar.admin.routers.policies.table import PolicyTable
from magnetar.broker.catalog.resources import Document
from magnetar.broker.policies.resolution import applied, of_topic
from magnetar.broker.policies.store import TopicPolicies
from magnetar.broker.service import BrokerService
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import TopicName
from magnetar.offload.policy import effective
from magnetar.policies.lifecycle import BACKLOG_QUOTA, OFFLOAD
from magnetar.policies.non_persistent import without_effect
from magnetar.policies.policy import Level, Policy, Rest

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_TABLE: Final = PolicyTable(Level.TOPIC)


async def at_topic_owner_if_needed(peers: Peers, request: Request, handler: Handler) -> Response:
    """Runs the handler on this broker, unless only the owner knows whether the topic exists."""
    if topic_of(request).persistent:
        return await handler(request)
    return await at_topic_owner(peers, request, handler)


async def existing_topic(request: Request) -> TopicName:
    """Returns the topic of the path, partitioned or not; raises if it cannot have policies."""
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    if name.partition_index >= 0:
        raise PreconditionFailed("Not allowed to set/get topic policy for a partition")
    if not await service.resources.partitions(name) and not await service.topics.exists(name):
        raise topic_not_found(name)
    return name


@planned(at_topic_owner_if_needed)
async def get_policy(request: Request) -> Response:
    service, policy = service_of(request), _TABLE.to_get(request)
    name = await existing_topic(request)
    own = await service.policies.documents.read(name)
    if bodies.flag(request, "applied"):
        document = await service.resources.policies(name.namespace)
        return shown(policy, _in_force(service, policy, own, document))
    value = own.get(policy.name, is_global=bodies.flag(request, "isGlobal"))
    return shown(policy, value, unset=_TABLE.rest(policy).unset)


@planned(at_topic_owner_if_needed)
async def set_policy(request: Request) -> Response:
    policy = _TABLE.to_set(request)
    rest = _TABLE.rest(policy)
    key = forms.key_of(request, policy, rest)
    name = await existing_topic(request)
    _refuse_without_effect(name, policy, rest)
    await _change(request, name, policy, await forms.read(request, policy, rest), key)
    return Response(status_code=rest.done)


def _refuse_without_effect(name: TopicName, policy: Policy, rest: Rest) -> None:
    """Raises PreconditionFailed if the policy cannot act on a non-persistent topic."""
    if not name.persistent and (reason := without_effect(policy)) is not None:
        raise PreconditionFailed(f"{rest.setting_path} is not supported on {name}: {reason}")


@planned(at_topic_owner_if_needed)
async def remove_policy(request: Request) -> Response:
    policy = _TABLE.to_remove(request)
    key = forms.key_of(request, policy, _TABLE.rest(policy))
    await _change(request, await existing_topic(request), policy, None, key)
    return done()


async def _change(request: Request, name: TopicName, policy: Policy, value: Any, key: str) -> None:
    service, is_global = service_of(request), bodies.flag(request, "isGlobal")
    await rules.check_value(service, name.namespace, policy, value, Level.TOPIC)
    if policy is BACKLOG_QUOTA and value is not None:
        rules.check_quota(key, value)
    document = await service.resources.policies(name.namespace)

    def change(own: TopicPolicies) -> TopicPolicies:
        new_value = value
        if key:
            entries = {**(own.get(policy.name, is_global=is_global) or {}), key: value}
            new_value = {
                name: entry for name, entry in entries.items() if entry is not None
            } or None
        changed = own.having(policy.name, new_value, is_global=is_global)
        if policy is OFFLOAD:
            place, former, above = (
                effective(service.offloading.defaults, document, values).store
                for values in (of_topic(policy, changed), of_topic(policy, own), None)
            )
            default = effective(service.offloading.defaults, None, None).store
            check_place(request, place, former, above, default)
        if value is not None:
            rules.check_together(
                policy, lambda other: _in_force(service, other, changed, document), Level.TOPIC
            )
        return changed

    await service.policies.update(name, change)


def _in_force(
    service: BrokerService, policy: Policy, own: TopicPolicies, document: Document
) -> Any:
    above = in_force_for_namespace(service, policy, document)
    if service.policies.is_fixed(policy):
        return above
    return applied(policy, above, of_topic(policy, own))


_TABLE.register(router, TOPIC_PATH, get=get_policy, set_=set_policy, remove=remove_policy)
