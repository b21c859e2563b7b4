"""Serves the metrics API over TLS and registers it with the API server.

Only the aggregation layer may send requests: its client certificate must be signed by the authority
in the ConfigMap `kube-system/extension-apiserver-authentication`. Our own certificate is stored in
a Secret (`certificates`) and written into the APIService.

The installation of the operator creates and deletes the APIService. The operator does not: an
APIService without its server would block the deletion of every namespace. A Kubernetes has only one
external metrics API. If another adapter serves it (KEDA, a Prometheus adapter), the operator leaves
it alone, and brokers scale by CPU.
"""

import asyncio
import contextlib
import logging
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from magnetar_operator.autoscale import certificates
from magnetar_operator.autoscale.api import GROUP, VERSION
from magnetar_operator.autoscale.certificates import Serving
from magnetar_operator.kube.client import Conflict, KubeClient
from magnetar_operator.kube.kinds import API_SERVICE, CONFIG_MAP, SECRET

API_SERVICE_NAME: Final = f"{VERSION}.{GROUP}"
AUTHENTICATION: Final = ("kube-system", "extension-apiserver-authentication")
SHUTDOWN_S_MAX: Final = 5

log = logging.getLogger("magnetar.operator.metrics")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The Service, the Secret and the socket of the metrics API."""

    service: str = "magnetar-operator"
    namespace: str = "magnetar"
    secret: str = "magnetar-operator-metrics-tls"  # noqa: S105 - a name
    host: str = "0.0.0.0"  # noqa: S104 - in its pod
    port: int = 8443

    @property
    def dns_names(self) -> list[str]:
        return [f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}"]


class _Server(uvicorn.Server):
    """A server that leaves signals to the operator."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class MetricsServer:
    """Serves the metrics API: `prepare`, then `serve` in a task of its own, `stop` at the end."""

    def __init__(
        self,
        kube: KubeClient,
        app: ASGIApp,
        endpoint: Endpoint,
        authentication: tuple[str, str] = AUTHENTICATION,
    ) -> None:
        """`authentication` is the ConfigMap (namespace, name) with the authority to trust."""
        self._authentication = authentication
        self._kube = kube
        self._app = app
        self._endpoint = endpoint
        self._server: _Server | None = None
        self._serving: Serving | None = None
        self._authority = b""
        self._warned = ""
        """The other server of the API that was last logged."""
        self._ended = asyncio.Event()

    async def prepare(self) -> None:
        """Reads the authority and the certificate. Raises KubeError."""
        namespace, name = self._authentication
        config = await self._kube.get(CONFIG_MAP, name, namespace)
        self._authority = str(config["data"]["requestheader-client-ca-file"]).encode()
        self._serving = await serving_certificate(self._kube, self._endpoint)

    async def serve(self) -> None:
        """Serves until `stop`."""
        assert self._serving is not None  # noqa: S101 - prepared before
        with tempfile.TemporaryDirectory(prefix="magnetar-metrics-") as directory:
            root = Path(directory)
            (root / "tls.crt").write_bytes(self._serving.certificate)
            (root / "tls.key").touch(0o600)
            (root / "tls.key").write_bytes(self._serving.key)
            (root / "ca.crt").write_bytes(self._authority)
            config = uvicorn.Config(
                self._app,
                host=self._endpoint.host,
                port=self._endpoint.port,
                ssl_certfile=str(root / "tls.crt"),
                ssl_keyfile=str(root / "tls.key"),
                ssl_ca_certs=str(root / "ca.crt"),
                ssl_cert_reqs=ssl.CERT_REQUIRED,
                timeout_graceful_shutdown=SHUTDOWN_S_MAX,
                log_config=None,
                access_log=False,
                lifespan="off",
            )
            config.load()
        self._server = _Server(config)
        try:
            await self._server.serve()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Ends `serve`; its socket is closed when this returns."""
        if self._server is not None:
            self._server.should_exit = True
            async with asyncio.timeout(2 * SHUTDOWN_S_MAX):
                await self._ended.wait()

    async def register(self) -> bool:
        """Makes the API server trust this certificate; False if another server has the API."""
        assert self._serving is not None  # noqa: S101 - prepared before
        api_service = await self._kube.find(API_SERVICE, API_SERVICE_NAME)
        spec = (api_service or {}).get("spec") or {}
        service = spec.get("service") or {}
        if (service.get("namespace"), service.get("name")) != (
            self._endpoint.namespace,
            self._endpoint.service,
        ):
            server = f"{service.get('namespace')}/{service.get('name')}" if service else "no server"
            if server != self._warned:
                self._warned = server
                log.warning("external metrics are served by %s: brokers scale by CPU only", server)
            return False
        bundle = certificates.bundle(self._serving)
        if spec.get("caBundle") != bundle:
            change = {"spec": {"caBundle": bundle}}
            await self._kube.merge(API_SERVICE, None, API_SERVICE_NAME, change)
        return True


async def serving_certificate(kube: KubeClient, endpoint: Endpoint) -> Serving:
    """The stored certificate, or a new one if there is none or it expires soon."""
    now = certificates.utc_now()
    stored = await kube.find(SECRET, endpoint.secret, endpoint.namespace)
    if stored is not None:
        serving = certificates.of_secret(stored)
        if certificates.is_usable(serving, endpoint.dns_names, now):
            return serving
    serving = certificates.create(endpoint.dns_names, now)
    manifest = certificates.secret(endpoint.secret, endpoint.namespace, serving)
    try:
        if stored is None:
            await kube.create(manifest)
        else:
            manifest["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
            await kube.replace(manifest)
    except Conflict:
        # Another operator stored its certificate first: both serve with it.
        return certificates.of_secret(await kube.get(SECRET, endpoint.secret, endpoint.namespace))
    return serving
