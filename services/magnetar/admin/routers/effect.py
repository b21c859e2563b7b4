"""`…/effect`: what retention, TTL and backlog quota would delete, expire or block now. Read-only.

Without parameters, the answer is the effect of the policies in force at their next check. With
parameters, it is the effect of setting them on the topic or the namespace; a topic's own policies
still override those of its namespace. The owners of loaded topics compute the effect on these. For
all others, the broker that received the request reads the records in the metadata store,
RECORDS_AT_ONCE_MAX at a time.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import answers_of_peers
from magnetar.admin.cluster.peers import is_from_peer
from magnetar.admin.cluster.placement import at_owner
from magnetar.admin.cluster.sender import query_of
from magnetar.admin.context import (
    existing_namespace,
    persistent_topic,
    service_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.lifecycle.effect import Supposed, on_loaded, on_recorded
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import as_persistent
from magnetar.core.errors import NotFound
from magnetar.core.names import TopicName
from magnetar.documents.effect import Effect, Effects
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION
from magnetar.policies.policy import Policy
from magnetar.policies.types import PolicyInvalid

router = Routes(prefix="/admin/v2/magnetar", tags=("topics",), placement=at_owner)

RECORDS_AT_ONCE_MAX: Final = 32
TOPICS_LISTED_MAX: Final = 1_000
"""The affected topics that lose the most bytes; the sums are over all topics."""

QUOTAS: Final = (
    ("destination_storage", "backlogQuotaSize", "limitSize"),
    ("message_age", "backlogQuotaTime", "limitTime"),
)
"""By entry of the policy: the parameter with its limit, and the field of the limit."""

_PARAMETERS: Final = described(
    query("retentionTimeInMinutes", "integer", "With retentionSizeInMB: a retention to try"),
    query("retentionSizeInMB", "integer", "See retentionTimeInMinutes"),
    query("messageTTL", "integer", "A TTL to try, in seconds"),
    query("backlogQuotaSize", "integer", "A quota on bytes to try"),
    query("backlogQuotaTime", "integer", "A quota on age to try, in seconds"),
    query("backlogQuotaSizePolicy", "string", "The action above backlogQuotaSize"),
    query("backlogQuotaTimePolicy", "string", "The action above backlogQuotaTime"),
    query(
        "backlogQuotaPolicy",
        "string",
        "The action above a quota without one of its own (producer_request_hold)",
    ),
    AUTHORITATIVE,
)


@router.get(
    TOPIC_PATH + "/effect",
    summary="What policies would do to a topic now",
    openapi_extra=_PARAMETERS,
)
async def topic_effect(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    supposed = _supposed(request, on_namespace=False)
    partitions = await service.resources.partitions(name)
    if not partitions:
        topic = await persistent_topic(service, name, "Effect of policies")
        return answer(await on_loaded(topic, service.policies, supposed))
    return await _of_several(
        request, [name.partition(index) for index in range(partitions)], supposed
    )


@router.get(
    "/namespaces/{tenant:name}/{namespace:name}/effect",
    summary="What policies would do to a namespace's topics now",
    openapi_extra=_PARAMETERS,
)
async def namespace_effect(request: Request) -> Response:
    service, namespace = service_of(request), await existing_namespace(request)
    supposed = _supposed(request, on_namespace=True)
    names = await service.topics.names(namespace, "persistent")
    return await _of_several(request, names, supposed)


async def _of_several(request: Request, names: list[TopicName], supposed: Supposed) -> Response:
    service = service_of(request)
    effects = await _on_loaded_topics(service, names, supposed)
    if is_from_peer(request):
        return answer(effects)
    for part in await answers_of_peers(request, request.scope["path"], query_of(request)):
        effects |= msgspec.json.decode(part.body, type=dict[str, Effect])
    rest = [name for name in names if str(name) not in effects]
    from_records = await _from_records(service, rest, supposed)
    return answer(_summed(effects | from_records, len(from_records)))


async def _on_loaded_topics(
    service: BrokerService, names: Iterable[TopicName], supposed: Supposed
) -> dict[str, Effect]:
    effects: dict[str, Effect] = {}
    for name in names:
        topic = as_persistent(service.topics.loaded(name))
        if topic is not None:
            effects[str(name)] = await on_loaded(topic, service.policies, supposed)
    return effects


async def _from_records(
    service: BrokerService, names: list[TopicName], supposed: Supposed
) -> dict[str, Effect]:
    """Computes the effect on topics from their records; omits those deleted meanwhile."""
    effects: dict[str, Effect] = {}

    async def compute(name: TopicName) -> None:
        try:
            outline = await service.ledgers.outline(ledger_name(name))
        except NotFound:
            return
        trim_limit = await service.compaction.trim_limit(ledger_name(name), outline.created_ms)
        effects[str(name)] = await on_recorded(
            name, outline, service.policies, supposed, service.clock.judged_ms(), trim_limit
        )

    for start in range(0, len(names), RECORDS_AT_ONCE_MAX):
        await asyncio.gather(*map(compute, names[start : start + RECORDS_AT_ONCE_MAX]))
    return effects


def _summed(effects: dict[str, Effect], from_records: int) -> Effects:
    total = Effects(topics_total=len(effects), from_records=from_records)
    expires: dict[str, int] = {}
    evicts: dict[str, int] = {}
    for effect in effects.values():
        total.deletes = total.deletes.plus(effect.deletes)
        for counts, more in ((expires, effect.expires), (evicts, effect.evicts)):
            for subscription, count in more.items():
                counts[subscription] = counts.get(subscription, 0) + count
        total.blocks_producers |= effect.blocks_producers
        total.estimated |= effect.estimated
    total.expires, total.evicts = expires, evicts
    affected = [(name, effect) for name, effect in effects.items() if effect.does_something]
    affected.sort(key=lambda item: (-item[1].deletes.bytes, item[0]))
    total.topics_affected = len(affected)
    total.topics = dict(affected[:TOPICS_LISTED_MAX])
    total.left_off = len(affected) - len(total.topics)
    return total


def _supposed(request: Request, *, on_namespace: bool) -> Supposed:
    """Parses the policies to try; those without a parameter stay as set. Raises 400."""
    time, size = (
        bodies.optional_number(request, "retentionTimeInMinutes"),
        bodies.optional_number(request, "retentionSizeInMB"),
    )
    if (time is None) != (size is None):
        raise HTTPException(400, "retentionTimeInMinutes and retentionSizeInMB go together")
    retention: dict[str, int | None] | None = None
    if time is not None:
        retention = {"retentionTimeInMinutes": time, "retentionSizeInMB": size}
    return Supposed(
        _checked(RETENTION, retention),
        _checked(MESSAGE_TTL, bodies.optional_number(request, "messageTTL")),
        _checked(BACKLOG_QUOTA, _quotas(request) or None),
        on_namespace,
    )


def _checked(policy: Policy, value: object) -> Any:
    try:
        return None if value is None else policy.type.check(value, policy.manifest)
    except PolicyInvalid as error:
        raise HTTPException(400, str(error)) from None


def _quotas(request: Request) -> dict[str, dict[str, object]]:
    default_action = request.query_params.get("backlogQuotaPolicy", "producer_request_hold")
    quotas: dict[str, dict[str, object]] = {}
    for entry, parameter, field in QUOTAS:
        limit, action = (
            bodies.optional_number(request, parameter),
            request.query_params.get(f"{parameter}Policy"),
        )
        if limit is not None:
            quota = {"limitSize": -1, "limitTime": -1, "policy": action or default_action}
            quotas[entry] = quota | {field: limit}
        elif action is not None:
            raise HTTPException(400, f"{parameter}Policy needs {parameter}, the limit it is for")
    return quotas
