"""Volume replacements, bookies for full disks, comparisons and the status, one by one."""

import datetime
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.cluster_view import NOW, View, claim, ms
from tests.operator.cluster_world import cluster_of

from magnetar.documents.bookies import Drain, DrainState, LivingBookie
from magnetar_operator.autoscale.bookies import UNEVEN_PERCENT, Advice, Disk, advise
from magnetar_operator.cluster import scale_up as growing
from magnetar_operator.cluster import volume_replacement as replacing
from magnetar_operator.cluster.actions import (
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    ReplacePod,
)
from magnetar_operator.cluster.manifests.names import REPLACE_VOLUME
from magnetar_operator.cluster.manifests.pods import STARTUP_S_MAX
from magnetar_operator.cluster.observed import REASON_OF_OURS, VOLUME_REASON, pod_of
from magnetar_operator.engine.differences import DIFFERENCES_MAX, amount, differences
from magnetar_operator.models.cluster import ClusterSpec

ONE = "c-bookie-1"


def told(replacement: replacing.VolumeReplacement) -> tuple[str, str, list[type]]:
    return replacement.step, replacement.bookie, [type(action) for action in replacement.actions]


def decide(view: View, bookies: int = 3, **how: Any) -> replacing.VolumeReplacement:
    return replacing.decide(view.cluster, view.observed(), bookies, NOW, **how)


def asked(name: str = ONE) -> View:
    return View(replace(cluster_of(), replace_volume=name))


def emptied(state: DrainState = DrainState.REMOVABLE, uid: str = f"v-{ONE}", **how: Any) -> View:
    view = asked()
    reason = f"{VOLUME_REASON}{uid} of {ONE} is replaced"
    given = {"requested_ms": ms(), "proven_ms": ms(), "incarnations": ("1",), **how}
    view.drains = [Drain(ONE, state, reason=reason, **given)]
    view.living[ONE] = LivingBookie(ONE, "1", draining=True)
    return view


# -- new volumes


def test_a_volume_replacement_starts_with_a_drain_and_ends_with_the_claims_deletion() -> None:
    decision = decide(asked())
    assert told(decision) == ("Draining", ONE, [BeginDrain])
    begin = decision.actions[0]
    assert isinstance(begin, BeginDrain)
    assert begin.text.startswith(f"volume v-{ONE} of {ONE} is replaced: ")
    assert told(decide(emptied(DrainState.COPYING))) == ("Draining", ONE, [])
    assert decide(emptied(DrainState.COPYING)).active
    decision = decide(emptied())
    assert decision.actions == [DeleteVolume(f"data-{ONE}", f"v-{ONE}", decision.actions[0].text)]
    assert (decision.step, decision.active) == ("Removing", True)
    view = emptied()
    view.claims[ONE] = claim(ONE, ending=True)
    decision = decide(view)
    assert told(decision) == ("Removing", ONE, [ReplacePod])
    view.change(ONE, ending=True)
    assert not decide(view).actions


def test_nothing_is_replaced_unless_requested() -> None:
    assert decide(View()) == replacing.VolumeReplacement()
    assert decide(View(has_set=False)) == replacing.VolumeReplacement()
    decision = decide(asked("c-bookie-7"))
    assert (decision.step, decision.bookie, decision.requeue_s) == ("Refused", "", None)
    assert "none of the bookies c-bookie-0 to c-bookie-2" in decision.refused
    view = emptied()
    view.cluster = cluster_of()
    decision = decide(view)
    assert decision.actions == [EndDrain(ONE, f"{ONE} keeps its volume: the request was withdrawn")]
    assert not decision.bookie


def test_a_waiting_or_refused_replacement_reports_why() -> None:
    view = asked()
    del view.claims[ONE]
    assert decide(view).waits == f"{ONE} has no volume: its StatefulSet creates one"
    decision = decide(asked(), busy="x is upgraded")
    assert (decision.step, decision.waits, decision.actions) == ("Waits", "x is upgraded", [])
    view = asked()
    view.drains = [Drain(ONE, DrainState.COPYING, reason=f"{REASON_OF_OURS}bookies 3 → 2")]
    assert decide(view).waits == f"{ONE} was being drained to be removed"
    assert decide(view).step == "Waits"
    view.drains = [Drain(ONE, DrainState.COPYING, reason="")]
    decision = decide(view)
    assert decision.step == "Refused"
    assert "by another client (no reason given)" in decision.refused
    decision = decide(emptied(DrainState.REFUSED, refused="no proof"))
    assert (decision.step, decision.refused, decision.active) == ("Refused", "no proof", False)


