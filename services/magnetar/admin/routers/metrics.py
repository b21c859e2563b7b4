"""`/metrics`, in Prometheus' text form, without authentication as in Pulsar."""

from typing import cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.routes import Routes
from magnetar.observe.metrics import CONTENT_TYPE

router = Routes(tags=("metrics",))


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    page = cast("MetricsPage", request.app.state.metrics)
    return StreamingResponse(page.text(), headers={"content-type": CONTENT_TYPE})
