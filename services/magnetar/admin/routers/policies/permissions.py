"""Permissions of roles on namespaces, topics and subscriptions.

As in Pulsar, the namespace's document contains the permissions of the namespace, of its topics and
of subscriptions. Those of a partitioned topic apply to its partitions. A broker with authorization
decides by them (`broker.security`); one without stores them.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import (
    namespace_of,
    require_namespace,
    service_of,
    text_of,
    topic_not_found,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.admin.rights.caller import require
from magnetar.admin.routers.policies.auth_document import Roles, checked_actions
from magnetar.admin.routers.policies.topics import at_topic_owner_if_needed
from magnetar.broker.catalog.namespace_policies import AUTH, TOPIC_AUTH
from magnetar.broker.catalog.resources import Document
from magnetar.broker.security.grants import NAMESPACE_AUTH, SUBSCRIPTION_ROLES
from magnetar.broker.security.needs import TenantAdminNeed
from magnetar.broker.service import BrokerService
from magnetar.core.names import NamespaceName, TopicName, parse_topic

router = Routes(prefix="/admin/v2", placement=at_owner)

_NAMESPACE: Final = "/namespaces/{tenant:name}/{namespace:name}/permissions"
_TOPIC: Final = TOPIC_PATH + "/permissions"
_NO_NAMESPACE: Final = "Topic's namespace does not exist"
"""Pulsar's text when actions are granted on a namespace."""
_BODY: Final = described(body="The role's actions", example=["produce", "consume"])

T = TypeVar("T")


@router.get(_NAMESPACE, summary="Roles and their actions", tags=("namespaces",))
async def get_of_namespace(request: Request) -> Response:
    return answer((await _auth(request))[NAMESPACE_AUTH])


@router.post(
    _NAMESPACE + "/{role:name}",
    summary="Grant actions to a role",
    tags=("namespaces",),
    openapi_extra=_BODY,
)
async def grant_on_namespace(request: Request) -> Response:
    role, actions = text_of(request, "role"), await _actions(request)
    await require_namespace(service_of(request), namespace_of(request), _NO_NAMESPACE)
    return await _change(request, NAMESPACE_AUTH, lambda roles: {**roles, role: actions})


@router.delete(
    _NAMESPACE + "/{role:name}", summary="Revoke all actions of a role", tags=("namespaces",)
)
async def revoke_on_namespace(request: Request) -> Response:
    role = text_of(request, "role")
    return await _change(request, NAMESPACE_AUTH, lambda roles: _without(roles, role))


@router.get(
    _NAMESPACE + "/subscription", summary="Subscriptions and their roles", tags=("namespaces",)
)
async def get_of_subscriptions(request: Request) -> Response:
    return answer((await _auth(request))[SUBSCRIPTION_ROLES])


@router.post(
    _NAMESPACE + "/subscription/{subscription:name}",
    summary="Set the roles that may use a subscription",
    tags=("namespaces",),
    openapi_extra=described(body="Roles", example=["analytics"]),
)
async def grant_on_subscription(request: Request) -> Response:
    subscription = text_of(request, "subscription")
    roles = await bodies.parse(request, list[str])
    if roles is None:
        raise HTTPException(400, "Roles should not be null")
    unique = sorted(set(roles))
    return await _change(
        request, SUBSCRIPTION_ROLES, lambda granted: {**granted, subscription: unique}
    )


@router.delete(
    _NAMESPACE + "/subscription/{subscription:name}/{role:name}",
    summary="Revoke a role's use of a subscription",
    tags=("namespaces",),
)
@router.delete(
    _NAMESPACE + "/{subscription:name}/{role:name}",
    summary="Revoke a role's use of a subscription, by the path of Pulsar's clients",
    tags=("namespaces",),
)
async def revoke_on_subscription(request: Request) -> Response:
    subscription, role = text_of(request, "subscription"), text_of(request, "role")

    def revoked(granted: Roles) -> Roles:
        if subscription not in granted:
            return granted
        return {**granted, subscription: [name for name in granted[subscription] if name != role]}

    return await _change(request, SUBSCRIPTION_ROLES, revoked)


@router.get(
    _TOPIC, summary="Roles and their actions, with those of the namespace", tags=("topics",)
)
@planned(at_topic_owner_if_needed)
async def get_of_topic(request: Request) -> Response:
    name = await _existing_topic(request)
    auth = await _auth(request)
    roles: Roles = {role: list(actions) for role, actions in auth[NAMESPACE_AUTH].items()}
    for topic in dict.fromkeys((str(name), str(name.base))):
        for role, actions in auth[TOPIC_AUTH].get(topic, {}).items():
            roles[role] = sorted({*roles.get(role, ()), *actions})
    return answer(roles)


