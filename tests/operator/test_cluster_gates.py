"""The gates of the cluster's planner for removals of bookies, at their exact bounds."""

import datetime
from typing import Any, cast

import pytest
from tests.operator.cluster_view import NOW, View, claim, ms, pod
from tests.operator.cluster_world import cluster_of

from magnetar.documents.bookies import (
    Drain,
    DrainState,
    InTheWay,
    LedgerHealth,
    LedgerTrouble,
    LivingBookie,
)
from magnetar_operator.cluster import bookie_drain as emptying
from magnetar_operator.cluster import gate
from magnetar_operator.cluster import rollout as rolling
from magnetar_operator.cluster import scale_down as shrinking
from magnetar_operator.cluster.actions import BeginDrain, EndDrain
from magnetar_operator.cluster.bookie_drain import PROOF_AGE_S_MAX, REQUEST_AGAIN_S, DrainStep
from magnetar_operator.cluster.manifests.pods import STARTUP_S_MAX
from magnetar_operator.cluster.manifests.storage import REPLICAS_SET
from magnetar_operator.cluster.observed import REASON_OF_OURS, VOLUME_REASON, Pod

TARGET = "c-bookie-2"
OURS = f"{REASON_OF_OURS}bookies 3 → 2"


def after(seconds: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=seconds)


# -- the gate


def why_not(view: View, count: int = 3, **how: Any) -> str:
    return gate.why_not(view.cluster, view.observed(), count, **how)


def test_a_bookie_may_be_removed_if_all_is_healthy() -> None:
    assert why_not(View()) == ""


def test_every_bookie_and_member_of_etcd_must_be_ready() -> None:
    view = View()
    view.change("c-bookie-1", ready=False, trouble="no disk")
    assert why_not(view) == "c-bookie-1 not ready (c-bookie-1: no disk)"
    assert why_not(view, besides="c-bookie-1") == ""
    assert why_not(view, besides=TARGET) != ""
    assert why_not(View(), 4) == "c-bookie-3 not ready"
    view = View()
    del view.pods["c-etcd-0"]
    view.change("c-etcd-2", ready=False)
    assert why_not(view) == "c-etcd-0, c-etcd-2 not ready"
    view = View(cluster_of(etcd={"external": {"endpoints": ["e:2379"]}}))
    view.change("c-etcd-2", ready=False)
    assert why_not(view) == ""


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"ending": True}, "is being deleted"),
        ({"phase": "Lost"}, "is lost"),
        ({"phase": "Bound"}, ""),
    ],
)
def test_no_volume_may_be_lost_or_in_deletion(how: dict[str, Any], text: str) -> None:
    view = View()
    view.claims["c-bookie-1"] = claim("c-bookie-1", **how)
    wanted = text and f"volume data-c-bookie-1 {text}"
    assert why_not(view) == wanted
    assert why_not(view, besides="c-bookie-1") == ""
    assert why_not(view, spared=["c-bookie-1"]) == ""
    assert why_not(view, spared=["c-bookie-0"], besides=TARGET) == wanted
    assert gate.volumes_in_trouble(view.observed()) == ([wanted] if wanted else [])
    view = View()
    view.claims["c-bookie-7"] = claim("c-bookie-7", **how)
    assert why_not(view) == "", "a volume that no pod uses is nobody's need"


def test_missing_answers_of_brokers_close_the_gate() -> None:
    view = View(health=None)
    assert why_not(view) == (
        "it is unknown whether all ledgers have their copies: no broker is ready"
    )
    ledgers = tuple(LedgerTrouble(index) for index in range(12))
    living = (LivingBookie("b", incarnations_before=1), LivingBookie("c"))
    view = View(health=LedgerHealth(False, "12 lack copies", 12, 0, ledgers, bookies=living))
    assert why_not(view) == (
        "12 lack copies (ledgers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more; "
        "b restarted with an empty volume)"
    )
    view = View(health=LedgerHealth(False, "1 lacks copies", 1, 0, ledgers[:10]))
    assert why_not(view) == "1 lacks copies (ledgers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
    assert why_not(View(health=LedgerHealth(False, "no"))) == "no"


