"""Reconciles MagnetarClusters; each step is in the module of its name.

The operator does nothing when a MagnetarCluster is deleted: Kubernetes deletes the objects that it
owns, volumes stay unless the spec says otherwise, and there is no finalizer that could hang.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar import __version__
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.clock import SYSTEM, Clock, utc
from magnetar_operator.cluster.act import ClusterExecutor
from magnetar_operator.cluster.manifests.names import BROKER, CLUSTER_LABEL, Cluster, cluster_of
from magnetar_operator.cluster.observe import Observer, admin_of
from magnetar_operator.cluster.observed import Observed
from magnetar_operator.cluster.plan import Plan, plan
from magnetar_operator.cluster.status import status
from magnetar_operator.engine.annotations import annotated
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.plan import Apply, Outcome
from magnetar_operator.engine.reconciler import Attempt, Mode, Reconciler, Report, Stopped
from magnetar_operator.engine.status import StatusWriter
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import CLUSTER, DEPLOYMENT, POD, STATEFUL_SET, Object
from magnetar_operator.security.issuer import SecretIssuer
from magnetar_operator.settings import Settings

AGAIN_AFTER_ACTING_S: Final = 1.0
"""Until the next reconcile after objects were created."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A MagnetarCluster and its parsed spec."""

    owner: Object
    cluster: Cluster


class ClusterReconciler(Reconciler[Subject, Observed, Plan]):
    """Reconciles MagnetarClusters through Kubernetes and the admin REST of their brokers."""

    def __init__(
        self,
        settings: Settings,
        kube: KubeClient,
        events: Events,
        clients: AdminClients,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(kube, StatusWriter(kube, lambda: utc(clock)))
        self._settings = settings
        self._clock = clock
        self._clients = clients
        self._observer = Observer(kube, clients, clock)
        self._events = events

    async def resolve(self, obj: Object) -> Subject:
        try:
            return Subject(obj, cluster_of(obj, self._settings))
        except msgspec.ValidationError as error:
            await self._events.record(obj, "Invalid", f"spec: {error}", type="Warning")
            raise Stopped from error

    def mode(self, subject: Subject, obj: Object) -> Mode:
        return Mode.PAUSED if subject.cluster.spec.paused else super().mode(subject, obj)

    async def observe(self, subject: Subject) -> Observed:
        return await self._observer.observe(subject.cluster)

    def plan(self, subject: Subject, observed: Observed) -> Plan:
        before = self.status_of(subject.owner)
        recorded = int(before.get("bookies", {}).get("desired", 0))
        scaled_up = str(before.get("scaledUp", ""))
        return plan(subject.cluster, observed, recorded, utc(self._clock), scaled_up)

    async def act(self, subject: Subject, observed: Observed, plan: Plan) -> Outcome[Any]:
        executor = ClusterExecutor(
            self.kube,
            self._events,
            admin_of(self._clients, subject.cluster, observed.of(BROKER)),
            subject.cluster,
            subject.owner,
            SecretIssuer(self.kube, lambda: utc(self._clock)),
            observed.secrets,
        )
        return await executor.run(plan.actions)

    async def report(self, attempt: Attempt[Subject, Observed, Plan]) -> Report:
        owner, plan = attempt.subject.owner, attempt.plan
        errors = [error for _, error in attempt.outcome.failed]
        for error in errors:
            await self._events.record(owner, "NotDone", str(error), type="Warning")
        document = status(
            attempt.subject.cluster,
            owner,
            attempt.observed,
            plan,
            __version__,
            utc(self._clock),
            is_paused=attempt.mode is Mode.PAUSED,
            is_plan_only=annotated(owner, "plan"),
            failures=[str(error) for error in errors],
        )
        created = any(
            isinstance(action, Apply) and action.verb == "create" for action in plan.actions
        )
        requeue_s = AGAIN_AFTER_ACTING_S if attempt.acted and created else plan.requeue_s
        return Report(document, requeue_s, errors[0] if errors else None)


def register(context: Context) -> None:
    """Watches MagnetarClusters and the objects that they own."""
    reconciler = ClusterReconciler(
        context.settings, context.kube, context.events, context.clients, context.clock
    )
    context.watch(CLUSTER, reconciler.reconcile)
    for kind in (STATEFUL_SET, DEPLOYMENT, POD):
        context.watch_owned(kind, CLUSTER_LABEL, CLUSTER)
