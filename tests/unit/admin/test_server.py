"""The HTTP server: early port, late loading, waiting requests, and its end."""

import asyncio
import errno
import gc
import signal
import socket

import httpx
import pytest

from magnetar.admin.http.server import AdminServer
from magnetar.core.errors import ServiceNotReady
from magnetar.observe.listen import bind

from .support import start_service, stop_service


async def test_requests_wait_until_the_application_is_loaded() -> None:
    service = await start_service()
    before = signal.getsignal(signal.SIGTERM)
    server = AdminServer()
    port = await server.start(service, "127.0.0.1", 0)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30
    ) as http:
        response = await http.get("/admin/v2/tenants")
        assert response.json() == ["t1"]
        assert "date" in response.headers
        await server.ready()
        head = await http.head("/admin/v2/tenants")
        assert (head.status_code, head.content) == (200, b"")
        raw = await http.put("/admin/v2/persistent/t1/n1/a%2Fb%2Fc")
        assert raw.status_code == 204
        page = await http.get("/metrics")
        assert "persistent://t1/n1/a/b/c" in page.text
    assert signal.getsignal(signal.SIGTERM) is before
    await server.stop()
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await stop_service(service)


async def test_stopping_while_it_loads() -> None:
    service = await start_service()
    server = AdminServer()
    await server.start(service, "127.0.0.1", 0)
    ready = asyncio.ensure_future(server.ready())
    async with asyncio.timeout(20):
        await server.stop()
        with pytest.raises(ServiceNotReady):
            await ready
    await stop_service(service)


async def test_stopping_what_never_started() -> None:
    await AdminServer().stop()


def test_a_port_in_use_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use") as caught:
            bind("127.0.0.1", taken.getsockname()[1])
        assert caught.value.errno == errno.EADDRINUSE
    gc.collect()  # an open socket would cause a warning, which fails the test


async def test_a_bound_socket_is_used() -> None:
    service = await start_service()
    sock = bind("127.0.0.1", 0)
    server = AdminServer()
    port = await server.start(service, "127.0.0.1", 0, sock)
    assert port == sock.getsockname()[1]
    await server.ready()
    await server.stop()
    await stop_service(service)
