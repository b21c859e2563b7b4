"""The imports of a start of `magnetar standalone`, and the memory of an idle one."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.server_process import ServerProcess

IDLE_BYTES_MAX = 53 << 20
"""50 MiB with compiled modules, 51 without; the rest is for other Pythons and C libraries."""
REST_BYTES_MAX = 62 << 20
"""56 MiB to 58 MiB."""
QUIET_S = 1.0

DEFERRED = (
    "anyio",
    "cramjam",
    "fastapi",
    "fastavro",
    "google.protobuf.descriptor_pb2",
    "grpc",
    "httpx",
    "obstore",
    "pyarrow",
    "starlette",
    "uvicorn",
    "zstandard",
)
DEFERRED_PACKAGES = ("magnetar.autorecovery", "magnetar.broker.balance", "magnetar.admin.routers")


def imported(code: str) -> list[str]:
    """Returns the deferred modules that `code` imports."""
    code += (
        f"\nimport sys; print(*[m for m in sys.modules if m in {DEFERRED}"
        f" or m.startswith({DEFERRED_PACKAGES})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_start_imports_no_deferred_module() -> None:
    assert imported("import magnetar.cli.standalone, magnetar.standalone.server") == []


def test_the_admin_rest_of_a_standalone_imports_no_module_of_clusters() -> None:
    modules = imported("import magnetar.admin.app, magnetar.admin.http.embedded_server")
    assert "starlette" in modules
    unused = ("magnetar.autorecovery", "magnetar.broker.balance", "httpx", "fastapi")
    assert [module for module in modules if module.startswith(unused)] == []


def test_an_idle_standalone_is_small_and_loads_rest_with_the_first_request(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path) as server:
        time.sleep(QUIET_S)
        idle_bytes = server.resident_bytes()
        assert idle_bytes < IDLE_BYTES_MAX
        path = "/admin/v2/persistent/public/default"
        with urllib.request.urlopen(server.http_url + path) as answer:  # noqa: S310
            assert json.load(answer) == []
        assert idle_bytes + (4 << 20) < server.resident_bytes() < REST_BYTES_MAX
