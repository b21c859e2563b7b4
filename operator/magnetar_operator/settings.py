"""What the operator's process is told: flags and environment, with their defaults."""

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
    """See the module's text."""

    namespaces: tuple[str, ...] = ()
    """Watched; empty: all of them."""
    kubeconfig: str | None = None
    """A file; by default the pod's account, else $KUBECONFIG."""
    lease_namespace: str = "default"
    lease_name: str = LEASE_NAME
    identity: str = ""
    """Whose the lease is; by default the pod's name."""
    host: str = "0.0.0.0"  # noqa: S104  probes come from outside of the pod
    port: int = HEALTH_PORT
    """Of /healthz, /readyz and /metrics; 0 takes a free one."""
    workers: int = 8
    """Objects that are reconciled at the same time."""
    resync_s: float = 60.0
    """Each object is compared with the world this often, so that drift is found."""
    image: str = DEFAULT_IMAGE
    """Of clusters that name none."""
    etcd_image: str = DEFAULT_ETCD_IMAGE
    spark_image: str = DEFAULT_SPARK_IMAGE
    """Of SparkJobs that name none."""
    pod_namespace: str = ""
    """Where the operator itself runs; NetworkPolicies let it in from there."""
    autoscaling: bool = True
    """Whether the metrics API for HPAs is served."""
    service: str = "magnetar-operator"
    """The Service of this operator; the API server reaches the metrics API by it."""
    metrics_api_port: int = METRICS_API_PORT

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """`MAGNETAR_OPERATOR_…`, POD_NAME and POD_NAMESPACE."""

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
