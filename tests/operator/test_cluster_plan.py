"""The planner of clusters: it converges, never takes two bookies, never one without a proof."""

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.operator.cluster_world import World, cluster_of, made, respec

from magnetar_operator.cluster.actions import BeginDrain
from magnetar_operator.cluster.manifests.storage import REPLICAS_SET
from magnetar_operator.engine.differences import amount, differences
from magnetar_operator.engine.plan import Apply
from magnetar_operator.kube.kinds import STATEFUL_SET


def replicas(world: World) -> int:
    return int(world.objects["StatefulSet", "c-bookie"]["spec"]["replicas"])


def test_components_are_created_in_order() -> None:
    world = World(cluster_of())
    made_in_order = []
    for _ in range(6):
        plan = world.plan()
        made_in_order.append(
            [
                action.manifest["metadata"]["name"]
                for action in plan.actions
                if isinstance(action, Apply)
                and action.manifest["kind"] in ("StatefulSet", "Deployment")
            ]
        )
        world.act(plan.actions)
        world.turn()
    assert [names for names in made_in_order if names] == [["c-etcd"], ["c-bookie"], ["c-broker"]]


def test_a_complete_cluster_is_not_changed() -> None:
    world = made()
    world.turn()
    again = world.plan()
    assert not again.actions
    assert again.requeue_s is None


def test_a_stored_setting_that_has_no_effect_is_named_in_ready() -> None:
    """The API server lets an object keep a value that it refuses in a new one."""
    secret = {"name": "s"}
    external = {"endpoints": ["e:2379"], "tls": secret, "auth": secret}
    world = made(
        broker={"config": {"authenticationEnabled": "True", "authorizationEnabled": "false"}},
        bookie={"config": {"PULSAR_PREFIX_tlsEnabled": "true"}},
        etcd={"external": external},
    )
    problems = world.plan().problems
    assert [problem.partition(" ")[0] for problem in problems] == [
        "spec.broker.config.authenticationEnabled",
        "spec.bookie.config.PULSAR_PREFIX_tlsEnabled",
        "spec.etcd.external.tls",
        "spec.etcd.external.auth",
    ]
    assert not made().plan().problems


def test_all_components_use_the_prefix_of_an_external_etcd() -> None:
    external = {"endpoints": ["e:2379"], "prefix": "/magnetar/b"}
    world = made(etcd={"external": external}, autorecovery={"mode": "Separate"})
    for kind, name in (
        ("StatefulSet", "bookie"), ("Deployment", "broker"), ("Deployment", "recovery")
    ):  # fmt: skip
        (container,) = world.objects[kind, f"c-{name}"]["spec"]["template"]["spec"]["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["MAGNETAR_METADATA_ROOT"] == "/magnetar/b"
    assert not world.plan().problems


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"broker": {"config": {"metadata_root": "/b"}}}, "spec.bookie.config.metadata_root"),
        (
            {
                "etcd": {"external": {"endpoints": ["e:2379"], "prefix": "/a"}},
                "bookie": {"config": {"MAGNETAR_METADATA_ROOT": "/b"}},
            },
            "spec.etcd.external.prefix is /a",
        ),
        (
            {
                "broker": {"config": {"metadata_root": "/b"}},
                "bookie": {"config": {"metadata_root": "/b"}},
                "autorecovery": {"mode": "Separate"},
            },
            "spec.autorecovery.config.metadata_root is absent",
        ),
    ],
)
def test_components_with_different_prefixes_are_named(spec: dict[str, Any], named: str) -> None:
    (problem,) = made(**spec).plan().problems
    assert named in problem


def test_an_external_etcd_is_not_created() -> None:
    world = made(etcd={"external": {"endpoints": ["e1:2379", "https://e2:2379"]}})
    assert ("StatefulSet", "c-etcd") not in world.objects
    template = world.objects["StatefulSet", "c-bookie"]["spec"]["template"]
    environment = {
        variable["name"]: variable.get("value")
        for variable in template["spec"]["containers"][0]["env"]
    }
    assert environment["MAGNETAR_METADATA_URL"] == "etcd:http://e1:2379,https://e2:2379"


def test_bookies_are_removed_one_by_one_each_after_a_proof() -> None:
    world = made(bookie={"replicas": 5})
    respec(world, bookie={"replicas": 3})
    world.settle()
    assert world.removed == ["c-bookie-4", "c-bookie-3"]
    assert world.drains == {}, "their names may be used again"
    assert replicas(world) == 3


