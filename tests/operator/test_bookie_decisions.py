"""The number of bookies, the order of removals, and the next pod to restart."""

import copy
import dataclasses
import datetime
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.operator.cluster_world import BEGAN, World, cluster_of, made

from magnetar.documents.bookies import Drain, DrainState
from magnetar_operator.autoscale.bookies import Disk, advise
from magnetar_operator.cluster import rollout as rolling
from magnetar_operator.cluster import scale_down as shrinking
from magnetar_operator.cluster import scale_up as growing
from magnetar_operator.cluster.actions import BeginDrain, EndDrain
from magnetar_operator.cluster.manifests.pods import STARTUP_S_MAX
from magnetar_operator.cluster.manifests.storage import REPLICAS_SET
from magnetar_operator.cluster.observed import REASON_OF_OURS, VOLUME_REASON, Observed, Pod
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.cluster import Bookie, DiskScaleUp

BOOKIES = 4
OURS = f"{REASON_OF_OURS}bookies 4 → 3"
SET = ("StatefulSet", "c-bookie")
GIB = 1 << 30


@pytest.fixture(scope="module")
def world() -> World:
    return made(bookie={"replicas": BOOKIES})


@pytest.fixture
def observed(world: World) -> Observed:
    return copy.deepcopy(world.observed())


def scaled(seen: Observed, live: int, written: str) -> None:
    stored = seen.objects[SET]
    stored["spec"]["replicas"] = live
    stored["metadata"]["annotations"][REPLICAS_SET] = written


def without_pods(seen: Observed, *names: str) -> None:
    seen.pods = [pod for pod in seen.pods if pod.name not in names]


def without_registration(seen: Observed, *names: str) -> None:
    health = seen.ledgers.health
    assert health is not None
    left = tuple(bookie for bookie in health.bookies if bookie.bookie_id not in names)
    health = msgspec.structs.replace(health, bookies=left)
    seen.ledgers = dataclasses.replace(seen.ledgers, health=health)


def drained(seen: Observed, *drains: Drain) -> None:
    seen.ledgers = dataclasses.replace(seen.ledgers, drains=drains)


def shrink(world: World, seen: Observed, wanted: int, remembered: int = 0) -> Any:
    return shrinking.decide(world.cluster, seen, wanted, remembered, BEGAN)


def begun(scale_down: shrinking.ScaleDown) -> list[str]:
    return [action.bookie for action in scale_down.actions if isinstance(action, BeginDrain)]


def ended(scale_down: shrinking.ScaleDown) -> list[str]:
    return [action.bookie for action in scale_down.actions if isinstance(action, EndDrain)]


# -- how many


@pytest.mark.parametrize(
    ("live", "written", "wanted", "replicas", "emptied", "by_hand"),
    [
        (4, "4", 4, 4, [], False),
        (4, "4", 6, 6, [], False),
        (4, "4", 3, 4, ["c-bookie-3"], False),
        (4, "4", 2, 4, ["c-bookie-3"], False),
        # Scaled by hand: no bookie is removed without a drain.
        (3, "4", 4, 4, [], True),
        (3, "4", 3, 4, ["c-bookie-3"], True),
        (2, "4", 3, 4, ["c-bookie-3"], True),
        (4, "3", 3, 4, ["c-bookie-3"], True),
        (4, "2", 4, 4, [], True),
        (3, "4", 6, 6, [], True),
        # The status has no number, so the present bookies count.
        (4, "", 3, 4, ["c-bookie-3"], False),
        (4, "x", 4, 4, [], False),
    ],
)
def test_no_bookie_is_removed_without_a_drain_for_any_change_of_the_number(
    world: World,
    observed: Observed,
    live: int,
    written: str,
    wanted: int,
    replicas: int,
    emptied: list[str],
    by_hand: bool,
) -> None:
    scaled(observed, live, written)
    scale_down = shrink(world, observed, wanted)
    assert (scale_down.replicas, begun(scale_down), bool(scale_down.by_hand)) == (
        replicas,
        emptied,
        by_hand,
    )


