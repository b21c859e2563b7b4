"""The metrics API over TLS, with its certificate and its trust kept in a real Kubernetes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.etcd import free_ports

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.autoscale import certificates
from magnetar_operator.autoscale.api import ROOT, application
from magnetar_operator.autoscale.figures import Figures
from magnetar_operator.autoscale.metrics import NAMES
from magnetar_operator.autoscale.server import (
    Endpoint,
    MetricsServer,
    serving_certificate,
)
from magnetar_operator.autoscale.service import register
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.queue import ReconcileQueue
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import SECRET
from magnetar_operator.kube.rbac import missing
from magnetar_operator.settings import Settings

pytestmark = pytest.mark.kube

DRAIN = {
    "brokers": ["b"],
    "backlogEntries": 3, "backlogBytes": 600, "wantedBytes": 600, "wantedBytesPerSecondIn": 0.0,
    "wantedBytesPerSecondOut": 10.0, "timeToDrainSeconds": 60.0,
}  # fmt: skip
ANSWER_S = 30.0
PRESSURE = f"{ROOT}/v1beta1/namespaces/default/magnetar_drain_pressure_percent"


def front_proxy(directory: Path) -> tuple[str, tuple[str, str]]:
    """An authority as the aggregation layer has, and the files of its client's certificate."""
    now = certificates.utc_now()
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("front-proxy-ca", "front-proxy-client")
    ]
    authority, made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(names[0])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=name is names[0], path_length=None), True)
        .sign(keys[0], hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        for name, key in zip(names, keys, strict=True)
    )
    files = directory / "client.crt", directory / "client.key"
    files[0].write_bytes(made)
    files[1].write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return authority.decode(), (str(files[0]), str(files[1]))


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
async def kube() -> AsyncIterator[KubeClient]:
    client = KubeClient.connect()
    yield client
    await client.close()


async def test_only_the_aggregation_layer_may_connect(
    kube: KubeClient, kube_namespace: str, tmp_path: Path, free_port: int
) -> None:
    authority, client_files = front_proxy(tmp_path)
    trust = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "authentication", "namespace": kube_namespace},
        "data": {"requestheader-client-ca-file": authority},
    }
    await kube.apply(trust)

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=DRAIN)

    async def admin_url(_: str, cluster: str) -> str | None:
        return "http://admin" if cluster == "demo" else None

    figures = Figures(admin_url, AdminClients(transport=httpx.MockTransport(answer)))
    endpoint = Endpoint(namespace=kube_namespace, host="127.0.0.1", port=free_port)
    server = MetricsServer(kube, application(figures), endpoint, (kube_namespace, "authentication"))
    await server.prepare()
    task = asyncio.create_task(server.serve())
    certificate = certificates.of_secret(await kube.get(SECRET, endpoint.secret, kube_namespace))
    trusting = ssl.create_default_context(cadata=certificate.certificate.decode())
    proven = ssl.create_default_context(cadata=certificate.certificate.decode())
    proven.load_cert_chain(*client_files)
    url = f"https://localhost:{free_port}"
    named = {"sni_hostname": endpoint.dns_names[0]}
    async with httpx.AsyncClient(verify=proven, base_url=url, timeout=ANSWER_S) as aggregator:
        response = await _get(aggregator, f"{ROOT}/v1beta1", named)
        assert {resource["name"] for resource in response.json()["resources"]} == set(NAMES)
        query = "?labelSelector=cluster%3Ddemo%2CtimeToDrain%3D30"
        item = (await _get(aggregator, PRESSURE + query, named)).json()["items"][0]
        assert item["value"] == "200", "600 bytes within 30 s, and 10 a second are read"
        assert (await _get(aggregator, PRESSURE, named)).status_code == 400
        other = await _get(aggregator, PRESSURE + "?labelSelector=cluster%3Dx", named)
        assert (other.status_code, other.json()["reason"]) == (503, "ServiceUnavailable")
        assert (await _get(aggregator, "/openapi/v2", named)).status_code == 404
    async with httpx.AsyncClient(verify=trusting, base_url=url, timeout=ANSWER_S) as anybody:
        with pytest.raises(httpx.TransportError):
            await anybody.get(PRESSURE, extensions=named)
    await server.stop()
    await asyncio.wait_for(task, ANSWER_S)
    await figures.close()


async def _get(client: httpx.AsyncClient, path: str, extensions: dict[str, str]) -> httpx.Response:
    """Once the server listens."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            try:
                return await client.get(path, extensions=extensions)
            except httpx.ConnectError:
                await asyncio.sleep(0.05)


async def test_two_operators_serve_with_one_certificate(
    kube: KubeClient, kube_namespace: str
) -> None:
    endpoint = Endpoint(namespace=kube_namespace)
    first, second = await asyncio.gather(
        serving_certificate(kube, endpoint), serving_certificate(kube, endpoint)
    )
    assert first == second
    assert await serving_certificate(kube, endpoint) == first
    elsewhere = Endpoint(service="renamed", namespace=kube_namespace)
    assert await serving_certificate(kube, elsewhere) != first, "its names do not fit"


def test_a_certificate_is_renewed_before_it_ends() -> None:
    now = certificates.utc_now()
    certificate = certificates.create(["a.b.svc"], now)
    assert certificates.is_usable(certificate, ["a.b.svc"], now)
    assert not certificates.is_usable(certificate, ["other.svc"], now)
    late = now + timedelta(days=certificates.LIFETIME_DAYS - certificates.RENEWED_BEFORE_DAYS)
    assert not certificates.is_usable(certificate, ["a.b.svc"], late)
    assert not certificates.is_usable(certificates.Serving(b"", b""), ["a.b.svc"], now)


def context(settings: Settings, kube: KubeClient) -> Context:
    return Context(settings, kube, Events(kube), ReconcileQueue(1, 60.0), AdminClients())


async def test_the_operator_serves_the_metrics_api(
    kube: KubeClient, kube_namespace: str, free_port: int
) -> None:
    settings = Settings(pod_namespace=kube_namespace, host="127.0.0.1", metrics_api_port=free_port)
    part = register(context(settings, kube))
    assert part is not None
    async with part, asyncio.timeout(ANSWER_S):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", free_port)
                writer.close()
                await writer.wait_closed()
                break
            await asyncio.sleep(0.05)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", free_port)
    assert await kube.find(SECRET, "magnetar-operator-metrics-tls", kube_namespace)
    # Whom to trust is read by a role that Kubernetes has for it.
    reading = {("get", "", "configmaps"), ("get", "magnetar.io", "magnetarclusters")}
    assert missing(set(kube.requests) - reading) == []


async def test_without_a_service_nothing_is_served(kube: KubeClient) -> None:
    assert register(context(Settings(), kube)) is None
    assert register(context(Settings(pod_namespace="a", autoscaling=False), kube)) is None
