"""Fixtures of the interop tests: one server for the whole session, and per test its own namespace.

The server is `magnetar standalone` on free ports with a fresh data directory. When
MAGNETAR_TEST_SERVICE_URL and MAGNETAR_TEST_ADMIN_URL are set, the server they name is used instead:
so the same tests can be asked of any system that claims to speak the protocol.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pulsar
import pulsar.asyncio
import pytest
from tests.support.server_process import ServerProcess

from .java_programs import JavaPrograms, prepare
from .support import Names, ServerAddress

OPERATION_TIMEOUT_S = 30
HTTP_TIMEOUT_S = 30.0
TENANT = "interop"
TRANSACTIONS = {"MAGNETAR_TRANSACTIONS": "true"}

ConnectClient = Callable[..., pulsar.Client]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddress]:
    service_url = os.environ.get("MAGNETAR_TEST_SERVICE_URL")
    http_url = os.environ.get("MAGNETAR_TEST_ADMIN_URL")
    if service_url and http_url:
        yield ServerAddress(service_url, http_url.rstrip("/"))
        return
    with ServerProcess(tmp_path_factory.mktemp("standalone"), environment=TRANSACTIONS) as process:
        yield ServerAddress(process.service_url, process.http_url)
        assert process.terminate() == 0, f"after SIGTERM:\n{process.log_tail()}"


@pytest.fixture(scope="session")
def java() -> JavaPrograms:
    return prepare()


@pytest.fixture(scope="session")
def client_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the official client writes its log; it keeps the first file it is given."""
    return tmp_path_factory.mktemp("clients") / "pulsar-client.log"


@pytest.fixture
def connect(server: ServerAddress, client_log: Path) -> Iterator[ConnectClient]:
    """Opens clients that are closed with the test."""
    opened: list[pulsar.Client] = []

    def open_client(service_url: str | None = None, **options: object) -> pulsar.Client:
        options.setdefault("operation_timeout_seconds", OPERATION_TIMEOUT_S)
        options.setdefault("logger", pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(client_log)))
        client = pulsar.Client(service_url or server.service_url, **options)
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        try:
            client.close()
        except pulsar.AlreadyClosed:
            continue


@pytest.fixture
def client(connect: ConnectClient) -> pulsar.Client:
    return connect()


@pytest.fixture
async def async_client(
    server: ServerAddress, client_log: Path
) -> AsyncIterator[pulsar.asyncio.Client]:
    client = pulsar.asyncio.Client(
        server.service_url,
        operation_timeout_seconds=OPERATION_TIMEOUT_S,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(client_log)),
    )
    yield client
    await asyncio.wait_for(client.close(), OPERATION_TIMEOUT_S)


@pytest.fixture(scope="session")
def session_admin(server: ServerAddress) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=server.http_url, timeout=HTTP_TIMEOUT_S, trust_env=False, follow_redirects=True
    ) as http:
        yield http


@pytest.fixture
def admin(session_admin: httpx.Client) -> httpx.Client:
    return session_admin


@pytest.fixture(scope="session")
def tenant(session_admin: httpx.Client) -> str:
    clusters = session_admin.get("/admin/v2/clusters").raise_for_status().json()
    body = {"adminRoles": [], "allowedClusters": clusters}
    answer = session_admin.put(f"/admin/v2/tenants/{TENANT}", json=body)
    assert answer.status_code in {204, 409}, answer.text
    return TENANT


@pytest.fixture
def names(session_admin: httpx.Client, tenant: str) -> Names:
    """A fresh namespace."""
    fresh = Names(tenant, f"ns-{uuid.uuid4().hex[:10]}")
    session_admin.put(f"/admin/v2/namespaces/{fresh.path}").raise_for_status()
    return fresh


@pytest.fixture
def topic(names: Names) -> str:
    """A topic name that nobody used before; the first use creates the topic."""
    return names.topic()
