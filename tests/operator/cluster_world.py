"""A Kubernetes and a Magnetar in memory, as far as the planner of clusters can see them.

It does what the controllers do with what the planner asks for, and checks at every step what must
never happen: two bookies away at once by will, a bookie removed or a volume deleted without a proof
that is of now. A claim goes once its pod has, and takes with it what the bookie held.
Ledgers are numbers: each has its copies on bookies; a drain moves them, a lie breaks a copy.
"""

import copy
import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from magnetar.documents.bookies import (
    Drain,
    DrainState,
    InTheWay,
    LedgerHealth,
    LedgerTrouble,
    LivingBookie,
)
from magnetar_operator.cluster.actions import (
    Action,
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    ReplacePod,
    Scale,
)
from magnetar_operator.cluster.manifests.names import BOOKIE, BROKER, Cluster, digest
from magnetar_operator.cluster.observed import Ledgers, Observed, Pod
from magnetar_operator.cluster.plan import Plan, plan
from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.kinds import STATEFUL_SET, Object, kind_of
from magnetar_operator.models.cluster import ClusterSpec

BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def cluster_of(**spec: Any) -> Cluster:
    image = spec.get("image", "image:1")
    return Cluster("c", "ns", "uid-c", ClusterSpec.parse(spec), image, "etcd:1", "op")


