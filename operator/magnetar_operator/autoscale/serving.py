"""Serves the metrics API over TLS and registers it with the API server.

Only the aggregation layer may ask: its client certificate must come from the authority that the
ConfigMap `kube-system/extension-apiserver-authentication` names for it. Our own certificate is kept
in a Secret (`certificates`), and the APIService carries it.

There is one external metrics API in a Kubernetes. Where another adapter has it already (KEDA, a
Prometheus adapter), it is left alone: `register` says whose it is, and autoscalers of brokers go by
CPU. Nothing is unregistered when the operator ends: the next one goes on.
"""

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

from magnetar_operator.api_kinds import API_SERVICE, CONFIG_MAP, SECRET, Object
from magnetar_operator.autoscale import certificates
from magnetar_operator.autoscale.api import GROUP, VERSION
from magnetar_operator.autoscale.certificates import Serving
from magnetar_operator.kube import Conflict, KubeClient

API_SERVICE_NAME: Final = f"{VERSION}.{GROUP}"
AUTHENTICATION: Final = ("kube-system", "extension-apiserver-authentication")
PRIORITY: Final = 100
SHUTDOWN_S_MAX: Final = 5

log = logging.getLogger("magnetar.operator.metrics")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the API is reached."""

    service: str = "magnetar-operator"
    namespace: str = "magnetar"
    service_port: int = 443
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
        await self._server.serve()

    def stop(self) -> None:
        """`serve` returns soon."""
        if self._server is not None:
            self._server.should_exit = True

    async def register(self) -> str:
        """Makes the API server send questions here; empty, or who has the API instead of us."""
        assert self._serving is not None  # noqa: S101 - prepared before
        found = await self._kube.find(API_SERVICE, API_SERVICE_NAME)
        service = ((found or {}).get("spec") or {}).get("service") or {}
        other = f"{service.get('namespace')}/{service.get('name')}"
        if found is not None and other != f"{self._place.namespace}/{self._place.service}":
            log.warning("external metrics are served by %s: brokers scale by CPU only", other)
            return other
        await self._kube.apply(api_service(self._place, self._serving), before=found)
        return ""


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


def api_service(place: Place, serving: Serving) -> Object:
    """The registration."""
    return {
        "apiVersion": API_SERVICE.api_version,
        "kind": API_SERVICE.kind,
        "metadata": {
            "name": API_SERVICE_NAME,
            "labels": {"app.kubernetes.io/managed-by": "magnetar-operator"},
        },
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": PRIORITY,
            "versionPriority": PRIORITY,
            "caBundle": certificates.bundle(serving),
            "service": {
                "namespace": place.namespace,
                "name": place.service,
                "port": place.service_port,
            },
        },
    }