@pytest.mark.parametrize("how", [{"ending": True}, {"phase": "Lost"}])
def test_a_bad_volume_is_replaced_automatically_without_waiting(
    how: dict[str, Any],
) -> None:
    view = View()
    view.claims[ONE] = claim(ONE, **how)
    view.change(ONE, ready=False)
    assert told(decide(view, busy="x is upgraded")) == ("Draining", ONE, [BeginDrain])
    assert replacing.in_trouble(view.observed(), ONE)
    assert not replacing.in_trouble(view.observed(), "c-bookie-0")
    assert not replacing.in_trouble(view.observed(), "c-bookie-9")
    # Of two replacements neither waits for the other, and the one in progress continues.
    view.claims["c-bookie-2"] = claim("c-bookie-2", **how)
    assert told(decide(view)) == ("Draining", ONE, [BeginDrain])
    uid = "v-c-bookie-2"
    view.drains = [Drain("c-bookie-2", DrainState.COPYING, reason=f"{VOLUME_REASON}{uid} of it")]
    assert decide(view).bookie == "c-bookie-2"
    assert not decide(view).actions


def test_a_bad_volume_is_replaced_before_a_requested_one() -> None:
    view = asked()
    view.claims["c-bookie-2"] = claim("c-bookie-2", phase="Lost")
    assert told(decide(view)) == ("Draining", "c-bookie-2", [BeginDrain])


def test_past_the_point_of_no_return_the_bookie_starts_with_a_new_volume() -> None:
    view = emptied(uid="v-before")
    assert told(decide(view)) == ("Registering", ONE, [])
    assert (
        decide(view).waits
        == f"{ONE} is not registered with its new volume yet, or takes no entries"
    )
    view.living[ONE] = LivingBookie(ONE, "2", writable=False)
    assert not decide(view).actions
    view.living[ONE] = LivingBookie(ONE, "2")
    decision = decide(view)
    assert decision.actions == [ClearRequest(REPLACE_VOLUME, f"{ONE} has its new volume")]
    view.cluster = cluster_of()
    decision = decide(view)
    assert decision.actions == [
        EndDrain(ONE, f"{ONE} has a new, empty volume and takes new ledgers", "VolumeReplaced")
    ]
    view.change(ONE, ready=False, trouble="no image")
    assert decide(view).waits == f"{ONE} starts with its new volume (no image)"
    del view.pods[ONE]
    assert decide(view).waits == f"{ONE} starts with its new volume"
    view = emptied(uid="v-before")
    del view.claims[ONE]
    assert told(decide(view)) == ("Removing", ONE, [ReplacePod])
    view = emptied(DrainState.REFUSED, uid="v-before")
    del view.claims[ONE]
    assert told(decide(view)) == ("Removing", ONE, []), "its pod may hold what is not elsewhere"
    assert told(decide(emptied(DrainState.COPYING, uid="v-before"))) == ("Draining", ONE, [])
    view = emptied(DrainState.COPYING, uid="v-before")
    del view.claims[ONE]
    assert told(decide(view)) == ("Draining", ONE, [])


def test_each_of_two_lost_volumes_keeps_its_record_until_its_bookie_returns() -> None:
    view = emptied(uid="v-before")
    reason = f"{VOLUME_REASON}v-before of c-bookie-2 is replaced"
    view.drains.append(
        Drain("c-bookie-2", DrainState.REMOVABLE, ms(), reason=reason, incarnations=("1",))
    )
    assert told(decide(view)) == ("Registering", ONE, [])
    view.living[ONE] = LivingBookie(ONE, "2")
    view.cluster = cluster_of()
    ended = [action for action in decide(view).actions if isinstance(action, EndDrain)]
    assert [item.bookie for item in ended] == [ONE]


def test_a_replacement_waits_for_every_bookie_even_for_those_to_remove() -> None:
    view = asked()
    view.grow(5)
    assert told(decide(view)) == ("Draining", ONE, [BeginDrain])
    view.change("c-bookie-4", ready=False)
    decision = decide(view)
    assert (decision.waits, decision.actions) == ("c-bookie-4 not ready", [])


