"""`…/{topic}/compaction`: requests a topic's compaction, and shows its outcome.

Brokers compact nothing themselves. They write the request to the metadata store, and the next
compaction job compacts the topic, even below its threshold. Until then, or if no job can run, the
status says so. Any broker serves these routes. A partitioned topic stands for all its partitions.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.cold.compaction_state import worst
from magnetar.core.errors import NotAllowed

router = Routes(prefix="/admin/v2", tags=("topics",))

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
async def put_compaction(request: Request) -> Response:
    service = service_of(request)
    await service.compaction.request(await _logs(request), by_jobs=not service.only_broker)
    return done()


@router.get(
    _PATH, summary="The outcome of the last compaction", openapi_extra=described(AUTHORITATIVE)
)
async def get_compaction(request: Request) -> Response:
    compaction = service_of(request).compaction
    outcome = worst([await compaction.status(log) for log in await _logs(request)])
    return answer({"status": outcome.status, "lastError": outcome.last_error})
