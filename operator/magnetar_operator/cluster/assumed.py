"""What the operator was started with, told from what it made: for `magnetar plan`, run elsewhere.

Images that no spec names, and the namespace that NetworkPolicies let in, are settings of the
operator's process. Whoever plans from a laptop has others, and would see changes that nobody makes.
So they are read off the cluster's objects; where there are none yet, the given settings stand. A
manifest that names its image no longer is planned with the image that runs.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from magnetar_operator.api_kinds import DEPLOYMENT, NETWORK_POLICY, STATEFUL_SET, Object
from magnetar_operator.cluster.manifests.naming import BROKER, ETCD
from magnetar_operator.kube import KubeClient
from magnetar_operator.settings import Settings

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


async def settings_of(kube: KubeClient, namespace: str, name: str, given: Settings) -> Settings:
    """`given`, with what the cluster of that name shows."""
    brokers = await kube.find(DEPLOYMENT, f"{name}-{BROKER}", namespace)
    etcd = await kube.find(STATEFUL_SET, f"{name}-{ETCD}", namespace)
    policy = await kube.find(NETWORK_POLICY, f"{name}-{BROKER}", namespace)
    return replace(
        given,
        image=_image(brokers) or given.image,
        etcd_image=_image(etcd) or given.etcd_image,
        pod_namespace=next(_let_in(policy), given.pod_namespace),
    )


def _image(workload: Object | None) -> str:
    if workload is None:
        return ""
    containers: list[dict[str, Any]] = workload["spec"]["template"]["spec"]["containers"]
    return str(containers[0].get("image", ""))


def _let_in(policy: Object | None) -> Iterator[str]:
    """Namespaces whose operator may reach the brokers."""
    for rule in ((policy or {}).get("spec") or {}).get("ingress") or ():
        for peer in rule.get("from") or ():
            labels = (peer.get("namespaceSelector") or {}).get("matchLabels") or {}
            pods = (peer.get("podSelector") or {}).get("matchLabels") or {}
            if pods.get("component") == "operator" and _NAMESPACE_LABEL in labels:
                yield str(labels[_NAMESPACE_LABEL])
