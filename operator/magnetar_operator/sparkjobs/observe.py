"""Observes a SparkJob: its cluster, Jobs, pods, schedule and rights."""

import asyncio
from collections.abc import Sequence

import msgspec

from magnetar_operator.cluster.manifests.names import cluster_of
from magnetar_operator.kube.client import Forbidden, KubeClient
from magnetar_operator.kube.kinds import (
    BATCH_JOB,
    CLUSTER,
    CRON_JOB,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Object,
)
from magnetar_operator.models.base import condition_of
from magnetar_operator.models.sparkjob import SparkJobSpec
from magnetar_operator.settings import Settings
from magnetar_operator.sparkjobs.desired import JOB_LABEL, Job, Place, place_in
from magnetar_operator.sparkjobs.plan import Observed, Problem

RIGHTS = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
"""The kinds that the operator creates for the drivers of a SparkJob."""
NO_CLUSTER = "WaitingForCluster"


async def find_place(
    kube: KubeClient, settings: Settings, namespace: str, spec: SparkJobSpec
) -> tuple[Place | None, Problem | None]:
    """The cluster of a SparkJob in the namespace, or the reason why there is none."""
    reference = spec.cluster_ref
    wanted = (reference.namespace if reference else None) or namespace
    try:
        if reference is not None:
            cluster = await kube.find(CLUSTER, reference.name, wanted)
            clusters = [cluster] if cluster is not None else []
            missing = (
                f"there is no MagnetarCluster {wanted}/{reference.name}: create it, or correct "
                "spec.clusterRef"
            )
        else:
            clusters = await kube.list(CLUSTER, wanted)
            missing = (
                f"there is no MagnetarCluster in namespace {wanted}: create one, or name one in "
                "spec.clusterRef"
            )
    except Forbidden as error:
        text = f"spec.clusterRef: the operator may not read namespace {wanted}: {error.message}"
        return None, Problem("InvalidSpec", text)
    clusters = [obj for obj in clusters if "deletionTimestamp" not in obj["metadata"]]
    if not clusters:
        return None, Problem(NO_CLUSTER, missing)
    if len(clusters) > 1:
        names = ", ".join(sorted(obj["metadata"]["name"] for obj in clusters))
        text = f"there are several MagnetarClusters in namespace {wanted} ({names}): name "
        return None, Problem("InvalidSpec", f"{text}one in spec.clusterRef")
    return _place_of(clusters[0], settings)


def _place_of(obj: Object, settings: Settings) -> tuple[Place | None, Problem | None]:
    try:
        cluster = cluster_of(obj, settings)
    except msgspec.ValidationError as error:
        name = obj["metadata"]["name"]
        return None, Problem(NO_CLUSTER, f"MagnetarCluster {name}: spec: {error}")
    is_ready = condition_of(obj.get("status") or {}, "EtcdReady").get("status") == "True"
    return place_in(cluster, is_ready=is_ready), None


async def observe(kube: KubeClient, job: Job) -> Observed:
    """Reads the objects of the SparkJob. Raises KubeError."""
    labels = {JOB_LABEL: job.name}
    jobs, pods, cron = await asyncio.gather(
        kube.list(BATCH_JOB, job.namespace, labels=labels),
        kube.list(POD, job.namespace, labels=labels),
        _cron(kube, job),
    )
    kinds = RIGHTS if job.spec.service_account_name is None else ()
    rights: Sequence[Object | None] = await asyncio.gather(
        *(kube.find(kind, job.rights_name, job.namespace) for kind in kinds)
    )
    owners = {job.uid, *([cron["metadata"]["uid"]] if cron is not None else ())}
    return Observed(
        cron=cron,
        jobs=[obj for obj in jobs if _controller(obj) in owners],
        pods=pods,
        rights={kind.kind: obj for kind, obj in zip(kinds, rights, strict=True) if obj is not None},
    )


async def _cron(kube: KubeClient, job: Job) -> Object | None:
    if job.spec.schedule is None:
        return None
    return await kube.find(CRON_JOB, job.name, job.namespace)


def _controller(obj: Object) -> str:
    """The uid of the object's controller; empty if it has none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return str(next((owner["uid"] for owner in owners if owner.get("controller")), ""))
