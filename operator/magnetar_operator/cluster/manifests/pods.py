"""What the pods of all components have in common: security, placement, environment, probes.

Secure by default: a number instead of root, nothing writable but the volumes, no capability, no
token of Kubernetes. Settings come as environment from a ConfigMap, whose digest is an annotation
of the pods, so that other settings are other pods.
"""

from collections.abc import Mapping
from typing import Any, Final

from magnetar_operator.api_kinds import CONFIG_MAP, SERVICE_ACCOUNT, Object
from magnetar_operator.cluster.manifests.naming import CONFIG_CHECKSUM, Cluster, digest
from magnetar_operator.cluster.observed import STARTUP_S_MAX
from magnetar_operator.models.pods import Pods, Resources, Storage
from magnetar_operator.models.values import seconds

USER_ID: Final = 10_000
TMP_SIZE: Final = "64Mi"
STOP_RESERVE_S: Final = 2
"""Of the grace period that a process does not plan with."""

METADATA_ROOT: Final = "MAGNETAR_METADATA_ROOT"
METADATA_SETTINGS: Final = (
    METADATA_ROOT,
    "MAGNETAR_METADATA_USERNAME",
    "MAGNETAR_METADATA_PASSWORD_FILE",
    "MAGNETAR_METADATA_TLS_CA_FILE",
    "MAGNETAR_METADATA_TLS_CERT_FILE",
    "MAGNETAR_METADATA_TLS_KEY_FILE",
)
"""What a process needs besides the URL to read the cluster's metadata."""
STARTUP_PERIOD_S: Final = 2
"""Between two startup probes."""

SAME_NODE: Final = "kubernetes.io/hostname"


def settings_data(*configs: Mapping[str, object]) -> dict[str, str]:
    """Settings as environment: ours behind MAGNETAR_, Pulsar's behind PULSAR_PREFIX_."""
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
    """Where and as which user a component with that `config` reads metadata, beside the URL."""
    given = settings_data(config)
    found: dict[str, str] = {name: given[name] for name in METADATA_SETTINGS if name in given}
    external = cluster.spec.etcd.external
    if external is not None and external.prefix is not None:
        found[METADATA_ROOT] = external.prefix
    return found


def config_map(cluster: Cluster, component: str, data: Mapping[str, str]) -> Object:
    """The component's settings."""
    return cluster.object(CONFIG_MAP, component, data=dict(data))


def service_account(cluster: Cluster, component: str) -> Object:
    """An account that may do nothing."""
    return cluster.object(SERVICE_ACCOUNT, component, automountServiceAccountToken=False)


def template(
    cluster: Cluster,
    component: str,
    pods: Pods,
    container: Object,
    *,
    data: Mapping[str, str],
    volumes: list[Object],
) -> Object:
    """A pod template around the one container."""
    spec: Object = {
        "serviceAccountName": cluster.object_name(component),
        "automountServiceAccountToken": False,
        # Variables such as MAGNETAR_BROKER_PORT, of a Service of that name, are no settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s(pods),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_secured(container, pods)],
        "volumes": volumes,
        **_placement(cluster, component, pods),
    }
    if cluster.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": one.name} for one in cluster.spec.image_pull_secrets]
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
) -> Object:
    """Of one of our own processes; `ports` has `http`."""
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
            {"name": "MAGNETAR_LOG_FORMAT", "value": "json"},
            {"name": "MAGNETAR_HOST", "value": "0.0.0.0"},  # noqa: S104  a pod's own network
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],  # noqa: S108
        **probes("http", live="/healthz", ready="/readyz"),
    }


def _shared_metadata(cluster: Cluster) -> list[Object]:
    """Tells the cluster from others in the same external etcd."""
    external = cluster.spec.etcd.external
    if external is None:
        return []
    owner = f"{cluster.namespace}/{cluster.name}"
    found: list[Object] = [{"name": "MAGNETAR_CLUSTER_OWNER", "value": owner}]
    if external.prefix is not None:
        found.append({"name": METADATA_ROOT, "value": external.prefix})
    return found


def field_variable(name: str, path: str) -> Object:
    """An environment variable that says something of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def tmp_volume() -> Object:
    return {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}}


def probes(port: str, *, live: str, ready: str) -> Object:
    """Over HTTP: a start may take five minutes (a journal is replayed), a hang is ended in one."""

    def probe(path: str, failures: int, period_s: int, timeout_s: int) -> Object:
        return {
            "httpGet": {"path": path, "port": port},
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
    """How long a pod may take to stop."""
    return max(1, round(seconds(pods.grace_period)))


def shutdown_ms(pods: Pods, pause_s: int = 0) -> str:
    """How long its process may take: what is left of the grace period after the pause."""
    return str(max(1, grace_s(pods) - pause_s - STOP_RESERVE_S) * 1_000)


def resources(given: Resources) -> Object:
    """As a container has them."""
    found: Object = {}
    if given.requests:
        found["requests"] = {key: str(value) for key, value in given.requests.items()}
    if given.limits:
        found["limits"] = {key: str(value) for key, value in given.limits.items()}
    return found


def volume_claim(cluster: Cluster, component: str, storage: Storage) -> Object:
    """The template of each pod's volume."""
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
    for one in pods.extra_env:
        given: Object = {"name": one.name}
        if one.value is not None:
            given["value"] = one.value
        if one.value_from is not None:
            given["valueFrom"] = one.value_from
        environment = [each for each in environment if each["name"] != one.name] + [given]
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
    found: Object = {}
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
        found["affinity"] = pods.affinity
    elif anti:
        found["affinity"] = {"podAntiAffinity": anti}
    if pods.node_selector:
        found["nodeSelector"] = dict(pods.node_selector)
    if pods.tolerations:
        found["tolerations"] = list(pods.tolerations)
    if pods.topology_spread_constraints:
        default = {"labelSelector": {"matchLabels": cluster.selector(component)}}
        found["topologySpreadConstraints"] = [
            {**default, **one} for one in pods.topology_spread_constraints
        ]
    if pods.priority_class_name is not None:
        found["priorityClassName"] = pods.priority_class_name
    return found