def test_a_bookie_with_unproven_ledgers_stays_and_they_are_named() -> None:
    world = made(bookie={"replicas": 3, "quorums": {"ensemble": 2}})
    world.liars = {"c-bookie-0"}
    respec(world, bookie={"replicas": 2})
    for _ in range(10):
        plan = world.plan()
        world.act(plan.actions)
        world.turn()
    plan = world.plan()
    assert world.removed == []
    assert replicas(world) == 3
    assert "ledger 0" in plan.shrink.refused
    world.liars = set()
    world.settle()
    assert world.removed == ["c-bookie-2"]


def test_a_change_of_mind_ends_the_drain() -> None:
    world = made(bookie={"replicas": 4})
    respec(world, bookie={"replicas": 3})
    world.act(world.plan().actions)
    assert set(world.drains) == {"c-bookie-3"}
    respec(world, bookie={"replicas": 4})
    world.settle()
    assert world.drains == {}
    assert world.removed == []


@pytest.mark.parametrize("by_hand", [1, 2, 6])
def test_a_manual_change_of_the_stateful_set_removes_no_bookie(by_hand: int) -> None:
    world = made(bookie={"replicas": 3})
    stored = world.objects["StatefulSet", "c-bookie"]
    stored["spec"]["replicas"] = by_hand
    plan = world.plan()
    back = next(action for action in plan.actions if isinstance(action, Apply))
    assert back.reason == "ScaledBack"
    assert "by hand" in back.text
    assert back.manifest["spec"]["replicas"] >= 3
    world.settle()
    assert replicas(world) == 3
    assert world.removed == [f"c-bookie-{index}" for index in range(by_hand - 1, 2, -1)]


def test_a_deleted_stateful_set_is_created_with_its_former_size() -> None:
    world = made(bookie={"replicas": 4})
    respec(world, bookie={"replicas": 3})
    del world.objects["StatefulSet", "c-bookie"]
    plan = world.plan()
    sets = [
        action.manifest
        for action in plan.actions
        if isinstance(action, Apply) and action.manifest["metadata"]["name"] == "c-bookie"
    ]
    planned_set = next(
        stateful_set for stateful_set in sets if stateful_set["kind"] == "StatefulSet"
    )
    assert planned_set["spec"]["replicas"] == 4
    assert planned_set["metadata"]["annotations"][REPLICAS_SET] == "4"


def test_volumes_grow_and_never_shrink() -> None:
    world = made(bookie={"storage": {"size": "10Gi"}})
    respec(world, bookie={"storage": {"size": "20Gi"}})
    world.settle()
    sizes = {claim["spec"]["resources"]["requests"]["storage"] for claim in world.claims.values()}
    assert sizes == {"20Gi", "10Gi"}, "etcd's stay"
    respec(world, bookie={"storage": {"size": "5Gi"}})
    plan = world.plan()
    assert not plan.actions
    assert any("cannot shrink" in volume for volume in plan.volumes)


def test_volumes_are_deleted_with_the_cluster_only_on_request() -> None:
    world = made()
    assert not any("ownerReferences" in claim["metadata"] for claim in world.claims.values())
    respec(world, storageRetention="Delete")
    world.settle()
    owners = {claim["metadata"]["ownerReferences"][0]["uid"] for claim in world.claims.values()}
    assert owners == {"uid-c"}
    respec(world)
    world.settle()
    assert not any(claim["metadata"]["ownerReferences"] for claim in world.claims.values())
    policy = world.objects["StatefulSet", "c-bookie"]["spec"][
        "persistentVolumeClaimRetentionPolicy"
    ]
    assert set(policy.values()) == {"Retain"}


def test_only_components_that_the_spec_drops_are_deleted() -> None:
    world = made(autorecovery={"mode": "Separate"}, broker={"autoscaling": {"enabled": True}})
    assert ("Deployment", "c-recovery") in world.objects
    world.objects["ConfigMap", "c-notes"] = {
        "metadata": {"name": "c-notes", "labels": {"component": "x"}}, "spec": {}
    }  # fmt: skip
    respec(world)
    world.settle()
    kinds = {key for key in world.objects if key[1] == "c-recovery" or key[0].startswith("Horiz")}
    assert kinds == set()
    assert ("ConfigMap", "c-notes") in world.objects


def test_drift_is_distinguished_from_changes_of_the_spec() -> None:
    world = made()
    world.objects["Service", "c-broker"]["spec"]["ports"][0]["port"] = 1
    (repair,) = world.plan().actions
    assert isinstance(repair, Apply)
    assert (repair.verb, repair.reason) == ("repair", "DriftRepaired")
    assert "spec.ports[0].port: 1 → 8080" in repair.text
    world.settle()
    respec(world, broker={"service": {"type": "NodePort"}})
    (change,) = world.plan().actions
    assert isinstance(change, Apply)
    assert (change.verb, change.reason) == ("update", "Updated")


