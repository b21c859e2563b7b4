"""`…/{topic}/{policy}`: a topic's own policies. None can be set yet, so each answers as unset.

Besides, what compaction and offloading have done: nothing.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer, done, nothing
from magnetar.admin.context import require_namespace, service_of, text_of, topic_of
from magnetar.admin.documents import message_id
from magnetar.admin.paths import register_choice
from magnetar.admin.routes import Routes
from magnetar.core.ids import EARLIEST

router = Routes(prefix="/admin/v2", tags=("topics",))

VALUES: Final[dict[str, object]] = {
    "backlogQuotaMap": {},
    "compaction": {"status": "NOT_RUN", "lastError": ""},
    "offload": {
        "status": "NOT_RUN",
        "lastError": "",
        "firstUnoffloadedMessage": message_id(EARLIEST),
    },
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


register_choice("topic_policy", {*VALUES, *UNSET_204, *UNSET_200})


@router.get(
    "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}/{policy:topic_policy}",
    summary="A topic's policy: not set",
)
async def get_policy(request: Request) -> Response:
    policy = text_of(request, "policy")
    await require_namespace(service_of(request), topic_of(request).namespace)
    if policy in VALUES:
        return answer(VALUES[policy])
    return done() if policy in UNSET_204 else nothing()
