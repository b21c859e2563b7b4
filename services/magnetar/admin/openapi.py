"""The OpenAPI document, made at the first request for it, and the page that shows it.

FastAPI makes the document from the routes; what it cannot know, because handlers take the plain
request, is added here: the parameters of each path. The page is our own and self-contained: it
works in a network without the internet.
"""

from importlib import resources
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from magnetar.admin.answers import answer

PATH_PARAMETERS: Final[dict[str, tuple[str, str]]] = {
    "tenant": ("string", "Tenant"),
    "namespace": ("string", "Namespace within the tenant"),
    "domain": ("string", "persistent or non-persistent"),
    "topic": ("string", "Topic, percent-encoded"),
    "subscription": ("string", "Subscription, percent-encoded"),
    "cluster": ("string", "Cluster"),
    "broker": ("string", "Broker as host:port"),
    "bundle": ("string", "Hash range such as 0x00000000_0x40000000"),
    "policy": ("string", "Policy"),
    "position": ("integer", "Which unacknowledged message, from 1"),
    "count": ("integer", "How many messages"),
    "seconds": ("integer", "Age in seconds"),
    "timestamp": ("integer", "Milliseconds since 1970"),
    "ledger": ("integer", "Ledger id"),
    "entry": ("integer", "Entry id"),
    "version": ("integer", "Schema version"),
    "key": ("string", "Property"),
    "value": ("string", "Value"),
}

TAGS: Final = (
    ("topics", "Create, list, look into and delete topics"),
    ("subscriptions", "Create, move and delete subscriptions; peek at messages"),
    ("namespaces", "Namespaces and their policies"),
    ("tenants", "Tenants"),
    ("clusters", "Clusters that are known here"),
    ("schemas", "Schemas of topics"),
    ("brokers", "This broker: health, settings, version"),
    ("lookup", "Which broker serves a topic"),
    ("metrics", "Prometheus metrics"),
    ("health", "Whether this process is alive, and whether it takes work"),
)


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; made once."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        made["tags"] = [{"name": name, "description": text} for name, text in TAGS]
        for path, operations in made["paths"].items():
            parameters = _path_parameters(path)
            for operation in operations.values():
                operation["parameters"] = parameters + operation.get("parameters", [])
    schema: dict[str, Any] = app.openapi_schema or {}
    return schema


def _path_parameters(path: str) -> list[dict[str, Any]]:
    found = []
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            kind, text = PATH_PARAMETERS[name]
            found.append(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": {"type": kind},
                    "description": text,
                }
            )
    return found


def install(app: FastAPI) -> None:
    """Serves `/openapi.json` and `/docs`."""
    app.add_api_route("/openapi.json", _json, methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs", _page, methods=["GET"], include_in_schema=False)


async def _json(request: Request) -> Response:
    return answer(document(request.app))


async def _page(_: Request) -> Response:
    page = resources.files("magnetar.admin").joinpath("docs_page.html")
    return HTMLResponse(page.read_text(encoding="utf-8"))
