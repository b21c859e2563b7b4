"""MagnetarClusters on a real API server, beside real bookies and a real broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.operator.cluster_rig import NAME, Processes, Rig, processes, rig

from magnetar_operator.cluster.manifests.names import cluster_of
from magnetar_operator.cluster.observed import Observed
from magnetar_operator.cluster.plan import plan
from magnetar_operator.kube.client import Invalid, KubeError
from magnetar_operator.kube.kinds import (
    CLUSTER,
    CONFIG_MAP,
    DEPLOYMENT,
    PDB,
    POD,
    SERVICE,
    STATEFUL_SET,
)
from magnetar_operator.plan_manifests import CHANGES, NOTHING, Findings, PlanFiles
from magnetar_operator.settings import Settings

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

TOPICS = 4
TOPICS_EVERYWHERE = 16
MESSAGES = 20


@pytest.fixture
async def on(kube_namespace: str, crds: list[str]) -> AsyncIterator[Rig]:
    async with rig(kube_namespace) as test_rig:
        yield test_rig


def publish(service_url: str, tmp_path: Path, topics: int = TOPICS) -> None:
    """Ledgers with something in them."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    client = pulsar.Client(service_url, logger=logger)
    for number in range(topics):
        topic = f"persistent://public/default/kept-{number}"
        client.subscribe(topic, "all").close()
        producer = client.create_producer(topic)
        for index in range(MESSAGES):
            producer.send(b"%d" % index)
        producer.close()
    client.close()


def read_all(service_url: str, tmp_path: Path) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "reader.log"))
    client = pulsar.Client(service_url, logger=logger)
    for number in range(TOPICS):
        consumer = client.subscribe(f"persistent://public/default/kept-{number}", "all")
        payloads = [consumer.receive(30_000).data() for _ in range(MESSAGES)]
        assert payloads == [b"%d" % index for index in range(MESSAGES)]
    client.close()


async def complete(on: Rig, found: Processes, **spec: Any) -> None:
    """A cluster that is ready."""
    await on.apply(adminUrl=found.admin_url, **spec)
    await on.until_condition("Ready", "True")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"etcd": {"replicas": 1}, "bookie": {"antiAffinity": "Required"}},
        {
            "etcd": {"external": {"endpoints": ["e:2379"]}},
            "autorecovery": {"mode": "Separate", "config": {"recovery_ledgers_at_once": 4}},
            "broker": {
                "autoscaling": {"enabled": True},
                "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
                "config": {"managedLedgerDefaultAckQuorum": 2},
                "extraEnv": [{"name": "X", "value": "1"}],
                "resources": {"requests": {"cpu": "0.5", "memory": "512Mi"}},
            },
            "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
            "imagePullSecrets": [{"name": "pull"}],
            "bookie": {
                "tolerations": [{"key": "disk", "operator": "Exists"}],
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "ScheduleAnyway",
                    }
                ],
            },
        },
    ],
)
async def test_the_api_server_takes_every_object(on: Rig, spec: dict[str, Any]) -> None:
    """And keeps every field that is asked for."""
    owner = {
        "apiVersion": CLUSTER.api_version,
        "kind": CLUSTER.kind,
        "metadata": {"name": NAME, "namespace": on.namespace, "uid": "u"},
        "spec": spec,
    }
    cluster = cluster_of(owner, Settings(image="magnetar:test"))
    planned = plan_all(cluster)
    assert len(planned) > 15
    for manifest in planned:
        applied = await on.kube.apply(manifest, dry_run=True)
        assert applied.object["kind"] == manifest["kind"]
    pods = [
        document["spec"]["template"]["spec"]
        for document in planned
        if "template" in document.get("spec", {})
    ]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"livenessProbe", "readinessProbe", "startupProbe"} <= set(container)


def plan_all(cluster: Any) -> list[dict[str, Any]]:
    """Every object of a cluster: as if all before it were ready."""
    import datetime

    from magnetar_operator.cluster.observed import Pod
    from magnetar_operator.engine.plan import Apply

    pods = [
        Pod(f"{NAME}-{part}-{index}", f"{part}{index}", part, "", True, None, False)
        for part in ("etcd", "bookie")
        for index in range(3)
    ]
    planned = plan(cluster, Observed(pods=pods), 0, datetime.datetime.now(datetime.UTC))
    return [action.manifest for action in planned.actions if isinstance(action, Apply)]


