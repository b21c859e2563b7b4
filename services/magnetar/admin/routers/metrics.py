"""`/metrics` in Prometheus' text format; as in Pulsar, without authentication."""

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from magnetar.admin.context import metrics_page_of
from magnetar.admin.http.routes import Routes
from magnetar.observe.metrics import CONTENT_TYPE

router = Routes(tags=("metrics",))


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    return StreamingResponse(
        metrics_page_of(request).text(), headers={"content-type": CONTENT_TYPE}
    )
