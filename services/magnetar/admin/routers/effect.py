"""`…/effect`: what retention, TTL and backlog quota would delete, expire or block now. Read-only.

Without parameters it is what the policies that hold will do at their next check. With some, what
would happen if they were set: on the topic, or on the namespace (topics that have a policy of their
own keep to it). Topics that are served are asked where they are served; of all others the records
in the metadata store are looked at, by the broker that was asked, RECORDS_AT_ONCE_MAX at a time.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer
from magnetar.admin.cluster.partitions import raise_refusal
from magnetar.admin.cluster.peers import asked_by_peer
from magnetar.admin.cluster.route import at_owner, peers_of
from magnetar.admin.cluster.sending import query_of
from magnetar.admin.context import (
    existing_namespace,
    persistent_topic,
    require_namespace,
    service_of,
    topic_of,
)
from magnetar.admin.described import AUTHORITATIVE, described, query
from magnetar.admin.routes import Routes
from magnetar.broker.lifecycle.effect import (
    Deletes,
    Effect,
    Supposed,
    on_loaded,
    on_recorded,
)
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic_ledgers import ledger_name
from magnetar.core.errors import NotFound
from magnetar.core.names import TopicName
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION
from magnetar.policies.policy import Policy
from magnetar.policies.types import PolicyInvalid

router = Routes(prefix="/admin/v2/magnetar", tags=("topics",), placing=at_owner)

RECORDS_AT_ONCE_MAX: Final = 32
TOPICS_LISTED_MAX: Final = 1_000
"""Of those that something happens to, the ones that lose most; the sums are over all."""

QUOTAS: Final = (
    ("destination_storage", "backlogQuotaSize", "limitSize"),
    ("message_age", "backlogQuotaTime", "limitTime"),
)
"""The entry of the policy, the parameter with its limit, and the limit's field."""

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


class Effects(msgspec.Struct):
    """Over several topics; `expires` and `evicts` are by subscription, over all of them."""

    deletes: Deletes = msgspec.field(default_factory=Deletes)
    expires: dict[str, int] = {}
    evicts: dict[str, int] = {}
    blocks_producers: bool = False
    estimated: bool = False
    topics_total: int = 0
    topics_affected: int = 0
    topics: dict[str, Effect] = {}
    left_off: int = 0
    from_records: int = 0
    """Of the topics, those that nobody serves now."""


@router.get(
    "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}/effect",
    summary="What policies would do to a topic now",
    openapi_extra=_PARAMETERS,
)
async def topic_effect(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    supposed = _supposed(request, on_namespace=False)
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    if not partitions:
        topic = await persistent_topic(service, name, "Effect of policies")
        return answer(await on_loaded(topic, service.policies, supposed))
    return await _of_several(
        request, [name.partition(each) for each in range(partitions)], supposed
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
    service, peers = service_of(request), peers_of(request)
    found = await _served_here(service, names, supposed)
    if asked_by_peer(request):
        return answer(found)
    if peers is not None:
        answers = await peers.ask_all(request, request.scope["path"], query_of(request))
        raise_refusal(answers, ())
        for each in answers:
            found |= msgspec.json.decode(each.body, type=dict[str, Effect])
    rest = [name for name in names if str(name) not in found]
    recorded = await _from_records(service, rest, supposed)
    return answer(_summed(found | recorded, len(recorded)))


async def _served_here(
    service: BrokerService, names: Iterable[TopicName], supposed: Supposed
) -> dict[str, Effect]:
    found: dict[str, Effect] = {}
    for name in names:
        topic = service.topics.loaded(name)
        if isinstance(topic, PersistentTopic):
            found[str(name)] = await on_loaded(topic, service.policies, supposed)
    return found


async def _from_records(
    service: BrokerService, names: list[TopicName], supposed: Supposed
) -> dict[str, Effect]:
    """Those that have gone meanwhile are left out."""
    found: dict[str, Effect] = {}

    async def look(name: TopicName) -> None:
        try:
            known = await service.ledgers.outline(ledger_name(name))
        except NotFound:
            return
        trim_limit = await service.compaction.trim_limit(ledger_name(name), known.created_ms)
        found[str(name)] = await on_recorded(
            name, known, service.policies, supposed, service.clock.judged_ms(), trim_limit
        )

    for start in range(0, len(names), RECORDS_AT_ONCE_MAX):
        await asyncio.gather(*map(look, names[start : start + RECORDS_AT_ONCE_MAX]))
    return found


def _summed(found: dict[str, Effect], from_records: int) -> Effects:
    total = Effects(topics_total=len(found), from_records=from_records)
    expires: dict[str, int] = {}
    evicts: dict[str, int] = {}
    for each in found.values():
        total.deletes = total.deletes.plus(each.deletes)
        for counts, more in ((expires, each.expires), (evicts, each.evicts)):
            for subscription, count in more.items():
                counts[subscription] = counts.get(subscription, 0) + count
        total.blocks_producers |= each.blocks_producers
        total.estimated |= each.estimated
    total.expires, total.evicts = expires, evicts
    affected = [(name, each) for name, each in found.items() if each.does_something]
    affected.sort(key=lambda one: (-one[1].deletes.bytes, one[0]))
    total.topics_affected = len(affected)
    total.topics = dict(affected[:TOPICS_LISTED_MAX])
    total.left_off = len(affected) - len(total.topics)
    return total


# -- what is tried


def _supposed(request: Request, *, on_namespace: bool) -> Supposed:
    """From the query; what is not there stays as it is set. 400 where a value is not valid."""
    time, size = _number(request, "retentionTimeInMinutes"), _number(request, "retentionSizeInMB")
    if (time is None) != (size is None):
        raise HTTPException(400, "retentionTimeInMinutes and retentionSizeInMB go together")
    retention: dict[str, Any] | None = None
    if time is not None:
        retention = {"retentionTimeInMinutes": time, "retentionSizeInMB": size}
    return Supposed(
        _checked(RETENTION, retention),
        _checked(MESSAGE_TTL, _number(request, "messageTTL")),
        _checked(BACKLOG_QUOTA, _quotas(request) or None),
        on_namespace,
    )


def _checked(policy: Policy, value: object) -> Any:
    try:
        return None if value is None else policy.type.check(value, policy.manifest)
    except PolicyInvalid as error:
        raise HTTPException(400, str(error)) from None


def _quotas(request: Request) -> dict[str, Any]:
    both = request.query_params.get("backlogQuotaPolicy", "producer_request_hold")
    found: dict[str, Any] = {}
    for entry, parameter, field in QUOTAS:
        limit, action = _number(request, parameter), request.query_params.get(f"{parameter}Policy")
        if limit is not None:
            quota = {"limitSize": -1, "limitTime": -1, "policy": action or both}
            found[entry] = quota | {field: limit}
        elif action is not None:
            raise HTTPException(400, f"{parameter}Policy needs {parameter}, the limit it is for")
    return found


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise HTTPException(400, f"Query parameter {name} must be a number, not {text!r}") from None
