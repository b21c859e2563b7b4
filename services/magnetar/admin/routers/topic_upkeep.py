"""Operations on one topic: its ledgers, the backlogs of its cursors, an index, its policies."""

from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster.answers import all_succeeded
from magnetar.admin.cluster.partitions import each_partition
from magnetar.admin.cluster.placement import any_broker, at_owner, planned
from magnetar.admin.context import (
    loaded_parts,
    persistent_topic,
    refuse_partitioned,
    require_namespace,
    service_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done, empty
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.admin.times import iso
from magnetar.broker.policies.store import FORMAT, TopicPolicies
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.message_index import position_of_index
from magnetar.broker.topic.persistent import PersistentTopic, require_persistent
from magnetar.core.errors import NotFound, PreconditionFailed
from magnetar.documents.resources import message_id
from magnetar.managed_ledger.stats import managed_ledger_stats

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_TRIM_REFUSED: Final = "Trim on a non-persistent topic is not allowed"
_CLOSE_REFUSED: Final = "A non-persistent topic has no ledger"
_NO_INDEX: Final = "GetMessageIDByIndex is not allowed when broker entry metadata is disabled"


@router.post(TOPIC_PATH + "/trim", summary="Delete the ledgers that are no longer needed, now")
@planned(each_partition(all_succeeded()))
async def trim(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if not name.persistent:
        raise PreconditionFailed(_TRIM_REFUSED, http_status=405)

    async def trim_ledgers(topic: Topic) -> None:
        await require_persistent(topic, _TRIM_REFUSED).managed_ledger.trim()

    await for_each(await loaded_parts(service, name), trim_ledgers)
    return empty()


@router.post(TOPIC_PATH + "/closeLedger", summary="Close the newest ledger, so it can be offloaded")
@planned(each_partition(all_succeeded()))
async def close_ledger(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if not name.persistent:
        raise PreconditionFailed(_CLOSE_REFUSED, http_status=405)

    async def close(topic: Topic) -> None:
        ledger = require_persistent(topic, _CLOSE_REFUSED).managed_ledger
        await ledger.roll_over()
        await ledger.set_properties({})  # writes the record, by which jobs see the closed ledger

    await for_each(await loaded_parts(service, name), close)
    return done()


@router.get(
    TOPIC_PATH + "/getMessageIdByIndex",
    summary="The id of the entry that has the message with this index",
    openapi_extra=described(query("index", "integer", "The index, from broker entry metadata")),
)
async def id_by_index(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if "index" not in service.settings.producers.entry_metadata:
        raise PreconditionFailed(_NO_INDEX)
    index = bodies.optional_number(request, "index")
    if index is None:
        raise HTTPException(400, "Query parameter index is missing: which message to find")
    await refuse_partitioned(
        service, name, "Get message id by index is not allowed on a partitioned topic"
    )
    topic = await persistent_topic(service, name, "GetMessageIDByIndex")
    position = await position_of_index(topic.managed_ledger, index)
    if position is None:
        raise NotFound("Message not found")
    return answer(message_id(position, name.partition_index))


@router.get(TOPIC_PATH + "/backlog", summary="A topic's ledgers, and the backlog of each cursor")
async def backlog(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await refuse_partitioned(
        service, name, "Get backlog of a partitioned topic is not allowed: name a partition"
    )
    topic = await persistent_topic(service, name, "Get backlog")
    return answer(_offline_stats(topic, service.broker_id, service.clock.now_ms()))


def _offline_stats(topic: PersistentTopic, broker: str, now_ms: int) -> dict[str, object]:
    """Returns Pulsar's PersistentOfflineTopicStats."""
    ledger = topic.managed_ledger
    stats = managed_ledger_stats(ledger)
    cursors = {
        name: {
            "cursorBacklog": ledger.cursors[name].backlog,
            "cursorLedgerId": cursor.cursor_ledger,
        }
        for name, cursor in stats.cursors.items()
        if name in ledger.cursors
    }
    return {
        "storageSize": ledger.bytes_total,
        "totalMessages": ledger.entries_total,
        "messageBacklog": sum(ledger.cursors[name].backlog for name in cursors),
        "brokerName": broker,
        "topicName": topic.full_name,
        "dataLedgerDetails": [
            {
                "entries": info.entries,
                "timestamp": info.closed_ms or info.created_ms,
                "size": info.size_bytes,
                "ledgerId": info.ledger_id,
            }
            for info in ledger.ledgers
        ],
        "cursorDetails": cursors,
        "statGeneratedAt": iso(now_ms),
    }


@router.delete(TOPIC_PATH + "/policies", summary="Remove all of a topic's own policies")
@any_broker
async def delete_policies(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    if name.partition_index >= 0:
        raise PreconditionFailed("Not allowed to set/get topic policy for a partition")
    if (await service.policies.documents.read(name)).empty:
        return done()  # as in Pulsar, also if there is no such topic

    def cleared(own: TopicPolicies) -> TopicPolicies:
        return msgspec.structs.replace(own, version=FORMAT, local={}, replicated={})

    await service.policies.update(name, cleared)
    return done()
