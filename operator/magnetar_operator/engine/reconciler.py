"""The one reconciliation engine: observe, plan, act, status, for every kind.

The steps of a reconcile, in the order of `Reconciler.reconcile`:

1. `read`     reads the object; if it is being deleted, `finalize` ends the reconcile;
2. `resolve`  parses the spec and resolves the references; `prepare` writes the finalizer;
3. `observe`  reads the present state, and changes nothing;
4. `plan`     compares both states and returns the actions (pure: no IO);
5. `act`      carries the actions out (`engine.executor`), unless the object is paused or only the
              plan is requested;
6. `report`   returns the new status and records Events; `engine.status` writes a changed status.

A reconcile may be cancelled at any await: the next one starts from what exists then. If an action
shows that the observation was out of date (`Outcome.stale`), the reconcile observes once more.

kopf's handlers do not run these steps: kopf writes its progress, its finalizer and its results into
the object as annotations and merge patches that no lease guards, so an operator that has lost its
lease could still write (`test_lease.py`, and the two operators of `test_operator_process.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

from magnetar_operator.engine.annotations import annotated
from magnetar_operator.engine.plan import Outcome, Plan
from magnetar_operator.engine.status import ObjectChanged, ObjectGone, StatusWriter
from magnetar_operator.kube.client import Conflict, KubeClient, NotFound
from magnetar_operator.kube.kinds import Object, kind_of
from magnetar_operator.settings import FINALIZER

OBSERVATIONS_MAX: Final = 2
"""The most observations of one reconcile."""
CHANGED_S: Final = 0.5
"""Until the next reconcile of an object that changed during this one."""

SubjectT = TypeVar("SubjectT")
ObservedT = TypeVar("ObservedT")
PlanT = TypeVar("PlanT", bound=Plan[Any])


class Mode(Enum):
    """Whether a reconcile carries its plan out."""

    ACT = auto()
    PLAN_ONLY = auto()
    """The status shows the plan (`magnetar.io/plan`)."""
    PAUSED = auto()
    """Nothing is changed (`magnetar.io/paused`)."""


@dataclass(slots=True)
class Attempt(Generic[SubjectT, ObservedT, PlanT]):
    """The results of the steps of one reconcile."""

    mode: Mode
    subject: SubjectT
    observed: ObservedT
    plan: PlanT
    outcome: Outcome[Any]

    @property
    def acted(self) -> bool:
        """Whether the plan had actions and was carried out."""
        return self.mode is Mode.ACT and bool(self.plan.actions)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a reconcile."""

    status: Mapping[str, Any]
    """All of the new status, except `lastReconciled`."""
    requeue_s: float | None = None
    """Seconds until the next reconcile; None: the resync interval."""
    error: Exception | None = None
    """Raised after the status is written, so that the queue retries with back-off."""


class Stopped(Exception):
    """Ends a reconcile before it observes: the object cannot be reconciled now."""

    def __init__(self, report: Report | None = None) -> None:
        super().__init__()
        self.report = report
        """None: the status stays as it is."""


