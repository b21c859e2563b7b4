"""`/healthz`, `/readyz` and `/status`, which every process of a cluster serves; `/status.html`.

They are for probes and people, and need no authentication, like `/metrics`. `/status.html` is
Pulsar's, for load balancers: a file decides whether the broker gets new connections.
"""

import asyncio
import os
from typing import cast

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from magnetar.admin.context import service_of
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


@router.get(
    "/status.html",
    summary="Whether a load balancer may choose this broker: it is ready and has its status file",
)
async def status_page(request: Request) -> Response:
    path = service_of(request).settings.operation.status_file
    if not path:
        return PlainTextResponse("status_file (statusFilePath) is not set\n", status_code=404)
    if not await asyncio.to_thread(os.path.isfile, path):
        # The path is not shown: this needs no credentials.
        return PlainTextResponse("the file of status_file does not exist\n", status_code=404)
    reason = _probes(request).not_ready()
    return PlainTextResponse(reason or "OK", status_code=503 if reason else 200)


@router.get("/status", summary="The role and state of this process")
async def status(request: Request) -> Response:
    return answer(dict(_probes(request).status()))
