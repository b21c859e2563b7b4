"""`/admin/v2/magnetar/analytics/…`: the stored results of the analytics jobs.

Pulsar has no such route. Any broker answers with one read of the metadata store.
"""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import existing_namespace, service_of
from magnetar.admin.http.answers import answer
from magnetar.admin.http.routes import Routes
from magnetar.core.errors import NotFound
from magnetar.managed_ledger.backlog_record import read_backlog_record

router = Routes(prefix="/admin/v2/magnetar/analytics", tags=("namespaces",))


@router.get(
    "/backlog/{tenant:name}/{namespace:name}",
    summary="A namespace's backlogs in the last run of the backlog job (at atMs)",
)
async def get_backlog(request: Request) -> Response:
    namespace = await existing_namespace(request)
    record = await read_backlog_record(service_of(request).store, namespace)
    if record is None:
        raise NotFound(
            f"There is no backlog analysis of {namespace}: "
            f"run `magnetar job backlog --namespace {namespace}`"
        )
    return answer(record)
