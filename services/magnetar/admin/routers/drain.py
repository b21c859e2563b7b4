"""`/admin/v2/magnetar/drain`: the backlogs of all subscriptions, for autoscalers and people."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import answers_of_peers
from magnetar.admin.context import service_of
from magnetar.admin.http.answers import answer
from magnetar.admin.http.routes import Routes
from magnetar.admin.stats.drain import drain_of
from magnetar.documents.backlog import BrokerDrain

router = Routes(prefix="/admin/v2/magnetar", tags=("brokers",))
_PATH: Final = "/admin/v2/magnetar/drain"


@router.get("/drain", summary="The backlogs of all brokers, and the time to drain them")
async def get_drain(request: Request) -> Response:
    """Sums the answers of all brokers; fails if a broker does not answer."""
    service = service_of(request)
    total = await drain_of(service.broker_id, service.topics)
    for other in await answers_of_peers(request, _PATH):
        total = total.plus(msgspec.json.decode(other.body, type=BrokerDrain))
    return answer(total)
