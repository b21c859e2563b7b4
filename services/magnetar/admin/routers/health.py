"""`/healthz`, `/readyz` and `/status`, as every process of a cluster answers them.

For probes and for people; without authentication, like `/metrics`.
"""

from typing import cast

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from magnetar.admin.answers import answer
from magnetar.admin.routes import Routes
from magnetar.observe.health import Probes

router = Routes(tags=("health",))


def _probes(request: Request) -> Probes:
    return cast("Probes", request.app.state.probes)


@router.get("/healthz", summary="Whether the process lives and its loop turns")
async def healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")


@router.get("/readyz", summary="Whether the broker takes work; else 503 and why not")
async def readyz(request: Request) -> Response:
    reason = _probes(request).not_ready()
    return PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)


@router.get("/status", summary="What this process is and holds")
async def status(request: Request) -> Response:
    return answer(dict(_probes(request).status()))
