"""Builds the components without data: brokers and autorecovery (Deployments)."""

from collections.abc import Sequence
from typing import Any, Final

from magnetar_operator.autoscale import hpa as autoscaling
from magnetar_operator.cluster.manifests import pods as of_pods
from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import (
    BROKER,
    HTTP_PORT,
    HTTPS_PORT,
    PULSAR_PORT,
    PULSAR_TLS_PORT,
    RECOVERY,
    RECOVERY_HTTP_PORT,
    Cluster,
)
from magnetar_operator.cluster.manifests.offload import offload_settings, offload_volume
from magnetar_operator.kube.kinds import CLUSTER, DEPLOYMENT, HPA, SERVICE, Object
from magnetar_operator.models.pods import Pods
from magnetar_operator.models.values import seconds

PRE_STOP_S: Final = 5
"""Lets service proxies remove the pod before the broker closes its connections."""
REVISIONS_KEPT: Final = 3
OFF: Final = "none"
"""The setting of a port that is not served."""

_QUORUM_KEYS: Final = {
    "ensemble_size": "managedLedgerDefaultEnsembleSize",
    "write_quorum": "managedLedgerDefaultWriteQuorum",
    "ack_quorum": "managedLedgerDefaultAckQuorum",
}


def broker_settings(cluster: Cluster) -> dict[str, str]:
    """The brokers' settings; the quorums of new ledgers come from `spec.bookie`."""
    config, quorums = cluster.spec.broker.config, cluster.spec.bookie.quorums
    wanted = {
        "ensemble_size": quorums.ensemble,
        "write_quorum": quorums.write,
        "ack_quorum": quorums.ack,
    }
    for name, pulsar_key in _QUORUM_KEYS.items():
        if name in config or pulsar_key in config:
            del wanted[name]
    # The store in config has precedence over spec.offload.
    return of_pods.settings_data(
        wanted,
        offload_settings(cluster.spec.offload),
        security.broker_defaults(cluster),
        security.broker_settings(cluster),
        config,
    )


def broker_services(cluster: Cluster) -> list[Object]:
    """The Services for clients and the admin REST."""
    service_spec = cluster.spec.broker.service
    ports = [
        {"name": name, "port": port, "targetPort": name}
        for name, port in broker_ports(cluster).items()
    ]
    spec = {"type": service_spec.type, "selector": cluster.selector(BROKER), "ports": ports}
    service = cluster.object(SERVICE, BROKER, spec=spec)
    if service_spec.annotations:
        service["metadata"]["annotations"] = dict(service_spec.annotations)
    return [service]


def broker_ports(cluster: Cluster) -> dict[str, int]:
    """The ports of brokers by name."""
    plain = {"http": HTTP_PORT, "pulsar": PULSAR_PORT} if cluster.has_plain_ports else {}
    tls = {"https": HTTPS_PORT, "pulsarssl": PULSAR_TLS_PORT} if cluster.has_tls else {}
    return plain | tls


