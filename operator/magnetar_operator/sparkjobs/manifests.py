"""Builds a SparkJob's objects: a Job per run, a CronJob for a schedule, rights of drivers. Pure.

The driver is the Job's pod. Spark creates executors from a template that is an annotation of the
driver's pod and is mounted as a file, so a run keeps the settings that it was started with. All
pods are as restricted as those of the cluster: a numeric user that is not root, only empty volumes
are writable, no capability. Only drivers have a Kubernetes token, with the role
`rbac.DRIVER_RIGHTS`.
"""

import json
from typing import Any, Final

from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import sealed
from magnetar_operator.cluster.manifests.offload import offload_volume, store_environment
from magnetar_operator.cluster.manifests.pods import field_variable, pod_security
from magnetar_operator.kube.kinds import (
    BATCH_JOB,
    CRON_JOB,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Object,
)
from magnetar_operator.kube.rbac import DRIVER_RIGHTS
from magnetar_operator.models.sparkjob import STARTING_DEADLINE_S_MIN, Process
from magnetar_operator.models.values import seconds
from magnetar_operator.security.wanted import TOKEN
from magnetar_operator.sparkjobs import submit
from magnetar_operator.sparkjobs.desired import DRIVER, EXECUTOR, RUN, SPEC_DIGEST, Job, Place

TEMPLATE: Final = "magnetar.io/executor-template"
RBAC_GROUP: Final = "rbac.authorization.k8s.io"
GRACE_S: Final = 30
EXIT_BAD_ARGUMENTS: Final = 2
TMP: Final = "/tmp"  # noqa: S108  a volume of the pod's own


def rights(job: Job) -> list[Object]:
    """The drivers' ServiceAccount, Role and RoleBinding; none if the spec names an account."""
    if job.spec.service_account_name is not None:
        return []
    name = job.rights_name
    subject = {"kind": SERVICE_ACCOUNT.kind, "name": name, "namespace": job.namespace}
    reference = {"apiGroup": RBAC_GROUP, "kind": ROLE.kind, "name": name}
    return [
        sealed(manifest)
        for manifest in (
            job.object(SERVICE_ACCOUNT, name, automountServiceAccountToken=False),
            job.object(ROLE, name, rules=[dict(rule) for rule in DRIVER_RIGHTS]),
            job.object(ROLE_BINDING, name, roleRef=reference, subjects=[subject]),
        )
    ]


def run(job: Job, place: Place, request: str, cron: Object | None) -> Object:
    """The Job of a run. With a schedule, the CronJob owns it and counts it among its own."""
    manifest = job.object(BATCH_JOB, job.run_name(request), spec=job_spec(job, place))
    annotations = {SPEC_DIGEST: job.spec_digest, RUN: request}
    if cron is not None:
        annotations["cronjob.kubernetes.io/instantiate"] = "manual"
        metadata = cron["metadata"]
        manifest["metadata"]["ownerReferences"] = [
            {
                "apiVersion": CRON_JOB.api_version,
                "kind": CRON_JOB.kind,
                "name": metadata["name"],
                "uid": metadata["uid"],
                "controller": True,
            }
        ]
    manifest["metadata"]["annotations"] = annotations
    return manifest


def cron_job(job: Job, place: Place) -> Object:
    """The CronJob of a schedule. Its limits exceed the history, which the operator trims.

    Raises submit.BadSpec.
    """
    spec = job.spec
    content: dict[str, Any] = {
        "schedule": spec.schedule,
        "concurrencyPolicy": spec.concurrency_policy,
        "suspend": spec.suspend,
        "successfulJobsHistoryLimit": max(1, spec.history_limit),
        "failedJobsHistoryLimit": max(1, spec.history_limit),
        "jobTemplate": {
            "metadata": {"labels": job.labels, "annotations": {SPEC_DIGEST: job.spec_digest}},
            "spec": job_spec(job, place),
        },
    }
    if spec.time_zone is not None:
        content["timeZone"] = spec.time_zone
    if spec.starting_deadline is not None:
        content["startingDeadlineSeconds"] = _deadline_s(spec.starting_deadline)
    return sealed(job.object(CRON_JOB, job.name, spec=content))


def _deadline_s(written: int | str) -> int:
    """The deadline of a schedule; an older release may have stored one that is too short."""
    deadline_s = round(seconds(written))
    if deadline_s < STARTING_DEADLINE_S_MIN:
        raise submit.BadSpec(
            f"spec.startingDeadline: {written} is too short: Kubernetes may never start a run; it "
            f"must be {STARTING_DEADLINE_S_MIN} s or more"
        )
    return deadline_s


def job_spec(job: Job, place: Place) -> Object:
    """The spec of a Kubernetes Job. Raises submit.BadSpec."""
    rules = [
        # A pod that was evicted, or lost with its node, is not a failure of the job.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {
                "containerName": DRIVER, "operator": "In", "values": [EXIT_BAD_ARGUMENTS]
            },
        },
    ]  # fmt: skip
    return {
        "backoffLimit": job.spec.retries.backoff_limit,
        "activeDeadlineSeconds": max(1, round(seconds(job.spec.timeout))),
        "podFailurePolicy": {"rules": rules},
        "template": _driver(job, place),
    }


