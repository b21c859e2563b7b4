"""`/admin/v2/magnetar/drain`: how far subscriptions are behind, for autoscalers and people."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer
from magnetar.admin.cluster.partitions import raise_refusal
from magnetar.admin.cluster.peers import asked_by_peer
from magnetar.admin.cluster.route import peers_of
from magnetar.admin.context import service_of
from magnetar.admin.routes import Routes
from magnetar.admin.stats.drain import BrokerDrain, drain_of

router = Routes(prefix="/admin/v2/magnetar", tags=("brokers",))
_PATH: Final = "/admin/v2/magnetar/drain"


@router.get("/drain", summary="Backlogs of all brokers, and how long they take to drain")
async def get_drain(request: Request) -> Response:
    """Every broker is asked about its own topics; one that cannot be asked makes it an error."""
    service, peers = service_of(request), peers_of(request)
    found = await drain_of(service.broker_id, service.topics)
    if peers is not None and not asked_by_peer(request):
        answers = await peers.ask_all(request, _PATH, "")
        raise_refusal(answers, ())
        for other in answers:
            found = found.plus(msgspec.json.decode(other.body, type=BrokerDrain))
    return answer(msgspec.to_builtins(found))