def broker_deployment(cluster: Cluster) -> Object:
    """The brokers' Deployment: a new pod starts before an old one unloads its bundles and ends."""
    spec = cluster.spec.broker
    volumes, mounts = offload_volume(cluster.spec.offload)
    secret_volumes, secret_mounts = security.files(cluster, BROKER)
    ports = broker_ports(cluster)
    # A certificate can name a pod's name in DNS, not its address, which is not known before.
    named = {"MAGNETAR_ADVERTISED_DOMAIN": cluster.pod_domain} if cluster.has_tls else {}
    pause_s = min(PRE_STOP_S, max(0, of_pods.grace_s(spec) - of_pods.STOP_RESERVE_S - 1))
    container = of_pods.container(
        cluster,
        BROKER,
        "broker",
        ports=ports,
        environment={
            # Brokers redirect clients to each other, and a pod of a Deployment has no DNS name.
            "MAGNETAR_ADVERTISED_HOST": "$(POD_IP)",
            **named,
            "MAGNETAR_PORT": str(ports.get("pulsar", OFF)),
            "MAGNETAR_HTTP_PORT": str(ports.get("http", OFF)),
            "MAGNETAR_SHUTDOWN_TIMEOUT_MS": of_pods.shutdown_ms(spec, pause_s),
        },
        mounts=[*mounts, *secret_mounts],
        probed="https" if cluster.has_tls else "http",
        scheme=cluster.health_scheme,
    )
    offload = cluster.spec.offload
    if offload is not None and offload.credentials is not None:
        container["envFrom"].append({"secretRef": {"name": offload.credentials.name}})
    if pause_s:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": pause_s}}}
    upgrade = cluster.spec.upgrade
    return _deployment(
        cluster,
        BROKER,
        spec,
        container,
        broker_settings(cluster),
        replicas=spec.replicas,
        strategy={
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": upgrade.max_unavailable},
        },
        ready_s=round(seconds(upgrade.pause_between)),
        volumes=[*volumes, *secret_volumes],
        tmp_size=of_pods.BROKER_TMP_SIZE,
    )


def broker_autoscaler(cluster: Cluster) -> Object | None:
    """The autoscaler of the MagnetarCluster, not of the Deployment, whose replicas follow it."""
    spec = cluster.spec.broker.autoscaling
    if not spec.enabled:
        return None
    target = {"apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind, "name": cluster.name}
    content: dict[str, Any] = {
        "scaleTargetRef": target,
        "minReplicas": spec.min_replicas,
        "maxReplicas": spec.max_replicas,
        "metrics": autoscaling.metrics(cluster.name, spec),
        "behavior": autoscaling.behavior(spec),
    }
    return cluster.object(HPA, BROKER, spec=content)


def recovery_settings(cluster: Cluster) -> dict[str, str]:
    """The settings of autorecovery in separate pods."""
    return of_pods.settings_data(
        security.server_settings(cluster, mutual=False),
        security.health_settings(cluster),
        security.ledger_client_settings(cluster),
        cluster.spec.autorecovery.config,
    )


def recovery_deployment(cluster: Cluster) -> Object:
    """Autorecovery's Deployment: any number of pods share the work, and continue each other's."""
    spec = cluster.spec.autorecovery
    given = Pods(resources=spec.resources)
    volumes, mounts = security.files(cluster, RECOVERY)
    container = of_pods.container(
        cluster,
        RECOVERY,
        "autorecovery",
        ports={"http": RECOVERY_HTTP_PORT},
        environment={
            "MAGNETAR_ADVERTISED_HOST": "$(POD_IP)",
            "MAGNETAR_HTTP_PORT": str(RECOVERY_HTTP_PORT),
            "MAGNETAR_SHUTDOWN_TIMEOUT_MS": of_pods.shutdown_ms(given),
        },
        mounts=mounts,
        scheme=cluster.health_scheme,
    )
    return _deployment(
        cluster,
        RECOVERY,
        given,
        container,
        recovery_settings(cluster),
        replicas=spec.replicas,
        strategy={
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1},
        },
        volumes=volumes,
    )


def _deployment(
    cluster: Cluster,
    component: str,
    pods: Pods,
    container: Object,
    data: dict[str, str],
    *,
    replicas: int,
    strategy: Object,
    ready_s: int = 0,
    volumes: Sequence[Object] = (),
    tmp_size: str = of_pods.TMP_SIZE,
) -> Object:
    volumes = [of_pods.tmp_volume(tmp_size), *volumes]
    template = of_pods.template(cluster, component, pods, container, data=data, volumes=volumes)
    content: dict[str, Any] = {
        "replicas": replicas,
        "revisionHistoryLimit": REVISIONS_KEPT,
        "strategy": strategy,
        "selector": {"matchLabels": cluster.selector(component)},
        "template": template,
        "minReadySeconds": ready_s,
    }
    return cluster.object(DEPLOYMENT, component, spec=content)