@pytest.mark.parametrize(("wanted", "remembered"), [(2, 4), (4, 2), (3, 3)])
def test_a_deleted_stateful_set_is_created_with_all_former_bookies(
    world: World, observed: Observed, wanted: int, remembered: int
) -> None:
    del observed.objects[SET]
    scale_down = shrink(world, observed, wanted, remembered)
    assert (scale_down.replicas, scale_down.actions) == (max(wanted, remembered), [])


def test_the_next_bookie_is_drained_after_the_one_before_has_ended(
    world: World, observed: Observed
) -> None:
    scaled(observed, 3, "3")
    scale_down = shrink(world, observed, 2)
    assert (begun(scale_down), scale_down.replicas) == ([], 3)
    assert "c-bookie-3 still ends" in scale_down.waits
    without_pods(observed, "c-bookie-3")
    assert begun(shrink(world, observed, 2)) == ["c-bookie-2"]


@pytest.mark.parametrize(("wanted", "begins"), [(2, True), (3, False)])
def test_a_lost_volume_of_a_bookie_to_remove_blocks_no_other_removal(
    world: World, observed: Observed, wanted: int, begins: bool
) -> None:
    claim = observed.claim("c-bookie-2")
    assert claim is not None
    claim["status"] = {"phase": "Lost"}
    assert begun(shrink(world, observed, wanted)) == (["c-bookie-3"] if begins else [])


def test_a_drain_ends_if_its_bookie_stays_or_was_removed(world: World, observed: Observed) -> None:
    """While the pod or its registration is there the name is not free."""
    names = [f"c-bookie-{number}" for number in range(BOOKIES)]
    drained(observed, *(Drain(name, DrainState.REMOVABLE, reason=OURS) for name in names))
    scaled(observed, 3, "3")
    assert ended(shrink(world, observed, 3)) == names[:3]
    # The one that is being removed next is emptied still, though nothing of it is to be seen.
    without_pods(observed, names[2])
    without_registration(observed, names[2])
    assert ended(shrink(world, observed, 2)) == names[:2]
    for pod in (without_pods, without_registration):
        observation = copy.deepcopy(observed)
        pod(observation, names[3])
        assert ended(shrink(world, observation, 2)) == names[:2]
        without_pods(observation, names[3])
        without_registration(observation, names[3])
        assert ended(shrink(world, observation, 2)) == [*names[:2], names[3]]


@pytest.mark.parametrize("reason", ["", "by hand", f"{VOLUME_REASON}v1 of c-bookie-1 is replaced"])
def test_drains_for_other_purposes_continue(world: World, observed: Observed, reason: str) -> None:
    drained(observed, Drain("c-bookie-1", DrainState.REMOVABLE, reason=reason))
    assert not shrink(world, observed, BOOKIES).actions


# -- disks that fill up

CONSENT = {"enabled": True, "diskPercent": 70, "pause": "10m", "maxReplicas": 9}
FULL = 71


def disked(seen: Observed, used: int = FULL) -> None:
    health = seen.ledgers.health
    assert health is not None
    bookies = tuple(
        msgspec.structs.replace(bookie, disk_bytes_total=100, disk_bytes_free=100 - used)
        for bookie in health.bookies
    )
    health = msgspec.structs.replace(health, bookies=bookies)
    seen.ledgers = dataclasses.replace(seen.ledgers, health=health)


@dataclass
class Case:
    mark: str = ""
    """On the StatefulSet."""
    noted: str = ""
    """In the status."""
    consent: bool = True
    stored: bool = True
    live: int = BOOKIES
    wanted: int = BOOKIES
    added: bool = False
    kept: bool = False
    """Whether the mark stays."""
    also: dict[str, Any] = field(default_factory=dict)


