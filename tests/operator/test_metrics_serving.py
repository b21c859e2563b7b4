"""The metrics API: certificate, registration, permitted clients, and an orderly end."""

import asyncio
import base64
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.operator.memory_kube import Asked, MemoryKube, Refusal
from tests.operator.test_metrics_api import front_proxy
from tests.support.etcd import free_ports

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.autoscale import certificates, service
from magnetar_operator.autoscale.certificates import LIFETIME_DAYS, RENEWED_BEFORE_DAYS, Serving
from magnetar_operator.autoscale.figures import NoFigure
from magnetar_operator.autoscale.server import (
    API_SERVICE_NAME,
    AUTHENTICATION,
    Endpoint,
    MetricsServer,
    serving_certificate,
)
from magnetar_operator.autoscale.service import admin_url
from magnetar_operator.kube.client import Forbidden, KubeClient, NotFound
from magnetar_operator.kube.kinds import API_SERVICE, CLUSTER, CONFIG_MAP, SECRET, Object
from magnetar_operator.kube.lease import NotLeading

ENDPOINT = Endpoint(namespace="ns", host="127.0.0.1")


class Rig:
    """A Kubernetes in memory that has an aggregation layer."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.client: KubeClient = self.kube.client()

    def has_authority(self, directory: Path) -> tuple[str, str]:
        """The files of the aggregation layer's client certificate."""
        namespace, name = AUTHENTICATION
        authority, files = front_proxy(directory)
        data = {"requestheader-client-ca-file": authority}
        self._put(CONFIG_MAP, {"name": name, "namespace": namespace}, data=data)
        return files

    def has_api_service(self, **service: str) -> None:
        given = {"name": ENDPOINT.service, "namespace": ENDPOINT.namespace, **service}
        self._put(API_SERVICE, {"name": API_SERVICE_NAME}, spec={"service": given})

    def bundle(self) -> str:
        obj = self.kube.get(API_SERVICE, API_SERVICE_NAME)
        return str(obj.get("spec", {}).get("caBundle", ""))

    def secret(self) -> Object:
        return self.kube.get(SECRET, ENDPOINT.secret)

    def _put(self, kind: Any, metadata: Object, **content: Any) -> None:
        frame = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        self.kube.put({**frame, **content})


@pytest.fixture
async def on() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.client.close()


async def app(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"figures"})


def aged(days: float, names: list[str] | None = None) -> Serving:
    """A certificate of this age in days."""
    then = certificates.utc_now() - datetime.timedelta(days=days)
    return certificates.create(names or ENDPOINT.dns_names, then)


def kept(on: Rig, serving: Serving) -> None:
    on.kube.put(certificates.secret(ENDPOINT.secret, ENDPOINT.namespace, serving))


# -- the certificate


async def test_a_certificate_is_created_once(on: Rig) -> None:
    certificate = await serving_certificate(on.client, ENDPOINT)
    assert certificates.of_secret(on.secret()) == certificate
    assert on.secret()["type"] == "kubernetes.io/tls"
    assert await serving_certificate(on.client, ENDPOINT) == certificate
    assert len(on.kube.writes) == 1


@pytest.mark.parametrize(
    ("days", "renewed"),
    [
        (LIFETIME_DAYS - RENEWED_BEFORE_DAYS - 0.01, False),
        (LIFETIME_DAYS - RENEWED_BEFORE_DAYS + 0.01, True),
        (LIFETIME_DAYS + 1, True),
    ],
)
async def test_a_certificate_is_renewed_in_time(on: Rig, days: float, renewed: bool) -> None:
    old = aged(days)
    kept(on, old)
    certificate = await serving_certificate(on.client, ENDPOINT)
    assert (certificate != old) == renewed
    assert certificates.of_secret(on.secret()) == certificate


@pytest.mark.parametrize("what", ["other names", "no certificate", "no key", "empty"])
async def test_an_unusable_secret_is_replaced(on: Rig, what: str) -> None:
    good = aged(0)
    found = {
        "other names": aged(0, ENDPOINT.dns_names[:1]),
        "no certificate": Serving(b"none", good.key),
        "no key": Serving(good.certificate, b"none"),
        "empty": Serving(b"", b""),
    }[what]
    kept(on, found)
    certificate = await serving_certificate(on.client, ENDPOINT)
    assert certificates.is_usable(certificate, ENDPOINT.dns_names, certificates.utc_now())
    assert certificates.of_secret(on.secret()) == certificate
    on.kube.put({**on.secret(), "data": None})
    await serving_certificate(on.client, ENDPOINT)
    assert on.secret()["data"]["tls.crt"]


