"""`/healthz`, `/readyz` and `/status`, which every process of a cluster serves.

They are for probes and people, and need no authentication, like `/metrics`.
"""

from typing import cast

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from magnetar.admin.http.answers import answer
from magnetar.admin.http.routes import Routes
from magnetar.observe.health import Probes

router = Routes(tags=("health",))


def _probes(request: Request) -> Probes:
    return cast("Probes", request.app.state.probes)


@router.get("/healthz", summary="Whether the process is alive and its event loop runs")
async def healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")


@router.get("/readyz", summary="Whether the broker accepts requests; otherwise 503 with the reason")
async def readyz(request: Request) -> Response:
    reason = _probes(request).not_ready()
    return PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)


@router.get("/status", summary="The role and state of this process")
async def status(request: Request) -> Response:
    return answer(dict(_probes(request).status()))
