"""Guarantees of manifests: permitted connections, evictions, and the time to stop."""

from typing import Any

import pytest
from tests.operator.cluster_world import cluster_of, made, respec

from magnetar.documents.bookies import Drain, DrainState
from magnetar_operator.cluster.actions import BeginDrain, ReplacePod
from magnetar_operator.cluster.manifests import brokers as serving
from magnetar_operator.cluster.manifests import storage
from magnetar_operator.cluster.manifests import surroundings as around
from magnetar_operator.cluster.manifests.names import CLIENTS_ONLY, Cluster
from magnetar_operator.cluster.manifests.pods import settings_data
from magnetar_operator.cluster.observed import VOLUME_REASON
from magnetar_operator.engine.plan import Apply


def by_name(manifests: list[Any]) -> dict[str, Any]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests}


# -- evictions


def budgets(cluster: Cluster, *, may_go: bool = True) -> dict[str, int]:
    by_component = by_name(around.disruption_budgets(cluster, may_evict_bookies=may_go))
    return {name: one["spec"]["maxUnavailable"] for name, one in by_component.items()}


def test_bookies_are_evicted_one_at_a_time_and_none_while_the_gate_is_closed() -> None:
    assert budgets(cluster_of()) == {"c-broker": 1, "c-bookie": 1, "c-etcd": 1}
    assert budgets(cluster_of(), may_go=False) == {"c-broker": 1, "c-bookie": 0, "c-etcd": 1}
    many = {"pdb": {"maxUnavailable": 3}}
    wide = cluster_of(broker=many, bookie=many, etcd=many)
    assert budgets(wide) == {"c-broker": 3, "c-bookie": 1, "c-etcd": 1}
    none = {"pdb": {"maxUnavailable": 0}}
    assert budgets(cluster_of(bookie=none, etcd=none)) == {
        "c-broker": 1,
        "c-bookie": 0,
        "c-etcd": 0,
    }
    assert budgets(cluster_of(etcd={"replicas": 1}))["c-etcd"] == 0, "the only member stays"
    external = cluster_of(etcd={"external": {"endpoints": ["e:2379"]}})
    assert set(budgets(external)) == {"c-broker", "c-bookie"}
    off = {"pdb": {"enabled": False}}
    for part in ("broker", "bookie", "etcd"):
        assert f"c-{part}" not in budgets(cluster_of(**{part: off}))


def test_the_budget_follows_the_ledgers_and_the_bookie_being_removed() -> None:
    world = made(bookie={"replicas": 4})

    def may_go() -> int:
        plan = world.plan()
        changed = [
            action.manifest
            for action in plan.actions
            if isinstance(action, Apply) and action.manifest["kind"] == "PodDisruptionBudget"
        ]
        live = world.objects["PodDisruptionBudget", "c-bookie"]
        return int((changed[0] if changed else live)["spec"]["maxUnavailable"])

    assert may_go() == 1
    world.ledgers[99] = {"c-bookie-0"}
    assert may_go() == 0
    del world.ledgers[99]
    respec(world, bookie={"replicas": 3})
    new_plan = world.plan()
    assert any(isinstance(action, BeginDrain) for action in new_plan.actions)
    assert may_go() == 0, "none is evicted beside the one that leaves"
    respec(world, bookie={"replicas": 4})
    world.claims["data-c-bookie-1"]["metadata"]["deletionTimestamp"] = "now"
    assert may_go() == 0
    del world.claims["data-c-bookie-1"]["metadata"]["deletionTimestamp"]
    assert may_go() == 1
    reason = f"{VOLUME_REASON}of-before of c-bookie-1 is replaced"
    world.drains["c-bookie-1"] = Drain("c-bookie-1", DrainState.REFUSED, reason=reason)
    assert may_go() == 0, "its old volume is gone, whatever became of the drain"


def test_a_change_is_described_by_its_differences() -> None:
    world = made()
    respec(world, broker={"service": {"type": "NodePort"}})
    (change,) = world.plan().actions
    assert isinstance(change, Apply)
    assert change.text == "spec.type: ClusterIP → NodePort"


# -- permitted connections


