"""Builds the components with data: etcd and bookies (StatefulSets), with their Services.

StatefulSets replace a pod only when it is deleted (`OnDelete`). The operator deletes pods one at a
time, and only while the cluster can do without the pod. Volumes outlive every object except, if the
spec says so, the MagnetarCluster (`claim`).
"""

from collections.abc import Sequence
from typing import Final

from magnetar_operator.cluster.manifests import etcd_arguments, security
from magnetar_operator.cluster.manifests import pods as of_pods
from magnetar_operator.cluster.manifests.names import (
    BOOKIE,
    BOOKIE_HTTP_PORT,
    BOOKIE_PORT,
    CLIENTS_ONLY,
    ETCD,
    ETCD_CLIENT_PORT,
    ETCD_HEALTH_PORT,
    ETCD_PEER_PORT,
    Cluster,
)
from magnetar_operator.kube.kinds import PVC, SERVICE, STATEFUL_SET, Object
from magnetar_operator.models.pods import Storage

REPLICAS_SET: Final = "magnetar.io/replicas"
"""The annotation of a StatefulSet with the replicas that the operator set."""


def bookie_settings(cluster: Cluster) -> dict[str, str]:
    """The bookies' settings, with those of autorecovery if it runs in the bookies."""
    spec = cluster.spec
    recovery = {} if cluster.separate_recovery else spec.autorecovery.config
    return of_pods.settings_data(
        security.bookie_settings(cluster),
        recovery,
        spec.bookie.config,
    )


def bookie_service(cluster: Cluster) -> Object:
    """The headless Service by which bookies have names, even before they are ready."""
    return cluster.object(
        SERVICE,
        BOOKIE,
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": cluster.selector(BOOKIE),
            "ports": [
                {"name": "bookie", "port": BOOKIE_PORT, "targetPort": "bookie"},
                {"name": "http", "port": BOOKIE_HTTP_PORT, "targetPort": "http"},
            ],
        },
    )


def bookie_stateful_set(
    cluster: Cluster, replicas: int, claims: Sequence[Object] | None = None
) -> Object:
    """The StatefulSet of bookies. `claims`: the stored claim templates, which cannot change."""
    spec = cluster.spec.bookie
    name = cluster.object_name(BOOKIE)
    data = bookie_settings(cluster)
    environment = {
        "MAGNETAR_ADVERTISED_HOST": f"$(POD_NAME).{name}.{cluster.namespace}.svc",
        "MAGNETAR_BOOKIE_ID": "$(POD_NAME)",
        "MAGNETAR_PORT": str(BOOKIE_PORT),
        "MAGNETAR_HTTP_PORT": str(BOOKIE_HTTP_PORT),
        "MAGNETAR_DATA_DIR": "/data/bookie",
        "MAGNETAR_AUTORECOVERY": str(not cluster.separate_recovery).lower(),
        "MAGNETAR_SHUTDOWN_TIMEOUT_MS": of_pods.shutdown_ms(spec),
    }
    volumes, mounts = security.files(cluster, BOOKIE)
    container = of_pods.container(
        cluster,
        BOOKIE,
        "bookie",
        ports={"bookie": BOOKIE_PORT, "http": BOOKIE_HTTP_PORT},
        environment=environment,
        mounts=[{"name": "data", "mountPath": "/data"}, *mounts],
        scheme=cluster.health_scheme,
    )
    template = of_pods.template(
        cluster, BOOKIE, spec, container, data=data, volumes=[of_pods.tmp_volume(), *volumes]
    )
    return _stateful_set(cluster, BOOKIE, replicas, template, spec.storage, claims)


def etcd_services(cluster: Cluster) -> list[Object]:
    """The headless Service of etcd's members, also before they are ready, and one for clients."""
    client = {"name": "client", "port": ETCD_CLIENT_PORT, "targetPort": "client"}
    peer = {"name": "peer", "port": ETCD_PEER_PORT, "targetPort": "peer"}
    selector = cluster.selector(ETCD)
    # ServiceMonitors name a Service's port.
    health: list[Object] = []
    if cluster.etcd_has_tls:
        health.append({"name": "health", "port": ETCD_HEALTH_PORT, "targetPort": "health"})
    headless = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [client, peer, *health],
    }
    clients = {"selector": selector, "ports": [client]}
    client_name = f"{cluster.object_name(ETCD)}-client"
    for_clients = cluster.object(SERVICE, ETCD, client_name, spec=clients)
    for_clients["metadata"]["labels"][CLIENTS_ONLY] = "true"
    return [cluster.object(SERVICE, ETCD, spec=headless), for_clients]


def etcd_stateful_set(
    cluster: Cluster, claims: Sequence[Object] | None = None, trust: str = ""
) -> Object:
    """The StatefulSet of etcd; its members have fixed names, and their number never changes.

    `trust` is a digest of the trusted authorities: etcd reads them at its start only.
    """
    spec = cluster.spec.etcd
    volumes, mounts = security.files(cluster, ETCD)
    ports = {"client": ETCD_CLIENT_PORT, "peer": ETCD_PEER_PORT}
    if cluster.etcd_has_tls:
        ports["health"] = ETCD_HEALTH_PORT
    container: Object = {
        "name": ETCD,
        "image": cluster.etcd_image,
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "command": ["etcd"],
        "args": etcd_arguments.arguments(cluster),
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "env": [of_pods.field_variable("POD_NAME", "metadata.name")],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, *mounts],
        **of_pods.probes(
            "health" if cluster.etcd_has_tls else "client",
            live="/health?exclude=NOSPACE&serializable=true",
            ready="/health?serializable=false",
        ),
    }
    template = of_pods.template(cluster, ETCD, spec, container, data={}, volumes=volumes)
    if cluster.etcd_has_tls and trust:
        template["metadata"]["annotations"][security.TRUST_DIGEST] = trust
    return _stateful_set(cluster, ETCD, cluster.etcd_members, template, spec.storage, claims)


def claim(cluster: Cluster, component: str, live: Object, size: str) -> Object:
    """Our fields of a volume claim: its size, and its owner if the spec deletes volumes.

    The StatefulSet never owns it: deleting a StatefulSet by hand must not delete volumes.
    """
    metadata = live["metadata"]
    owned: Object = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "labels": cluster.selector(component),
    }
    if cluster.spec.storage_retention == "Delete":
        owned["ownerReferences"] = [{**cluster.owner_reference, "controller": False}]
    return {
        "apiVersion": PVC.api_version,
        "kind": PVC.kind,
        "metadata": owned,
        "spec": {"resources": {"requests": {"storage": size}}},
    }


def _stateful_set(
    cluster: Cluster,
    component: str,
    replicas: int,
    template: Object,
    storage: Storage,
    claims: Sequence[Object] | None,
) -> Object:
    name = cluster.object_name(component)
    default_claims = [of_pods.volume_claim(cluster, component, storage)]
    stateful_set = cluster.object(
        STATEFUL_SET,
        component,
        spec={
            "serviceName": name,
            "replicas": replicas,
            # Pods do not wait for each other, so that a full restart is quick.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": cluster.selector(component)},
            "template": template,
            "volumeClaimTemplates": default_claims if claims is None else list(claims),
        },
    )
    stateful_set["metadata"]["annotations"] = {REPLICAS_SET: str(replicas)}
    return stateful_set
