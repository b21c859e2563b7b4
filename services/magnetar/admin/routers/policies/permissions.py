"""Permissions of roles. They are stored but not checked yet: there is no authentication.

As in Pulsar, the namespace's document contains the permissions of the namespace, of its topics and
of subscriptions. Those of a partitioned topic apply to its partitions.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import namespace_of, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.policies.topics import at_topic_owner_if_needed, existing_topic
from magnetar.broker.catalog.namespace_policies import AUTH, TOPIC_AUTH
from magnetar.broker.catalog.resources import Document

router = Routes(prefix="/admin/v2", placement=at_owner)

_NAMESPACE: Final = "/namespaces/{tenant:name}/{namespace:name}/permissions"
_TOPIC: Final = TOPIC_PATH + "/permissions"
_ACTIONS: Final = ("consume", "functions", "packages", "produce", "sinks", "sources")
_OF_NAMESPACE: Final = "namespace_auth"
_OF_SUBSCRIPTIONS: Final = "subscription_auth_roles"
_BODY: Final = described(body="The role's actions", example=["produce", "consume"])

Roles = dict[str, list[str]]
T = TypeVar("T")


@router.get(_NAMESPACE, summary="Roles and their actions", tags=("namespaces",))
async def get_of_namespace(request: Request) -> Response:
    return answer((await _auth(request))[_OF_NAMESPACE])


@router.post(
    _NAMESPACE + "/{role:name}",
    summary="Grant actions to a role",
    tags=("namespaces",),
    openapi_extra=_BODY,
)
async def grant_on_namespace(request: Request) -> Response:
    role, actions = text_of(request, "role"), await _actions(request)
    return await _change(request, _OF_NAMESPACE, lambda roles: {**roles, role: actions})


@router.delete(
    _NAMESPACE + "/{role:name}", summary="Revoke all actions of a role", tags=("namespaces",)
)
async def revoke_on_namespace(request: Request) -> Response:
    role = text_of(request, "role")
    return await _change(request, _OF_NAMESPACE, lambda roles: _without(roles, role))


@router.get(
    _NAMESPACE + "/subscription", summary="Subscriptions and their roles", tags=("namespaces",)
)
async def get_of_subscriptions(request: Request) -> Response:
    return answer((await _auth(request))[_OF_SUBSCRIPTIONS])


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
        request, _OF_SUBSCRIPTIONS, lambda granted: {**granted, subscription: unique}
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

    return await _change(request, _OF_SUBSCRIPTIONS, revoked)


@router.get(
    _TOPIC, summary="Roles and their actions, with those of the namespace", tags=("topics",)
)
@planned(at_topic_owner_if_needed)
async def get_of_topic(request: Request) -> Response:
    name = await existing_topic(request)
    auth = await _auth(request)
    roles: Roles = {role: list(actions) for role, actions in auth[_OF_NAMESPACE].items()}
    for role, actions in auth[TOPIC_AUTH].get(str(name), {}).items():
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
    name = str(await existing_topic(request))
    role, actions = text_of(request, "role"), await _actions(request)

    def granted(topics: dict[str, Roles]) -> dict[str, Roles]:
        return {**topics, name: {**topics.get(name, {}), role: actions}}

    return await _change(request, TOPIC_AUTH, granted)


@router.delete(_TOPIC + "/{role:name}", summary="Revoke all actions of a role", tags=("topics",))
@planned(at_topic_owner_if_needed)
async def revoke_on_topic(request: Request) -> Response:
    name, role = str(await existing_topic(request)), text_of(request, "role")

    def revoked(topics: dict[str, Roles]) -> dict[str, Roles]:
        remaining = _without(topics.get(name, {}), role)
        return {**_without(topics, name), **({name: remaining} if remaining else {})}

    return await _change(request, TOPIC_AUTH, revoked)


async def _actions(request: Request) -> list[str]:
    actions = await bodies.parse(request, list[str])
    if actions is None:
        raise HTTPException(400, "Actions should not be null")
    for action in actions:
        if action not in _ACTIONS:
            raise HTTPException(400, f"No such action: {action}; there are {', '.join(_ACTIONS)}")
    return sorted(set(actions))


async def _auth(request: Request) -> Document:
    document = await service_of(request).resources.policies(namespace_of(request))
    auth: Document = document[AUTH]
    return auth


async def _change(
    request: Request, part: str, change: Callable[[dict[str, T]], dict[str, T]]
) -> Response:
    def changed(document: Document) -> Document:
        auth = document[AUTH]
        return {**document, AUTH: {**auth, part: change(auth.get(part) or {})}}

    await service_of(request).resources.update_policies(namespace_of(request), changed)
    return done()


def _without(entries: dict[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in entries.items() if key != name}