# -- emptying


def step(view: View, *, busy: str = "", now: datetime.datetime = NOW) -> DrainStep:
    return emptying.next_step(
        view.cluster, view.observed(), TARGET, 3, now, reason="why", busy=busy
    )


def drained(state: DrainState, **how: Any) -> View:
    view = View(drains=[Drain(TARGET, state, **{"proven_ms": ms(), "requested_ms": ms(), **how})])
    view.living[TARGET] = LivingBookie(TARGET, "1", draining=True)
    return view


def test_a_bookie_is_drained_once_the_gate_is_open() -> None:
    assert step(View()) == DrainStep(begin="why: c-bookie-2 is drained, and its copies are proven")
    assert step(View(), busy="x is upgraded") == DrainStep(waits="x is upgraded")
    view = View()
    view.change("c-bookie-0", ready=False)
    blocked = "c-bookie-0 not ready"
    assert step(view) == DrainStep(
        waits=blocked,
        refused=f"c-bookie-2 is not drained now: {blocked}. It is retried once that is over",
    )
    assert step(view, busy="x") == DrainStep(waits="x")
    view.change("c-bookie-0", ready=True)
    view.change(TARGET, ready=False)
    assert step(view).begin, "the bookie itself may be down"
    view.health = None
    assert step(view).waits.startswith("it is unknown whether all ledgers")
    assert step(view).refused == "", "brokers that do not answer are no refusal"


@pytest.mark.parametrize("state", ["requested", "copying", "proving", "of a newer release"])
def test_operations_in_progress_are_waited_for(state: str) -> None:
    assert step(drained(cast("DrainState", state))) == DrainStep(
        waits="c-bookie-2 is being drained"
    )


@pytest.mark.parametrize(
    ("age_s", "young"),
    [
        (0, True),
        (PROOF_AGE_S_MAX, True),
        (PROOF_AGE_S_MAX + 1, False),
        (-PROOF_AGE_S_MAX, True),
        (-PROOF_AGE_S_MAX - 1, False),
    ],
)
def test_a_bookie_is_removed_only_by_a_fresh_proof(age_s: float, young: bool) -> None:
    next_step = step(drained(DrainState.REMOVABLE, proven_ms=ms(age_s)))
    old = "why: the proof of c-bookie-2 is too old; it is repeated"
    assert next_step == (DrainStep(is_removable=True) if young else DrainStep(begin=old))


def test_a_proof_is_void_if_the_bookie_takes_ledgers_again() -> None:
    view = drained(DrainState.REMOVABLE)
    view.living[TARGET] = LivingBookie(TARGET, "1")
    assert step(view).begin == (
        "why: c-bookie-2 takes new ledgers again, since its drain was cancelled; "
        "it is drained again"
    )
    assert not step(view).is_removable
    del view.living[TARGET]
    assert step(view).is_removable


def test_the_gate_must_be_open_at_the_removal() -> None:
    view = drained(DrainState.REMOVABLE)
    assert step(view, busy="x is upgraded") == DrainStep(
        waits="c-bookie-2 is drained and could be removed, but x is upgraded"
    )
    view.change("c-bookie-0", ready=False)
    next_step = step(view)
    assert (next_step.is_removable, next_step.waits) == (
        False,
        "c-bookie-2 is drained and could be removed, but c-bookie-0 not ready",
    )


