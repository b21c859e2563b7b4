"""cert-manager's controllers issue and renew what the chart asks for, and TLS of ours uses it.

Needs an API server and Go; no container runs. cert-manager comes from the Go module proxy, with its
CRDs (`cert_manager`). The controllers run as a process of this test, in its namespace alone.
"""

import asyncio
import base64
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.interop.go_programs import CERT_MANAGER, prepare_cert_manager
from tests.security.tls_rig import HOST, EchoServer, echo_server, exchange
from tests.support.kube import Tool

from magnetar.security.tls.reload import open_server_tls
from magnetar.security.tls.settings import ServerTlsConfig

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(1_800)]

CHART = Path(__file__).resolve().parents[2] / "charts/magnetar"
SWITCHES = (
    "tls.enabled=true",
    "auth.authentication.enabled=true",
    "auth.authorization.enabled=true",
    "certs.internal_issuer.enabled=true",
)
READY_S = "300s"
LEAVES = ("broker", "broker-client", "bookie", "bookie-client", "etcd", "jobs")
RENEW = {"type": "Issuing", "status": "True", "reason": "Test", "message": "renew"}


def apply_crds(kubectl: Tool) -> None:
    listed = ["go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager"]
    module = subprocess.run(
        listed, cwd=CERT_MANAGER, capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()
    folder = f"{module}/deploy/crds"
    kubectl("apply", "--server-side", "-f", folder)
    kubectl("wait", "--for=condition=Established", f"--timeout={READY_S}", "-f", folder)


@pytest.fixture
def issued(kube_namespace: str, kubectl: Tool, helm: Tool, tmp_path: Path) -> Iterator[Tool]:
    """Yields kubectl in a namespace whose certificates are issued."""
    program = prepare_cert_manager()
    apply_crds(kubectl)
    within = kubectl.within(kube_namespace)
    switches = [part for each in SWITCHES for part in ("--set", each)]
    shown = ("--show-only", "templates/cert-manager.yaml")
    manifests = helm.within(kube_namespace)("template", "r", CHART, *switches, *shown)
    # What cert-manager's CRDs do not know is an error.
    within("apply", "--validate=strict", "-f", "-", stdin=manifests)
    with (tmp_path / "cert-manager.log").open("w") as log:
        controllers = subprocess.Popen([program, kube_namespace], stdout=log, stderr=log)
        try:
            until_ready(within)
            yield within
        finally:
            controllers.terminate()
            controllers.wait(60)


def until_ready(kubectl: Tool) -> None:
    kubectl(
        "wait", "--for=condition=Ready", f"--timeout={READY_S}", "certificates", "--all",
        timeout_s=320,
    )  # fmt: skip


def renew(kubectl: Tool, name: str) -> None:
    """Has a certificate renewed, as `cmctl renew` does, and waits for it."""
    revision = kubectl.json("get", "certificate", name)["status"]["revision"]
    patch = json.dumps({"status": {"conditions": [RENEW]}})
    kubectl(
        "patch", "certificate", name, "--subresource=status", "--type=merge", f"--patch={patch}"
    )
    wanted = f"--for=jsonpath={{.status.revision}}={revision + 1}"
    kubectl("wait", wanted, f"--timeout={READY_S}", f"certificate/{name}", timeout_s=320)
    until_ready(kubectl)


def write_files(kubectl: Tool, secret: str, folder: Path) -> None:
    """Writes a Secret as the kubelet mounts it."""
    folder.mkdir(exist_ok=True)
    for name, value in kubectl.json("get", "secret", secret)["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))


def client_context(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "ca.crt"))


async def connected(
    server: EchoServer, context: Callable[[], ssl.SSLContext], host: str
) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], bytes]:
    """Returns a connection that verified the host's name, and the certificate that it got."""
    streams = await server.client(context(), host)
    der = streams[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(der, bytes)
    return streams, der


async def test_certificates_are_issued_renewed_and_used(issued: Tool, tmp_path: Path) -> None:
    folders = {leaf: tmp_path / leaf for leaf in LEAVES}
    for leaf, folder in folders.items():
        write_files(issued, f"r-tls-{leaf}", folder)
    authorities = {(folder / "ca.crt").read_bytes() for folder in folders.values()}
    assert len(authorities) == 1
    broker, peer = folders["broker"], folders["broker-client"]
    host = f"r-broker.{issued.namespace}.svc"

    def mutual() -> ssl.SSLContext:
        context = client_context(broker)
        context.load_cert_chain(peer / "tls.crt", peer / "tls.key")
        return context

    config = ServerTlsConfig(
        cert_file=broker / "tls.crt", key_file=broker / "tls.key", trust_file=broker / "ca.crt"
    )
    tls = open_server_tls(config)
    async with echo_server(tls) as server:
        old, before = await connected(server, mutual, host)
        assert await exchange(old, b"1") == b"1"
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.client(client_context(broker), f"other.{HOST}.example")
        for leaf in ("broker", "broker-client"):
            await asyncio.to_thread(renew, issued, f"r-tls-{leaf}")
            write_files(issued, f"r-tls-{leaf}", folders[leaf])
        assert tls.reload()
        new, after = await connected(server, mutual, host)
        assert after != before
        assert await exchange(new, b"2") == b"2"
        assert await exchange(old, b"3") == b"3", "open connections stay"
    assert (broker / "ca.crt").read_bytes() in authorities, "the authority's key is kept"
