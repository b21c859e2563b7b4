"""Builds the objects around the pods: disruption budgets, network policies, ServiceMonitors."""

from typing import Any, Final

from magnetar_operator.cluster.manifests.brokers import broker_ports
from magnetar_operator.cluster.manifests.names import (
    BOOKIE,
    BROKER,
    CLIENTS_ONLY,
    ETCD,
    RECOVERY,
    SPARK_OF,
    Cluster,
)
from magnetar_operator.cluster.manifests.security import METRICS_ROLE, tls_secret, token_secret
from magnetar_operator.kube.kinds import NETWORK_POLICY, PDB, SERVICE_MONITOR, Object
from magnetar_operator.models.pods import Pdb
from magnetar_operator.models.values import seconds
from magnetar_operator.security.wanted import TOKEN, TRUST

RELABELINGS: Final[list[dict[str, Any]]] = [
    {"action": "labelmap", "regex": "__meta_kubernetes_pod_label_(app|cluster|component|release)"},
    {"sourceLabels": ["__meta_kubernetes_namespace"], "targetLabel": "kubernetes_namespace"},
    {"sourceLabels": ["__meta_kubernetes_pod_label_component"], "targetLabel": "job"},
    {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "kubernetes_pod_name"},
]
"""The labels that dashboards use (Pulsar's, too), as in the chart's PodMonitors."""


def disruption_budget(
    cluster: Cluster, component: str, pdb: Pdb, *, may_evict: bool = True
) -> Object:
    """The budget of a component; `may_evict`: whether any of its pods may be evicted now."""
    spec = {
        "maxUnavailable": pdb.max_unavailable if may_evict else 0,
        "selector": {"matchLabels": cluster.selector(component)},
    }
    return cluster.object(PDB, component, spec=spec)


def disruption_budgets(cluster: Cluster, *, may_evict_bookies: bool) -> list[Object]:
    """The budgets: bookies are evicted one at a time, and none while a ledger lacks copies."""
    spec = cluster.spec
    budgets = []
    if spec.broker.pdb.enabled:
        budgets.append(disruption_budget(cluster, BROKER, spec.broker.pdb))
    if spec.bookie.pdb.enabled:
        # The loss of two bookies at once may take the last readable copy.
        pdb = Pdb(max_unavailable=min(1, spec.bookie.pdb.max_unavailable))
        budgets.append(disruption_budget(cluster, BOOKIE, pdb, may_evict=may_evict_bookies))
    if cluster.etcd_members and spec.etcd.pdb.enabled:
        pdb = Pdb(max_unavailable=min(1, spec.etcd.pdb.max_unavailable))
        budgets.append(disruption_budget(cluster, ETCD, pdb, may_evict=cluster.etcd_members > 1))
    return budgets


def network_policies(cluster: Cluster) -> list[Object]:
    """The policies: bookies and etcd accept only the cluster's pods and Spark jobs.

    Brokers accept the clients of the spec, too.
    """
    if not cluster.spec.network_policy.enabled:
        return []
    own: Object = {"podSelector": {"matchLabels": cluster.labels}}
    jobs = _jobs(cluster)
    clients = list(cluster.spec.network_policy.clients)
    reach: Object = {"ports": [{"port": name} for name in reversed(broker_ports(cluster))]}
    if clients:
        reach["from"] = [own, *jobs, *_operator(cluster), *clients]
    scrape: Object = {"ports": [{"port": "http"}]}
    policies = [
        _policy(cluster, BROKER, [reach]),
        _policy(cluster, BOOKIE, [{"from": [own, *jobs], "ports": [{"port": "bookie"}]}, scrape]),
    ]
    if cluster.separate_recovery:
        policies.append(_policy(cluster, RECOVERY, [scrape]))
    if cluster.etcd_members:
        members = {"podSelector": {"matchLabels": cluster.selector(ETCD)}}
        rules: list[Object] = [
            {"from": [own, *jobs], "ports": [{"port": "client"}]},
            {"from": [members], "ports": [{"port": "peer"}]},
        ]
        if cluster.etcd_has_tls:
            rules.append({"ports": [{"port": "health"}]})
        policies.append(_policy(cluster, ETCD, rules))
    return policies


def service_monitors(cluster: Cluster) -> list[Object]:
    """The ServiceMonitors for Prometheus' operator."""
    metrics = cluster.spec.metrics
    components = [BROKER, BOOKIE]
    if cluster.etcd_members:
        components.append(ETCD)
    monitors = []
    for component in components:
        monitor = cluster.object(
            SERVICE_MONITOR,
            component,
            spec={
                "jobLabel": "component",
                "selector": {
                    "matchLabels": cluster.selector(component),
                    # Otherwise each etcd member would be a target twice, by both Services.
                    "matchExpressions": [{"key": CLIENTS_ONLY, "operator": "DoesNotExist"}],
                },
                "namespaceSelector": {"matchNames": [cluster.namespace]},
                "endpoints": [
                    {
                        **_scraped(cluster, component),
                        "path": "/metrics",
                        "interval": f"{max(1, round(seconds(metrics.interval)))}s",
                        # The label `namespace` of a metric is a topic's, so it has precedence
                        # over the pod's.
                        "honorLabels": True,
                        "relabelings": RELABELINGS,
                    }
                ],
            },
        )
        monitor["metadata"]["labels"] |= metrics.labels
        monitors.append(monitor)
    return monitors


def _scraped(cluster: Cluster, component: str) -> Object:
    """The port of a component's metrics, and how Prometheus verifies it."""
    if component == ETCD:
        return {"port": "health" if cluster.etcd_has_tls else "client"}
    scraped = _authorized(cluster, component)
    if not cluster.has_tls:
        return {"port": "http", **scraped}
    # Prometheus reaches pods by their addresses; their certificate has the name of the Service.
    name = f"{cluster.object_name(component)}.{cluster.namespace}.svc"
    authority = {"secret": {"name": tls_secret(cluster, component), "key": TRUST}}
    port = "https" if component == BROKER else "http"
    tls = {"scheme": "https", "tlsConfig": {"serverName": name, "ca": authority}}
    return {"port": port, **tls, **scraped}


def _authorized(cluster: Cluster, component: str) -> Object:
    """The token that Prometheus presents to brokers."""
    if component != BROKER or not cluster.authenticates:
        return {}
    secret = {"name": token_secret(cluster, METRICS_ROLE), "key": TOKEN}
    return {"authorization": {"type": "Bearer", "credentials": secret}}


def _jobs(cluster: Cluster) -> list[Object]:
    """The peers of Spark jobs, in this namespace and in those of the spec."""
    pods = {"podSelector": {"matchLabels": {SPARK_OF: cluster.name}}}
    peers: list[Object] = [pods]
    for name in cluster.spec.network_policy.job_namespaces:
        labels = {"kubernetes.io/metadata.name": name}
        peers.append({"namespaceSelector": {"matchLabels": labels}, **pods})
    return peers


def _operator(cluster: Cluster) -> list[Object]:
    """The peer of the operator, in its own namespace."""
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