async def test_a_new_cluster_becomes_ready_and_then_causes_no_writes(
    on: Rig, tmp_path: Path
) -> None:
    async with processes(tmp_path, 3, copies=3) as members:
        await complete(on, members)
        await on.rest()
        status = await on.status()
        assert status["phase"] == "Running"
        assert status["bookies"] == {"ready": 3, "desired": 3, "updated": 3, "summary": "3/3"}
        on.asked.requests.clear()
        assert await on.handler.reconcile(await on.owner()) is None
        writes = {key for key in on.asked.requests if key[0] not in ("get", "list")}
        assert writes == set(), "a second pass writes nothing"
        budget = await on.kube.get(PDB, f"{NAME}-bookie", on.namespace)
        assert budget["spec"]["maxUnavailable"] == 1
        # A bookie is down: no other may be evicted until its ledgers are replicated.
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        await members.stop_bookie(2)
        await on.until_condition("LedgersHealthy", "False")
        budget = await on.kube.get(PDB, f"{NAME}-bookie", on.namespace)
        assert budget["spec"]["maxUnavailable"] == 0


async def test_changes_by_others_are_repaired_and_reported(on: Rig, tmp_path: Path) -> None:
    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        sets = (STATEFUL_SET, on.namespace, f"{NAME}-bookie")
        on.unready = {f"{NAME}-bookie-{index}" for index in range(3, 6)}
        await on.kube.scale(*sets, 1)
        await on.look()
        assert await on.bookies() == 3
        assert any("by hand" in event for event in await on.notes("ScaledBack"))
        ports = [{"port": 1234, "name": "x", "targetPort": 1}]
        await on.kube.merge(SERVICE, on.namespace, f"{NAME}-broker", {"spec": {"ports": ports}})
        await on.kube.delete(CONFIG_MAP, f"{NAME}-broker", on.namespace)
        await on.look()
        service = await on.kube.get(SERVICE, f"{NAME}-broker", on.namespace)
        assert {8080, 6650} <= {port["port"] for port in service["spec"]["ports"]}
        assert await on.kube.find(CONFIG_MAP, f"{NAME}-broker", on.namespace)
        assert any("spec.ports" in event for event in await on.notes("DriftRepaired"))


async def test_bookies_are_removed_after_their_proof_across_an_operator_restart(
    on: Rig, tmp_path: Path
) -> None:
    async with processes(tmp_path, 4) as members:
        await complete(on, members, bookie={"replicas": 4})
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        await on.apply(adminUrl=members.admin_url, bookie={"replicas": 3})
        steps = set()

        async def gone() -> bool:
            steps.add((await on.status()).get("drain", {}).get("step", ""))
            return await on.bookies() == 3

        await on.look()
        assert await on.bookies() == 4
        # Another operator continues.
        async with rig(on.namespace) as other:
            await other.until("three bookies", gone)
            assert steps & {"Copying", "Proving", "Removing", "ReadOnly"}
            await members.stop_bookie(3)
            assert any("is drained" in event for event in await other.notes("DrainBegins"))
            await other.until_condition("ScalingDown", "False")
            await other.until_condition("Ready", "True")

            async def ended() -> bool:
                return bool(await other.notes("DrainEnds"))

            await other.until("the name to be free again", ended)
        await asyncio.to_thread(read_all, members.service_url, tmp_path)


async def test_a_scale_down_is_refused_if_a_bookie_has_damaged_copies(
    on: Rig, tmp_path: Path
) -> None:
    # So long that what will lie is not replaced by good copies while it is away.
    async with processes(tmp_path, 3, lost_bookie_delay_s=10) as members:
        await complete(on, members)
        # So many that some are on every bookie, wherever chance puts them.
        await asyncio.to_thread(publish, members.service_url, tmp_path, TOPICS_EVERYWHERE)
        await members.stop_bookie(0)
        damaged = 0
        for path in members.directory(0).rglob("*.log"):
            content = bytearray(path.read_bytes())
            if path.parent.name == "journal" or len(content) < 2048:
                continue
            for at in range(1024, len(content), 97):
                content[at] ^= 0x40
            path.write_bytes(bytes(content))
            damaged += 1
        assert damaged
        await members.start_bookie(0)
        await on.apply(adminUrl=members.admin_url, bookie={"replicas": 2})
        refused = await on.until_condition("ScaleDownRefused", "True")
        assert "ledger" in refused["message"]
        assert await on.bookies() == 3
        assert (await on.status())["drain"]["step"] == "Refused"
        assert (await on.status())["drain"]["ledgers"]


