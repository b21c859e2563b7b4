"""Builds the parts that all components' pods share: security, placement, environment, probes.

Pods are restricted: a numeric user that is not root, only volumes are writable, no capability, no
Kubernetes token. Settings are environment variables from a ConfigMap, whose digest is an annotation
of the pods, so that new settings cause new pods.
"""

from collections.abc import Mapping
from typing import Any, Final

from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import CONFIG_CHECKSUM, Cluster, digest
from magnetar_operator.kube.kinds import CONFIG_MAP, SERVICE_ACCOUNT, Object
from magnetar_operator.models.pods import Pods, Resources, Storage
from magnetar_operator.models.values import seconds

USER_ID: Final = 10_000
TMP_SIZE: Final = "64Mi"
"""A bound, beyond which the pod is evicted."""
BROKER_TMP_SIZE: Final = "1Gi"
"""A broker's compaction sorts its keys there."""
STOP_RESERVE_S: Final = 2
"""The part of the grace period that a process must leave unused."""

METADATA_ROOT: Final = "MAGNETAR_METADATA_ROOT"
METADATA_SETTINGS: Final = (
    METADATA_ROOT,
    "MAGNETAR_METADATA_USERNAME",
    "MAGNETAR_METADATA_PASSWORD_FILE",
    "MAGNETAR_METADATA_TLS_CA_FILE",
    "MAGNETAR_METADATA_TLS_CERT_FILE",
    "MAGNETAR_METADATA_TLS_KEY_FILE",
)
"""The variables that locate the cluster's metadata, apart from the URL."""
STARTUP_S_MAX: Final = 300.0
"""The time that a pod may take to become ready."""
STARTUP_PERIOD_S: Final = 2
"""Seconds between two startup probes."""

SAME_NODE: Final = "kubernetes.io/hostname"


def settings_data(*configs: Mapping[str, object]) -> dict[str, str]:
    """Settings as environment variables: MAGNETAR_… for ours, PULSAR_PREFIX_… for Pulsar's."""
    data: dict[str, str] = {}
    for config in configs:
        for key, value in config.items():
            if key.startswith(("PULSAR_PREFIX_", "MAGNETAR_")):
                name = key
            elif key == key.lower():
                name = f"MAGNETAR_{key.upper()}"
            else:
                name = f"PULSAR_PREFIX_{key}"
            data[name] = str(value)
    return data


def metadata_settings(cluster: Cluster, config: Mapping[str, object]) -> dict[str, str]:
    """The variables that locate the metadata, apart from the URL, for a component's `config`."""
    data = settings_data(config)
    located = security.metadata_files(cluster)
    located |= {name: data[name] for name in METADATA_SETTINGS if name in data}
    external = cluster.spec.etcd.external
    if external is not None and external.prefix is not None:
        located[METADATA_ROOT] = external.prefix
    return located


def config_map(cluster: Cluster, component: str, data: Mapping[str, str]) -> Object:
    """The ConfigMap with the component's settings."""
    return cluster.object(CONFIG_MAP, component, data=dict(data))


def service_account(cluster: Cluster, component: str) -> Object:
    """A ServiceAccount without rights."""
    return cluster.object(SERVICE_ACCOUNT, component, automountServiceAccountToken=False)


def pod_security() -> Object:
    """The security context of every pod: a numeric user that is not root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def template(
    cluster: Cluster,
    component: str,
    pods: Pods,
    container: Object,
    *,
    data: Mapping[str, str],
    volumes: list[Object],
) -> Object:
    """A pod template with one container."""
    spec: Object = {
        "serviceAccountName": cluster.object_name(component),
        "automountServiceAccountToken": False,
        # Kubernetes' variables for Services (MAGNETAR_BROKER_PORT) would be read as settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s(pods),
        "securityContext": pod_security(),
        "containers": [_secured(container, pods)],
        "volumes": volumes,
        **_placement(cluster, component, pods),
    }
    if cluster.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [
            {"name": secret.name} for secret in cluster.spec.image_pull_secrets
        ]
    annotations = {**pods.pod_annotations, CONFIG_CHECKSUM: digest(dict(data))}
    metadata = {"labels": cluster.pod_labels(component), "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


def container(
    cluster: Cluster,
    component: str,
    role: str,
    *,
    ports: Mapping[str, int],
    environment: Mapping[str, str],
    mounts: list[Object],
    probed: str = "http",
    scheme: str = "HTTP",
) -> Object:
    """The container of one of our own processes; `probed` is the port of its health."""
    return {
        "name": component,
        "image": cluster.image,
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "args": [role],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "envFrom": [{"configMapRef": {"name": cluster.object_name(component)}}],
        "env": [
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_IP", "status.podIP"),
            {"name": "MAGNETAR_CLUSTER_NAME", "value": cluster.cluster_name},
            {"name": "MAGNETAR_METADATA_URL", "value": cluster.metadata_url},
            *_shared_metadata(cluster),
            *(
                {"name": name, "value": value}
                for name, value in security.metadata_files(cluster).items()
            ),
            {"name": "MAGNETAR_LOG_FORMAT", "value": "json"},
            {"name": "MAGNETAR_HOST", "value": "0.0.0.0"},  # noqa: S104  a pod's own network
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],  # noqa: S108
        **probes(probed, live="/healthz", ready="/readyz", scheme=scheme),
    }


def _shared_metadata(cluster: Cluster) -> list[Object]:
    """The variables of a cluster in an external etcd: its owner, and its path."""
    external = cluster.spec.etcd.external
    if external is None:
        return []
    owner = f"{cluster.namespace}/{cluster.name}"
    variables: list[Object] = [{"name": "MAGNETAR_CLUSTER_OWNER", "value": owner}]
    if external.prefix is not None:
        variables.append({"name": METADATA_ROOT, "value": external.prefix})
    return variables


def field_variable(name: str, path: str) -> Object:
    """An environment variable with the value of a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def tmp_volume(size: str = TMP_SIZE) -> Object:
    return {"name": "tmp", "emptyDir": {"sizeLimit": size}}


