"""Plans a cluster: the actions, in order, from its spec and the observed state. Pure: no IO.

The order is etcd, bookies, brokers, on creation and on upgrades. An object of ours that differs is
updated. The digest that was applied last distinguishes drift from a new spec: if it is unchanged,
another client changed the object. `scale_down` removes bookies and `rollout` restarts pods, both
through `gate`. After the plan is carried out, the next plan is empty.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from magnetar.documents.bookies import DrainState
from magnetar_operator.cluster import (
    gate,
    rollout,
    scale_down,
    scale_up,
    secrets,
    volume_replacement,
)
from magnetar_operator.cluster.actions import Action, BeginDrain, IssueSecret, Scale
from magnetar_operator.cluster.etcd_peers import with_recorded_peers
from magnetar_operator.cluster.manifests import brokers, security, storage, surroundings
from magnetar_operator.cluster.manifests.names import (
    APPLIED,
    BOOKIE,
    BROKER,
    ETCD,
    RECOVERY,
    Cluster,
    sealed,
)
from magnetar_operator.cluster.manifests.pods import config_map, service_account
from magnetar_operator.cluster.observed import Observed
from magnetar_operator.cluster.refusals import refusals
from magnetar_operator.engine import plan as engine
from magnetar_operator.engine.differences import amount, differences
from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    HPA,
    NETWORK_POLICY,
    PDB,
    SERVICE_ACCOUNT,
    SERVICE_MONITOR,
    STATEFUL_SET,
    Object,
    kind_of,
)
from magnetar_operator.models.values import seconds
from magnetar_operator.security.plan import Issuance

WAIT_S: Final = 5.0
REMOVABLE: Final = (
    PDB,
    HPA,
    NETWORK_POLICY,
    SERVICE_MONITOR,
    DEPLOYMENT,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
)
"""Kinds whose objects are deleted if the spec no longer needs them. None of them keeps data."""


@dataclass(frozen=True, slots=True)
class Plan(engine.Plan[Action]):
    """The actions for a cluster, and the decisions that its status shows."""

    shrink: scale_down.ScaleDown = field(default_factory=lambda: scale_down.ScaleDown(0))
    replace: volume_replacement.VolumeReplacement = field(
        default_factory=volume_replacement.VolumeReplacement
    )
    rolls: Mapping[str, rollout.Rollout] = field(default_factory=dict)
    """The rollouts of bookies and etcd."""
    waits: Sequence[str] = ()
    """Objects that are not created or changed yet, and the reasons."""
    problems: Sequence[str] = ()
    """Requests of the spec that cannot be fulfilled."""
    scaled_up: str = ""
    """The mark of bookies that were added because disks filled up; see `scale_up`."""
    recommendations: tuple[tuple[str, str], ...] = ()
    """(kind, text)"""
    volumes: Sequence[str] = ()
    """Problems of volumes."""
    issuance: Issuance = field(default_factory=Issuance)
    """The Secrets to issue."""


@dataclass(slots=True)
class _Draft:
    """A plan under construction."""

    shrink: scale_down.ScaleDown = field(default_factory=lambda: scale_down.ScaleDown(0))
    replace: volume_replacement.VolumeReplacement = field(
        default_factory=volume_replacement.VolumeReplacement
    )
    actions: list[Action] = field(default_factory=list)
    rolls: dict[str, rollout.Rollout] = field(default_factory=dict)
    waits: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    issuance: Issuance = field(default_factory=Issuance)
    requeue_s: float | None = None

    def requeue(self, after_s: float | None) -> None:
        """Requests the next reconcile within this many seconds."""
        if after_s is not None:
            self.requeue_s = after_s if self.requeue_s is None else min(self.requeue_s, after_s)


def plan(
    cluster: Cluster,
    observed: Observed,
    recorded: int,
    now: datetime.datetime,
    scaled_up: str = "",
) -> Plan:
    """Plans the actions that lead from `observed` to the spec of `cluster`.

    `recorded` and `scaled_up` come from the status: the number of bookies, and the mark of bookies
    that were added because disks filled up.
    """
    return _Planner(cluster, observed, now).plan(recorded, scaled_up)


class _Planner:
    def __init__(self, cluster: Cluster, observed: Observed, now: datetime.datetime) -> None:
        self._cluster, peers = with_recorded_peers(cluster, observed)
        self._observed = observed
        self._now = now
        self._wanted: set[tuple[str, str]] = set()
        self._draft = _Draft(problems=[peers] if peers else [])

    def plan(self, recorded: int, scaled_up: str) -> Plan:
        cluster, draft = self._cluster, self._draft
        draft.problems += refusals(cluster)
        etcd = self._roll(ETCD, "")
        self._secrets(etcd)
        restarts = "etcd is being restarted" if etcd.stale or etcd.unknown else ""
        bookies = self._roll(BOOKIE, restarts or self._closed())
        busy = f"{bookies.stale[0].name} is being upgraded" if bookies.stale else ""
        grow = scale_up.decide(cluster, self._observed, self._now, scaled_up)
        shrink = self._removals(grow.wanted, recorded, busy)
        bookies = draft.rolls[BOOKIE] = self._held(bookies)
        self._surroundings()
        self._etcd()
        self._bookies(shrink, grow)
        draft.actions += [*shrink.actions, *draft.replace.actions]
        self._stateless(bookies)
        self._volumes()
        for roll in (etcd, bookies):
            if roll.replace is not None:
                draft.actions.append(roll.replace)
            draft.requeue(roll.requeue_s)
        draft.requeue(shrink.requeue_s)
        draft.requeue(draft.replace.requeue_s)
        self._remove_unneeded()
        if shrink.by_hand:
            # This write comes first: each write before it gives the StatefulSet's controller time.
            draft.actions.sort(key=lambda action: not _is_bookies_apply(cluster, action))
        return Plan(
            actions=tuple(draft.actions),
            requeue_s=draft.requeue_s,
            shrink=draft.shrink,
            replace=draft.replace,
            rolls=draft.rolls,
            waits=tuple(draft.waits),
            problems=tuple(draft.problems),
            scaled_up=grow.mark,
            recommendations=grow.recommendations,
            volumes=tuple(draft.volumes),
            issuance=draft.issuance,
        )

    def _secrets(self, etcd: rollout.Rollout) -> None:
        """Issues Secrets first: pods do not start without those that they mount."""
        draft = self._draft
        issuance = draft.issuance = secrets.decide(self._cluster, self._observed, etcd, self._now)
        draft.problems += issuance.problems
        draft.actions += [IssueSecret(issue) for issue in issuance.actions]
        draft.requeue(secrets.REPLAN_S if issuance.actions else issuance.requeue_s)
        bundle = secrets.trust_bundle(self._cluster, self._observed)
        if bundle:
            self._apply(security.trust_config_map(self._cluster, bundle))

    def _removals(self, wanted: int, recorded: int, busy: str) -> scale_down.ScaleDown:
        """Decides on a removal and on a new volume: the one in progress, else the removal first."""
        cluster, observed, draft = self._cluster, self._observed, self._draft
        stay = min(wanted, self._spec_or_stored(wanted))
        replaced = volume_replacement.under_way(cluster, observed, stay)
        other = f"{replaced} gets a new volume" if replaced else ""
        leaving = [pod.name for pod in observed.of(BOOKIE) if pod.ordinal >= wanted]
        if any(volume_replacement.in_trouble(observed, name) for name in leaving):
            busy = ""  # restarts wait for these volumes: waiting for restarts would deadlock
        draft.shrink = scale_down.decide(
            cluster, observed, wanted, recorded, self._now, busy=busy or other
        )
        removed = draft.shrink.bookie
        if removed and not replaced:
            busy = busy or f"{removed} is being removed"
        draft.replace = volume_replacement.decide(cluster, observed, stay, self._now, busy=busy)
        return draft.shrink

    def _held(self, bookies: rollout.Rollout) -> rollout.Rollout:
        """The rollout, without its restart while a bookie is drained or gets a new volume.

        The restart of a bookie that gets a new volume, and cannot start without it, stays.
        """
        shrink, replaced = self._draft.shrink, self._draft.replace
        if bookies.replace is None:
            return bookies
        waits = ""
        if shrink.active:
            waits = f"{shrink.bookie} is being drained"
        elif replaced.active and bookies.replace.name != replaced.bookie:
            waits = f"{replaced.bookie} gets a new volume"
        elif replaced.active and replaced.step != "Registering":
            waits = f"{replaced.bookie} is being drained"
        return replace(bookies, replace=None, waits=waits) if waits else bookies

    def _surroundings(self) -> None:
        """Applies the accounts, settings, Services, budgets, policies, monitors and autoscaler."""
        cluster = self._cluster
        why_not = gate.ledgers_why_not(self._observed) or self._with_ending_volumes(BOOKIE)
        may_evict = not why_not and not self._is_taking_away()
        for component in (BROKER, BOOKIE, *((ETCD,) if cluster.etcd_members else ())):
            self._apply(service_account(cluster, component))
        self._apply(config_map(cluster, BOOKIE, storage.bookie_settings(cluster)))
        self._apply(config_map(cluster, BROKER, brokers.broker_settings(cluster)))
        self._apply(storage.bookie_service(cluster))
        for manifest in (
            *brokers.broker_services(cluster),
            *surroundings.disruption_budgets(cluster, may_evict_bookies=may_evict),
            *surroundings.network_policies(cluster),
        ):
            self._apply(manifest)
        monitors = cluster.spec.metrics.service_monitor
        if monitors != "Never" and self._observed.has_service_monitors:
            for manifest in surroundings.service_monitors(cluster):
                self._apply(manifest)
        elif monitors == "Always":
            self._draft.problems.append(
                "metrics.serviceMonitor is Always, and the CRD of ServiceMonitor is not installed: "
                "install Prometheus' operator, or set Auto"
            )
        autoscaler = brokers.broker_autoscaler(cluster)
        if autoscaler is not None:
            self._apply(autoscaler)

    def _etcd(self) -> None:
        cluster = self._cluster
        if not cluster.etcd_members:
            return
        for manifest in storage.etcd_services(cluster):
            self._apply(manifest)
        trust = secrets.trust_digest(cluster, self._observed)
        name = cluster.object_name(ETCD)
        is_issued = bool(trust) or cluster.spec.tls.issuer != "Operator"
        if cluster.etcd_has_tls and not is_issued and not self._observed.get(STATEFUL_SET, name):
            self._wait("etcd is created once its certificate is issued")
            return
        self._apply(storage.etcd_stateful_set(cluster, self._claims(ETCD), trust))

    def _bookies(self, shrink: scale_down.ScaleDown, grow: scale_up.ScaleUp) -> None:
        cluster = self._cluster
        name = cluster.object_name(BOOKIE)
        stored = self._observed.get(STATEFUL_SET, name)
        if stored is None and not self._has_quorum():
            self._wait("bookies are created once etcd is ready")
            return
        manifest = storage.bookie_stateful_set(cluster, shrink.replicas, self._claims(BOOKIE))
        if grow.mark:
            manifest["metadata"]["annotations"][scale_up.SCALED_UP] = grow.mark
        self._apply(manifest, by_hand=shrink.by_hand, because=grow.added)

    def _stateless(self, bookies: rollout.Rollout) -> None:
        """Applies the components without data: autorecovery and brokers."""
        cluster, observed = self._cluster, self._observed
        if cluster.separate_recovery:
            self._apply(service_account(cluster, RECOVERY))
            self._apply(config_map(cluster, RECOVERY, brokers.recovery_settings(cluster)))
            self._deployment(RECOVERY, brokers.recovery_deployment(cluster), bookies)
        stored = observed.get(DEPLOYMENT, cluster.object_name(BROKER))
        ready = sum(pod.ready for pod in observed.of(BOOKIE))
        ensemble = min(cluster.spec.bookie.quorums.ensemble, cluster.spec.bookie.replicas)
        if stored is None and ready < ensemble:
            self._wait(f"brokers are created once {ensemble} bookies are ready")
            return
        self._deployment(BROKER, brokers.broker_deployment(cluster), bookies)

    def _deployment(self, component: str, manifest: Object, bookies: rollout.Rollout) -> None:
        """Applies a Deployment; a new pod template waits for the bookies while a pod is ready."""
        name = manifest["metadata"]["name"]
        stored = self._observed.get(DEPLOYMENT, name)
        if stored is None:
            self._apply(manifest)
            return
        pending = bookies.under_way or any(
            isinstance(action, Apply) and action.manifest["kind"] == STATEFUL_SET.kind
            for action in self._draft.actions
        )
        template = manifest["spec"]["template"]
        is_new = bool(differences(template, stored["spec"]["template"]))
        is_serving = any(pod.ready for pod in self._observed.of(component))
        manual = self._cluster.spec.upgrade.strategy == "Manual"
        if not (is_new and is_serving and pending and not manual):
            self._apply(manifest)
            return
        self._wanted.add((DEPLOYMENT.kind, name))
        self._wait(f"{name} is upgraded after the bookies")
        self._draft.requeue(rollout.REQUEUE_S)
        replicas = manifest["spec"]["replicas"]
        if stored["spec"].get("replicas") != replicas:
            before = stored["spec"].get("replicas")
            self._draft.actions.append(
                Scale(DEPLOYMENT, name, replicas, f"replicas: {before} → {replicas}")
            )

    def _volumes(self) -> None:
        cluster = self._cluster
        replaced = self._draft.replace
        proven = [replaced.bookie] if replaced.step in volume_replacement.LEAVING else []
        self._draft.volumes += gate.volumes_in_trouble(self._observed, besides=proven)
        for component, storage_spec in (
            (BOOKIE, cluster.spec.bookie.storage),
            (ETCD, cluster.spec.etcd.storage),
        ):
            for live in self._observed.claims_of(component):
                if "deletionTimestamp" not in live["metadata"]:
                    self._volume(component, live, storage_spec.size)

    def _volume(self, component: str, live: Object, size: str) -> None:
        """Grows a volume that is too small; a larger volume stays as it is."""
        name = live["metadata"]["name"]
        before = live["spec"]["resources"]["requests"]["storage"]
        old, new = amount(before), amount(size)
        grows = old is not None and new is not None and new > old
        if old is not None and new is not None and new < old:
            self._draft.volumes.append(f"volume {name} has {before}; it cannot shrink to {size}")
        manifest = storage.claim(self._cluster, component, live, size if grows else before)
        owned = any(
            owner.get("uid") == self._cluster.uid
            for owner in live["metadata"].get("ownerReferences") or ()
        )
        is_owned = "ownerReferences" in manifest["metadata"]
        if not grows and owned == is_owned:
            return
        text = f"{name}: {before} → {size}" if grows else f"{name} {_fate(is_owned=is_owned)}"
        reason = "VolumeGrows" if grows else ""
        self._draft.actions.append(Apply(manifest, "update", text, live, reason))

    def _remove_unneeded(self) -> None:
        """Deletes our objects without data that the spec no longer needs."""
        for (kind_name, name), obj in sorted(self._observed.objects.items()):
            kind = next((kind for kind in REMOVABLE if kind.kind == kind_name), None)
            if kind is None or (kind_name, name) in self._wanted or not self._is_ours(obj):
                continue
            uid = obj["metadata"]["uid"]
            text = "the spec no longer needs it"
            self._draft.actions.append(Remove(kind, name, uid, text))

    def _roll(self, component: str, why_not: str) -> rollout.Rollout:
        upgrade = self._cluster.spec.upgrade
        decision = rollout.decide(
            self._observed.get(STATEFUL_SET, self._cluster.object_name(component)),
            self._observed.of(component),
            pause_s=seconds(upgrade.pause_between),
            now=self._now,
            why_not=why_not,
            is_manual=upgrade.strategy == "Manual",
            kept=self._with_ending_volumes(component),
            has_metadata=component == ETCD or self._has_quorum(),
        )
        self._draft.rolls[component] = decision
        return decision

    def _spec_or_stored(self, wanted: int) -> int:
        """The number of bookies that the StatefulSet has now."""
        stored = self._observed.get(STATEFUL_SET, self._cluster.object_name(BOOKIE))
        return wanted if stored is None else int(stored["spec"].get("replicas", wanted))

    def _with_ending_volumes(self, component: str) -> list[str]:
        """Pods whose volume claims are being deleted: Kubernetes deletes a claim with its pod."""
        return [
            pod.name
            for pod in self._observed.of(component)
            if "deletionTimestamp"
            in (self._observed.claim(pod.name) or {"metadata": {}})["metadata"]
        ]

    def _is_taking_away(self) -> bool:
        """Whether the operator is taking a bookie away, so that no other one may be evicted."""
        shrink, replaced = self._draft.shrink, self._draft.replace
        begins = any(
            isinstance(action, BeginDrain) for action in (*shrink.actions, *replaced.actions)
        )
        drains = (decision.drain for decision in (shrink, replaced) if decision.drain is not None)
        is_draining = any(drain.state != DrainState.REFUSED for drain in drains)
        return begins or replaced.active or is_draining

    def _closed(self) -> str:
        """Why the gate is closed for restarts; empty if it is open."""
        stored = self._observed.get(STATEFUL_SET, self._cluster.object_name(BOOKIE))
        count = 0 if stored is None else int(stored["spec"].get("replicas", 0))
        return gate.why_not(self._cluster, self._observed, count)

    def _apply(self, manifest: Object, *, by_hand: str = "", because: str = "") -> None:
        manifest = sealed(manifest)
        kind, metadata = kind_of(manifest), manifest["metadata"]
        self._wanted.add((kind.kind, metadata["name"]))
        live = self._observed.get(kind, metadata["name"])
        if live is None:
            text = f"{kind.kind} {metadata['name']} is created"
            self._draft.actions.append(Apply(manifest, "create", text, reason="Created"))
            return
        changes = differences(manifest, live)
        if not changes:
            return
        applied = live["metadata"].get("annotations", {}).get(APPLIED)
        same = applied == metadata["annotations"][APPLIED]
        shown = [text for text in changes if APPLIED not in text] or changes
        text = by_hand or because or "; ".join(shown)
        verb: Literal["update", "repair"] = "repair" if same or by_hand else "update"
        reason = "ScaledBack" if by_hand else "DriftRepaired" if same else "Updated"
        if because:
            reason = "BookieAdded"
        if kind is PDB and not by_hand:
            reason = "DriftRepaired" if same else ""  # it follows the ledgers' health all the time
        self._draft.actions.append(Apply(manifest, verb, text, live, reason))

    def _claims(self, component: str) -> list[Object] | None:
        """The stored claim templates, which cannot change; volumes are grown one by one."""
        stored = self._observed.get(STATEFUL_SET, self._cluster.object_name(component))
        return (
            None
            if stored is None
            else _without_status(stored["spec"].get("volumeClaimTemplates") or [])
        )

    def _has_quorum(self) -> bool:
        members = self._cluster.etcd_members
        ready = sum(pod.ready for pod in self._observed.of(ETCD))
        return ready > members // 2 or not members

    def _is_ours(self, obj: Object) -> bool:
        owners = obj["metadata"].get("ownerReferences") or ()
        return any(owner.get("uid") == self._cluster.uid for owner in owners)

    def _wait(self, text: str) -> None:
        self._draft.waits.append(text)
        self._draft.requeue(WAIT_S)


def _without_status(templates: list[Object]) -> list[Object]:
    """The claim templates without the field that the API server adds."""
    return [
        {key: value for key, value in template.items() if key != "status"} for template in templates
    ]


def _fate(*, is_owned: bool) -> str:
    verb = "is deleted" if is_owned else "stays"
    return f"{verb} when the MagnetarCluster is deleted"


def _is_bookies_apply(cluster: Cluster, action: Action) -> bool:
    """Whether the action applies the StatefulSet of bookies."""
    if not isinstance(action, Apply) or action.manifest["kind"] != STATEFUL_SET.kind:
        return False
    return bool(action.manifest["metadata"]["name"] == cluster.object_name(BOOKIE))