@pytest.mark.parametrize(
    ("waited_s", "again"), [(REQUEST_AGAIN_S - 1, False), (REQUEST_AGAIN_S, True)]
)
def test_a_refusal_is_reported_and_retried_after_a_while(waited_s: float, again: bool) -> None:
    ways = tuple(InTheWay(index, "no copy") for index in range(12))
    view = drained(
        DrainState.REFUSED, refused="no proof", in_the_way=ways, requested_ms=ms(waited_s)
    )
    next_step = step(view)
    assert next_step.refused.startswith("no proof (ledger 0: no copy; ledger 1: no copy;")
    assert "ledger 9" in next_step.refused
    assert "ledger 10" not in next_step.refused
    assert next_step.begin == (
        "why: the drain of c-bookie-2 was refused; it is retried" if again else ""
    )
    assert step(view, busy="x").begin == ""
    bare = step(drained(DrainState.REFUSED, refused="no proof", requested_ms=ms(waited_s)))
    assert bare.refused == "no proof"
    # While the gate is closed, too: people must do what the refusal says.
    view.change("c-bookie-0", ready=False)
    closed = step(view)
    assert closed.refused == next_step.refused
    assert (closed.begin, closed.waits) == ("", "c-bookie-0 not ready" if again else "")


# -- rolling


def roll(pods: list[Pod], **how: Any) -> rolling.Rollout:
    stored = {
        "metadata": {"generation": 2},
        "spec": {"replicas": how.pop("replicas", 3)},
        "status": {"updateRevision": "new", "observedGeneration": 2, **how.pop("status", {})},
    }
    given = {"pause_s": 60.0, "now": NOW, "why_not": "", "is_manual": False, **how}
    return rolling.decide(stored, pods, **given)


def pods(*revisions: str, **changes: dict[str, Any]) -> list[Pod]:
    return [
        pod(f"c-bookie-{at}", revision=revision, **changes.get(f"p{at}", {}))
        for at, revision in enumerate(revisions)
    ]


def away(seconds: float) -> dict[str, Any]:
    return {"ready": False, "unready_since": after(-seconds)}


def replaced(rollout: rolling.Rollout) -> str:
    return "" if rollout.replace is None else rollout.replace.name


def test_the_highest_pod_with_an_older_template_is_replaced_first() -> None:
    rollout = roll(pods("old", "old", "old"))
    assert rollout.replace is not None
    assert (replaced(rollout), rollout.replace.uid) == ("c-bookie-2", "u-c-bookie-2")
    assert rollout.replace.text == "c-bookie-2 is restarted: image or settings have changed"
    assert [file.name for file in rollout.stale] == ["c-bookie-0", "c-bookie-1", "c-bookie-2"]
    assert rollout.under_way
    assert rollout.requeue_s == rolling.REQUEUE_S
    assert replaced(roll(pods("old", "old", "new"))) == "c-bookie-1"
    done = roll(pods("new", "new", "new"))
    assert not done.under_way
    assert (done.replace, done.requeue_s) == (None, None)


def test_nothing_is_decided_before_the_controller_has_observed_the_object() -> None:
    for status in ({"updateRevision": ""}, {"observedGeneration": 1}):
        rollout = roll(pods("old", "old", "old"), status=status)
        assert (rollout.unknown, rollout.replace, rollout.requeue_s) == (
            True,
            None,
            rolling.REQUEUE_S,
        )
        assert rollout.under_way
    assert not roll(pods("new", "new", "new"), status={"observedGeneration": 3}).unknown
    none = rolling.decide(None, [], pause_s=0, now=NOW, why_not="", is_manual=False)
    assert none == rolling.Rollout()


@pytest.mark.parametrize(("rested_s", "goes"), [(0, False), (59, False), (60, True), (61, True)])
def test_the_next_restart_waits_for_the_pause_after_the_one_before(
    rested_s: float, goes: bool
) -> None:
    rollout = roll(pods("old", "old", "new", p2={"ready_since": after(-rested_s)}))
    assert (rollout.replace is not None) is goes
    if not goes:
        assert rollout.waits == "the pause of 60 s after the previous pod"
        assert rollout.requeue_s == max(0.5, 60 - rested_s)
    first = roll(pods("old", "old", "old", p2={"ready_since": after(-rested_s)}))
    assert first.replace is not None, "nothing was replaced before the first"


