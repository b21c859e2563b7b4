"""Serves the metrics API over TLS and registers it with the API server.

Only the aggregation layer may ask: its client certificate must come from the authority that the
ConfigMap `kube-system/extension-apiserver-authentication` names for it. Our own certificate is kept
in a Secret (`certificates`), and put into the APIService.

The APIService itself comes and goes with the operator's installation: one that stayed behind
without its server would keep every namespace of the Kubernetes from being deleted. There is one
external metrics API in a Kubernetes; where another adapter has it (KEDA, a Prometheus adapter), it
is left alone, and brokers scale by CPU.
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

from magnetar_operator.api_kinds import API_SERVICE, CONFIG_MAP, SECRET
from magnetar_operator.autoscale import certificates
from magnetar_operator.autoscale.api import GROUP, VERSION
from magnetar_operator.autoscale.certificates import Serving
from magnetar_operator.kube import Conflict, KubeClient

API_SERVICE_NAME: Final = f"{VERSION}.{GROUP}"
AUTHENTICATION: Final = ("kube-system", "extension-apiserver-authentication")
SHUTDOWN_S_MAX: Final = 5

log = logging.getLogger("magnetar.operator.metrics")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the API is reached."""

    service: str = "magnetar-operator"
    namespace: str = "magnetar"
    secret: str = "magnetar-operator-metrics-tls"  # noqa: S105 - a name
    host: str = "0.0.0.0"  # noqa: S104 - in its pod
    port: int = 8443

    @property
    def dns_names(self) -> list[str]:
        return [f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}"]


class _Server(uvicorn.Server):
    """Leaves signals to the operator."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class MetricsServer:
    """See the module's text. `prepare`, then `serve` in a task of its own, `stop` at the end."""

    def __init__(
        self,
        kube: KubeClient,
        app: ASGIApp,
        place: Place,
        authentication: tuple[str, str] = AUTHENTICATION,
    ) -> None:
        """`authentication` is the ConfigMap (namespace, name) that says whom to trust."""
        self._authentication = authentication
        self._kube = kube
        self._app = app
        self._place = place
        self._server: _Server | None = None
        self._serving: Serving | None = None
        self._authority = b""
        self._told = ""
        self._ended = asyncio.Event()

    async def prepare(self) -> None:
        """Gets the certificate and whom to trust. Raises KubeError."""
        namespace, name = self._authentication
        found = await self._kube.get(CONFIG_MAP, name, namespace)
        self._authority = str(found["data"]["requestheader-client-ca-file"]).encode()
        self._serving = await serving_certificate(self._kube, self._place)

    async def serve(self) -> None:
        """Until `stop`."""
        assert self._serving is not None  # noqa: S101 - prepared before
        with tempfile.TemporaryDirectory(prefix="magnetar-metrics-") as directory:
            at = Path(directory)
            (at / "tls.crt").write_bytes(self._serving.certificate)
            (at / "tls.key").touch(0o600)
            (at / "tls.key").write_bytes(self._serving.key)
            (at / "ca.crt").write_bytes(self._authority)
            config = uvicorn.Config(
                self._app,
                host=self._place.host,
                port=self._place.port,
                ssl_certfile=str(at / "tls.crt"),
                ssl_keyfile=str(at / "tls.key"),
                ssl_ca_certs=str(at / "ca.crt"),
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
        """Ends `serve`, in order: its socket is closed when this returns."""
        if self._server is not None:
            self._server.should_exit = True
            async with asyncio.timeout(2 * SHUTDOWN_S_MAX):
                await self._ended.wait()

    async def register(self) -> bool:
        """Has the API server trust this certificate; False where questions do not come here."""
        assert self._serving is not None  # noqa: S101 - prepared before
        found = await self._kube.find(API_SERVICE, API_SERVICE_NAME)
        spec = (found or {}).get("spec") or {}
        service = spec.get("service") or {}
        if (service.get("namespace"), service.get("name")) != (
            self._place.namespace,
            self._place.service,
        ):
            whose = f"{service.get('namespace')}/{service.get('name')}" if service else "nobody"
            if whose != self._told:
                self._told = whose
                log.warning("external metrics are served by %s: brokers scale by CPU only", whose)
            return False
        bundle = certificates.bundle(self._serving)
        if spec.get("caBundle") != bundle:
            change = {"spec": {"caBundle": bundle}}
            await self._kube.merge(API_SERVICE, None, API_SERVICE_NAME, change)
        return True


async def serving_certificate(kube: KubeClient, place: Place) -> Serving:
    """The one that is kept, or a new one where there is none or it ends soon."""
    now = certificates.utc_now()
    found = await kube.find(SECRET, place.secret, place.namespace)
    if found is not None:
        kept = certificates.of_secret(found)
        if certificates.good(kept, place.dns_names, now):
            return kept
    made = certificates.make(place.dns_names, now)
    manifest = certificates.secret(place.secret, place.namespace, made)
    try:
        if found is None:
            await kube.create(manifest)
        else:
            manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            await kube.replace(manifest)
    except Conflict:
        # Another operator was quicker: both serve with its certificate.
        return certificates.of_secret(await kube.get(SECRET, place.secret, place.namespace))
    return made
