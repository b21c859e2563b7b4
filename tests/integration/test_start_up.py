"""The imports of a start of `magnetar standalone`, and the memory of an idle one."""

import json
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from tests.support.server_process import ServerProcess

IDLE_BYTES_MAX = 55 << 20
"""52 MiB; the rest is for other Pythons and C libraries."""
REST_BYTES_MAX = 63 << 20
"""56 MiB to 58 MiB."""
QUIET_S = 1.0

DEFERRED = (
    "anyio",
    "cramjam",
    "cryptography",
    "encodings.idna",
    "fastapi",
    "fastavro",
    "google.protobuf.descriptor_pb2",
    "grpc",
    "hmac",
    "httpx",
    "jwt",
    "obstore",
    "pyarrow",
    "shutil",
    "starlette",
    "uvicorn",
    "zstandard",
)
SECURITY = (
    "magnetar.broker.security.authorizer",
    "magnetar.broker.security.broker_security",
    "magnetar.broker.security.needs",
    "magnetar.broker.security.rights",
    "magnetar.broker.session.access",
    "magnetar.broker.session.authentication",
    "magnetar.broker.session.claims",
    "magnetar.broker.session.guard",
    "magnetar.broker.session.recheck",
    "magnetar.broker.session.revocation",
    "magnetar.observe.audit",
    "magnetar.security.authenticator",
    "magnetar.security.basic",
    "magnetar.security.configuration",
    "magnetar.security.credentials",
    "magnetar.security.openid",
    "magnetar.security.tls.contexts",
    "magnetar.security.tls.reload",
    "magnetar.security.tls.settings",
    "magnetar.security.tls.transport",
    "magnetar.security.token",
    "magnetar.settings.authentication",
)
"""Authentication, authorization, TLS and the audit log: all are off in an open standalone."""
UNUSED = (
    "magnetar.admin.rights",
    "magnetar.admin.routers",
    "magnetar.autorecovery",
    "magnetar.broker.balance",
    "magnetar.broker.ownership.lookup",
    "magnetar.broker.ownership.ownership",
    "magnetar.schemas.avro",
    "magnetar.broker.schema.compatibility",
    "magnetar.broker.topic.nonpersistent",
    "magnetar.cluster",
    "magnetar.ledger.recovery",
    "magnetar.ledger.replicated_writer",
    "magnetar.offload.file_format",
    "magnetar.offload.repository",
    "magnetar.offload.trash",
)
"""Clusters, and what comes with the first schema, cold file, deletion or HTTP connection."""
DEFERRED_PACKAGES = SECURITY + UNUSED

PRINT_DEFERRED = f"""
import sys
print(*[m for m in sys.modules if m in {DEFERRED} or m.startswith({DEFERRED_PACKAGES})])
"""
START = """
import io, os, signal, sys

class Output(io.StringIO):
    def write(self, text):
        if "service is ready" in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return len(text)

from magnetar.cli.main import main
printed, sys.stdout = sys.stdout, Output()
assert main(["standalone", "--data-dir", sys.argv[1], "--port", "0", "--http-port", "0"]) == 0
sys.stdout = printed
"""
"""Starts a standalone, and stops it as soon as it is ready."""


def imported(code: str, *arguments: str) -> list[str]:
    """Returns the deferred modules that `code` imports."""
    command = [sys.executable, "-c", code + PRINT_DEFERRED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_start_imports_no_deferred_module(tmp_path: Path) -> None:
    assert imported(START, str(tmp_path / "data")) == []


def test_every_deferred_module_exists() -> None:
    names = (*DEFERRED, *DEFERRED_PACKAGES)
    assert [name for name in names if find_spec(name) is None] == []


def test_the_admin_rest_of_a_standalone_imports_nothing_that_plans() -> None:
    """The records that administrators change are pure, and part of the REST everywhere."""
    modules = imported("import magnetar.admin.app, magnetar.admin.http.embedded_server")
    assert "starlette" in modules
    planning = ("balancer", "leader", "load", "placement", "planner", "service")
    unused = (
        *(f"magnetar.broker.balance.{module}" for module in planning),
        *("magnetar.autorecovery", "httpx", "fastapi"),
    )
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