def test_only_the_clusters_pods_and_jobs_reach_bookies_and_etcd() -> None:
    cluster = cluster_of(networkPolicy={"enabled": True, "jobNamespaces": ["jobs"]})
    policies_by_name = by_name(around.network_policies(cluster))
    assert set(policies_by_name) == {"c-broker", "c-bookie", "c-etcd"}
    own = {"podSelector": {"matchLabels": cluster.labels}}
    bookie = policies_by_name["c-bookie"]["spec"]
    assert bookie["policyTypes"] == ["Ingress"]
    assert bookie["podSelector"] == {"matchLabels": cluster.selector("bookie")}
    entries, scrape = bookie["ingress"]
    assert entries["ports"] == [{"port": "bookie"}]
    assert entries["from"][0] == own
    assert len(entries["from"]) == 3
    assert entries["from"][2]["namespaceSelector"] == {
        "matchLabels": {"kubernetes.io/metadata.name": "jobs"}
    }
    assert entries["from"][2]["podSelector"] == entries["from"][1]["podSelector"]
    assert scrape == {"ports": [{"port": "http"}]}
    clients, peers = policies_by_name["c-etcd"]["spec"]["ingress"]
    assert (clients["ports"], clients["from"]) == ([{"port": "client"}], entries["from"])
    assert peers == {
        "from": [{"podSelector": {"matchLabels": cluster.selector("etcd")}}],
        "ports": [{"port": "peer"}],
    }
    (reach,) = policies_by_name["c-broker"]["spec"]["ingress"]
    assert reach == {"ports": [{"port": "pulsar"}, {"port": "http"}]}


def test_only_named_clients_the_cluster_and_the_operator_reach_brokers() -> None:
    apps = {"namespaceSelector": {"matchLabels": {"team": "apps"}}}
    cluster = cluster_of(networkPolicy={"enabled": True, "clients": [apps]})
    (reach,) = by_name(around.network_policies(cluster))["c-broker"]["spec"]["ingress"]
    assert len(reach["from"]) == 4
    assert reach["from"][0] == {"podSelector": {"matchLabels": cluster.labels}}
    assert reach["from"][2]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "op"
    }
    assert reach["from"][3] == apps
    separate = cluster_of(
        networkPolicy={"enabled": True},
        autorecovery={"mode": "Separate"},
        etcd={"external": {"endpoints": ["e:2379"]}},
    )
    assert set(by_name(around.network_policies(separate))) == {
        "c-broker",
        "c-bookie",
        "c-recovery",
    }
    assert around.network_policies(cluster_of(networkPolicy={"enabled": False})) == []


def test_monitors_find_each_pod_once() -> None:
    cluster = cluster_of(metrics={"interval": "15s", "labels": {"release": "x"}})
    monitors = by_name(around.service_monitors(cluster))
    assert set(monitors) == {"c-broker", "c-bookie", "c-etcd"}
    for name, one in monitors.items():
        (endpoint,) = one["spec"]["endpoints"]
        assert endpoint["port"] == ("client" if name == "c-etcd" else "http")
        assert (endpoint["interval"], endpoint["honorLabels"]) == ("15s", True)
        assert one["metadata"]["labels"]["release"] == "x"
        assert one["spec"]["selector"]["matchExpressions"] == [
            {"key": CLIENTS_ONLY, "operator": "DoesNotExist"}
        ]
    often = cluster_of(metrics={"interval": "200ms"})
    assert around.service_monitors(often)[0]["spec"]["endpoints"][0]["interval"] == "1s"
    external = cluster_of(etcd={"external": {"endpoints": ["e:2379"]}})
    assert set(by_name(around.service_monitors(external))) == {"c-broker", "c-bookie"}
    headless, clients = storage.etcd_services(cluster)
    assert CLIENTS_ONLY not in headless["metadata"]["labels"]
    assert clients["metadata"]["labels"][CLIENTS_ONLY] == "true"
    assert headless["spec"]["publishNotReadyAddresses"] is True


# -- stops, settings and forms


