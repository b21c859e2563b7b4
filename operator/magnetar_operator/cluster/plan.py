"""What is to be done for a cluster, in order: pure, from what is wanted and what there is.

etcd before bookies before brokers, when they are made as when they are upgraded. Whatever is ours
of an object and differs is put right, told apart by the digest that was applied last: with the same
digest somebody else has changed it. Bookies go by `shrinking`, restarts by `rolling`, both through
`gate`. Carried out, the plan of what there is then is empty.
"""

import datetime
from dataclasses import dataclass, field
from typing import Final, Literal

from magnetar_operator.api_kinds import (
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
from magnetar_operator.cluster import gate, growing, replacing, rolling, shrinking
from magnetar_operator.cluster.actions import Action, Apply, BeginDrain, Remove, Scale
from magnetar_operator.cluster.compare import amount, differences
from magnetar_operator.cluster.manifests import around, serving, storage
from magnetar_operator.cluster.manifests.naming import (
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
from magnetar_operator.models.values import seconds

WAIT_S: Final = 5.0
LEAVABLE: Final = (
    PDB,
    HPA,
    NETWORK_POLICY,
    SERVICE_MONITOR,
    DEPLOYMENT,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
)
"""Kinds of which one goes that the spec asks for no more. None of them keeps anything."""


@dataclass(slots=True)
class Plan:
    """What is decided, and what the status is told from."""

    shrink: shrinking.Shrinking
    replace: replacing.Replacing = field(default_factory=replacing.Replacing)
    actions: list[Action] = field(default_factory=list)
    rolls: dict[str, rolling.Rolling] = field(default_factory=dict)
    """Of bookies and etcd."""
    waits: list[str] = field(default_factory=list)
    """What is not made or changed yet, and why."""
    problems: list[str] = field(default_factory=list)
    """What is asked for and cannot be done."""
    scaled_up: str = ""
    """The mark of bookies that disks called for; see `growing`."""
    recommendations: tuple[tuple[str, str], ...] = ()
    """(kind, text)"""
    was_ready: bool = False
    """Whether the cluster was ready before: what is not ready then is degraded, not new."""
    volumes: list[str] = field(default_factory=list)
    """What is wrong with volumes."""
    again_s: float | None = None

    def look_again(self, after_s: float | None) -> None:
        if after_s is not None:
            self.again_s = after_s if self.again_s is None else min(self.again_s, after_s)


def plan(
    cluster: Cluster,
    observed: Observed,
    remembered: int,
    now: datetime.datetime,
    scaled_up: str = "",
) -> Plan:
    """See the module's text. `remembered` and `scaled_up`: the status's number of bookies, and its
    copy of the mark that disks called for some of them."""
    return _Planner(cluster, observed, now).plan(remembered, scaled_up)


class _Planner:
    def __init__(self, cluster: Cluster, observed: Observed, now: datetime.datetime) -> None:
        self._cluster = cluster
        self._observed = observed
        self._now = now
        self._wanted: set[tuple[str, str]] = set()
        self._plan = Plan(shrinking.Shrinking(0))

    def plan(self, remembered: int, scaled_up: str) -> Plan:
        cluster, found = self._cluster, self._plan
        found.problems += refusals(cluster)
        etcd = self._roll(ETCD, "")
        restarts = "etcd is being restarted" if etcd.stale or etcd.unknown else ""
        bookies = self._roll(BOOKIE, restarts or self._closed())
        busy = f"{bookies.stale[0].name} is being upgraded" if bookies.stale else ""
        grow = growing.decide(cluster, self._observed, self._now, scaled_up)
        found.scaled_up = grow.mark
        found.recommendations = grow.recommendations
        shrink = self._leaving(grow.wanted, remembered, busy)
        self._hold_restarts(bookies)
        self._around()
        self._etcd()
        self._bookies(shrink, grow)
        found.actions += [*shrink.actions, *found.replace.actions]
        self._serving(bookies)
        self._volumes()
        for one in (etcd, bookies):
            if one.replace is not None:
                found.actions.append(one.replace)
            found.look_again(one.again_s)
        found.look_again(shrink.again_s)
        found.look_again(found.replace.again_s)
        self._leave()
        if shrink.by_hand:
            # First of all: each write before it gives the StatefulSet's controller time.
            found.actions.sort(key=lambda one: not _is_set_of_bookies(cluster, one))
        return found

    def _leaving(self, wanted: int, remembered: int, busy: str) -> shrinking.Shrinking:
        """A removal or a new volume, whichever has begun; else the removal first."""
        cluster, observed, found = self._cluster, self._observed, self._plan
        stay = min(wanted, self._spec_or_stored(wanted))
        replaced = replacing.under_way(cluster, observed, stay)
        told = f"{replaced} gets a new volume" if replaced else ""
        leaving = [one.name for one in observed.of(BOOKIE) if one.ordinal >= wanted]
        if any(replacing.in_trouble(observed, one) for one in leaving):
            busy = ""  # restarts wait for these volumes: to wait for restarts would have no end
        found.shrink = shrinking.decide(
            cluster, observed, wanted, remembered, self._now, busy=busy or told
        )
        leaves = found.shrink.bookie
        if leaves and not replaced:
            busy = busy or f"{leaves} is to go"
        found.replace = replacing.decide(cluster, observed, stay, self._now, busy=busy)
        return found.shrink

    def _hold_restarts(self, bookies: rolling.Rolling) -> None:
        """While a bookie is emptied or gets a new volume; but not of one that cannot start so."""
        shrink, replaced = self._plan.shrink, self._plan.replace
        if bookies.replace is None:
            return
        if shrink.active:
            bookies.replace, bookies.waits = None, f"{shrink.bookie} is being emptied"
        elif replaced.active and bookies.replace.name != replaced.bookie:
            bookies.replace, bookies.waits = None, f"{replaced.bookie} gets a new volume"
        elif replaced.active and replaced.step != "Registering":
            bookies.replace, bookies.waits = None, f"{replaced.bookie} is being emptied"

    # -- the parts, in their order -----------------------------------------------------------------

    def _around(self) -> None:
        cluster = self._cluster
        why_not = gate.ledgers_why_not(self._observed) or self._going_volumes(BOOKIE)
        may_go = not why_not and not self._goes_by_will()
        for component in (BROKER, BOOKIE, *((ETCD,) if cluster.etcd_members else ())):
            self._apply(service_account(cluster, component))
        self._apply(config_map(cluster, BOOKIE, storage.bookie_settings(cluster)))
        self._apply(config_map(cluster, BROKER, serving.broker_settings(cluster)))
        self._apply(storage.bookie_service(cluster))
        for manifest in (
            *serving.broker_services(cluster),
            *around.disruption_budgets(cluster, bookies_may_go=may_go),
            *around.network_policies(cluster),
        ):
            self._apply(manifest)
        monitors = cluster.spec.metrics.service_monitor
        if monitors != "Never" and self._observed.has_service_monitors:
            for manifest in around.service_monitors(cluster):
                self._apply(manifest)
        elif monitors == "Always":
            self._plan.problems.append(
                "metrics.serviceMonitor is Always, and the CRD of ServiceMonitor is not installed: "
                "install Prometheus' operator, or say Auto"
            )
        autoscaler = serving.broker_autoscaler(cluster)
        if autoscaler is not None:
            self._apply(autoscaler)

    def _etcd(self) -> None:
        cluster = self._cluster
        if not cluster.etcd_members:
            return
        for manifest in storage.etcd_services(cluster):
            self._apply(manifest)
        self._apply(storage.etcd_stateful_set(cluster, self._claims(ETCD)))

    def _bookies(self, shrink: shrinking.Shrinking, grow: growing.Growing) -> None:
        cluster = self._cluster
        name = cluster.object_name(BOOKIE)
        stored = self._observed.get(STATEFUL_SET, name)
        if stored is None and not self._has_quorum():
            self._wait("bookies are made once etcd is ready")
            return
        manifest = storage.bookie_stateful_set(cluster, shrink.replicas, self._claims(BOOKIE))
        if grow.mark:
            manifest["metadata"]["annotations"][growing.SCALED_UP] = grow.mark
        self._apply(manifest, by_hand=shrink.by_hand, because=grow.added)

    def _serving(self, bookies: rolling.Rolling) -> None:
        cluster, observed = self._cluster, self._observed
        if cluster.separate_recovery:
            self._apply(service_account(cluster, RECOVERY))
            self._apply(config_map(cluster, RECOVERY, serving.recovery_settings(cluster)))
            self._serve(RECOVERY, serving.recovery_deployment(cluster), bookies)
        stored = observed.get(DEPLOYMENT, cluster.object_name(BROKER))
        ready = sum(one.ready for one in observed.of(BOOKIE))
        ensemble = min(cluster.spec.bookie.quorums.ensemble, cluster.spec.bookie.replicas)
        if stored is None and ready < ensemble:
            self._wanted.add((DEPLOYMENT.kind, cluster.object_name(BROKER)))
            self._wait(f"brokers are made once {ensemble} bookies are ready")
            return
        self._serve(BROKER, serving.broker_deployment(cluster), bookies)

    def _serve(self, component: str, manifest: Object, bookies: rolling.Rolling) -> None:
        """A new form only after the bookies', unless there is nothing that works to wait with."""
        name = manifest["metadata"]["name"]
        stored = self._observed.get(DEPLOYMENT, name)
        if stored is None:
            self._apply(manifest)
            return
        pending = bookies.under_way or any(
            isinstance(one, Apply) and one.manifest["kind"] == STATEFUL_SET.kind
            for one in self._plan.actions
        )
        template = manifest["spec"]["template"]
        is_new = bool(differences(template, stored["spec"]["template"]))
        works = any(one.ready for one in self._observed.of(component))
        manual = self._cluster.spec.upgrade.strategy == "Manual"
        if not (is_new and works and pending and not manual):
            self._apply(manifest)
            return
        self._wanted.add((DEPLOYMENT.kind, name))
        self._wait(f"{name} is upgraded after the bookies")
        self._plan.look_again(rolling.LOOK_S)
        replicas = manifest["spec"]["replicas"]
        if stored["spec"].get("replicas") != replicas:
            before = stored["spec"].get("replicas")
            self._plan.actions.append(
                Scale(DEPLOYMENT, name, replicas, f"replicas: {before} → {replicas}")
            )

    def _volumes(self) -> None:
        cluster = self._cluster
        replaced = self._plan.replace
        proven = [replaced.bookie] if replaced.step in replacing.LEAVING else []
        self._plan.volumes += gate.volumes_in_trouble(self._observed, besides=proven)
        for component, given in (
            (BOOKIE, cluster.spec.bookie.storage),
            (ETCD, cluster.spec.etcd.storage),
        ):
            for live in self._observed.claims_of(component):
                if "deletionTimestamp" not in live["metadata"]:
                    self._volume(component, live, given.size)

    def _volume(self, component: str, live: Object, size: str) -> None:
        """Grows it where it is smaller; one that is larger stays as it is."""
        name = live["metadata"]["name"]
        before = live["spec"]["resources"]["requests"]["storage"]
        old, new = amount(before), amount(size)
        grows = old is not None and new is not None and new > old
        if old is not None and new is not None and new < old:
            self._plan.volumes.append(f"volume {name} has {before}; it cannot shrink to {size}")
        manifest = storage.claim(self._cluster, component, live, size if grows else before)
        owned = any(
            one.get("uid") == self._cluster.uid
            for one in live["metadata"].get("ownerReferences") or ()
        )
        goes = "ownerReferences" in manifest["metadata"]
        if not grows and owned == goes:
            return
        text = f"{name}: {before} → {size}" if grows else f"{name} {_fate(goes=goes)}"
        reason = "VolumeGrows" if grows else ""
        self._plan.actions.append(Apply(manifest, "update", text, live, reason))

    def _leave(self) -> None:
        """What the spec asks for no more, where it is ours and keeps nothing."""
        for (kind_name, name), one in sorted(self._observed.objects.items()):
            kind = next((each for each in LEAVABLE if each.kind == kind_name), None)
            if kind is None or (kind_name, name) in self._wanted or not self._is_ours(one):
                continue
            uid = one["metadata"]["uid"]
            text = f"{kind_name} {name}: the spec asks for it no more"
            self._plan.actions.append(Remove(kind, name, uid, text))

    # -- pieces ------------------------------------------------------------------------------------

    def _roll(self, component: str, why_not: str) -> rolling.Rolling:
        upgrade = self._cluster.spec.upgrade
        found = rolling.decide(
            self._observed.get(STATEFUL_SET, self._cluster.object_name(component)),
            self._observed.of(component),
            pause_s=seconds(upgrade.pause_between),
            now=self._now,
            why_not=why_not,
            is_manual=upgrade.strategy == "Manual",
            kept=self._going_volumes(component),
            has_metadata=component == ETCD or self._has_quorum(),
        )
        self._plan.rolls[component] = found
        return found

    def _spec_or_stored(self, wanted: int) -> int:
        """How many bookies the StatefulSet has now."""
        stored = self._observed.get(STATEFUL_SET, self._cluster.object_name(BOOKIE))
        return wanted if stored is None else int(stored["spec"].get("replicas", wanted))

    def _going_volumes(self, component: str) -> list[str]:
        """Pods whose claims somebody deletes: these are gone once the pods are."""
        return [
            one.name
            for one in self._observed.of(component)
            if "deletionTimestamp"
            in (self._observed.claim(one.name) or {"metadata": {}})["metadata"]
        ]

    def _goes_by_will(self) -> bool:
        """Whether a bookie is on its way out: none may be evicted beside it."""
        shrink, replaced = self._plan.shrink, self._plan.replace
        begins = any(isinstance(one, BeginDrain) for one in (*shrink.actions, *replaced.actions))
        left = (one.drain for one in (shrink, replaced) if one.drain is not None)
        return begins or replaced.active or any(one.state != "refused" for one in left)

    def _closed(self) -> str:
        """The gate, for restarts."""
        stored = self._observed.get(STATEFUL_SET, self._cluster.object_name(BOOKIE))
        count = 0 if stored is None else int(stored["spec"].get("replicas", 0))
        return gate.why_not(self._cluster, self._observed, count)

    def _apply(self, manifest: Object, *, by_hand: str = "", because: str = "") -> None:
        manifest = sealed(manifest)
        kind, metadata = kind_of(manifest), manifest["metadata"]
        self._wanted.add((kind.kind, metadata["name"]))
        live = self._observed.get(kind, metadata["name"])
        if live is None:
            text = f"{kind.kind} {metadata['name']} is made"
            self._plan.actions.append(Apply(manifest, "create", text, reason="Created"))
            return
        found = differences(manifest, live)
        if not found:
            return
        applied = live["metadata"].get("annotations", {}).get(APPLIED)
        same = applied == metadata["annotations"][APPLIED]
        told = [one for one in found if APPLIED not in one] or found
        text = by_hand or because or "; ".join(told)
        verb: Literal["update", "repair"] = "repair" if same or by_hand else "update"
        reason = "ScaledBack" if by_hand else "DriftRepaired" if same else "Updated"
        if because:
            reason = "BookieAdded"
        if kind is PDB and not by_hand:
            reason = "DriftRepaired" if same else ""  # it follows the ledgers' health, all the time
        self._plan.actions.append(Apply(manifest, verb, text, live, reason))

    def _claims(self, component: str) -> list[Object] | None:
        """The templates as stored: they can never change; volumes grow one by one instead."""
        stored = self._observed.get(STATEFUL_SET, self._cluster.object_name(component))
        return None if stored is None else _own(stored["spec"].get("volumeClaimTemplates") or [])

    def _has_quorum(self) -> bool:
        members = self._cluster.etcd_members
        ready = sum(one.ready for one in self._observed.of(ETCD))
        return ready > members // 2 or not members

    def _is_ours(self, one: Object) -> bool:
        owners = one["metadata"].get("ownerReferences") or ()
        return any(each.get("uid") == self._cluster.uid for each in owners)

    def _wait(self, text: str) -> None:
        self._plan.waits.append(text)
        self._plan.look_again(WAIT_S)


def _own(templates: list[Object]) -> list[Object]:
    """Without what the API server adds."""
    return [{key: value for key, value in one.items() if key != "status"} for one in templates]


def _fate(*, goes: bool) -> str:
    return "goes with the MagnetarCluster" if goes else "stays when the MagnetarCluster goes"


def _is_set_of_bookies(cluster: Cluster, action: Action) -> bool:
    if not isinstance(action, Apply) or action.manifest["kind"] != STATEFUL_SET.kind:
        return False
    return bool(action.manifest["metadata"]["name"] == cluster.object_name(BOOKIE))
