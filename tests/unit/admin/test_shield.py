"""Requests that change state are completed although their client disconnects."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.support.stalled_store import StalledStore

from magnetar.admin.app import create_app
from magnetar.admin.http.routes import Description
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.shield import shielded

from .support import Admin, start_service, stop_service

PARTS = "~/persistent/t1/n1/p"
WAIT_S = 20.0


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await what():  # noqa: ASYNC110 - no event signals the end of the broker's work
            await asyncio.sleep(0.001)


async def cut(admin: Admin, store: StalledStore, method: str, path: str, body: object) -> None:
    """Sends the request, and disconnects while the store delays its write."""
    asking = asyncio.ensure_future(admin.call(method, path, body))
    await store.begun.wait()
    asking.cancel()
    await asyncio.wait([asking])
    store.release()


async def test_requests_that_change_state_are_completed() -> None:
    store = StalledStore()
    service = await start_service(store=store)
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        admin = Admin(service, MetricsPage(service), http)
        store.hold("/managed-ledgers/t1/n1/")
        await cut(admin, store, "PUT", PARTS + "/partitions", 3)

        async def parts() -> int:
            actual = await store.list("/managed-ledgers/t1/n1/persistent/p-partition-")
            return len(actual)

        async def three() -> bool:
            return await parts() == 3

        await until(three)
        await admin.done("PUT", PARTS + "/subscription/s")
        store.hold("/managed-ledgers/t1/n1/")
        await cut(admin, store, "POST", PARTS + "/partitions", 5)

        async def copied() -> bool:
            last = await admin.call("GET", PARTS + "-partition-4/subscriptions")
            return last.status_code == 200 and last.json() == ["s"]

        await until(copied)
        store.hold("/managed-ledgers/t1/n1/", deletes_only=True)
        await cut(admin, store, "DELETE", PARTS + "/partitions", None)

        async def gone() -> bool:
            return await store.get("/partitioned-topics/t1/n1/persistent/p") is None

        await until(gone)
        assert await parts() == 0
    await stop_service(service)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_only_a_read_ends_with_its_connection(method: str) -> None:
    """Nobody waits for its answer, and it changes nothing that it would have to complete."""
    service = await start_service()
    begun, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    cancelled: list[bool] = []

    async def served(_: Request) -> Response:
        begun.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        finally:
            ended.set()
        return Response()

    handler = shielded(Description(method, "/x", served, served, (), "", None))
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    request = Request({"type": "http", "method": method, "path": "/x", "headers": [], "app": app})
    asking = asyncio.ensure_future(handler(request))
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert ended.is_set() is (method == "GET")
        go.set()
        await ended.wait()
    assert cancelled == ([True] if method == "GET" else [])
    await stop_service(service)