def _driver(job: Job, place: Place) -> Object:
    spec = job.spec
    memory = f"{submit.memory_mib(spec.driver)}Mi"
    cpu = str(spec.driver.cpu_request if spec.driver.cpu_request is not None else spec.driver.cores)
    container = {
        **_container(job, place, DRIVER),
        "image": job.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["/opt/spark-entry"],
        "args": submit.arguments(job, place),
        "ports": [
            {"name": "driver", "containerPort": submit.DRIVER_PORT},
            {"name": "blocks", "containerPort": submit.BLOCKS_PORT},
            {"name": "spark-ui", "containerPort": submit.UI_PORT},
        ],
        "resources": {
            "requests": {"cpu": cpu, "memory": memory},
            "limits": {"memory": memory},
        },
        "terminationMessagePath": submit.TERMINATION_MESSAGE,
        # If the job left no termination message, Spark's own output explains its end.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    container["env"] = [
        field_variable("POD_NAME", "metadata.name"),
        field_variable("SPARK_DRIVER_BIND_ADDRESS", "status.podIP"),
        *container["env"],
    ]
    items = [
        {
            "path": submit.TEMPLATE_FILE.rpartition("/")[2],
            "fieldRef": {
                "apiVersion": "v1", "fieldPath": f"metadata.annotations['{TEMPLATE}']"
            },
        }
    ]  # fmt: skip
    volumes: list[Object] = [{"name": "template", "downwardAPI": {"items": items}}]
    mounts: list[Object] = [
        {"name": "template", "mountPath": submit.TEMPLATE_FILE.rpartition("/")[0]}
    ]
    if spec.event_log_claim is not None:
        volumes.append(_claim("events", spec.event_log_claim.name))
        mounts.append({"name": "events", "mountPath": submit.EVENT_LOG_DIR})
    container["volumeMounts"] += mounts
    pod = _pod(job, place, spec.driver, container)
    pod["spec"]["volumes"] += volumes
    pod["spec"] |= {
        "serviceAccountName": job.account,
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
    }
    pod["metadata"] = {
        "labels": job.pod_labels(DRIVER),
        "annotations": {TEMPLATE: json.dumps(_executor(job, place), sort_keys=True)},
    }
    return pod


def _executor(job: Job, place: Place) -> Object:
    """The pod template of executors; Spark adds image, command, resources and labels."""
    container = _container(job, place, EXECUTOR)
    container["name"] = submit.EXECUTOR_CONTAINER
    pod = _pod(job, place, job.spec.executor, container)
    pod["spec"]["automountServiceAccountToken"] = False
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _container(job: Job, place: Place, role: str) -> Object:
    mounts: list[Object] = [{"name": "tmp", "mountPath": TMP}]
    environment = [
        {"name": "HOME", "value": TMP},
        {"name": "MAGNETAR_METADATA_URL", "value": place.metadata_url},
        *({"name": name, "value": value} for name, value in sorted(place.metadata.items())),
    ]
    credentials = job.spec.credentials
    if place.offload is not None:
        environment += store_environment(place.offload)
        if place.namespace == job.namespace:
            credentials = credentials or place.offload.credentials
            mounts += offload_volume(place.offload)[1]
    if place.tls_secret:
        environment += [
            {"name": name, "value": value} for name, value in security.job_settings().items()
        ]
        mounts.append({"name": "tls-client", "mountPath": security.CLIENT_DIR, "readOnly": True})
    if place.token_secret:
        variables = security.job_token_settings()
        environment += [{"name": name, "value": value} for name, value in variables.items()]
        mounts.append({"name": "token", "mountPath": security.TOKEN_DIR, "readOnly": True})
    container: Object = {
        "name": role,
        "workingDir": TMP,
        "env": environment,
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if credentials is not None:
        container["envFrom"] = [{"secretRef": {"name": credentials.name}}]
    return container


def _pod(job: Job, place: Place, process: Process, container: Object) -> Object:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    same_namespace = place.namespace == job.namespace
    if place.offload is not None and same_namespace:
        volumes += offload_volume(place.offload)[0]
    if (place.tls_secret or place.token_secret) and not same_namespace:
        raise submit.BadSpec(
            f"spec.clusterRef: MagnetarCluster {place.namespace}/{place.name} is closed, and its "
            f"certificate and token for jobs are in namespace {place.namespace}: create the "
            "SparkJob there"
        )
    if place.tls_secret:
        source: Object = {"secretName": place.tls_secret, "defaultMode": security.FILE_MODE}
        volumes.append({"name": "tls-client", "secret": source})
    if place.token_secret:
        items = [{"key": TOKEN, "path": "token"}]
        source = {
            "secretName": place.token_secret, "defaultMode": security.FILE_MODE, "items": items
        }  # fmt: skip
        volumes.append({"name": "token", "secret": source})
    secrets = [secret.name for secret in job.spec.image_pull_secrets]
    if not secrets and same_namespace:
        secrets = list(place.image_pull_secrets)
    spec: Object = {
        # Kubernetes' variables for Services (MAGNETAR_BROKER_PORT) would be read as settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes,
    }
    if process.node_selector:
        spec["nodeSelector"] = dict(process.node_selector)
    if process.tolerations:
        spec["tolerations"] = list(process.tolerations)
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    return {"spec": spec}


def _claim(name: str, claim: str) -> Object:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
