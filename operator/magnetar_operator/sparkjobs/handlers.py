"""SparkJob: observe, plan, act, tell. Thin: whatever is decided is decided in `plan`.

A look may be broken off anywhere: the next one begins with what is there. Nothing is done when a
SparkJob is deleted: what it owns is collected by Kubernetes, and there is no finalizer.
"""

import asyncio
from typing import assert_never

import msgspec

from magnetar_operator.api_kinds import (
    BATCH_JOB,
    CLUSTER,
    CRON_JOB,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    SPARK_JOB,
    Object,
)
from magnetar_operator.clock import SYSTEM, Clock, utc
from magnetar_operator.cluster.handlers import cluster_of
from magnetar_operator.context import Context
from magnetar_operator.events import Events
from magnetar_operator.kube import (
    Conflict,
    Forbidden,
    Invalid,
    KubeClient,
    KubeError,
    NotFound,
    Unreachable,
)
from magnetar_operator.leading import NotLeading
from magnetar_operator.models.sparkjob import SparkJobSpec
from magnetar_operator.resources.annotations import annotated
from magnetar_operator.resources.resource_status import (
    condition_of,
    is_worth_writing,
    timestamp,
)
from magnetar_operator.settings import Settings
from magnetar_operator.sparkjobs import figures
from magnetar_operator.sparkjobs.plan import (
    SOON_S,
    Action,
    Apply,
    Observed,
    Plan,
    Problem,
    Remove,
    Start,
    Suspend,
    plan,
)
from magnetar_operator.sparkjobs.runs import ENDED
from magnetar_operator.sparkjobs.status import Seen, status
from magnetar_operator.sparkjobs.wanted import JOB_LABEL, Job, Place, place_in

RIGHTS = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
NOT_THERE = "WaitingForCluster"


