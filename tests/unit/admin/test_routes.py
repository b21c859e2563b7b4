"""Routes: the choice of the route for a path, and the modules that it must not import."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from magnetar.admin import app
from magnetar.admin.cluster.placement import any_broker, at_owner
from magnetar.admin.http import openapi
from magnetar.admin.http.routes import MethodRoute, RouteTable

from .support import Admin

ROUTES = [
    *openapi.ROUTES,
    *(MethodRoute(each.method, each.path, each.placed) for each in app.DESCRIPTIONS),
]
TABLE = RouteTable(ROUTES)
TOPIC = "/admin/v2/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"
WORDS = sorted({word for route in ROUTES for word in route.path.split("/") if "{" not in word})
VALUES = ["", "persistent", "non-persistent", "t1", "7", "a%2Fb", "0x00000000_0x40000000"]


def scope_of(method: str, path: str) -> Scope:
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}


def one_by_one(scope: Scope) -> MethodRoute | None:
    """Returns the route that Starlette finds by trying all routes in order."""
    partial = None
    for route in ROUTES:
        match = route.matches(scope)[0]
        if match is Match.FULL:
            return route
        if match is Match.PARTIAL and partial is None:
            partial = route
    return partial


def by_index(scope: Scope) -> MethodRoute | None:
    partial = None
    for route in TABLE.candidates(scope["path"]):
        match = route.matches(scope)[0]
        if match is Match.FULL:
            return route
        if match is Match.PARTIAL and partial is None:
            partial = route
    return partial


@given(
    st.sampled_from(("GET", "PUT", "POST", "DELETE", "PATCH")),
    st.lists(st.sampled_from(WORDS + VALUES), max_size=8),
)
def test_the_index_omits_no_matching_route(method: str, segments: list[str]) -> None:
    scope = scope_of(method, "/" + "/".join(segments))
    assert by_index(scope) is one_by_one(scope)


@given(st.sampled_from(ROUTES), st.sampled_from(("GET", "POST", "PATCH")), st.data())
def test_the_index_finds_the_same_route_as_a_linear_search(
    route: MethodRoute, method: str, data: st.DataObject
) -> None:
    words = st.sampled_from(VALUES[1:] + WORDS)
    segments = [data.draw(words) if "{" in item else item for item in route.path.split("/")]
    scope = scope_of(method, "/".join(segments))
    assert by_index(scope) is one_by_one(scope)
    offered = {
        method
        for item in ROUTES
        if item.include_in_schema and item.matches(scope)[0] is not Match.NONE
        for method in item.methods
    }
    assert TABLE.methods(scope) == offered


def test_few_routes_are_tried() -> None:
    stats = TABLE.candidates("/admin/v2/persistent/t/n/a/stats")
    assert 0 < len(stats) < 24 < len(ROUTES)


def test_a_parameter_that_spans_segments_is_refused() -> None:
    async def handler(_: Request) -> Response:
        raise AssertionError

    with pytest.raises(ValueError, match=r"rest of /a/\{rest:path\} might match a slash"):
        RouteTable([MethodRoute("GET", "/a/{rest:path}", handler)])


def test_routes_of_topics_and_bundles_are_placed_and_those_of_metadata_are_not() -> None:
    placed = {
        (item.method, item.path) for item in app.DESCRIPTIONS if item.placed is not item.handler
    }
    namespace = "/admin/v2/namespaces/{tenant:name}/{namespace:name}"
    assert ("GET", TOPIC + "/stats") in placed
    assert ("PUT", namespace + "/{bundle:bundle}/split") in placed
    assert ("PUT", namespace) not in placed
    assert not any("/tenants" in path or "/clusters" in path for _, path in placed)


def test_a_plan_precedes_the_path() -> None:
    async def planless(_: Request) -> Response:
        raise AssertionError

    @any_broker
    async def free(_: Request) -> Response:
        raise AssertionError

    assert at_owner(planless, TOPIC) is not planless
    assert at_owner(planless, "/admin/v2/tenants") is planless
    assert at_owner(free, TOPIC) is free


def test_unused_documentation_is_not_imported() -> None:
    code = (
        "import asyncio, sys\n"
        "from magnetar.admin.app import create_app\n"
        "from magnetar.admin.http.embedded_server import EmbeddedServer\n"
        "async def main():\n"
        "    EmbeddedServer(lambda *_: None, asyncio.Future())\n"
        "asyncio.run(main())\n"
        "print([m for m in ('fastapi', 'pydantic', 'click', 'uvicorn') if m in sys.modules])\n"
        "import uvicorn, magnetar.admin.http.embedded_server as embedded\n"
        "print(issubclass(embedded.EmbeddedServer, uvicorn.Server))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\nTrue\n", done.stdout + done.stderr


async def test_methods_of_a_path(admin: Admin) -> None:
    for path in ("/docs", "/openapi.json"):
        refused = await admin.call("POST", path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
