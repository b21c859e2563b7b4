"""The OpenAPI document, generated at its first request, and the page that shows it.

FastAPI generates the document from the routes' descriptions. It serves no request, and a thread
imports it only for this purpose (with pydantic it costs 13 MiB and a third of a second of CPU).
This module adds the path parameters, which FastAPI cannot derive because handlers take the plain
request. The page is self-contained: it works without access to the internet.
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

from magnetar.admin.http.answers import JSON
from magnetar.admin.http.routes import Description, MethodRoute
from magnetar.core.malloc import release_freed_memory

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
    "choice": ("string", "Which bundle"),
    "policy": ("string", "Policy"),
    "position": ("integer", "Index of an unacknowledged message, from 1"),
    "count": ("integer", "Number of messages"),
    "seconds": ("integer", "Age in seconds"),
    "timestamp": ("integer", "Milliseconds since 1970"),
    "ledger": ("integer", "Ledger id"),
    "entry": ("integer", "Entry id"),
    "version": ("integer", "Schema version"),
    "role": ("string", "Role"),
    "key": ("string", "Property"),
    "value": ("string", "Value"),
    "setting": ("string", "Setting, by Pulsar's key"),
    "most": ("integer", "Most significant bits of a transaction's id: its coordinator"),
    "least": ("integer", "Least significant bits of a transaction's id"),
    "coordinator": ("integer", "Id of a transaction coordinator"),
    "timeout": ("integer", "Milliseconds"),
    "allocator": ("string", "Allocator"),
    "isolation_policy": ("string", "Isolation policy"),
    "failure_domain": ("string", "Failure domain"),
    "group": ("string", "Anti-affinity group"),
    "resource_group": ("string", "Resource group"),
}

TAGS: Final = (
    ("topics", "Create, list, inspect and delete topics"),
    ("subscriptions", "Create, reset and delete subscriptions; peek at messages"),
    ("namespaces", "Namespaces and their policies"),
    ("tenants", "Tenants"),
    ("clusters", "The registered clusters"),
    ("schemas", "Schemas of topics"),
    ("brokers", "This broker: health, settings, version"),
    ("resourcegroups", "Rates that namespaces share, over all brokers"),
    ("resource-quotas", "Loads that are assigned to bundles"),
    ("bookies", "Drain bookies; check the replication of ledgers"),
    ("lookup", "The broker that serves a topic"),
    ("metrics", "Prometheus metrics"),
    ("transactions", "Coordinators, transactions, and their topics and subscriptions"),
    ("health", "Liveness and readiness of this process"),
)


def document(descriptions: Sequence[Description], version: str) -> dict[str, Any]:
    """Returns the OpenAPI document. Slow on the first call, which imports FastAPI."""
    from fastapi import FastAPI

    app = FastAPI(title=TITLE, version=version, openapi_url=None)
    for description in descriptions:
        app.add_api_route(
            description.path,
            description.handler,
            methods=[description.method],
            tags=list(description.tags),
            summary=description.summary,
            openapi_extra=description.openapi_extra,
        )
    openapi = app.openapi()
    openapi["tags"] = [{"name": name, "description": text} for name, text in TAGS]
    for path, operations in openapi["paths"].items():
        parameters = _path_parameters(path)
        for operation in operations.values():
            operation["parameters"] = parameters + operation.get("parameters", [])
    return openapi


class OpenApi:
    """Generates the document of an application once, in a thread, at the first request."""

    def __init__(self, descriptions: Sequence[Description], version: str) -> None:
        self._descriptions = descriptions
        self._version = version
        self._lock = asyncio.Lock()
        self._text = b""

    async def text(self) -> bytes:
        """Returns the document as JSON."""
        async with self._lock:
            if not self._text:
                executor = ThreadPoolExecutor(1, thread_name_prefix="admin-openapi")
                loop = asyncio.get_running_loop()
                try:
                    self._text = await loop.run_in_executor(executor, self._generate)
                finally:
                    executor.shutdown(wait=False)
            return self._text

    def _generate(self) -> bytes:
        importlib.import_module("fastapi")
        # The modules stay. Freezing them spares the collector from scanning them, which would
        # block the loop.
        gc.freeze()
        text = msgspec.json.encode(document(self._descriptions, self._version))
        release_freed_memory()
        return text


def _path_parameters(path: str) -> list[dict[str, Any]]:
    parameters = []
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            kind, text = PATH_PARAMETERS[name]
            parameters.append(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": {"type": kind},
                    "description": text,
                }
            )
    return parameters


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
"""The routes of the documentation itself, which it does not list."""