@dataclass
class World:
    """A simulated Kubernetes and Magnetar that checks the safety rules at every step."""

    cluster: Cluster
    now: datetime.datetime = BEGAN
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    claims: dict[str, Object] = field(default_factory=dict)
    drains: dict[str, Drain] = field(default_factory=dict)
    ledgers: dict[int, set[str]] = field(default_factory=dict)
    """Where each ledger's good copies are; two are wanted of each."""
    liars: set[str] = field(default_factory=set)
    """The bookies with damaged copies."""
    unmarked: set[str] = field(default_factory=set)
    """Bookies that have a drain's record and no mark: these take new ledgers."""
    hanging: set[str] = field(default_factory=set)
    """Forms of a StatefulSet's pods that run and never become ready."""
    removed: list[str] = field(default_factory=list)
    request: str = ""
    """The annotation: the bookie whose volume must be replaced."""
    replaced: list[str] = field(default_factory=list)
    """Bookies that got a new volume."""
    scaled_up: str = ""
    """As the status has it."""
    writes: int = 0
    uids: int = 0

    # -- observation ------------------------------------------------------------------------------

    def observed(self) -> Observed:
        brokers = [pod for pod in self.pods.values() if pod.component == BROKER and pod.ready]
        ledgers = Ledgers(unknown="no broker is ready")
        if brokers:
            ledgers = Ledgers(self.health(), tuple(self.drains.values()))
        return Observed(
            copy.deepcopy(self.objects),
            list(self.pods.values()),
            list(copy.deepcopy(self.claims).values()),
            ledgers,
        )

    def living(self) -> set[str]:
        return {pod.name for pod in self.pods.values() if pod.component == BOOKIE and pod.ready}

    def disks(self, bookie: str) -> str:
        """The incarnation of its data."""
        return str(self.claims[f"data-{bookie}"]["metadata"]["uid"])

    def lacking(self) -> list[int]:
        living = self.living()
        draining = {
            drain.bookie_id for drain in self.drains.values() if drain.state == DrainState.COPYING
        }
        return [
            ledger for ledger, held in self.ledgers.items() if len(held & (living - draining)) < 2
        ]

    def health(self) -> LedgerHealth:
        lacking = self.lacking()
        return LedgerHealth(
            healthy=not lacking,
            reason=f"{len(lacking)} ledgers lack copies" if lacking else "",
            under_replicated=len(lacking),
            ledgers=tuple(LedgerTrouble(row) for row in lacking),
            bookies=tuple(
                LivingBookie(
                    pod, self.disks(pod), draining=pod in self.drains.keys() - self.unmarked
                )
                for pod in sorted(self.living())
            ),
        )

    def plan(self) -> Plan:
        remembered = getattr(self, "_remembered", 0)
        cluster = dataclasses.replace(self.cluster, replace_volume=self.request)
        planned = plan(cluster, self.observed(), remembered, self.now, self.scaled_up)
        self._remembered = planned.shrink.replicas
        self.scaled_up = planned.scaled_up
        return planned

    # -- actions -----------------------------------------------------------------------------------

    def act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.writes += 1
            match action:
                case Apply():
                    self._apply(action.manifest)
                case Remove():
                    assert action.kind is not STATEFUL_SET
                    del self.objects[action.kind.kind, action.name]
                case Scale():
                    obj = self.objects[action.kind.kind, action.name]
                    obj["spec"]["replicas"] = action.replicas
                case ReplacePod():
                    self._replace(action)
                case BeginDrain():
                    self.unmarked.discard(action.bookie)
                    now_ms = int(self.now.timestamp() * 1000)
                    reason = f"magnetar-operator: {action.text}"
                    self.drains[action.bookie] = Drain(
                        action.bookie, DrainState.COPYING, now_ms, reason=reason
                    )
                case EndDrain():
                    self.drains.pop(action.bookie, None)
                case ClearRequest():
                    self.request = ""
                case DeleteVolume():
                    self._delete_volume(action)

    def _apply(self, manifest: Object) -> None:
        kind, name = kind_of(manifest).kind, manifest["metadata"]["name"]
        if kind == "PersistentVolumeClaim":
            self.claims[name]["spec"] = manifest["spec"]
            owners = manifest["metadata"].get("ownerReferences", [])
            self.claims[name]["metadata"]["ownerReferences"] = owners
            return
        before = self.objects.get((kind, name))
        stored = copy.deepcopy(manifest)
        self.uids += 1
        stored["metadata"]["uid"] = before["metadata"]["uid"] if before else f"u{self.uids}"
        generation = before["metadata"]["generation"] if before else 0
        changed = before is None or before["spec"] != stored.get("spec")
        stored["metadata"]["generation"] = generation + changed if "spec" in stored else 1
        stored["status"] = (before or {}).get("status", {})
        stored.setdefault("spec", {})
        self.objects[kind, name] = stored

    def _replace(self, action: ReplacePod) -> None:
        pod = self.pods[action.name]
        assert pod.uid == action.uid
        if pod.component == BOOKIE and pod.ready:
            others = [
                pod.name for pod in self.pods.values() if pod.component == BOOKIE and not pod.ready
            ]
            assert not others, f"{pod.name} goes while {others} are away"
            assert not self.lacking(), f"{pod.name} goes while ledgers lack copies"
        del self.pods[action.name]

    def _delete_volume(self, action: DeleteVolume) -> None:
        claim = self.claims[action.name]
        assert claim["metadata"]["uid"] == action.uid
        bookie = action.name.removeprefix("data-")
        self._check_proof(bookie)
        others = [pod for pod in self.pods.values() if pod.component == BOOKIE]
        assert all(obj.ready for obj in others if obj.name != bookie)
        assert not self._dying(), "two volumes at once"
        claim["metadata"]["deletionTimestamp"] = "now"

    def _dying(self) -> list[str]:
        return [name for name, one in self.claims.items() if "deletionTimestamp" in one["metadata"]]

    # -- controllers and time ---------------------------------------------------------------------

    def turn(self) -> None:
        """Runs every controller; half a minute passes."""
        self.now += datetime.timedelta(seconds=30)
        for (kind, _), one in list(self.objects.items()):
            if kind == "StatefulSet":
                self._stateful_set(one)
            elif kind == "Deployment":
                self._deployment(one)
        self._copy()

    def _stateful_set(self, obj: Object) -> None:
        name, component = obj["metadata"]["name"], obj["metadata"]["labels"]["component"]
        revision = digest(obj["spec"]["template"])
        obj["status"] = {
            "updateRevision": revision,
            "observedGeneration": obj["metadata"]["generation"],
        }
        wanted = [f"{name}-{index}" for index in range(obj["spec"]["replicas"])]
        for pod in [pod for pod in self.pods.values() if pod.component == component]:
            if pod.name not in wanted:
                if component == BOOKIE:
                    self._check_removal(pod)
                del self.pods[pod.name]
                self.claims = {
                    item: claim
                    for item, claim in self.claims.items()
                    if item not in self._dying() or item != f"data-{pod.name}"
                }
        for item in wanted:
            pod_record = self.pods.get(item)
            if pod_record is None:
                self._volume_goes(item)
                self.claims.setdefault(f"data-{item}", self._claim(obj, item, component))
                self._start(item, component, revision)
            elif not pod_record.ready and pod_record.revision not in self.hanging:
                self._ready(item)

    def _claim(self, obj: Object, pod: str, component: str) -> Object:
        template = obj["spec"]["volumeClaimTemplates"][0]
        self.uids += 1
        metadata = {
            "name": f"data-{pod}",
            "namespace": "ns",
            "labels": {"component": component},
            "uid": f"v{self.uids}",
        }
        return {"metadata": metadata, "spec": copy.deepcopy(template["spec"])}

    def _check_removal(self, pod: Pod) -> None:
        self.removed.append(pod.name)
        self._check_proof(pod.name)

    def _check_proof(self, bookie: str) -> None:
        drain = self.drains.get(bookie)
        assert drain is not None, f"{bookie} goes and was never emptied"
        assert drain.state == "removable", f"{bookie} goes while {drain.state}"
        for ledger, held in self.ledgers.items():
            good = held - {bookie} - self.liars
            assert len(good) >= 2, f"ledger {ledger} had not enough copies beside {bookie}"

    def _volume_goes(self, pod: str) -> None:
        """Removes a claim that is being deleted once its pod is gone."""
        name = f"data-{pod}"
        if name in self._dying():
            del self.claims[name]
            self.replaced.append(pod)
            for held in self.ledgers.values():
                held.discard(pod)

    def _deployment(self, obj: Object) -> None:
        name, component = obj["metadata"]["name"], obj["metadata"]["labels"]["component"]
        for pod in [pod for pod in self.pods.values() if pod.component == component]:
            del self.pods[pod.name]
        for index in range(obj["spec"]["replicas"]):
            self._start(f"{name}-x{index}", component, "")
            self._ready(f"{name}-x{index}")

    def _start(self, name: str, component: str, revision: str) -> None:
        self.uids += 1
        self.pods[name] = Pod(
            name, f"p{self.uids}", component, revision, False, None, False, unready_since=self.now
        )

    def _ready(self, name: str) -> None:
        pod = self.pods[name]
        self.pods[name] = Pod(name, pod.uid, pod.component, pod.revision, True, self.now, False)

    def _copy(self) -> None:
        """Autorecovery: copies to bookies that live; then drains are proven or refused."""
        living = sorted(self.living())
        draining = {drain.bookie_id for drain in self.drains.values()}
        for held in self.ledgers.values():
            targets = [pod for pod in living if pod not in held and pod not in draining]
            while len(held & set(living) - draining) < 2 and targets and held & set(living):
                held.add(targets.pop(0))
        for bookie, drain in self.drains.items():
            if drain.state == "copying":
                self.drains[bookie] = self._proven(bookie, drain)

    def _proven(self, bookie: str, drain: Drain) -> Drain:
        wrong = tuple(
            InTheWay(ledger, "too few proven copies")
            for ledger, held in self.ledgers.items()
            if len(held - {bookie} - self.liars & self.living()) < 2
            or len((held - {bookie} - self.liars) & self.living()) < 2
        )
        now_ms = int(self.now.timestamp() * 1000)
        if wrong:
            return msgspec.structs.replace(
                drain, state=DrainState.REFUSED, refused="no proof", in_the_way=wrong
            )
        for held in self.ledgers.values():
            held.discard(bookie)
        return msgspec.structs.replace(
            drain, state=DrainState.REMOVABLE, proven_ms=now_ms, incarnations=(self.disks(bookie),)
        )

    def settle(self, turns: int = 60) -> Plan:
        """Steps until nothing is left to do; fails if that does not happen."""
        for _ in range(turns):
            new_plan = self.plan()
            self.act(new_plan.actions)
            before = self.writes
            self.turn()
            again = self.plan()
            if not again.actions and before == self.writes and again.requeue_s is None:
                return again
        raise AssertionError(f"still at {[action.step.text for action in self.plan().actions]}")


def made(**spec: Any) -> World:
    """A cluster that is complete, with six ledgers of two copies each."""
    world = World(cluster_of(**spec))
    world.settle()
    names = sorted(world.living())
    for ledger in range(6 if len(names) > 1 else 0):
        world.ledgers[ledger] = {names[ledger % len(names)], names[(ledger + 1) % len(names)]}
    return world


def respec(world: World, **spec: Any) -> None:
    world.cluster = cluster_of(**spec)
