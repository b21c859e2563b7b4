"""The external metrics API (`external.metrics.k8s.io/v1beta1`), as an ASGI application.

The API server's aggregation layer forwards the requests of HorizontalPodAutoscalers. It names the
requester in headers and authenticates with a client certificate, which `server` requires. The API
server has already checked by RBAC that the requester may read external metrics. Errors are `Status`
objects.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from magnetar_operator.autoscale.figures import Figures, NoFigure
from magnetar_operator.autoscale.metrics import NAMES, MetricRefused, parse_question, value_list

GROUP: Final = "external.metrics.k8s.io"
VERSION: Final = "v1beta1"
ROOT: Final = f"/apis/{GROUP}"

log = logging.getLogger("magnetar.operator.metrics")

_VERSION: Final = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_GROUP: Final = {
    "kind": "APIGroup",
    "apiVersion": "v1",
    "name": GROUP,
    "versions": [_VERSION],
    "preferredVersion": _VERSION,
}
_RESOURCES: Final = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/{VERSION}",
    "resources": [
        {
            "name": name,
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
        for name in NAMES
    ],
}


def status(code: int, reason: str, message: str) -> JSONResponse:
    """An error in Kubernetes' form."""
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return JSONResponse(body, code)


def application(figures: Figures) -> Starlette:
    """The ASGI application that serves the metrics computed from these figures."""

    async def group(_: Request) -> JSONResponse:
        return JSONResponse(_GROUP)

    async def resources(_: Request) -> JSONResponse:
        return JSONResponse(_RESOURCES)

    async def value(request: Request) -> JSONResponse:
        path = request.path_params
        selector = request.query_params.get("labelSelector", "")
        try:
            question = parse_question(path["metric"], path["namespace"], selector)
            number = await figures.value(question)
        except MetricRefused as error:
            return status(400, "BadRequest", str(error))
        except NoFigure as error:
            log.warning("no figure for an autoscaler: %s", error)
            return status(503, "ServiceUnavailable", str(error))
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return JSONResponse(value_list(question, number, at))

    async def unknown(request: Request, _: Exception) -> JSONResponse:
        return status(404, "NotFound", f"{request.url.path} does not exist")

    return Starlette(
        routes=[
            Route(ROOT, group),
            Route(f"{ROOT}/{VERSION}", resources),
            Route(f"{ROOT}/{VERSION}/namespaces/{{namespace}}/{{metric}}", value),
        ],
        exception_handlers={404: unknown},
    )
