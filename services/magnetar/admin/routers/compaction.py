"""`…/{topic}/compaction`: ask for a topic to be compacted, and see what came of it.

A request is written to metadata; the next compaction job sees to it, whatever the threshold says:
brokers compact nothing themselves. While none has come, and where none can, the status says so. Any
broker can do that. Of a partitioned topic all partitions are meant.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer, done
from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.described import AUTHORITATIVE, described
from magnetar.admin.routes import Routes
from magnetar.broker.compaction_state import worst
from magnetar.broker.topic_ledgers import ledger_name
from magnetar.core.errors import NotAllowed

router = Routes(prefix="/admin/v2", tags=("topics",))

_PATH: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}/compaction"


async def _logs(request: Request) -> list[str]:
    """The managed ledgers that are meant, of those that exist."""
    service, name = service_of(request), topic_of(request)
    if not name.persistent:
        raise NotAllowed("Compaction on a non-persistent topic is not allowed")
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    parts = [name.partition(index) for index in range(partitions)] or [name]
    found = [ledger_name(part) for part in parts if await service.topics.exists(part)]
    if not found and not partitions:
        raise topic_not_found(name)
    return found


@router.put(_PATH, summary="Have a topic compacted", openapi_extra=described(AUTHORITATIVE))
async def put_compaction(request: Request) -> Response:
    service = service_of(request)
    await service.compaction.request(await _logs(request), by_jobs=not service.only_broker)
    return done()


@router.get(
    _PATH, summary="What came of the last compaction", openapi_extra=described(AUTHORITATIVE)
)
async def get_compaction(request: Request) -> Response:
    compaction = service_of(request).compaction
    found = worst([await compaction.status(log) for log in await _logs(request)])
    return answer({"status": found.status, "lastError": found.last_error})