async def test_too_few_bookies_for_the_quorums_are_refused_at_once(on: Rig) -> None:
    with pytest.raises(Invalid, match="quorums"):
        await on.apply(bookie={"replicas": 1})


async def test_an_upgrade_restarts_bookies_one_by_one_and_brokers_after(
    on: Rig, tmp_path: Path
) -> None:
    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        before = {pod["metadata"]["uid"] for pod in await on.kube.list(POD, on.namespace)}
        await on.apply(adminUrl=members.admin_url, image="magnetar:next")
        seen: list[str] = []

        async def done() -> bool:
            pods = await on.kube.list(POD, on.namespace, labels={"cluster": NAME})
            images = {
                pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in pods
            }
            bookies = {name: image for name, image in images.items() if "bookie" in name}
            for name, image in bookies.items():
                if image == "magnetar:next" and name not in seen:
                    seen.append(name)
            brokers = await on.kube.get(DEPLOYMENT, f"{NAME}-broker", on.namespace)
            image = brokers["spec"]["template"]["spec"]["containers"][0]["image"]
            if image != "magnetar:next":
                return False
            assert list(bookies.values()) == [image] * 3, "brokers only after the bookies"
            return True

        await on.until("the brokers' upgrade", done)
        assert seen == [f"{NAME}-bookie-{index}" for index in (2, 1, 0)]
        assert len(await on.notes("Restarted")) == 3
        after = {pod["metadata"]["uid"] for pod in await on.kube.list(POD, on.namespace)}
        assert before & after, "etcd was left alone"


async def test_plan_and_pause_change_nothing(on: Rig, tmp_path: Path) -> None:
    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        await on.annotate(plan="true")
        await on.apply(adminUrl=members.admin_url, broker={"replicas": 5})
        await on.look()
        steps = (await on.status())["plan"]
        assert any("spec.replicas: 2 → 5" in action["text"] for action in steps)
        brokers = await on.kube.get(DEPLOYMENT, f"{NAME}-broker", on.namespace)
        assert brokers["spec"]["replicas"] == 2
        await on.annotate(plan=None, paused="true")
        await on.look()
        assert (await on.condition("Paused"))["status"] == "True"
        brokers = await on.kube.get(DEPLOYMENT, f"{NAME}-broker", on.namespace)
        assert brokers["spec"]["replicas"] == 2
        await on.annotate(paused=None)
        await on.look()
        brokers = await on.kube.get(DEPLOYMENT, f"{NAME}-broker", on.namespace)
        assert brokers["spec"]["replicas"] == 5
        assert "plan" not in await on.status()


async def test_a_refused_action_is_reported_and_does_not_stop_the_others(
    on: Rig, tmp_path: Path
) -> None:
    """The volumes here can never grow: they have no provisioner."""
    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        await on.apply(
            adminUrl=members.admin_url,
            bookie={"storage": {"size": "20Gi"}},
            broker={"replicas": 3},
        )
        with pytest.raises(KubeError):
            await on.look()
        brokers = await on.kube.get(DEPLOYMENT, f"{NAME}-broker", on.namespace)
        assert brokers["spec"]["replicas"] == 3
        ready = await on.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("False", "NotDone")
        assert "persistentvolumeclaims" in ready["message"]
    with pytest.raises(Invalid, match="cannot shrink"):
        await on.apply(bookie={"storage": {"size": "5Gi"}})


async def test_a_plan_from_outside_of_kubernetes_shows_the_operators_actions(
    on: Rig, tmp_path: Path
) -> None:
    """Elsewhere other images are the default: that is no change."""
    planning = PlanFiles(on.kube, namespace=on.namespace)

    async def planned(**bookie: int) -> Findings:
        owner = await on.owner()
        spec = {**owner["spec"], "bookie": {**owner["spec"].get("bookie", {}), **bookie}}
        document = {key: owner[key] for key in ("apiVersion", "kind")}
        return await planning.run([{**document, "metadata": {"name": NAME}, "spec": spec}])

    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        await on.rest()
        same = await planned()
        assert (same.steps, same.code) == ([], NOTHING)
        fewer = await planned(replicas=2)
        assert fewer.code == CHANGES
        assert "drain" in {step["action"] for step in fewer.steps}
        drained = next(step for step in fewer.steps if step["action"] == "drain")
        assert drained["target"].endswith(f"{NAME}-bookie-2")
    await planning.close()
    assert Settings.from_environment().image != "magnetar:test"
