"""When a bookie may be disrupted voluntarily: each obstacle alone prevents it."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.operator.cluster_world import BEGAN, World, cluster_of

from magnetar.documents.bookies import Drain, DrainState, LedgerHealth, LivingBookie
from magnetar_operator.cluster import bookie_drain as emptying
from magnetar_operator.cluster import gate
from magnetar_operator.cluster.bookie_drain import PROOF_AGE_S_MAX, REQUEST_AGAIN_S, DrainStep
from magnetar_operator.cluster.observed import Observed

BOOKIES = 3
TARGET = "c-bookie-1"
WHY = "bookies 3 → 2"

Change = Callable[[Observed], None]


def settled() -> World:
    world = World(cluster_of())
    world.settle()
    return world


@pytest.fixture(scope="module")
def cluster() -> World:
    return settled()


@pytest.fixture
def observed(cluster: World) -> Observed:
    return copy.deepcopy(cluster.observed())


def pod_is(name: str, **fields: Any) -> Change:
    def change(seen: Observed) -> None:
        seen.pods = [
            dataclasses.replace(pod, **fields) if pod.name == name else pod for pod in seen.pods
        ]

    return change


def pod_is_missing(name: str) -> Change:
    def change(seen: Observed) -> None:
        seen.pods = [pod for pod in seen.pods if pod.name != name]

    return change


def volume_is(name: str, *, lost: bool) -> Change:
    def change(seen: Observed) -> None:
        claim = seen.claim(name)
        assert claim is not None
        if lost:
            claim["status"] = {"phase": "Lost"}
        else:
            claim["metadata"]["deletionTimestamp"] = "by hand"

    return change


def health_is(**fields: Any) -> Change:
    def change(seen: Observed) -> None:
        health = msgspec.structs.replace(seen.ledgers.health or LedgerHealth(True), **fields)
        seen.ledgers = dataclasses.replace(seen.ledgers, health=health)

    return change


def nothing_is_known(seen: Observed) -> None:
    seen.ledgers = dataclasses.replace(seen.ledgers, health=None, unknown="no broker answers")


AGAINST = {
    "the first bookie": pod_is("c-bookie-0", ready=False),
    "the last bookie": pod_is("c-bookie-2", ready=False),
    "no pod of a bookie": pod_is_missing("c-bookie-2"),
    "a member of etcd": pod_is("c-etcd-2", ready=False),
    "no pod of etcd": pod_is_missing("c-etcd-0"),
    "a lost volume": volume_is("c-bookie-2", lost=True),
    "a volume on its way out": volume_is("c-bookie-0", lost=False),
    "a lost volume of etcd": volume_is("c-etcd-1", lost=True),
    "a volume of etcd on its way out": volume_is("c-etcd-1", lost=False),
    "ledgers that lack copies": health_is(healthy=False, reason="1 ledger lacks copies"),
    "no word of the brokers": nothing_is_known,
}


@pytest.mark.parametrize("change", AGAINST.values(), ids=AGAINST)
@pytest.mark.parametrize("besides", ["", TARGET])
def test_each_obstacle_alone_keeps_every_bookie(
    cluster: World, observed: Observed, change: Change, besides: str
) -> None:
    assert gate.why_not(cluster.cluster, observed, BOOKIES, besides=besides) == ""
    change(observed)
    assert gate.why_not(cluster.cluster, observed, BOOKIES, besides=besides)


OF_THE_TARGET = {
    "not ready": pod_is(TARGET, ready=False),
    "no pod": pod_is_missing(TARGET),
    "lost": volume_is(TARGET, lost=True),
    "on its way out": volume_is(TARGET, lost=False),
}


@pytest.mark.parametrize("change", OF_THE_TARGET.values(), ids=OF_THE_TARGET)
def test_only_the_bookie_in_trouble_may_be_restarted(
    cluster: World, observed: Observed, change: Change
) -> None:
    change(observed)
    assert gate.why_not(cluster.cluster, observed, BOOKIES, besides=TARGET) == ""
    if change is not OF_THE_TARGET["no pod"]:
        assert gate.why_not(cluster.cluster, observed, BOOKIES)
    assert gate.why_not(cluster.cluster, observed, BOOKIES, besides="c-bookie-0")


# -- the next step of a bookie on its way out


def drained(state: DrainState, *, proven_s: float = 0.0, requested_s: float = 0.0) -> Drain:
    """A drain with a proof, or a request, of this age in seconds."""
    now_ms = BEGAN.timestamp() * 1000
    return Drain(
        TARGET,
        state,
        requested_ms=int(now_ms - requested_s * 1000),
        proven_ms=int(now_ms - proven_s * 1000),
        refused="no room" if state == DrainState.REFUSED else "",
    )


def step_of(cluster: World, observed: Observed, drain: Drain | None, busy: str = "") -> DrainStep:
    health = observed.ledgers.health
    if health is not None:
        bookies = tuple(
            msgspec.structs.replace(bookie, draining=True)
            if drain is not None and bookie.bookie_id == TARGET and not bookie.incarnations_before
            else bookie
            for bookie in health.bookies
        )
        health = msgspec.structs.replace(health, bookies=bookies)
    drains = () if drain is None else (drain,)
    observed.ledgers = dataclasses.replace(observed.ledgers, health=health, drains=drains)
    return emptying.next_step(
        cluster.cluster, observed, TARGET, BOOKIES, BEGAN, reason=WHY, busy=busy
    )


@pytest.mark.parametrize("age_s", [0.0, PROOF_AGE_S_MAX, -PROOF_AGE_S_MAX])
def test_a_bookie_with_a_fresh_proof_may_be_removed(
    cluster: World, observed: Observed, age_s: float
) -> None:
    next_step = step_of(cluster, observed, drained(DrainState.REMOVABLE, proven_s=age_s))
    assert next_step == DrainStep(is_removable=True)


@pytest.mark.parametrize("age_s", [PROOF_AGE_S_MAX + 1, -PROOF_AGE_S_MAX - 1])
def test_an_expired_proof_is_repeated(cluster: World, observed: Observed, age_s: float) -> None:
    next_step = step_of(cluster, observed, drained(DrainState.REMOVABLE, proven_s=age_s))
    assert not next_step.is_removable
    assert "the proof of c-bookie-1 is too old" in next_step.begin


@pytest.mark.parametrize("change", AGAINST.values(), ids=AGAINST)
@pytest.mark.parametrize("age_s", [0.0, PROOF_AGE_S_MAX + 1])
def test_a_proven_bookie_waits_while_the_gate_is_closed(
    cluster: World, observed: Observed, change: Change, age_s: float
) -> None:
    change(observed)
    next_step = step_of(cluster, observed, drained(DrainState.REMOVABLE, proven_s=age_s))
    assert not next_step.is_removable
    assert not next_step.begin
    assert next_step.waits


@pytest.mark.parametrize(
    "drain", [None, drained(DrainState.REMOVABLE), drained(DrainState.REFUSED, requested_s=900)]
)
def test_no_drain_or_removal_starts_during_another_disruption(
    cluster: World, observed: Observed, drain: Drain | None
) -> None:
    next_step = step_of(cluster, observed, drain, busy="c-bookie-2 is being upgraded")
    assert (next_step.is_removable, next_step.begin) == (False, "")
    assert "c-bookie-2 is being upgraded" in next_step.waits


@pytest.mark.parametrize("state", [DrainState.REQUESTED, DrainState.COPYING, DrainState.PROVING])
def test_a_drain_in_progress_continues(
    cluster: World, observed: Observed, state: DrainState
) -> None:
    next_step = step_of(cluster, observed, drained(state))
    assert next_step == DrainStep(waits=f"{TARGET} is being drained")


@pytest.mark.parametrize(
    ("waited_s", "again"), [(REQUEST_AGAIN_S - 1, False), (REQUEST_AGAIN_S, True)]
)
def test_a_refusal_is_reported_and_retried_after_a_while(
    cluster: World, observed: Observed, waited_s: float, again: bool
) -> None:
    next_step = step_of(cluster, observed, drained(DrainState.REFUSED, requested_s=waited_s))
    assert next_step.refused == "no room"
    assert bool(next_step.begin) is again
    assert not next_step.is_removable


def test_a_proof_is_void_if_the_bookie_takes_new_ledgers(
    cluster: World, observed: Observed
) -> None:
    """Others that do so change nothing."""
    health = observed.ledgers.health
    assert health is not None
    unmarked = LivingBookie(TARGET, "u1", incarnations_before=1)
    others = tuple(bookie for bookie in health.bookies if bookie.bookie_id != TARGET)
    health_is(bookies=(*others, unmarked))(observed)
    next_step = step_of(cluster, observed, drained(DrainState.REMOVABLE))
    assert not next_step.is_removable
    assert "takes new ledgers again" in next_step.begin
    health_is(bookies=others)(observed)
    assert step_of(cluster, observed, drained(DrainState.REMOVABLE)).is_removable


def test_a_bookie_is_drained_before_its_removal(cluster: World, observed: Observed) -> None:
    next_step = step_of(cluster, observed, None)
    assert not next_step.is_removable
    assert next_step.begin.startswith(WHY)