def test_a_restart_waits_for_obstacles_terminating_pods_and_the_owner() -> None:
    assert roll(pods("old", "old", "old"), why_not="the gate").waits == "the gate"
    rollout = roll(pods("old", "old", "new", p2={"ending": True, "ready": False}))
    assert (rollout.replace, rollout.waits) == (None, "c-bookie-2 still ends")
    assert rollout.pending
    rollout = roll(pods("old", "old", "new"), is_manual=True)
    assert rollout.waits == (
        "c-bookie-0, c-bookie-1 are outdated until they are deleted by hand (upgrade.strategy)"
    )
    assert (rollout.replace, rollout.requeue_s) == (None, None)
    assert rollout.stale
    deleted = roll(pods("old", "new", "new", p0={"ending": True, "ready": False}), is_manual=True)
    assert (deleted.stale, deleted.waits) == ([], "")


def test_a_starting_pod_is_waited_for() -> None:
    rollout = roll(pods("old", "old", "new", p2=away(10)))
    assert (rollout.replace, rollout.waits, rollout.pending) == (None, "c-bookie-2 not ready", True)
    assert roll(pods("new", "new")).pending
    assert roll(pods("new", "new")).under_way
    assert not roll(pods("new", "new"), replicas=2).pending
    assert roll(pods("new", "new", "new", p1=away(10))).pending


@pytest.mark.parametrize(("seconds", "stuck"), [(STARTUP_S_MAX, False), (STARTUP_S_MAX + 1, True)])
def test_a_stuck_pod_with_an_older_template_is_replaced_despite_the_gate(
    seconds: float, stuck: bool
) -> None:
    rollout = roll(pods("old", "old", "old", p1=away(seconds)), why_not="the gate")
    assert replaced(rollout) == ("c-bookie-1" if stuck else "")
    if stuck:
        assert rollout.replace is not None
        assert "it cannot start (not ready for 301 s)" in rollout.replace.text
    trouble = {"ready": False, "trouble": "CrashLoopBackOff"}
    rollout = roll(pods("old", "old", "old", p1=trouble), why_not="the gate")
    assert replaced(rollout) == "c-bookie-1"
    assert replaced(roll(pods("old", "old", "old", p1=trouble), kept=["c-bookie-1"])) == ""
    assert replaced(roll(pods("old", "new", "new", p1=trouble))) == ""


def test_a_stuck_running_pod_waits_for_earlier_replacements_and_metadata() -> None:
    late = away(STARTUP_S_MAX + 1)
    assert replaced(roll(pods("old", "old", "new", p1=late, p2=away(1)))) == ""
    assert replaced(roll(pods("old", "old", p1=late))) == "", "one is still to come"
    assert replaced(roll(pods("old", "old", "new", p1=late), has_metadata=False)) == ""
    trouble = {"ready": False, "trouble": "ImagePullBackOff"}
    for how in ({}, {"has_metadata": False}):
        assert replaced(roll(pods("old", "old", p1=trouble), **how)) == "c-bookie-1"
    both = roll(pods("old", "old", "old", p0=trouble, p1=trouble))
    assert replaced(both) == "c-bookie-1"


# -- removals


def shrink(view: View, wanted: int, remembered: int = 3, **how: Any) -> shrinking.ScaleDown:
    return shrinking.decide(view.cluster, view.observed(), wanted, remembered, NOW, **how)


def test_bookies_are_added_at_once() -> None:
    assert shrink(View(), 5) == shrinking.ScaleDown(5)
    assert shrink(View(), 3) == shrinking.ScaleDown(3)
    view = View(has_set=False)
    assert shrink(view, 2, 4) == shrinking.ScaleDown(4)
    assert shrink(view, 5, 4) == shrinking.ScaleDown(5)


