"""`…/{topic}/compaction`: requests a topic's compaction, and shows its outcome.

The topic's owner writes the request to the metadata store and compacts the topic, even below its
threshold. A topic that is too large, or has no store, waits for the next compaction job, and the
status says so, which any broker serves. A partitioned topic stands for all its partitions.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import NOT_FOUND_OR_CONFLICT, all_succeeded
from magnetar.admin.cluster.partitions import each_partition
from magnetar.admin.cluster.placement import any_broker, at_owner, planned
from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.topic_names import ledger_name, topic_of_ledger
from magnetar.broker.cold.compaction_state import worst
from magnetar.core.errors import NotAllowed

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_PATH: Final = TOPIC_PATH + "/compaction"


async def _logs(request: Request) -> list[str]:
    """Returns the managed ledgers of the topic or its partitions, if they exist."""
    service, name = service_of(request), topic_of(request)
    if not name.persistent:
        raise NotAllowed("Compaction on a non-persistent topic is not allowed")
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    parts = [name.partition(index) for index in range(partitions)] or [name]
    logs = [ledger_name(part) for part in parts if await service.topics.exists(part)]
    if not logs and not partitions:
        raise topic_not_found(name)
    return logs


@router.put(_PATH, summary="Request a topic's compaction", openapi_extra=described(AUTHORITATIVE))
@planned(each_partition(all_succeeded(NOT_FOUND_OR_CONFLICT)))
async def put_compaction(request: Request) -> Response:
    service, logs = service_of(request), await _logs(request)
    for log in logs:
        await service.topics.get_or_open(topic_of_ledger(log), create=False)
    try:
        await service.compaction.request(logs)
    finally:
        # Also if all are requested already: a former owner may have died before it began.
        service.compactor.requested(logs)
    return done()


@router.get(
    _PATH, summary="The outcome of the last compaction", openapi_extra=described(AUTHORITATIVE)
)
@any_broker
async def get_compaction(request: Request) -> Response:
    compaction = service_of(request).compaction
    outcome = worst([await compaction.status(log) for log in await _logs(request)])
    return answer({"status": outcome.status, "lastError": outcome.last_error})
