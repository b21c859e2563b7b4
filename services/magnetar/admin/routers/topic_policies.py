"""`…/{topic}/{policy}`: a topic's own policies. None can be set yet; each answers as unset.

Comes after every other topic route: its last segment takes any name.
"""

from typing import Final

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer, done, nothing
from magnetar.admin.context import require_namespace, service_of, text_of, topic_of

router = APIRouter(prefix="/admin/v2", tags=["topics"])

VALUES: Final[dict[str, object]] = {
    "backlogQuotaMap": {},
    "permissions": {},
    "schemaValidationEnforced": False,
}
UNSET_204: Final = frozenset(
    {
        "maxConsumersPerSubscription",
        "maxMessageSize",
        "maxSubscriptionsPerTopic",
        "publishRate",
        "subscriptionTypesEnabled",
    }
)
"""Pulsar answers these, unset, with 204; the others with an empty 200."""
UNSET_200: Final = frozenset(
    {
        "autoSubscriptionCreation",
        "compactionThreshold",
        "deduplicationEnabled",
        "deduplicationSnapshotInterval",
        "delayedDelivery",
        "dispatchRate",
        "entryFilters",
        "inactiveTopicPolicies",
        "maxConsumers",
        "maxProducers",
        "maxUnackedMessagesOnConsumer",
        "maxUnackedMessagesOnSubscription",
        "messageTTL",
        "offloadPolicies",
        "persistence",
        "replication",
        "replicatorDispatchRate",
        "retention",
        "schemaCompatibilityStrategy",
        "shadowTopics",
        "subscribeRate",
        "subscriptionDispatchRate",
    }
)


@router.get(
    "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}/{policy:name}",
    summary="A topic's policy: not set",
)
async def get_policy(request: Request) -> Response:
    policy = text_of(request, "policy")
    if policy not in VALUES and policy not in UNSET_200 and policy not in UNSET_204:
        raise HTTPException(404)
    await require_namespace(service_of(request), topic_of(request).namespace)
    if policy in VALUES:
        return answer(VALUES[policy])
    return done() if policy in UNSET_204 else nothing()