def test_a_drain_for_a_new_volume_is_in_progress() -> None:
    for state, name in (
        (DrainState.COPYING, ONE),
        (DrainState.REMOVABLE, ONE),
        (DrainState.REFUSED, ""),
    ):
        view = emptied(state)
        assert replacing.under_way(view.cluster, view.observed(), 3) == name
    assert replacing.under_way(view.cluster, emptied().observed(), 1) == ""
    view.drains = [Drain(ONE, DrainState.COPYING, reason=f"{REASON_OF_OURS}bookies 3 → 2")]
    assert replacing.under_way(view.cluster, view.observed(), 3) == ""


# -- disks


def disks(*used: int, writable: bool = True) -> list[Disk]:
    return [Disk(f"b{at}", 100, 100 - one, writable) for at, one in enumerate(used)]


def rule(**scale_up: Any) -> Any:
    given = {"enabled": True, "diskPercent": 50, "maxReplicas": 5, **scale_up}
    return ClusterSpec.parse({"bookie": {"scaleUp": given}}).bookie


def kinds(advice: Advice) -> list[str]:
    return [kind for kind, _ in advice.recommendations]


def test_a_bookie_is_added_if_the_mean_use_reaches_the_limit() -> None:
    for used, wanted in ((49, 3), (50, 4), (51, 4)):
        assert advise(rule(), 3, disks(used, used, used), 60, 60).bookies == wanted
    assert advise(rule(), 3, disks(0, 60, 80), 60, 60).bookies == 3, "the mean counts"
    assert advise(rule(), 3, [], 60, 60) == Advice(3)


@pytest.mark.parametrize(
    ("now", "count", "since_s", "scale_up", "text"),
    [
        (3, 3, 59, {}, "a bookie is added once all are ready"),
        (4, 3, 60, {}, "a bookie is added once all are ready"),
        (5, 5, 60, {}, "maxReplicas (5) is reached"),
        (6, 6, 60, {}, "maxReplicas (5) is reached"),
        (3, 3, 60, {"enabled": False}, "raise bookie.replicas to 4"),
    ],
)
def test_a_bookie_that_is_not_added_is_recommended(
    now: int, count: int, since_s: float, scale_up: dict[str, Any], text: str
) -> None:
    advice = advise(rule(**scale_up), now, disks(*[80] * count), since_s, 60)
    assert (advice.bookies, kinds(advice)) == (now, ["AddBookie"])
    assert text in advice.recommendations[0][1]
    assert "80 % used (0.0 GiB free in all), 50 % is the limit" in advice.recommendations[0][1]


def test_single_disks_that_are_full_are_named() -> None:
    advice = advise(rule(), 3, disks(0, 0, UNEVEN_PERCENT + 13), 60, 60)
    assert kinds(advice) == ["GrowVolume"], "25.3 above the mean of 12.7"
    assert advice.recommendations[0][1].startswith("b2 has 38 % of its disk used, the mean is 13 %")
    assert kinds(advise(rule(), 2, disks(0, 2 * UNEVEN_PERCENT - 2), 60, 60)) == []
    assert kinds(advise(rule(), 2, disks(0, 2 * UNEVEN_PERCENT), 60, 60)) == []
    assert kinds(advise(rule(), 1, disks(10, writable=False), 60, 60)) == ["BookieReadOnly"]
    assert Disk("b", 0, 0, True).used_percent == 0


def grown(view: View, mark: str = "", noted: str = "") -> growing.ScaleUp:
    if mark:
        view.annotations[growing.SCALED_UP] = mark
    return growing.decide(view.cluster, view.observed(), NOW, noted)


def full(**spec: Any) -> View:
    scale_up = {"enabled": True, "diskPercent": 50, "maxReplicas": 9, "pause": "10m", **spec}
    view = View(cluster_of(bookie={"scaleUp": scale_up}))
    for name in view.living:
        view.living[name] = LivingBookie(name, disk_bytes_total=100, disk_bytes_free=20)
    return view


def test_the_number_for_full_disks_is_separate_from_the_specs() -> None:
    growth = grown(full())
    assert (growth.wanted, growth.mark) == (4, "4 2026-01-01T00:00:00Z")
    assert growth.added == growth.recommendations[0][1]
    assert growth.added.endswith("a bookie is being added")
    old = "4 2025-12-31T23:50:00Z"
    view = full()
    assert grown(view, old).wanted == 4, "until the set has as many, nothing is added"
    view.replicas = 4
    assert (grown(view, old).wanted, grown(view, old).mark) == (4, old)
    view.living["c-bookie-3"] = LivingBookie("c-bookie-3", disk_bytes_total=9, disk_bytes_free=1)
    assert grown(view, old).wanted == 5
    young = "4 2025-12-31T23:50:01Z"
    assert (grown(view, young).wanted, grown(view, young).mark) == (4, young)
    view.living["c-bookie-3"] = LivingBookie("c-bookie-3")
    assert grown(view, old).wanted == 4, "its disk is not known"
    view = full(enabled=False)
    assert (grown(view, old).wanted, grown(view, old).mark) == (3, "")
    view = full()
    view.has_set = False
    assert (grown(view, noted=old).wanted, grown(view, noted=old).mark) == (4, old)
    view = full()
    view.health = None
    assert grown(view) == growing.ScaleUp(3)
    assert grown(full(), "x y").wanted == 4