@pytest.mark.parametrize("there", [False, True])
async def test_two_operators_that_create_a_certificate_use_the_first(on: Rig, there: bool) -> None:
    if there:
        kept(on, aged(LIFETIME_DAYS))
    others = aged(0)

    def quicker(asked: Asked) -> None:
        if asked.method in ("POST", "PUT"):
            on.kube.refuse = lambda _: None
            kept(on, others)

    on.kube.refuse = quicker
    assert await serving_certificate(on.client, ENDPOINT) == others
    assert certificates.of_secret(on.secret()) == others


# -- the registration


async def test_the_api_is_registered_with_its_service_and_stays_registered(
    on: Rig, tmp_path: Path
) -> None:
    server = MetricsServer(on.client, app, ENDPOINT)
    with pytest.raises(NotFound):
        await server.prepare()
    on.has_authority(tmp_path)
    await server.prepare()
    assert await server.register() is False, "nobody has registered an API"
    for other in ({"name": "keda"}, {"namespace": "elsewhere"}):
        on.has_api_service(**other)
        assert await server.register() is False
        assert on.bundle() == "", "another adapter's is left alone"
    on.has_api_service()
    assert await server.register() is True
    assert base64.b64decode(on.bundle()) == certificates.of_secret(on.secret()).certificate
    written = len(on.kube.writes)
    assert await server.register() is True
    assert len(on.kube.writes) == written
    on.kube.remove(API_SERVICE, API_SERVICE_NAME, "")
    on.has_api_service()
    assert await server.register() is True
    assert on.bundle() != ""


# -- serving


async def test_only_the_aggregation_layer_may_connect_and_stop_closes_the_socket(
    on: Rig, tmp_path: Path
) -> None:
    files = on.has_authority(tmp_path)
    (port,) = free_ports(1)
    server = MetricsServer(on.client, app, Endpoint(namespace="ns", host="127.0.0.1", port=port))
    await server.prepare()
    task = asyncio.create_task(server.serve())
    (tmp_path / "ca").write_bytes(certificates.of_secret(on.secret()).certificate)
    url = f"https://127.0.0.1:{port}/"
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca"))
    trusting.check_hostname = False
    context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
    context.check_hostname = False
    context.load_cert_chain(*files)
    async with httpx.AsyncClient(verify=context, trust_env=False) as layer:
        while True:
            try:
                answer = await layer.get(url)
                break
            except httpx.ConnectError:
                assert not task.done(), "the server has ended"
                await asyncio.sleep(0.01)
        assert answer.text == "figures"
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as anybody:
            with pytest.raises(httpx.HTTPError):
                await anybody.get(url)
    await server.stop()
    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection("127.0.0.1", port)
    await task


async def test_a_server_that_never_served_ends(on: Rig) -> None:
    await MetricsServer(on.client, app, ENDPOINT).stop()


async def test_registration_is_retried_and_repeated_after_a_deletion(
    on: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.0)
    monkeypatch.setattr(service, "CHECK_S", 0.0)
    (port,) = free_ports(1)
    registered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def noted(obj: Object, _gone: bool) -> None:
        if obj["kind"] == API_SERVICE.kind and obj["spec"].get("caBundle"):
            loop.call_soon_threadsafe(registered.set)

    def lost() -> None:
        on.client.guard = lambda: None
        raise NotLeading

    on.kube.seen, on.client.guard = noted, lost
    endpoint = Endpoint(namespace="ns", host="127.0.0.1", port=port)
    async with service._serving(on.client, AdminClients(), endpoint):
        on.has_authority(tmp_path)
        on.has_api_service()
        async with asyncio.timeout(20):
            await registered.wait()
        registered.clear()
        on.kube.remove(API_SERVICE, API_SERVICE_NAME, "")
        on.has_api_service()
        async with asyncio.timeout(20):
            await registered.wait()
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert tasks == []


# -- the address of a cluster's figures


@pytest.mark.parametrize(
    ("spec", "status", "url"),
    [
        ({"adminUrl": "http://given"}, {"adminUrl": "http://told"}, "http://given"),
        ({}, {"adminUrl": "http://told"}, "http://told"),
        ({}, {}, "http://c-broker.ns.svc:8080"),
    ],
)
async def test_the_admin_address_comes_from_the_cluster(
    on: Rig, spec: Object, status: Object, url: str
) -> None:
    assert await admin_url(on.client, "ns", "c") is None
    on._put(CLUSTER, {"name": "c", "namespace": "ns"}, spec=spec, status=status)
    assert await admin_url(on.client, "ns", "c") == url
    on.kube.refuse = lambda _: Refusal(403, "Forbidden", "no right")
    with pytest.raises(NoFigure, match="no right") as raised:
        await admin_url(on.client, "ns", "c")
    assert isinstance(raised.value.__cause__, Forbidden)
