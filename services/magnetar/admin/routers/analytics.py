"""`/admin/v2/magnetar/analytics/…`: what the analytics jobs found out, as they left it.

Not in Pulsar. Any broker answers, from the metadata store: one read, nothing is computed.
"""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer
from magnetar.admin.context import existing_namespace, service_of
from magnetar.admin.routes import Routes
from magnetar.core.errors import NotFound
from magnetar.managed_ledger.backlog_record import read_backlog_record

router = Routes(prefix="/admin/v2/magnetar/analytics", tags=("namespaces",))


@router.get(
    "/backlog/{tenant:name}/{namespace:name}",
    summary="A namespace's backlogs as the last run of the backlog job found them (at atMs)",
)
async def get_backlog(request: Request) -> Response:
    namespace = await existing_namespace(request)
    found = await read_backlog_record(service_of(request).store, namespace)
    if found is None:
        raise NotFound(
            f"There is no backlog analysis of {namespace}: "
            f"run `magnetar job backlog --namespace {namespace}`"
        )
    return answer(found)
