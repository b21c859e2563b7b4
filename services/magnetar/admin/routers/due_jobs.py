"""`/admin/v2/magnetar/jobs`: the topics that wait for a job, for the operator and people."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import answers_of_peers
from magnetar.admin.context import service_of
from magnetar.admin.http.answers import answer
from magnetar.admin.http.routes import Routes
from magnetar.documents.due_jobs import DueJobs

router = Routes(prefix="/admin/v2/magnetar", tags=("brokers",))
_PATH: Final = "/admin/v2/magnetar/jobs"


@router.get("/jobs", summary="The topics of all brokers that wait for a compaction or offload job")
async def get_jobs(request: Request) -> Response:
    """Collects the answers of all brokers; fails if a broker does not answer."""
    service = service_of(request)
    total = DueJobs()
    if service.offloader is None:  # a standalone does all work itself
        # Imported here: a broker that is never asked does not need it.
        from magnetar.broker.cold.due_jobs import due_jobs

        logs = list(service.ledgers.opened.values())
        total = await due_jobs(service.compactor, service.offloading, logs, service.clock)
    for other in await answers_of_peers(request, _PATH):
        total = total.plus(msgspec.json.decode(other.body, type=DueJobs))
    return answer(total)
