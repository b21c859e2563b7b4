"""The OpenAPI document and its page."""

import asyncio
import json
import re
from typing import Any

from fastapi import APIRouter, FastAPI

from magnetar.admin import openapi
from magnetar.admin.app import DESCRIPTIONS, ROUTERS

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
    assert "getEarliestTimeInBacklog" in {each["name"] for each in stats["parameters"]}


async def test_the_page_needs_nobody_else(admin: Admin) -> None:
    page = await admin.call("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page.text)


async def test_it_is_made_once_for_all_who_ask() -> None:
    made = openapi.OpenApi(DESCRIPTIONS, "1.0")
    first, second = await asyncio.gather(made.text(), made.text())
    assert first is second
    assert json.loads(first)["info"] == {"title": "Magnetar admin REST", "version": "1.0"}


def test_it_is_what_fastapi_says_of_an_application_of_these_routes() -> None:
    """As when FastAPI served them itself, router by router."""
    app = FastAPI(title="Magnetar admin REST", version="1.0")
    for module in ROUTERS:
        router = APIRouter(tags=list(module.tags))
        for each in module.descriptions:
            router.add_api_route(
                each.path.removeprefix(module.prefix),
                each.handler,
                methods=[each.method],
                tags=[tag for tag in each.tags if tag not in module.tags],
                summary=each.summary,
                openapi_extra=each.openapi_extra,
            )
        app.include_router(router, prefix=module.prefix)
    served = app.openapi()
    made = openapi.document(DESCRIPTIONS, "1.0")
    assert list(made["paths"]) == list(served["paths"])
    for path, operations in made["paths"].items():
        assert {method: without_path(each) for method, each in operations.items()} == {
            method: without_path(each) for method, each in served["paths"][path].items()
        }
    assert made.keys() - {"tags"} == served.keys()


def without_path(operation: dict[str, Any]) -> dict[str, Any]:
    """An operation without its path's parameters, which are none of FastAPI's."""
    others = [each for each in operation.get("parameters", []) if each["in"] != "path"]
    return operation | {"parameters": others}


def test_a_route_in_full() -> None:
    """Byte for byte what generated clients were made from."""
    made = openapi.document(DESCRIPTIONS, "1.0")
    assert made["paths"]["/admin/v2/tenants/{tenant}"]["delete"] == {
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
                "description": "Also where it is in use",
            },
        ],
    }
