"""How many bookies there are to be, which one goes first, and which pod is restarted next."""

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
    seen.pods = [one for one in seen.pods if one.name not in names]


def without_registration(seen: Observed, *names: str) -> None:
    health = seen.ledgers.health
    assert health is not None
    left = tuple(one for one in health.bookies if one.bookie_id not in names)
    health = msgspec.structs.replace(health, bookies=left)
    seen.ledgers = dataclasses.replace(seen.ledgers, health=health)


def drained(seen: Observed, *drains: Drain) -> None:
    seen.ledgers = dataclasses.replace(seen.ledgers, drains=drains)


def shrink(world: World, seen: Observed, wanted: int, remembered: int = 0) -> Any:
    return shrinking.decide(world.cluster, seen, wanted, remembered, BEGAN)


def begun(found: shrinking.ScaleDown) -> list[str]:
    return [one.bookie for one in found.actions if isinstance(one, BeginDrain)]


def ended(found: shrinking.ScaleDown) -> list[str]:
    return [one.bookie for one in found.actions if isinstance(one, EndDrain)]


# -- how many


@pytest.mark.parametrize(
    ("live", "written", "wanted", "replicas", "emptied", "by_hand"),
    [
        (4, "4", 4, 4, [], False),
        (4, "4", 6, 6, [], False),
        (4, "4", 3, 4, ["c-bookie-3"], False),
        (4, "4", 2, 4, ["c-bookie-3"], False),
        # Somebody scaled it: no bookie goes that is not emptied.
        (3, "4", 4, 4, [], True),
        (3, "4", 3, 4, ["c-bookie-3"], True),
        (2, "4", 3, 4, ["c-bookie-3"], True),
        (4, "3", 3, 4, ["c-bookie-3"], True),
        (4, "2", 4, 4, [], True),
        (3, "4", 6, 6, [], True),
        # Nothing is written there: what there is counts.
        (4, "", 3, 4, ["c-bookie-3"], False),
        (4, "x", 4, 4, [], False),
    ],
)
def test_no_bookie_goes_that_is_not_emptied_whatever_number_is_changed(
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
    found = shrink(world, observed, wanted)
    assert (found.replicas, begun(found), bool(found.by_hand)) == (replicas, emptied, by_hand)


@pytest.mark.parametrize(("wanted", "remembered"), [(2, 4), (4, 2), (3, 3)])
def test_a_deleted_stateful_set_comes_back_with_all_bookies_there_were(
    world: World, observed: Observed, wanted: int, remembered: int
) -> None:
    del observed.objects[SET]
    found = shrink(world, observed, wanted, remembered)
    assert (found.replicas, found.actions) == (max(wanted, remembered), [])


def test_the_next_bookie_is_emptied_once_the_one_before_has_ended(
    world: World, observed: Observed
) -> None:
    scaled(observed, 3, "3")
    found = shrink(world, observed, 2)
    assert (begun(found), found.replicas) == ([], 3)
    assert "c-bookie-3 still ends" in found.waits
    without_pods(observed, "c-bookie-3")
    assert begun(shrink(world, observed, 2)) == ["c-bookie-2"]


@pytest.mark.parametrize(("wanted", "begins"), [(2, True), (3, False)])
def test_a_lost_volume_of_a_bookie_that_is_to_go_as_well_keeps_no_other(
    world: World, observed: Observed, wanted: int, begins: bool
) -> None:
    claim = observed.claim("c-bookie-2")
    assert claim is not None
    claim["status"] = {"phase": "Lost"}
    assert begun(shrink(world, observed, wanted)) == (["c-bookie-3"] if begins else [])


def test_a_drain_ends_where_its_bookie_stays_or_is_gone_for_good(
    world: World, observed: Observed
) -> None:
    """While the pod or its registration is there the name is not free."""
    names = [f"c-bookie-{number}" for number in range(BOOKIES)]
    drained(observed, *(Drain(name, DrainState.REMOVABLE, reason=OURS) for name in names))
    scaled(observed, 3, "3")
    assert ended(shrink(world, observed, 3)) == names[:3]
    # The one that is being removed next is emptied still, though nothing of it is to be seen.
    without_pods(observed, names[2])
    without_registration(observed, names[2])
    assert ended(shrink(world, observed, 2)) == names[:2]
    for gone in (without_pods, without_registration):
        seen = copy.deepcopy(observed)
        gone(seen, names[3])
        assert ended(shrink(world, seen, 2)) == names[:2]
        without_pods(seen, names[3])
        without_registration(seen, names[3])
        assert ended(shrink(world, seen, 2)) == [*names[:2], names[3]]


@pytest.mark.parametrize("reason", ["", "by hand", f"{VOLUME_REASON}v1 of c-bookie-1 is replaced"])
def test_drains_for_another_purpose_are_left_alone(
    world: World, observed: Observed, reason: str
) -> None:
    drained(observed, Drain("c-bookie-1", DrainState.REMOVABLE, reason=reason))
    assert not shrink(world, observed, BOOKIES).actions


# -- disks that fill up

CONSENT = {"enabled": True, "diskPercent": 70, "pause": "10m", "maxReplicas": 9}
FULL = 71


def disked(seen: Observed, used: int = FULL) -> None:
    health = seen.ledgers.health
    assert health is not None
    bookies = tuple(
        msgspec.structs.replace(one, disk_bytes_total=100, disk_bytes_free=100 - used)
        for one in health.bookies
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
def test_bookies_that_disks_call_for(observed: Observed, case: Case) -> None:
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
    found = growing.decide(cluster, observed, BEGAN, case.noted)
    assert (found.wanted, bool(found.added)) == (case.wanted, case.added)
    if not case.added:
        assert found.mark == ((case.mark or case.noted) if case.kept else "")


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
def test_a_bookie_is_added_at_the_limit_and_not_beyond_the_most(
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


def next_of(found: rolling.Rollout) -> str:
    return found.replace.name if found.replace is not None else ""


def test_the_highest_goes_first_and_the_last_of_all_needs_no_pause() -> None:
    assert next_of(rolled(pod(0), pod(1), pod(2))) == "c-bookie-2"
    assert next_of(rolled(pod(0), pod(1), pod(2, NEW))) == "c-bookie-1"
    assert not rolled(pod(0, NEW), pod(1, NEW), pod(2, NEW)).under_way
    just_now = BEGAN - datetime.timedelta(seconds=1)
    assert next_of(rolled(pod(0), pod(1), pod(2, ready_since=just_now))) == "c-bookie-2"


@pytest.mark.parametrize(("rested_s", "goes"), [(PAUSE_S, True), (PAUSE_S - 1, False)])
def test_the_next_waits_for_the_pause_after_the_pod_that_became_ready_last(
    rested_s: float, goes: bool
) -> None:
    since = BEGAN - datetime.timedelta(seconds=rested_s)
    found = rolled(pod(0), pod(1), pod(2, NEW, ready_since=since))
    assert next_of(found) == ("c-bookie-1" if goes else "")
    assert ("the pause" in found.waits) is not goes


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
def test_each_thing_alone_holds_a_restart(case: tuple[tuple[Pod, ...], dict[str, Any]]) -> None:
    pods, given = case
    found = rolled(*pods, **given)
    assert found.replace is None
    assert found.under_way


def test_a_pod_that_cannot_start_goes_at_once_and_one_that_hangs_once_all_others_came() -> None:
    assert next_of(rolled(pod(0), pod(1), hanging(2))) == "c-bookie-2"
    assert next_of(rolled(pod(0), hanging(1), pod(2), why_not="1 not ready")) == "c-bookie-1"
    assert next_of(rolled(hanging(0), hanging(1), pod(2))) == "c-bookie-1"
    for has_metadata in (False, True):
        broken = hanging(1, trouble="ImagePullBackOff")
        found = rolled(pod(0), broken, hanging(2, NEW, s=1), has_metadata=has_metadata)
        assert next_of(found) == "c-bookie-1"
