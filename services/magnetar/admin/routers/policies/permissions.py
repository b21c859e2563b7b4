"""Who may do what, as it is written down: nothing asks for it yet (there is no authentication).

Kept in the namespace's document, as Pulsar does: for the namespace, for topics, for subscriptions.
A partitioned topic's hold for its partitions.
"""

from collections.abc import Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, done
from magnetar.admin.cluster.route import at_owner, planned
from magnetar.admin.context import namespace_of, service_of, text_of
from magnetar.admin.described import described
from magnetar.admin.routers.policies.topics import TOPIC_PATH, existing_topic, where_known
from magnetar.admin.routes import Routes
from magnetar.broker.namespace_policies import AUTH, OF_TOPICS
from magnetar.broker.resources import Document

router = Routes(prefix="/admin/v2", placing=at_owner)

_NAMESPACE: Final = "/namespaces/{tenant:name}/{namespace:name}/permissions"
_TOPIC: Final = TOPIC_PATH + "/permissions"
_ACTIONS: Final = ("consume", "functions", "packages", "produce", "sinks", "sources")
_OF_NAMESPACE: Final = "namespace_auth"
_OF_SUBSCRIPTIONS: Final = "subscription_auth_roles"
_BODY: Final = described(body="What the role may do", example=["produce", "consume"])

Roles = dict[str, list[str]]


# -- namespaces ------------------------------------------------------------------------------------


@router.get(_NAMESPACE, summary="Roles and what they may do", tags=("namespaces",))
async def get_of_namespace(request: Request) -> Response:
    return answer((await _auth(request))[_OF_NAMESPACE])


@router.post(
    _NAMESPACE + "/{role:name}",
    summary="Grant a role something",
    tags=("namespaces",),
    openapi_extra=_BODY,
)
async def grant_on_namespace(request: Request) -> Response:
    role, actions = text_of(request, "role"), await _actions(request)
    return await _change(request, _OF_NAMESPACE, lambda roles: {**roles, role: actions})


@router.delete(
    _NAMESPACE + "/{role:name}", summary="Take everything from a role", tags=("namespaces",)
)
async def revoke_on_namespace(request: Request) -> Response:
    role = text_of(request, "role")
    return await _change(request, _OF_NAMESPACE, lambda roles: _without(roles, role))


# -- subscriptions ---------------------------------------------------------------------------------


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
    return await _change(request, _OF_SUBSCRIPTIONS, lambda known: {**known, subscription: unique})


@router.delete(
    _NAMESPACE + "/subscription/{subscription:name}/{role:name}",
    summary="Take a subscription from a role",
    tags=("namespaces",),
)
@router.delete(
    _NAMESPACE + "/{subscription:name}/{role:name}",
    summary="The same, as Pulsar's clients ask for it",
    tags=("namespaces",),
)
async def revoke_on_subscription(request: Request) -> Response:
    subscription, role = text_of(request, "subscription"), text_of(request, "role")

    def revoked(known: Roles) -> Roles:
        if subscription not in known:
            return known
        return {**known, subscription: [each for each in known[subscription] if each != role]}

    return await _change(request, _OF_SUBSCRIPTIONS, revoked)


# -- topics ----------------------------------------------------------------------------------------


@router.get(_TOPIC, summary="Roles and what they may do, the namespace's too", tags=("topics",))
@planned(where_known)
async def get_of_topic(request: Request) -> Response:
    name = (await existing_topic(request)).base
    auth = await _auth(request)
    roles: Roles = {role: list(actions) for role, actions in auth[_OF_NAMESPACE].items()}
    for role, actions in auth[OF_TOPICS].get(str(name), {}).items():
        roles[role] = sorted({*roles.get(role, ()), *actions})
    return answer(roles)


@router.post(
    _TOPIC + "/{role:name}",
    summary="Grant a role something",
    tags=("topics",),
    openapi_extra=_BODY,
)
@planned(where_known)
async def grant_on_topic(request: Request) -> Response:
    name = str(await existing_topic(request))
    role, actions = text_of(request, "role"), await _actions(request)
    return await _change(
        request,
        OF_TOPICS,
        lambda topics: {**topics, name: {**topics.get(name, {}), role: actions}},
    )


@router.delete(_TOPIC + "/{role:name}", summary="Take everything from a role", tags=("topics",))
@planned(where_known)
async def revoke_on_topic(request: Request) -> Response:
    name, role = str(await existing_topic(request)), text_of(request, "role")

    def revoked(topics: dict[str, Roles]) -> dict[str, Roles]:
        left = _without(topics.get(name, {}), role)
        return {**_without(topics, name), **({name: left} if left else {})}

    return await _change(request, OF_TOPICS, revoked)


# -- the document ----------------------------------------------------------------------------------


async def _actions(request: Request) -> list[str]:
    given = await bodies.parse(request, list[str])
    if given is None:
        raise HTTPException(400, "Actions should not be null")
    for action in given:
        if action not in _ACTIONS:
            raise HTTPException(400, f"No such action: {action}; there are {', '.join(_ACTIONS)}")
    return sorted(set(given))


async def _auth(request: Request) -> Document:
    document = await service_of(request).resources.policies(namespace_of(request))
    auth: Document = document[AUTH]
    return auth


async def _change(request: Request, part: str, change: Callable[[Any], Any]) -> Response:
    def changed(document: Document) -> Document:
        auth = document[AUTH]
        return {**document, AUTH: {**auth, part: change(auth.get(part) or {})}}

    await service_of(request).resources.update_policies(namespace_of(request), changed)
    return done()


def _without(entries: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key != name}