class SparkJobHandler:
    """See the module's text."""

    def __init__(
        self, settings: Settings, kube: KubeClient, events: Events, clock: Clock = SYSTEM
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._events = events
        self._clock = clock

    async def reconcile(self, seen: Object) -> float | None:
        """One look; after how many seconds the next is wanted."""
        metadata = seen["metadata"]
        if "deletionTimestamp" in metadata:
            return None
        try:
            # What a watch saw may be older than what we wrote: its status is compared with ours.
            owner = await self._kube.get(SPARK_JOB, metadata["name"], metadata["namespace"])
        except NotFound:
            return None
        if owner["metadata"]["uid"] != metadata["uid"] or "deletionTimestamp" in owner["metadata"]:
            return None
        try:
            spec = SparkJobSpec.parse(owner.get("spec") or {})
        except msgspec.ValidationError as error:
            await self._events.tell(owner, "Invalid", f"spec: {error}", type="Warning")
            return None
        return await self._look(owner, spec)

    async def _look(self, owner: Object, spec: SparkJobSpec) -> float | None:
        place, absent = await self._place(owner, spec)
        metadata = owner["metadata"]
        job = Job(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            spec=spec,
            image=spec.image or self._settings.spark_image,
            place=place,
        )
        observed = await self._observe(job)
        found = plan(job, owner, observed, absent)
        is_plan_only = annotated(owner, "plan")
        failed: list[KubeError] = []
        acts = bool(found.actions) and not is_plan_only and not annotated(owner, "paused")
        if acts:
            failed = await self._act(owner, found)
        elif any(isinstance(one, Start) for one in found.actions):
            found.request = (owner.get("status") or {}).get("lastRequest")
        told = status(job, owner, observed, found, utc(self._clock), is_plan_only=is_plan_only)
        await self._tell(owner, told)
        if failed:
            raise failed[0]
        return SOON_S if acts else found.again_s

    # -- looking ---------------------------------------------------------------------------------

    async def _place(
        self, owner: Object, spec: SparkJobSpec
    ) -> tuple[Place | None, Problem | None]:
        """The cluster, or why there is none."""
        own = owner["metadata"]["namespace"]
        reference = spec.cluster_ref
        namespace = (reference.namespace if reference else None) or own
        try:
            if reference is not None:
                one = await self._kube.find(CLUSTER, reference.name, namespace)
                found = [one] if one is not None else []
                missing = f"there is no MagnetarCluster {namespace}/{reference.name}: create it, or"
                missing += " correct spec.clusterRef"
            else:
                found = await self._kube.list(CLUSTER, namespace)
                missing = f"there is no MagnetarCluster in namespace {namespace}: create one, or"
                missing += " name one in spec.clusterRef"
        except Forbidden as error:
            text = f"spec.clusterRef: the operator may not look into {namespace}: {error.message}"
            return None, Problem("InvalidSpec", text)
        found = [one for one in found if "deletionTimestamp" not in one["metadata"]]
        if not found:
            return None, Problem(NOT_THERE, missing)
        if len(found) > 1:
            names = ", ".join(sorted(one["metadata"]["name"] for one in found))
            text = f"there are several MagnetarClusters in namespace {namespace} ({names}): name "
            return None, Problem("InvalidSpec", f"{text}one in spec.clusterRef")
        return self._place_of(found[0])

    def _place_of(self, one: Object) -> tuple[Place | None, Problem | None]:
        try:
            cluster = cluster_of(one, self._settings)
        except msgspec.ValidationError as error:
            name = one["metadata"]["name"]
            return None, Problem(NOT_THERE, f"MagnetarCluster {name}: spec: {error}")
        ready = condition_of(one.get("status") or {}, "EtcdReady").get("status") == "True"
        return place_in(cluster, is_ready=ready), None

    async def _observe(self, job: Job) -> Observed:
        labels = {JOB_LABEL: job.name}
        jobs, pods, cron = await asyncio.gather(
            self._kube.list(BATCH_JOB, job.namespace, labels=labels),
            self._kube.list(POD, job.namespace, labels=labels),
            self._cron(job),
        )
        wanted = RIGHTS if job.spec.service_account_name is None else ()
        rights = await asyncio.gather(
            *(self._kube.find(kind, job.rights_name, job.namespace) for kind in wanted)
        )
        owners = {job.uid, *([cron["metadata"]["uid"]] if cron is not None else ())}
        return Observed(
            cron=cron,
            jobs=[one for one in jobs if _owner(one) in owners],
            pods=pods,
            rights={
                kind.kind: one for kind, one in zip(wanted, rights, strict=True) if one is not None
            },
        )

    async def _cron(self, job: Job) -> Object | None:
        if job.spec.schedule is None:
            return None
        return await self._kube.find(CRON_JOB, job.name, job.namespace)

    # -- acting ----------------------------------------------------------------------------------

    async def _act(self, owner: Object, found: Plan) -> list[KubeError]:
        """All of them, in order; what could not be done. Raises KubeError where nothing can be."""
        failed: list[KubeError] = []
        before = (owner.get("status") or {}).get("lastRequest")
        for action in found.actions:
            if failed and isinstance(action, Start):
                found.request = before
                continue  # what it needs is not there
            try:
                await self._one(owner, action)
            except (Unreachable, NotLeading):
                raise
            except KubeError as error:
                failed.append(error)
                if isinstance(action, Start):
                    found.request = before
                reason = "InvalidSpec" if isinstance(error, Invalid) else "NotDone"
                found.problems.append(Problem(reason, str(error)))
                await self._events.tell(owner, "NotDone", str(error), type="Warning")
        return failed

    async def _one(self, owner: Object, action: Action) -> None:
        namespace = owner["metadata"]["namespace"]
        match action:
            case Apply():
                await self._kube.apply(action.manifest, before=action.before)
                if action.verb == "repair":
                    text = f"{action.step.target}: {action.text}"
                    await self._events.tell(owner, "DriftRepaired", text, type="Warning")
            case Suspend():
                await self._kube.merge(
                    CRON_JOB, namespace, action.name, {"spec": {"suspend": True}}
                )
                await self._events.tell(owner, "Suspended", action.text, type="Warning")
            case Start():
                try:
                    await self._kube.create(action.manifest)
                except Conflict:
                    return  # its name is the request's: it has been started
                text = f"{action.step.target}: {action.text}"
                await self._events.tell(owner, "RunStarted", text)
            case Remove():
                try:
                    await self._kube.delete(action.kind, action.name, namespace, uid=action.uid)
                except Conflict:
                    return  # another of that name by now: the next look decides
                await self._events.tell(owner, "Removed", f"{action.step.target}: {action.text}")
            case _:
                assert_never(action)

    # -- telling ---------------------------------------------------------------------------------

    async def _tell(self, owner: Object, told: Seen) -> None:
        """Events of runs that ended since, and the status where it says anything new."""
        before = dict(owner.get("status") or {})
        known = {one.get("name"): one.get("state") for one in before.get("runs") or ()}
        for run in told.runs:
            if run.state in ENDED and known.get(run.name) not in ENDED:
                await self._events.tell(
                    owner,
                    f"Run{run.state}",
                    f"{run.name}: {run.message}",
                    type="Normal" if run.state == "Succeeded" else "Warning",
                )
        if not is_worth_writing(before, told.status):
            return
        metadata = owner["metadata"]
        await self._kube.patch_status(
            SPARK_JOB,
            metadata["namespace"],
            metadata["name"],
            {**told.status, "lastReconciled": timestamp(utc(self._clock))},
            uid=metadata["uid"],
        )


def _owner(one: Object) -> str:
    owners = one["metadata"].get("ownerReferences") or ()
    return str(next((each["uid"] for each in owners if each.get("controller")), ""))


def register(context: Context) -> None:
    """Watches SparkJobs, and the Jobs and pods that they own."""
    handler = SparkJobHandler(context.settings, context.kube, context.events, context.clock)
    context.watch(SPARK_JOB, handler.reconcile)
    for kind in (BATCH_JOB, POD):
        context.watch_owned(kind, JOB_LABEL, SPARK_JOB)
    context.figures.append(lambda: figures.lines(context.work.all_of(SPARK_JOB.kind)))
