"""`POST /admin/v2/brokers/shutdown`: stop this process as SIGTERM does, after draining it."""

import os
import signal

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import service_of
from magnetar.admin.http import bodies
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.routes import Routes
from magnetar.core.errors import NotAllowed
from magnetar.core.log import get_logger

router = Routes(prefix="/admin/v2/brokers", tags=("brokers",))

log = get_logger("magnetar.admin")


@router.post(
    "/shutdown",
    summary="Stop this broker: it hands over its bundles and exits",
    openapi_extra=described(
        query("maxConcurrentUnloadPerSec", "integer", "Only 0, which is no limit, is accepted"),
        query("forcedTerminateTopic", "boolean", "Accepted: topics are always closed"),
    ),
)
async def shutdown(request: Request) -> Response:
    """The answer is sent first. A process that does not handle SIGTERM refuses the request."""
    limit = bodies.number(request, "maxConcurrentUnloadPerSec", 0)
    if limit > 0:
        raise NotAllowed(
            "maxConcurrentUnloadPerSec is not supported: a broker hands over its bundles as fast "
            "as their topics close; leave it out or set 0"
        )
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN, None):
        raise NotAllowed("This process does not handle SIGTERM: stop it where it was started")
    log.info("stop requested over REST", broker=service_of(request).broker_id)
    return Response(
        status_code=204, background=BackgroundTask(os.kill, os.getpid(), signal.SIGTERM)
    )
