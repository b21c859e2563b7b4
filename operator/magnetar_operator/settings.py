"""Settings of the operator's process: flags and environment variables, with their defaults."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FINALIZER: Final = "magnetar.io/cleanup"
HEALTH_PORT: Final = 8080
METRICS_API_PORT: Final = 8443
LEASE_NAME: Final = "magnetar-operator"
DEFAULT_IMAGE: Final = "magnetar:latest"
DEFAULT_SPARK_IMAGE: Final = "magnetar-spark:latest"
DEFAULT_ETCD_IMAGE: Final = "quay.io/coreos/etcd:v3.5.21"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one operator process."""

    namespaces: tuple[str, ...] = ()
    """The watched namespaces; empty: all."""
    kubeconfig: str | None = None
    """A kubeconfig file; by default the pod's account, else $KUBECONFIG."""
    lease_namespace: str = "default"
    lease_name: str = LEASE_NAME
    identity: str = ""
    """The holder's name in the lease; by default the pod's name."""
    host: str = "0.0.0.0"  # noqa: S104  probes come from outside the pod
    port: int = HEALTH_PORT
    """The port of /healthz, /readyz and /metrics; 0 takes a free one."""
    workers: int = 8
    """The number of objects that are reconciled at the same time."""
    resync_s: float = 60.0
    """Each object is reconciled at least this often, so that drift is detected."""
    image: str = DEFAULT_IMAGE
    """The image of clusters whose spec names none."""
    etcd_image: str = DEFAULT_ETCD_IMAGE
    spark_image: str = DEFAULT_SPARK_IMAGE
    """The image of SparkJobs whose spec names none."""
    pod_namespace: str = ""
    """The operator's own namespace, which NetworkPolicies admit."""
    autoscaling: bool = True
    """Whether the metrics API for HPAs is served."""
    service: str = "magnetar-operator"
    """The operator's Service, through which the API server reaches the metrics API."""
    metrics_api_port: int = METRICS_API_PORT

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Reads `MAGNETAR_OPERATOR_…`, POD_NAME and POD_NAMESPACE."""

        def text(name: str, default: str) -> str:
            return environ.get(f"MAGNETAR_OPERATOR_{name}") or default

        namespaces = tuple(filter(None, text("NAMESPACES", "").replace(" ", "").split(",")))
        return cls(
            namespaces=namespaces,
            lease_namespace=text("LEASE_NAMESPACE", environ.get("POD_NAMESPACE", "default")),
            lease_name=text("LEASE_NAME", LEASE_NAME),
            identity=environ.get("POD_NAME", "") or f"{socket.gethostname()}-{os.getpid()}",
            port=int(text("PORT", str(HEALTH_PORT))),
            workers=int(text("WORKERS", "8")),
            resync_s=float(text("RESYNC_S", "60")),
            image=text("IMAGE", DEFAULT_IMAGE),
            etcd_image=text("ETCD_IMAGE", DEFAULT_ETCD_IMAGE),
            spark_image=text("SPARK_IMAGE", DEFAULT_SPARK_IMAGE),
            pod_namespace=environ.get("POD_NAMESPACE", ""),
            autoscaling=text("AUTOSCALING", "true").lower() != "false",
            service=text("SERVICE", "magnetar-operator"),
            metrics_api_port=int(text("METRICS_API_PORT", str(METRICS_API_PORT))),
        )