CASES = {
    "the first is added at once": Case(wanted=5, added=True),
    "none without consent": Case(consent=False),
    "none while disks have room": Case(also={"used": 69}),
    "the floor of a mark counts": Case(mark="6 2025-12-31T23:00:00Z", wanted=6, kept=True),
    "a floor below the spec does not": Case(mark="3 2026-01-01T00:00:00Z", kept=True),
    "none while others are to go": Case(wanted=3, also={"replicas": 3}),
    "none before the set has them": Case(mark="5 2025-12-31T23:00:00Z", wanted=5, kept=True),
    "the next after the pause": Case(mark="4 2025-12-31T23:50:00Z", wanted=5, added=True),
    "none within the pause": Case(mark="4 2025-12-31T23:50:01Z", kept=True),
    "consent that is withdrawn": Case(mark="6 2025-12-31T23:00:00Z", consent=False),
    "a set that was deleted": Case(
        noted="6 2025-12-31T23:00:00Z", stored=False, wanted=6, kept=True
    ),
    "a note that the set does not have": Case(noted="6 2025-12-31T23:00:00Z", wanted=5, added=True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bookies_added_for_full_disks(observed: Observed, case: Case) -> None:
    scale_up = {**CONSENT, "enabled": case.consent}
    replicas = case.also.get("replicas", BOOKIES)
    cluster = cluster_of(bookie={"replicas": replicas, "scaleUp": scale_up})
    disked(observed, case.also.get("used", FULL))
    stored = observed.objects[SET]
    stored["spec"]["replicas"] = case.live
    if case.mark:
        stored["metadata"]["annotations"][growing.SCALED_UP] = case.mark
    if not case.stored:
        del observed.objects[SET]
    new_plan = growing.decide(cluster, observed, BEGAN, case.noted)
    assert (new_plan.wanted, bool(new_plan.added)) == (case.wanted, case.added)
    if not case.added:
        assert new_plan.mark == ((case.mark or case.noted) if case.kept else "")


@pytest.mark.parametrize(
    ("now", "known", "used", "since_s", "added"),
    [
        (3, 3, 75, 600, True),
        (3, 3, 74, 600, False),
        (3, 3, 75, 599, False),
        (3, 2, 75, 600, False),
        (3, 0, 75, 600, False),
        (4, 4, 75, 600, False),
        (5, 5, 75, 600, False),
    ],
)
def test_a_bookie_is_added_at_the_limit_up_to_the_maximum(
    now: int, known: int, used: int, since_s: float, added: bool
) -> None:
    bookie = Bookie(scale_up=DiskScaleUp(enabled=True, disk_percent=75, max_replicas=4))
    disks = [Disk(f"b{at}", 100 * GIB, (100 - used) * GIB, True) for at in range(known)]
    assert advise(bookie, now, disks, since_s, 600).bookies == now + added


@pytest.mark.parametrize(("used", "named"), [(50, False), (60, False), (85, True)])
def test_a_disk_much_fuller_than_the_mean_is_named(used: int, named: bool) -> None:
    disks = [Disk(f"b{at}", 100, 100 - each, True) for at, each in enumerate((50, 50, 50, used))]
    kinds = [kind for kind, _ in advise(Bookie(), 4, disks, 0, 0).recommendations]
    assert ("GrowVolume" in kinds) is named


# -- restarts

PAUSE_S = 300.0
OLD, NEW = "r1", "r2"


def pod(number: int, revision: str = OLD, **fields: Any) -> Pod:
    ready: dict[str, Any] = {"ready": True, "ready_since": BEGAN - datetime.timedelta(hours=1)}
    given = {"ending": False, **ready, **fields}
    return Pod(f"c-bookie-{number}", f"u{number}", "bookie", revision, **given)


def hanging(number: int, revision: str = OLD, *, trouble: str = "", s: float = 9_999) -> Pod:
    since = BEGAN - datetime.timedelta(seconds=s)
    return pod(
        number, revision, ready=False, ready_since=None, trouble=trouble, unready_since=since
    )


def stateful_set(*, replicas: int = 3, generation: int = 7, seen: int = 7) -> Object:
    return {
        "metadata": {"generation": generation},
        "spec": {"replicas": replicas},
        "status": {"updateRevision": NEW, "observedGeneration": seen},
    }


def rolled(*pods: Pod, stored: Object | None = None, **given: Any) -> rolling.Rollout:
    options: dict[str, Any] = {"pause_s": PAUSE_S, "why_not": "", "is_manual": False, **given}
    return rolling.decide(stored or stateful_set(), list(pods), now=BEGAN, **options)


def next_of(rollout: rolling.Rollout) -> str:
    return rollout.replace.name if rollout.replace is not None else ""


def test_the_highest_pod_is_restarted_first_without_a_pause_after_the_last() -> None:
    assert next_of(rolled(pod(0), pod(1), pod(2))) == "c-bookie-2"
    assert next_of(rolled(pod(0), pod(1), pod(2, NEW))) == "c-bookie-1"
    assert not rolled(pod(0, NEW), pod(1, NEW), pod(2, NEW)).under_way
    just_now = BEGAN - datetime.timedelta(seconds=1)
    assert next_of(rolled(pod(0), pod(1), pod(2, ready_since=just_now))) == "c-bookie-2"


@pytest.mark.parametrize(("rested_s", "goes"), [(PAUSE_S, True), (PAUSE_S - 1, False)])
def test_the_next_restart_waits_for_the_pause_after_the_last_ready_pod(
    rested_s: float, goes: bool
) -> None:
    since = BEGAN - datetime.timedelta(seconds=rested_s)
    rollout = rolled(pod(0), pod(1), pod(2, NEW, ready_since=since))
    assert next_of(rollout) == ("c-bookie-1" if goes else "")
    assert ("the pause" in rollout.waits) is not goes


AGAINST: dict[str, tuple[tuple[Pod, ...], dict[str, Any]]] = {
    "the gate": ((pod(0), pod(1), pod(2)), {"why_not": "ledgers lack copies"}),
    "somebody who does it": ((pod(0), pod(1), pod(2)), {"is_manual": True}),
    "a pod that ends": ((pod(0), pod(1), pod(2, ending=True)), {}),
    "a new pod that ends": ((pod(0), pod(1), pod(2, NEW, ending=True)), {}),
    "a pod that starts": ((pod(0), pod(1), hanging(2, NEW, s=1)), {}),
    "an old pod that starts": ((pod(0), pod(1), hanging(2, s=STARTUP_S_MAX)), {}),
    "a controller that has not looked": (
        (pod(0), pod(1), pod(2)),
        {"stored": stateful_set(generation=8)},
    ),
    "a stuck pod whose volume would go": ((pod(0), pod(1), hanging(2)), {"kept": ["c-bookie-2"]}),
    "a stuck pod while there is no metadata": (
        (pod(0), pod(1), hanging(2)),
        {"has_metadata": False},
    ),
    "a stuck pod beside one that is missing": ((pod(0), hanging(1)), {}),
    "a stuck pod beside a new one that starts": ((pod(0), hanging(1), hanging(2, NEW, s=1)), {}),
}


@pytest.mark.parametrize("case", AGAINST.values(), ids=AGAINST)
def test_each_obstacle_alone_delays_a_restart(case: tuple[tuple[Pod, ...], dict[str, Any]]) -> None:
    pods, given = case
    rollout = rolled(*pods, **given)
    assert rollout.replace is None
    assert rollout.under_way


def test_a_pod_that_cannot_start_is_replaced_at_once_and_a_hanging_one_last() -> None:
    assert next_of(rolled(pod(0), pod(1), hanging(2))) == "c-bookie-2"
    assert next_of(rolled(pod(0), hanging(1), pod(2), why_not="1 not ready")) == "c-bookie-1"
    assert next_of(rolled(hanging(0), hanging(1), pod(2))) == "c-bookie-1"
    for has_metadata in (False, True):
        broken = hanging(1, trouble="ImagePullBackOff")
        rollout = rolled(pod(0), broken, hanging(2, NEW, s=1), has_metadata=has_metadata)
        assert next_of(rollout) == "c-bookie-1"
