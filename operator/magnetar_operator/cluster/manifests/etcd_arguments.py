"""Builds the command line of etcd, with and without TLS."""

from magnetar_operator.cluster.manifests.names import (
    ETCD,
    ETCD_CLIENT_PORT,
    ETCD_HEALTH_PORT,
    ETCD_PEER_PORT,
    Cluster,
)
from magnetar_operator.cluster.manifests.security import CERTIFICATE_FILE, KEY_FILE, TRUST_FILE


def arguments(cluster: Cluster) -> list[str]:
    """The arguments of a member."""
    name = cluster.object_name(ETCD)
    peers = cluster.host(ETCD_PEER_PORT)
    host = f"$(POD_NAME).{name}"
    clients = "https" if cluster.etcd_has_tls else "http"
    between = "https" if cluster.etcd_has_tls and cluster.spec.tls.etcd.peers else "http"
    members = ",".join(
        f"{name}-{index}={between}://{name}-{index}.{name}.{peers}"
        for index in range(cluster.etcd_members)
    )
    listen = f"{clients}://0.0.0.0:{ETCD_CLIENT_PORT}"
    if cluster.etcd_has_tls and cluster.spec.tls.etcd.plain:
        # etcd 3.5 serves both on one port, so that its clients change to TLS one by one.
        listen = f"http://0.0.0.0:{ETCD_CLIENT_PORT},{listen}"
    return [
        "--name=$(POD_NAME)",
        "--data-dir=/data/etcd",
        f"--listen-client-urls={listen}",
        f"--advertise-client-urls={clients}://{host}.{cluster.host(ETCD_CLIENT_PORT)}",
        f"--listen-peer-urls={between}://0.0.0.0:{ETCD_PEER_PORT}",
        f"--initial-advertise-peer-urls={between}://{host}.{peers}",
        f"--initial-cluster={members}",
        "--initial-cluster-state=new",
        f"--initial-cluster-token={cluster.name}",
        "--snapshot-count=10000",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        *(_tls(with_peers=between == "https") if cluster.etcd_has_tls else ()),
    ]


def _tls(*, with_peers: bool) -> list[str]:
    """Certificates of both sides are required. The kubelet has none: health has its own port."""
    files = {"cert-file": CERTIFICATE_FILE, "key-file": KEY_FILE, "trusted-ca-file": TRUST_FILE}
    built = [f"--{flag}={file}" for flag, file in files.items()]
    built += ["--client-cert-auth=true", f"--listen-metrics-urls=http://0.0.0.0:{ETCD_HEALTH_PORT}"]
    if with_peers:
        built += [f"--peer-{flag}={file}" for flag, file in files.items()]
        built.append("--peer-client-cert-auth=true")
    return built