# -- comparisons


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1.5", 1.5), ("100m", 0.1), ("2k", 2000), ("2Ki", 2048), ("1M", 10**6),
        ("1Mi", 2**20), ("1G", 10**9), ("1Gi", 2**30), ("3Ti", 3 * 2**40), ("1E", 10**18),
        (2, 2), (0.5, 0.5), (True, None), ("", None), ("1.", None), ("Gi", None), (None, None),
    ],
)  # fmt: skip
def test_quantities_are_amounts(text: object, value: float | None) -> None:
    parsed_amount = amount(text)
    assert (None if parsed_amount is None else float(parsed_amount)) == value


def test_only_the_manifests_fields_count() -> None:
    assert differences({"a": {}}, {"a": None}) == []
    assert differences({"a": {"b": 1}}, {"a": [1]}) == ["a: [1] → {'b': 1}"]
    assert differences({"a": [{"b": 1}]}, {"a": [{"b": 2}]}) == ["a[0].b: 2 → 1"]
    assert differences({"a": ["x"]}, {"a": "x"}) == ["a: x → ['x']"]
    assert differences({"a": []}, {"a": [1]}) == ["a: [1] → []"]
    assert differences({"a": "x"}, {"a": None}) == ["a: nothing → x"]
    assert differences({"a": 1}, {}) == ["a: nothing → 1"]
    assert differences({"a": "1Gi"}, {"a": "2Gi"}) == ["a: 2Gi → 1Gi"]
    many = {str(at): 1 for at in range(DIFFERENCES_MAX + 5)}
    assert len(differences(many, {})) == DIFFERENCES_MAX
    (long,) = differences({"a": "y" * 81}, {"a": "x" * 80})
    assert long == f"a: {'x' * 80} → {'y' * 80}…"


# -- pods


def test_a_pod_is_parsed_from_its_kubernetes_form() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    labels = {"component": "bookie", "controller-revision-hash": "h"}
    content: dict[str, Any] = {
        "metadata": {"name": "c-bookie-12", "uid": "u", "labels": labels},
        "status": {
            "conditions": [
                {"type": "Initialized", "status": "False"},
                ready,
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": None},
                {"type": "ContainersReady", "status": "False"},
            ]
        },
    }
    pod = pod_of(content)
    assert (pod.name, pod.uid, pod.component, pod.revision) == ("c-bookie-12", "u", "bookie", "h")
    assert (pod.ready, pod.ready_since, pod.unready_since, pod.ending) == (True, NOW, None, False)
    assert (pod.ordinal, pod.trouble, pod.stuck(NOW)) == (12, "", "")
    content["metadata"]["deletionTimestamp"] = "now"
    assert (pod_of(content).ready, pod_of(content).ending) == (False, True)
    del content["metadata"]["deletionTimestamp"]
    ready["status"] = "False"
    content["status"]["conditions"][3]["status"] = "True"
    pod = pod_of(content)
    assert (pod.ready, pod.ready_since, pod.unready_since) == (False, None, NOW)
    assert pod.stuck(NOW + datetime.timedelta(seconds=STARTUP_S_MAX)) == ""
    late = NOW + datetime.timedelta(seconds=STARTUP_S_MAX + 1)
    assert pod.stuck(late) == "not ready for 301 s"
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    content["status"]["containerStatuses"] = [{"state": {}}, waiting]
    assert pod_of(content).trouble == "ImagePullBackOff: no such image"
    assert pod_of(content).stuck(NOW) == "ImagePullBackOff: no such image"
    for reason in ("ContainerCreating", "PodInitializing", None):
        waiting["state"]["waiting"] = {"reason": reason}  # type: ignore[dict-item]
        assert pod_of(content).trouble == ""
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    content["status"]["conditions"].append(unplaced)
    assert pod_of(content).trouble == "Unschedulable"
    assert pod_of({"metadata": {"name": "c-broker-x1f"}}).ordinal == -1