def test_full_disks_add_a_bookie_if_the_spec_allows_it() -> None:
    consent = {"bookie": {"scaleUp": {"enabled": True, "diskPercent": 50, "pause": "10m"}}}
    world = made(**consent)
    whole = world.health

    def full() -> Any:
        health = whole()
        bookies = tuple(
            msgspec.structs.replace(bookie, disk_bytes_total=100, disk_bytes_free=30)
            for bookie in health.bookies
        )
        return msgspec.structs.replace(health, bookies=bookies)

    world.health = full  # type: ignore[method-assign]
    for _ in range(4):
        world.act(world.plan().actions)
        world.turn()
    assert replicas(world) == 4, "one, and a pause"
    assert world.plan().recommendations[0][0] == "AddBookie"
    del world.objects["StatefulSet", "c-bookie"]  # by hand, and its mark with it
    for _ in range(4):
        world.act(world.plan().actions)
        world.turn()
    assert replicas(world) == 4
    assert world.removed == []
    respec(world)
    assert world.plan().actions[-1] == next(
        action for action in world.plan().actions if isinstance(action, BeginDrain)
    )


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "image": st.sampled_from(["image:1", "image:2"]),
        "bookie": st.fixed_dictionaries(
            {"replicas": st.integers(2, 5)},
            optional={"config": st.sampled_from([{}, {"journal_file_mb": 32}])},
        ),
        "broker": st.fixed_dictionaries({"replicas": st.integers(0, 3)}),
        "autorecovery": st.sampled_from([{}, {"mode": "Separate"}]),
    },
)
FAULTS = st.sampled_from(["none", "hand-up", "hand-down", "kill", "delete-set", "interrupt"])


@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SPECS, FAULTS, st.integers(0, 6)), min_size=1, max_size=6))
@example(
    [({}, "hand-down", 0), ({"broker": {"replicas": 0}, "bookie": {"replicas": 2}}, "interrupt", 6)]
)
def test_any_sequence_converges_and_no_bookie_is_removed_without_proof(
    history: list[tuple[dict[str, Any], str, int]],
) -> None:
    world = made(bookie={"replicas": 3})
    for spec, fault, turns in history:
        # No broker can say whether a bookie may be removed, so none is.
        respec(world, **spec)
        stored = world.objects.get(("StatefulSet", "c-bookie"))
        if fault == "hand-up" and stored:
            stored["spec"]["replicas"] += 1
        elif fault == "hand-down" and stored:
            stored["spec"]["replicas"] = max(1, stored["spec"]["replicas"] - 1)
        elif fault == "kill" and world.living():
            del world.pods[min(world.living())]
        elif fault == "delete-set":
            world.objects.pop(("StatefulSet", "c-bookie"), None)
        for _ in range(turns):
            plan = world.plan()
            # An operator that dies does only some of it.
            world.act(plan.actions[: 1 if fault == "interrupt" else None])
            world.turn()
    last = {**history[-1][0], "broker": {"replicas": 2}}
    respec(world, **last)
    world.settle(turns=200)
    assert replicas(world) == world.cluster.spec.bookie.replicas
    writes = world.writes
    assert not world.plan().actions
    assert world.writes == writes
    assert all(len(held) >= 2 for held in world.ledgers.values())


def test_amounts_are_compared_as_amounts() -> None:
    assert amount("1Gi") == amount("1024Mi")
    assert amount("500m") == amount("0.5")
    assert amount("x") is None
    assert differences({"a": "0.5", "b": [{"c": 1}]}, {"a": "500m", "b": [{"c": 1, "d": 2}]}) == []
    assert differences({"a": {"b": 1}}, {"a": {}}) == ["a.b: nothing → 1"]
    assert differences({"a": [1]}, {"a": [1, 2]}) == ["a: [1, 2] → [1]"]
    assert differences({"a": False, "b": "", "c": []}, {}) == []


def test_a_proof_expires() -> None:
    world = made(bookie={"replicas": 4})
    respec(world, bookie={"replicas": 3})
    world.act(world.plan().actions)
    world.turn()
    assert world.drains["c-bookie-3"].state == "removable"
    world.now += datetime.timedelta(hours=1)
    (again,) = (action for action in world.plan().actions if isinstance(action, BeginDrain))
    assert "too old" in again.text
    assert STATEFUL_SET.kind not in [
        action.manifest["kind"] for action in world.plan().actions if isinstance(action, Apply)
    ]
