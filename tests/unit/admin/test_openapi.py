"""The OpenAPI document and the page that shows it."""

import asyncio
import json
import re
from typing import Any

from fastapi import APIRouter, FastAPI

from magnetar.admin.app import DESCRIPTIONS, ROUTERS
from magnetar.admin.http import openapi

from .support import Admin


async def test_every_route_is_described(admin: Admin) -> None:
    document = (await admin.call("GET", "/openapi.json")).json()
    tags = {tag["name"] for tag in document["tags"]}
    operations = 0
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operations += 1
            assert operation["summary"], path
            assert set(operation["tags"]) <= tags, path
            described = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert described == set(re.findall(r"\{(\w+)\}", path)), path
            assert all(parameter["description"] for parameter in operation["parameters"])
    assert operations > 100
    stats = document["paths"]["/admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats"]["get"]
    assert "getEarliestTimeInBacklog" in {item["name"] for item in stats["parameters"]}


async def test_the_documentation_loads_no_external_file(admin: Admin) -> None:
    page = await admin.call("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page.text)


async def test_the_openapi_document_is_built_once() -> None:
    api = openapi.OpenApi(DESCRIPTIONS, "1.0")
    first, second = await asyncio.gather(api.text(), api.text())
    assert first is second
    assert json.loads(first)["info"] == {"title": "Magnetar admin REST", "version": "1.0"}


def test_the_openapi_document_equals_fastapis() -> None:
    """Compares with the document of a FastAPI application with the same routers."""
    app = FastAPI(title="Magnetar admin REST", version="1.0")
    for module in ROUTERS:
        router = APIRouter(tags=list(module.tags))
        for item in module.descriptions:
            router.add_api_route(
                item.path.removeprefix(module.prefix),
                item.handler,
                methods=[item.method],
                tags=[tag for tag in item.tags if tag not in module.tags],
                summary=item.summary,
                openapi_extra=item.openapi_extra,
            )
        app.include_router(router, prefix=module.prefix)
    served = app.openapi()
    document = openapi.document(DESCRIPTIONS, "1.0")
    assert list(document["paths"]) == list(served["paths"])
    for path, operations in document["paths"].items():
        assert {method: without_path(item) for method, item in operations.items()} == {
            method: without_path(item) for method, item in served["paths"][path].items()
        }
    assert document.keys() - {"tags"} == served.keys()


def without_path(operation: dict[str, Any]) -> dict[str, Any]:
    """Returns an operation without path parameters, which the FastAPI application lacks."""
    others = [item for item in operation.get("parameters", []) if item["in"] != "path"]
    return operation | {"parameters": others}


def test_a_route_in_full() -> None:
    """Generated clients depend on this form."""
    document = openapi.document(DESCRIPTIONS, "1.0")
    assert document["paths"]["/admin/v2/tenants/{tenant}"]["delete"] == {
        "tags": ["tenants"],
        "summary": "Delete a tenant",
        "operationId": "delete_tenant_admin_v2_tenants__tenant__delete",
        "responses": {
            "200": {
                "description": "Successful Response",
                "content": {"application/json": {"schema": {}}},
            }
        },
        "parameters": [
            {
                "name": "tenant",
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
                "description": "Tenant",
            },
            {
                "name": "force",
                "in": "query",
                "schema": {"type": "boolean"},
                "description": "Delete it even if it is in use",
            },
        ],
    }
