"""The responses without credentials of a closed broker that waits for the metadata store.

They must be the same as afterwards. A real process waits for a store on a port without a server;
the admin REST of a broker that has joined gives the responses to compare with.
"""

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.cluster_processes import wait_for
from tests.support.etcd import free_ports

from magnetar.cluster.local import process

from .rest import KEY, closed_rest, token

PATHS = ("/healthz", "/metrics", "/status", "/", "/nothing", "/admin/v2/tenants", "/openapi.json")
METHODS = ("GET", "HEAD", "POST")


@pytest.fixture(params=["false", "true"], ids=["open metrics", "closed metrics"])
def waiting(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """The URL of a broker that waits, and whether /metrics needs credentials."""
    port, nobody = free_ports(2)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "authorizationEnabled": "true",
        "tokenSecretKey": "data:;base64," + base64.b64encode(KEY).decode(),
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": "token:" + token("broker"),
        "authenticateMetricsEndpoint": request.param,
    }
    started = process.start(
        [
            *(sys.executable, "-m", "magnetar.cli.main", "broker"),
            *("--metadata-url", f"etcd:http://127.0.0.1:{nobody}"),
            *("--port", "0", "--http-port", str(port)),
        ],
        tmp_path / "log",
        os.environ | {f"PULSAR_PREFIX_{key}": value for key, value in settings.items()},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url), "health is served")
        yield url, request.param == "true"
    finally:
        process.kill(started)


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/healthz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


async def test_it_says_the_same_before_and_after(waiting: tuple[str, bool]) -> None:
    url, closed_metrics = waiting
    async with httpx.AsyncClient(base_url=url, trust_env=False) as before:
        readyz = await before.get("/readyz")
        assert (readyz.status_code, readyz.text) == (503, "waiting for the metadata store\n")
        async with closed_rest(authenticate_metrics=closed_metrics) as after:
            for method in METHODS:
                for path in PATHS:
                    former = await before.request(method, path)
                    is_now = await after.admin.http.request(method, path)
                    assert former.status_code == is_now.status_code, (method, path)
                    if former.status_code == 401:
                        assert former.headers["www-authenticate"] == "Bearer"
                        expected = is_now.content if method != "HEAD" else b""
                        assert former.content == expected
        assert "cluster" not in (await before.get("/status")).text