def probes(port: str, *, live: str, ready: str, scheme: str = "HTTP") -> Object:
    """HTTP probes: a start may take five minutes (journal replay), a hang is detected in one."""
    # The kubelet does not verify the certificate: it reaches pods by their addresses.
    secured = {"scheme": scheme} if scheme != "HTTP" else {}

    def probe(path: str, failures: int, period_s: int, timeout_s: int) -> Object:
        return {
            "httpGet": {"path": path, "port": port, **secured},
            "failureThreshold": failures,
            "periodSeconds": period_s,
            "timeoutSeconds": timeout_s,
        }

    return {
        "livenessProbe": probe(live, 6, 10, 5),
        "readinessProbe": probe(ready, 3, 2, 2),
        "startupProbe": probe(live, round(STARTUP_S_MAX / STARTUP_PERIOD_S), STARTUP_PERIOD_S, 2),
    }


def grace_s(pods: Pods) -> int:
    """The time that a pod may take to stop."""
    return max(1, round(seconds(pods.grace_period)))


def shutdown_ms(pods: Pods, pause_s: int = 0) -> str:
    """The time that the process may take to stop: the grace period without the pause."""
    return str(max(1, grace_s(pods) - pause_s - STOP_RESERVE_S) * 1_000)


def resources(spec: Resources) -> Object:
    """The resources of a container."""
    built: Object = {}
    if spec.requests:
        built["requests"] = {key: str(value) for key, value in spec.requests.items()}
    if spec.limits:
        built["limits"] = {key: str(value) for key, value in spec.limits.items()}
    return built


def volume_claim(cluster: Cluster, component: str, storage: Storage) -> Object:
    """The claim template of each pod's volume."""
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": cluster.selector(component)},
        "spec": spec,
    }


def _secured(container: Object, pods: Pods) -> Object:
    environment = [*container.get("env", ())]
    for variable in pods.extra_env:
        extra: Object = {"name": variable.name}
        if variable.value is not None:
            extra["value"] = variable.value
        if variable.value_from is not None:
            extra["valueFrom"] = variable.value_from
        environment = [item for item in environment if item["name"] != variable.name] + [extra]
    return {
        **container,
        "env": environment,
        "resources": resources(pods.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _placement(cluster: Cluster, component: str, pods: Pods) -> Object:
    placement: Object = {}
    term = {
        "topologyKey": SAME_NODE,
        "labelSelector": {"matchLabels": cluster.selector(component)},
    }
    anti: dict[str, Any] = {}
    if pods.anti_affinity == "Required":
        anti = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    elif pods.anti_affinity == "Preferred":
        weighted = {"weight": 100, "podAffinityTerm": term}
        anti = {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}
    if pods.affinity is not None:
        placement["affinity"] = pods.affinity
    elif anti:
        placement["affinity"] = {"podAntiAffinity": anti}
    if pods.node_selector:
        placement["nodeSelector"] = dict(pods.node_selector)
    if pods.tolerations:
        placement["tolerations"] = list(pods.tolerations)
    if pods.topology_spread_constraints:
        default = {"labelSelector": {"matchLabels": cluster.selector(component)}}
        placement["topologySpreadConstraints"] = [
            {**default, **constraint} for constraint in pods.topology_spread_constraints
        ]
    if pods.priority_class_name is not None:
        placement["priorityClassName"] = pods.priority_class_name
    return placement