@router.post(
    _TOPIC + "/{role:name}",
    summary="Grant actions to a role",
    tags=("topics",),
    openapi_extra=_BODY,
)
@planned(at_topic_owner_if_needed)
async def grant_on_topic(request: Request) -> Response:
    name = str(await _existing_topic(request))
    role, actions = text_of(request, "role"), await _actions(request)
    return await _change(request, TOPIC_AUTH, lambda topics: _granted(topics, name, role, actions))


@router.delete(_TOPIC + "/{role:name}", summary="Revoke all actions of a role", tags=("topics",))
@planned(at_topic_owner_if_needed)
async def revoke_on_topic(request: Request) -> Response:
    name, role = str(await _existing_topic(request)), text_of(request, "role")
    return await _change(request, TOPIC_AUTH, lambda topics: _revoked(topics, name, role))


class GrantOnTopic(msgspec.Struct):
    """A role and its actions on a topic, as Pulsar's clients send them in lists."""

    topic: str
    role: str
    actions: list[str] | None = None


@router.post(
    "/namespaces/grantPermissionsOnTopics",
    summary="Grant actions on several topics of a namespace",
    tags=("namespaces",),
    openapi_extra=described(
        body="Topics, roles and actions",
        example=[{"topic": "persistent://t/n/a", "role": "team", "actions": ["produce"]}],
    ),
)
async def grant_on_topics(request: Request) -> Response:
    grants = await _grants_of_one_namespace(request)
    checked = [(str(name), grant.role, checked_actions(grant.actions)) for name, grant in grants]

    def granted(topics: dict[str, Roles]) -> dict[str, Roles]:
        for topic, role, actions in checked:
            topics = _granted(topics, topic, role, actions)
        return topics

    return await _change_of(request, grants[0][0].namespace, TOPIC_AUTH, granted)


@router.post(
    "/namespaces/revokePermissionsOnTopics",
    summary="Revoke all actions of roles on several topics of a namespace",
    tags=("namespaces",),
    openapi_extra=described(
        body="Topics and roles", example=[{"topic": "persistent://t/n/a", "role": "team"}]
    ),
)
async def revoke_on_topics(request: Request) -> Response:
    grants = await _grants_of_one_namespace(request)

    def revoked(topics: dict[str, Roles]) -> dict[str, Roles]:
        for name, grant in grants:
            topics = _revoked(topics, str(name), grant.role)
        return topics

    return await _change_of(request, grants[0][0].namespace, TOPIC_AUTH, revoked)


async def _grants_of_one_namespace(request: Request) -> list[tuple[TopicName, GrantOnTopic]]:
    """Returns the body's topics and roles; the caller is an admin of their tenant.

    Only the body names the topics, so this checks the right, and the guard cannot.
    """
    given = await bodies.parse(request, list[GrantOnTopic])
    if not given:
        raise HTTPException(400, "Permissions should not be null or empty")
    grants = [(parse_topic(grant.topic), grant) for grant in given]
    namespace = grants[0][0].namespace
    await require(request, TenantAdminNeed(namespace.tenant))
    if any(name.namespace != namespace for name, _ in grants):
        raise HTTPException(400, "The namespace should be the same")
    service = service_of(request)
    await require_namespace(service, namespace)
    for name, _ in grants:
        # Only its owner knows whether a non-persistent topic exists.
        if name.persistent:
            await _require_topic(service, name)
    return grants


async def _existing_topic(request: Request) -> TopicName:
    """Returns the topic or partition in the path; raises NotFound."""
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    await _require_topic(service, name)
    return name


async def _require_topic(service: BrokerService, name: TopicName) -> None:
    if not await service.resources.partitions(name) and not await service.topics.exists(name):
        raise topic_not_found(name)


async def _actions(request: Request) -> list[str]:
    return checked_actions(await bodies.parse(request, list[str]))


async def _auth(request: Request) -> Document:
    document = await service_of(request).resources.policies(namespace_of(request))
    auth: Document = document[AUTH]
    return auth


async def _change(
    request: Request, part: str, change: Callable[[dict[str, T]], dict[str, T]]
) -> Response:
    return await _change_of(request, namespace_of(request), part, change)


async def _change_of(
    request: Request,
    namespace: NamespaceName,
    part: str,
    change: Callable[[dict[str, T]], dict[str, T]],
) -> Response:
    def changed(document: Document) -> Document:
        auth = document[AUTH]
        return {**document, AUTH: {**auth, part: change(auth.get(part) or {})}}

    await service_of(request).resources.update_policies(namespace, changed)
    return done()


def _granted(
    topics: dict[str, Roles], topic: str, role: str, actions: list[str]
) -> dict[str, Roles]:
    return {**topics, topic: {**topics.get(topic, {}), role: actions}}


def _revoked(topics: dict[str, Roles], topic: str, role: str) -> dict[str, Roles]:
    remaining = _without(topics.get(topic, {}), role)
    return {**_without(topics, topic), **({topic: remaining} if remaining else {})}


def _without(entries: dict[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in entries.items() if key != name}
