"""What stands around the pods: disruption budgets, network policies, ServiceMonitors."""

from typing import Any, Final

from magnetar_operator.api_kinds import NETWORK_POLICY, PDB, SERVICE_MONITOR, Object
from magnetar_operator.cluster.manifests.naming import (
    BOOKIE,
    BROKER,
    CLIENTS_ONLY,
    ETCD,
    RECOVERY,
    SPARK_OF,
    Cluster,
)
from magnetar_operator.models.pods import Pdb
from magnetar_operator.models.values import seconds

RELABELINGS: Final[list[dict[str, Any]]] = [
    {"action": "labelmap", "regex": "__meta_kubernetes_pod_label_(app|cluster|component|release)"},
    {"sourceLabels": ["__meta_kubernetes_namespace"], "targetLabel": "kubernetes_namespace"},
    {"sourceLabels": ["__meta_kubernetes_pod_label_component"], "targetLabel": "job"},
    {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "kubernetes_pod_name"},
]
"""What dashboards go by (those of Pulsar's chart, too), as the chart's PodMonitors have it."""


def disruption_budget(cluster: Cluster, component: str, pdb: Pdb, *, may_go: bool = True) -> Object:
    """`may_go`: whether any may be evicted now; a node's drain waits where not."""
    spec = {
        "maxUnavailable": pdb.max_unavailable if may_go else 0,
        "selector": {"matchLabels": cluster.selector(component)},
    }
    return cluster.object(PDB, component, spec=spec)


def disruption_budgets(cluster: Cluster, *, bookies_may_go: bool) -> list[Object]:
    """Bookies: one at a time, and none while any ledger lacks copies."""
    spec = cluster.spec
    found = []
    if spec.broker.pdb.enabled:
        found.append(disruption_budget(cluster, BROKER, spec.broker.pdb))
    if spec.bookie.pdb.enabled:
        # More than one away at once may take the last copy that can be read.
        one = Pdb(max_unavailable=min(1, spec.bookie.pdb.max_unavailable))
        found.append(disruption_budget(cluster, BOOKIE, one, may_go=bookies_may_go))
    if cluster.etcd_members and spec.etcd.pdb.enabled:
        one = Pdb(max_unavailable=min(1, spec.etcd.pdb.max_unavailable))
        found.append(disruption_budget(cluster, ETCD, one, may_go=cluster.etcd_members > 1))
    return found


def network_policies(cluster: Cluster) -> list[Object]:
    """Only the cluster's own pods and its Spark jobs reach bookies and etcd; clients, brokers."""
    if not cluster.spec.network_policy.enabled:
        return []
    own: Object = {"podSelector": {"matchLabels": cluster.labels}}
    jobs = _jobs(cluster)
    clients = list(cluster.spec.network_policy.clients)
    reach: Object = {"ports": [{"port": "pulsar"}, {"port": "http"}]}
    if clients:
        reach["from"] = [own, *jobs, *_operator(cluster), *clients]
    scrape: Object = {"ports": [{"port": "http"}]}
    found = [
        _policy(cluster, BROKER, [reach]),
        _policy(cluster, BOOKIE, [{"from": [own, *jobs], "ports": [{"port": "bookie"}]}, scrape]),
    ]
    if cluster.separate_recovery:
        found.append(_policy(cluster, RECOVERY, [scrape]))
    if cluster.etcd_members:
        members = {"podSelector": {"matchLabels": cluster.selector(ETCD)}}
        rules: list[Object] = [
            {"from": [own, *jobs], "ports": [{"port": "client"}]},
            {"from": [members], "ports": [{"port": "peer"}]},
        ]
        found.append(_policy(cluster, ETCD, rules))
    return found


def service_monitors(cluster: Cluster) -> list[Object]:
    """What Prometheus' operator is told; `honorLabels`: our `namespace` is Pulsar's."""
    metrics = cluster.spec.metrics
    components = [BROKER, BOOKIE]
    if cluster.etcd_members:
        components.append(ETCD)
    found = []
    for component in components:
        monitor = cluster.object(
            SERVICE_MONITOR,
            component,
            spec={
                "jobLabel": "component",
                "selector": {
                    "matchLabels": cluster.selector(component),
                    # etcd's members are found twice otherwise, by both of its Services.
                    "matchExpressions": [{"key": CLIENTS_ONLY, "operator": "DoesNotExist"}],
                },
                "namespaceSelector": {"matchNames": [cluster.namespace]},
                "endpoints": [
                    {
                        "port": "client" if component == ETCD else "http",
                        "path": "/metrics",
                        "interval": f"{max(1, round(seconds(metrics.interval)))}s",
                        # A metric's `namespace` is one of topics: it wins over the pod's.
                        "honorLabels": True,
                        "relabelings": RELABELINGS,
                    }
                ],
            },
        )
        monitor["metadata"]["labels"] |= metrics.labels
        found.append(monitor)
    return found


def _jobs(cluster: Cluster) -> list[Object]:
    """Spark jobs ask etcd and bookies, from this namespace and from those that are named."""
    pods = {"podSelector": {"matchLabels": {SPARK_OF: cluster.name}}}
    found: list[Object] = [pods]
    for name in cluster.spec.network_policy.job_namespaces:
        labels = {"kubernetes.io/metadata.name": name}
        found.append({"namespaceSelector": {"matchLabels": labels}, **pods})
    return found


def _operator(cluster: Cluster) -> list[Object]:
    """The operator asks the admin REST, from wherever it is."""
    if not cluster.operator_namespace:
        return []
    name = {"kubernetes.io/metadata.name": cluster.operator_namespace}
    labels = {"app": "magnetar", "component": "operator"}
    return [
        {
            "namespaceSelector": {"matchLabels": name},
            "podSelector": {"matchLabels": labels},
        }
    ]


def _policy(cluster: Cluster, component: str, rules: list[Object]) -> Object:
    spec = {
        "podSelector": {"matchLabels": cluster.selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return cluster.object(NETWORK_POLICY, component, spec=spec)
