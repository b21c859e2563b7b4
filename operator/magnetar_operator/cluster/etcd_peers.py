"""Keeps the addresses by which a running etcd's members reach each other. Pure: no IO.

The members record their peers' addresses, with the scheme, when the cluster is created. Arguments
with another scheme would part each restarted member from the others, until no majority is left.
"""

from dataclasses import replace
from typing import Final

import msgspec

from magnetar_operator.cluster.manifests.names import ETCD, Cluster
from magnetar_operator.cluster.observed import Observed
from magnetar_operator.kube.kinds import STATEFUL_SET, Object

_FLAG: Final = "--listen-peer-urls="


def with_recorded_peers(cluster: Cluster, observed: Observed) -> tuple[Cluster, str]:
    """Returns the cluster with the scheme of its running etcd, and what the spec has to change.

    The text is empty if the spec agrees with the running etcd, or if there is none.
    """
    running = observed.get(STATEFUL_SET, cluster.object_name(ETCD))
    if running is None or not cluster.etcd_has_tls:
        return cluster, ""
    recorded = f"{_FLAG}https:" in _peers_argument(running)
    if recorded == cluster.spec.tls.etcd.peers:
        return cluster, ""
    etcd = msgspec.structs.replace(cluster.spec.tls.etcd, peers=recorded)
    tls = msgspec.structs.replace(cluster.spec.tls, etcd=etcd)
    kept = replace(cluster, spec=msgspec.structs.replace(cluster.spec, tls=tls))
    value = str(recorded).lower()
    return kept, (
        "spec.tls.etcd.peers: the members' addresses are recorded in the running etcd, which "
        f"keeps them; set it to {value}"
    )


def _peers_argument(stateful_set: Object) -> str:
    container = stateful_set["spec"]["template"]["spec"]["containers"][0]
    arguments: list[str] = container.get("args") or []
    return next((argument for argument in arguments if argument.startswith(_FLAG)), "")
