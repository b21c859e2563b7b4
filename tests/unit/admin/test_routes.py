"""Routes: which one serves a path, and what is never imported for it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from magnetar.admin import app, openapi
from magnetar.admin.cluster.route import anywhere, at_owner
from magnetar.admin.routes import MethodRoute, RouteTable

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
    """The route that Starlette's own way finds: all of them tried in their order."""
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
def test_the_index_leaves_out_no_route_that_matches(method: str, segments: list[str]) -> None:
    scope = scope_of(method, "/" + "/".join(segments))
    assert by_index(scope) is one_by_one(scope)


@given(st.sampled_from(ROUTES), st.sampled_from(("GET", "POST", "PATCH")), st.data())
def test_every_route_is_found_as_one_by_one(
    route: MethodRoute, method: str, data: st.DataObject
) -> None:
    words = st.sampled_from(VALUES[1:] + WORDS)
    segments = [data.draw(words) if "{" in each else each for each in route.path.split("/")]
    scope = scope_of(method, "/".join(segments))
    assert by_index(scope) is one_by_one(scope)
    offered = {
        method
        for each in ROUTES
        if each.include_in_schema and each.matches(scope)[0] is not Match.NONE
        for method in each.methods
    }
    assert TABLE.methods(scope) == offered


def test_few_are_tried() -> None:
    stats = TABLE.candidates("/admin/v2/persistent/t/n/a/stats")
    assert 0 < len(stats) < 20 < len(ROUTES)


def test_a_parameter_that_spans_segments_is_refused() -> None:
    async def handler(_: Request) -> Response:
        raise AssertionError

    with pytest.raises(ValueError, match=r"rest of /a/\{rest:path\} might match a slash"):
        RouteTable([MethodRoute("GET", "/a/{rest:path}", handler)])


def test_what_is_about_a_topic_or_a_bundle_is_placed_and_metadata_is_not() -> None:
    placed = {
        (each.method, each.path) for each in app.DESCRIPTIONS if each.placed is not each.handler
    }
    namespace = "/admin/v2/namespaces/{tenant:name}/{namespace:name}"
    assert ("GET", TOPIC + "/stats") in placed
    assert ("PUT", namespace + "/{bundle:bundle}/split") in placed
    assert ("PUT", namespace) not in placed
    assert not any("/tenants" in path or "/clusters" in path for _, path in placed)


def test_a_plan_goes_before_the_path() -> None:
    async def planless(_: Request) -> Response:
        raise AssertionError

    @anywhere
    async def free(_: Request) -> Response:
        raise AssertionError

    assert at_owner(planless, TOPIC) is not planless
    assert at_owner(planless, "/admin/v2/tenants") is planless
    assert at_owner(free, TOPIC) is free


def test_documentation_that_nobody_opens_is_not_imported() -> None:
    code = (
        "import asyncio, sys\n"
        "from magnetar.admin.app import create_app\n"
        "from magnetar.admin.embedded_server import EmbeddedServer\n"
        "async def main():\n"
        "    EmbeddedServer(lambda *_: None, asyncio.Event(), asyncio.Future())\n"
        "asyncio.run(main())\n"
        "print([m for m in ('fastapi', 'pydantic', 'click', 'uvicorn') if m in sys.modules])\n"
        "import uvicorn, magnetar.admin.embedded_server as embedded\n"
        "print(issubclass(embedded.EmbeddedServer, uvicorn.Server))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\nTrue\n", done.stdout + done.stderr


async def test_methods_of_a_path(admin: Admin) -> None:
    for path in ("/docs", "/openapi.json"):
        refused = await admin.call("POST", path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