def test_bookies_are_removed_one_at_a_time_the_highest_first() -> None:
    view = View()
    view.grow(5)
    scale_down = shrink(view, 3)
    assert scale_down.replicas == 5
    assert scale_down.bookie == "c-bookie-4"
    (begin,) = scale_down.actions
    assert begin == BeginDrain(
        "c-bookie-4", "bookies 5 → 4: c-bookie-4 is drained, and its copies are proven"
    )
    assert not scale_down.active
    view.change("c-bookie-3", ready=False)
    waits = shrink(view, 3)
    assert (waits.actions, waits.waits) == ([], "c-bookie-3 not ready"), "it is being removed later"
    view.change("c-bookie-3", ready=True)
    view.drains = [Drain("c-bookie-4", DrainState.COPYING, ms(), reason=OURS)]
    view.drains = [Drain("c-bookie-4", DrainState.COPYING, ms(), reason=OURS)]
    scale_down = shrink(view, 3)
    assert scale_down.active
    assert (scale_down.replicas, scale_down.actions) == (5, [])
    view.drains = [Drain("c-bookie-4", DrainState.REMOVABLE, ms(), reason=OURS, proven_ms=ms())]
    view.living["c-bookie-4"] = LivingBookie("c-bookie-4", draining=True)
    scale_down = shrink(view, 3)
    assert (scale_down.replicas, scale_down.actions, scale_down.active) == (4, [], False)
    view.replicas = 4
    view.annotations[REPLICAS_SET] = "4"
    scale_down = shrink(view, 3)
    assert scale_down.waits == "c-bookie-4 still ends"
    assert scale_down.bookie == "c-bookie-3"
    scale_down = shrink(view, 3, busy="x is upgraded")
    assert scale_down.waits == "c-bookie-4 still ends"
    view.change("c-bookie-4", ending=True, ready=False)
    assert (shrink(view, 3).actions, shrink(view, 3).waits) == ([], "c-bookie-4 still ends")


def test_a_removal_waits_for_other_disruptions() -> None:
    scale_down = shrink(View(), 2, busy="x is upgraded")
    assert (scale_down.actions, scale_down.waits) == ([], "x is upgraded")


@pytest.mark.parametrize(
    ("live", "written", "replicas", "by_hand"),
    [
        (2, "3", 3, "scaled from 3 to 2 bookies by hand: reverted to 3"),
        (
            5,
            "3",
            5,
            (
                "scaled from 3 to 5 bookies by hand: bookies beyond 3 are drained before they are "
                "removed"
            ),
        ),
        (3, "3", 3, ""),
        (3, "", 3, ""),
        (3, "x", 3, ""),
    ],
)
def test_a_manually_scaled_stateful_set_loses_nothing(
    live: int, written: str, replicas: int, by_hand: str
) -> None:
    view = View(annotations={REPLICAS_SET: written} if written else {})
    view.grow(max(live, 3))
    view.replicas = live
    scale_down = shrink(view, 3)
    assert (scale_down.replicas, scale_down.by_hand) == (replicas, by_hand)


def test_only_our_drains_end_when_their_bookie_stays_or_was_removed() -> None:
    view = View()
    volume = f"{VOLUME_REASON}v-1 of c-bookie-0"
    view.drains = [
        Drain("c-bookie-1", DrainState.COPYING, reason=OURS),
        Drain("c-bookie-0", DrainState.COPYING, reason=volume),
        Drain("c-bookie-2", DrainState.COPYING, reason="by hand"),
        Drain("c-bookie-3", DrainState.REMOVABLE, reason=OURS),
        Drain("c-bookie-4", DrainState.REMOVABLE, reason="by hand"),
        Drain("d-bookie-1", DrainState.COPYING, reason=OURS),
        Drain("c-bookie-x", DrainState.COPYING, reason=OURS),
    ]
    scale_down = shrink(view, 3)
    assert scale_down.actions == [
        EndDrain("c-bookie-1", "c-bookie-1 stays"),
        EndDrain("c-bookie-3", "c-bookie-3 is removed; its name may be used again"),
    ]
    view.living["c-bookie-3"] = LivingBookie("c-bookie-3")
    assert [action.bookie for action in shrink(view, 3).actions] == ["c-bookie-1"]  # type: ignore[union-attr]
    del view.living["c-bookie-3"]
    view.pods["c-bookie-3"] = pod("c-bookie-3", ready=False)
    assert [action.bookie for action in shrink(view, 3).actions] == ["c-bookie-1"]  # type: ignore[union-attr]
