"""Derives the settings of a running operator from the objects that it created, for `magnetar plan`.

The default images, and the namespace that NetworkPolicies admit, are settings of the operator's
process. `magnetar plan` on a laptop has other settings and would show changes that the operator
never makes. It therefore reads them from the cluster's objects; if these do not exist yet, its own
settings apply. A manifest that no longer names its image is planned with the running image.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from magnetar_operator.cluster.manifests.names import BROKER, ETCD
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import DEPLOYMENT, NETWORK_POLICY, STATEFUL_SET, Object
from magnetar_operator.settings import Settings

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


async def settings_of(kube: KubeClient, namespace: str, name: str, own: Settings) -> Settings:
    """The process's own settings, replaced by those that the cluster's objects show."""
    brokers = await kube.find(DEPLOYMENT, f"{name}-{BROKER}", namespace)
    etcd = await kube.find(STATEFUL_SET, f"{name}-{ETCD}", namespace)
    policy = await kube.find(NETWORK_POLICY, f"{name}-{BROKER}", namespace)
    return replace(
        own,
        image=_image(brokers) or own.image,
        etcd_image=_image(etcd) or own.etcd_image,
        pod_namespace=next(_admitted(policy), own.pod_namespace),
    )


def _image(workload: Object | None) -> str:
    if workload is None:
        return ""
    containers: list[dict[str, Any]] = workload["spec"]["template"]["spec"]["containers"]
    return str(containers[0].get("image", ""))


def _admitted(policy: Object | None) -> Iterator[str]:
    """The namespaces whose operator may reach the brokers."""
    for rule in ((policy or {}).get("spec") or {}).get("ingress") or ():
        for peer in rule.get("from") or ():
            labels = (peer.get("namespaceSelector") or {}).get("matchLabels") or {}
            pods = (peer.get("podSelector") or {}).get("matchLabels") or {}
            if pods.get("component") == "operator" and _NAMESPACE_LABEL in labels:
                yield str(labels[_NAMESPACE_LABEL])