class Reconciler(ABC, Generic[SubjectT, ObservedT, PlanT]):
    """Reconciles the objects of one kind, or of several similar kinds, in six steps."""

    def __init__(self, kube: KubeClient, statuses: StatusWriter) -> None:
        self.kube = kube
        self.statuses = statuses

    async def reconcile(self, seen: Object) -> float | None:
        """Runs all steps for the object that a watch last reported (a `queue.Reconcile`)."""
        try:
            obj = await self.read(seen)
            if obj is None:
                return None
            if "deletionTimestamp" in obj["metadata"]:
                return await self.finalize(obj)
            report = await self.run(obj)
            if report is None:
                return None
            await self.write(obj, report)
        except ObjectGone:
            return None  # a watch reports the deletion, too
        except ObjectChanged:
            return CHANGED_S
        if report.error is not None:
            raise report.error
        return report.requeue_s

    async def write(self, obj: Object, report: Report) -> None:
        """Writes the status if it has changed."""
        written = await self.statuses.write(obj, self.status_of(obj), report.status)
        if written is not None:
            self.wrote(written)

    async def run(self, obj: Object) -> Report | None:
        """Runs all steps after `read`; None if the status must not change."""
        try:
            subject = await self.resolve(obj)
        except Stopped as stopped:
            return stopped.report
        try:
            return await self._run(subject, self.mode(subject, obj))
        except Exception as error:
            report = self.failed(subject, error)
            if report is None:
                raise
            return report

    async def _run(self, subject: SubjectT, mode: Mode) -> Report:
        if mode is Mode.ACT:
            await self.prepare(subject)
        for _ in range(OBSERVATIONS_MAX):
            observed = await self.observe(subject)
            plan = self.plan(subject, observed)
            attempt = Attempt(mode, subject, observed, plan, Outcome())
            if attempt.acted:
                attempt.outcome = await self.act(subject, observed, plan)
            if attempt.outcome.stale is None:
                break
        return await self.report(attempt)

    async def read(self, seen: Object) -> Object | None:
        """Reads the object; None if it was deleted or a newer object has its name.

        The watch may be behind our own writes, and would show an old status.
        """
        metadata = seen["metadata"]
        try:
            obj = await self.kube.get(kind_of(seen), metadata["name"], metadata["namespace"])
        except NotFound:
            return None
        return obj if obj["metadata"]["uid"] == metadata["uid"] else None

    async def finalize(self, obj: Object) -> float | None:  # noqa: ARG002
        """Cleans up for an object that is being deleted. By default only Kubernetes does."""
        return None

    def mode(self, subject: SubjectT, obj: Object) -> Mode:  # noqa: ARG002
        """The mode that the annotations request; a kind may have a field for it, too."""
        if annotated(obj, "paused"):
            return Mode.PAUSED
        return Mode.PLAN_ONLY if annotated(obj, "plan") else Mode.ACT

    def status_of(self, obj: Object) -> Mapping[str, Any]:
        """The stored status."""
        return obj.get("status") or {}

    def wrote(self, obj: Object) -> None:
        """Called after the status was written; `obj` is the object as stored."""

    async def prepare(self, subject: SubjectT) -> None:
        """Writes the fields that must exist before any action (a finalizer)."""

    def failed(self, subject: SubjectT, error: Exception) -> Report | None:  # noqa: ARG002
        """The report after a step has failed; None: the queue retries the reconcile."""
        return None

    @abstractmethod
    async def resolve(self, obj: Object) -> SubjectT:
        """Parses the spec and resolves its references. Raises Stopped if that is impossible."""

    @abstractmethod
    async def observe(self, subject: SubjectT) -> ObservedT:
        """Reads the present state."""

    @abstractmethod
    def plan(self, subject: SubjectT, observed: ObservedT) -> PlanT:
        """Returns the actions, in order. Pure: no IO."""

    @abstractmethod
    async def act(self, subject: SubjectT, observed: ObservedT, plan: PlanT) -> Outcome[Any]:
        """Carries the actions out."""

    @abstractmethod
    async def report(self, attempt: Attempt[SubjectT, ObservedT, PlanT]) -> Report:
        """Returns the new status, and records Events."""


async def set_finalizer(kube: KubeClient, obj: Object, *, wanted: bool) -> Object:
    """Adds or removes our finalizer in exactly this version of the object.

    Returns the object as stored. Raises ObjectChanged and ObjectGone.
    """
    metadata = obj["metadata"]
    finalizers = metadata.get("finalizers") or ()
    if (FINALIZER in finalizers) == wanted:
        return obj
    others = [name for name in finalizers if name != FINALIZER]
    body = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "finalizers": [*others, FINALIZER] if wanted else others,
        }
    }
    try:
        after = await kube.merge(kind_of(obj), metadata["namespace"], metadata["name"], body)
    except Conflict as error:
        raise ObjectChanged(str(error)) from error
    except NotFound as error:
        raise ObjectGone(str(error)) from error
    return {**after, "apiVersion": obj["apiVersion"], "kind": obj["kind"]}
