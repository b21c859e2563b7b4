"""The OpenAPI document, made at the first request for it, and the page that shows it.

FastAPI makes the document from the routes' descriptions. It serves none of them, and is imported
for this only (with pydantic: 13 MiB, a third of a second of CPU), by a thread that ends with it.
What FastAPI cannot know, because handlers take the plain request, is added here: the parameters of
each path. The page is our own and self-contained: it works in a network without the internet.
"""

import asyncio
import gc
import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from magnetar.admin.answers import JSON
from magnetar.admin.routes import Description, MethodRoute
from magnetar.bookie.malloc import release_freed_memory

TITLE: Final = "Magnetar admin REST"
PATH_PARAMETERS: Final[dict[str, tuple[str, str]]] = {
    "tenant": ("string", "Tenant"),
    "namespace": ("string", "Namespace within the tenant"),
    "domain": ("string", "persistent or non-persistent"),
    "topic": ("string", "Topic, percent-encoded"),
    "subscription": ("string", "Subscription, percent-encoded"),
    "cluster": ("string", "Cluster"),
    "broker": ("string", "Broker as host:port"),
    "bookie": ("string", "Bookie's id"),
    "bundle": ("string", "Hash range such as 0x00000000_0x40000000"),
    "policy": ("string", "Policy"),
    "position": ("integer", "Which unacknowledged message, from 1"),
    "count": ("integer", "How many messages"),
    "seconds": ("integer", "Age in seconds"),
    "timestamp": ("integer", "Milliseconds since 1970"),
    "ledger": ("integer", "Ledger id"),
    "entry": ("integer", "Entry id"),
    "version": ("integer", "Schema version"),
    "role": ("string", "Role"),
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
    ("bookies", "Bookies that are emptied, and whether all ledgers have their copies"),
    ("lookup", "Which broker serves a topic"),
    ("metrics", "Prometheus metrics"),
    ("health", "Whether this process is alive, and whether it takes work"),
)


def document(descriptions: Sequence[Description], version: str) -> dict[str, Any]:
    """The OpenAPI document. Slow, where FastAPI is not imported yet."""
    from fastapi import FastAPI

    app = FastAPI(title=TITLE, version=version, openapi_url=None)
    for each in descriptions:
        app.add_api_route(
            each.path,
            each.handler,
            methods=[each.method],
            tags=list(each.tags),
            summary=each.summary,
            openapi_extra=each.openapi_extra,
        )
    made = app.openapi()
    made["tags"] = [{"name": name, "description": text} for name, text in TAGS]
    for path, operations in made["paths"].items():
        parameters = _path_parameters(path)
        for operation in operations.values():
            operation["parameters"] = parameters + operation.get("parameters", [])
    return made


class OpenApi:
    """The document of an application: made once, by a thread, when somebody wants it."""

    def __init__(self, descriptions: Sequence[Description], version: str) -> None:
        self._descriptions = descriptions
        self._version = version
        self._making = asyncio.Lock()
        self._made = b""

    async def text(self) -> bytes:
        async with self._making:
            if not self._made:
                executor = ThreadPoolExecutor(1, thread_name_prefix="admin-openapi")
                loop = asyncio.get_running_loop()
                try:
                    self._made = await loop.run_in_executor(executor, self._make)
                finally:
                    executor.shutdown(wait=False)
            return self._made

    def _make(self) -> bytes:
        importlib.import_module("fastapi")
        # It stays: the collector need not look through it, which would hold up the loop.
        gc.freeze()
        made = msgspec.json.encode(document(self._descriptions, self._version))
        release_freed_memory()
        return made


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


async def _json(request: Request) -> Response:
    text = await cast("OpenApi", request.app.state.openapi).text()
    return Response(text, media_type=JSON)


async def _page(_: Request) -> Response:
    page = resources.files("magnetar.admin").joinpath("docs_page.html")
    return HTMLResponse(page.read_text(encoding="utf-8"))


ROUTES: Final = (
    MethodRoute("GET", "/openapi.json", _json, include_in_schema=False),
    MethodRoute("GET", "/docs", _page, include_in_schema=False),
)
"""Served beside what is described."""
