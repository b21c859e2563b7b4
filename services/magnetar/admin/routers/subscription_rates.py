"""`…/{topic}/{subscription}/dispatchRate`: the dispatch rate of one subscription.

It precedes the topic's rate for all its subscriptions (`subscriptionDispatchRate`). It is a policy
of the topic, stored with its other policies: it may be set before the subscription exists, and ends
with the topic.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import done, optional
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.policies import forms
from magnetar.admin.routers.policies.namespaces import in_force
from magnetar.admin.routers.policies.topics import at_topic_owner_if_needed, existing_topic
from magnetar.broker.policies.resolution import applied, of_topic
from magnetar.broker.policies.store import own_rate, own_rate_at, with_own_rate
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import TopicName
from magnetar.policies.policy import Rest
from magnetar.policies.rates import SUBSCRIPTION_DISPATCH_RATE

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

SUBSCRIPTIONS_MAX: Final = 1_000
"""Subscriptions of a topic that can have a rate of their own: all are in one record."""

_PATH: Final = TOPIC_PATH + "/{subscription:name}/dispatchRate"
_REST: Final = Rest("dispatchRate")


@router.get(_PATH, summary="The dispatch rate of a subscription")
@planned(at_topic_owner_if_needed)
async def get_rate(request: Request) -> Response:
    service, subscription = service_of(request), text_of(request, "subscription")
    name = await existing_topic(request)
    own = await service.policies.documents.read(name)
    if bodies.flag(request, "applied"):
        rate = own_rate(own, subscription)
        if rate is None:
            policy = SUBSCRIPTION_DISPATCH_RATE
            document = await service.resources.policies(name.namespace)
            rate = applied(policy, in_force(service, policy, document), of_topic(policy, own))
        return optional(rate)
    is_global = bodies.flag(request, "isGlobal")
    return optional(own_rate_at(own, subscription, is_global=is_global))


@router.post(
    _PATH,
    summary="Set the dispatch rate of a subscription",
    openapi_extra=described(body="A dispatch rate", example={"dispatchThrottlingRateInMsg": 100}),
)
@planned(at_topic_owner_if_needed)
async def set_rate(request: Request) -> Response:
    name = _persistent(await existing_topic(request))
    rate = await forms.read(request, SUBSCRIPTION_DISPATCH_RATE, _REST)
    await _change(request, name, rate)
    return done()


@router.delete(_PATH, summary="Remove the dispatch rate of a subscription")
@planned(at_topic_owner_if_needed)
async def remove_rate(request: Request) -> Response:
    await _change(request, await existing_topic(request), None)
    return done()


def _persistent(name: TopicName) -> TopicName:
    if not name.persistent:
        raise PreconditionFailed(
            f"dispatchRate is not supported on {name}: a non-persistent topic drops what its "
            "consumers cannot take"
        )
    return name


async def _change(request: Request, name: TopicName, rate: object) -> None:
    subscription, is_global = text_of(request, "subscription"), bodies.flag(request, "isGlobal")
    await service_of(request).policies.update(
        name,
        lambda own: with_own_rate(
            own, subscription, rate, is_global=is_global, rates_max=SUBSCRIPTIONS_MAX
        ),
    )