@pytest.mark.parametrize(
    ("grace", "pause_s"), [("60s", 5), ("9s", 5), ("8s", 5), ("7s", 4), ("4s", 1), ("3s", 0)]
)
def test_a_broker_can_hand_over_its_bundles_within_the_grace_period(
    grace: str, pause_s: int
) -> None:
    cluster = cluster_of(broker={"gracePeriod": grace})
    (container,) = serving.broker_deployment(cluster)["spec"]["template"]["spec"]["containers"]
    sleeps = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert sleeps == pause_s
    timeout = next(
        int(variable["value"])
        for variable in container["env"]
        if variable["name"] == "MAGNETAR_SHUTDOWN_TIMEOUT_MS"
    )
    assert 0 < timeout <= (int(grace[:-1]) - pause_s) * 1000


def test_brokers_roll_without_a_gap_and_bookies_only_by_the_operator() -> None:
    deployment = serving.broker_deployment(cluster_of(upgrade={"pauseBetween": "7s"}))["spec"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert deployment["minReadySeconds"] == 7
    for item in (
        storage.bookie_stateful_set(cluster_of(), 3),
        storage.etcd_stateful_set(cluster_of()),
    ):
        assert item["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert set(item["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
        assert item["metadata"]["annotations"][storage.REPLICAS_SET] == "3"


def test_settings_are_named_after_their_origin_and_a_users_quorum_wins() -> None:
    assert settings_data({"a_b": 1}, {"MAGNETAR_X": 2, "PULSAR_PREFIX_y": 3, "someKey": 4}) == {
        "MAGNETAR_A_B": "1",
        "MAGNETAR_X": "2",
        "PULSAR_PREFIX_y": "3",
        "PULSAR_PREFIX_someKey": "4",
    }
    assert settings_data({"a": 1}, {"a": 2}) == {"MAGNETAR_A": "2"}
    quorums = {"ensemble": 3, "write": 3, "ack": 2}
    broker_settings = serving.broker_settings(cluster_of(bookie={"quorums": quorums}))
    assert {
        name: value
        for name, value in broker_settings.items()
        if "QUORUM" in name or "ENSEM" in name
    } == {
        "MAGNETAR_ENSEMBLE_SIZE": "3",
        "MAGNETAR_WRITE_QUORUM": "3",
        "MAGNETAR_ACK_QUORUM": "2",
    }
    config = {"ack_quorum": 3, "managedLedgerDefaultWriteQuorum": 2}
    broker_settings = serving.broker_settings(
        cluster_of(bookie={"quorums": quorums}, broker={"config": config})
    )
    assert broker_settings["MAGNETAR_ACK_QUORUM"] == "3"
    assert "MAGNETAR_WRITE_QUORUM" not in broker_settings
    assert broker_settings["PULSAR_PREFIX_managedLedgerDefaultWriteQuorum"] == "2"
    inside = storage.bookie_settings(cluster_of(autorecovery={"config": {"x_y": 1}}))
    assert inside == {"MAGNETAR_X_Y": "1"}
    separate = cluster_of(autorecovery={"mode": "Separate", "config": {"x_y": 1}})
    assert storage.bookie_settings(separate) == {}
    assert serving.recovery_settings(separate) == {"MAGNETAR_X_Y": "1"}


# -- one thing at a time


def test_a_volume_replacement_waits_for_an_upgrade_and_that_for_a_drain() -> None:
    world = made(bookie={"replicas": 4})
    respec(world, bookie={"replicas": 4, "config": {"x_y": "1"}})
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    world.turn()
    world.request = "c-bookie-1"
    plan = world.plan()
    assert plan.replace.waits == "c-bookie-0 is being upgraded"
    assert not any(isinstance(action, BeginDrain) for action in plan.actions)
    assert any(isinstance(action, ReplacePod) for action in plan.actions)
    world.request = ""
    world.settle()
    world.turn()
    respec(world, bookie={"replicas": 3, "config": {"x_y": "1"}})
    world.act(world.plan().actions)
    assert world.drains["c-bookie-3"].state == "copying"
    respec(world, bookie={"replicas": 3, "config": {"x_y": "2"}})
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    for name, one in world.objects.items():
        if name == ("StatefulSet", "c-bookie"):
            world._stateful_set(one)
    plan = world.plan()
    assert not any(isinstance(action, ReplacePod) for action in plan.actions)
    assert plan.rolls["bookie"].waits == "c-bookie-3 is being drained"
    world.request = "c-bookie-1"
    plan = world.plan()
    assert not any(isinstance(action, BeginDrain) for action in plan.actions)
