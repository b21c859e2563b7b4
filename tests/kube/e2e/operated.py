"""With the operator: a MagnetarCluster, resources that are applied, and scaling without loss."""

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from .load import Load, felt, start_asker
from .plain import BOOKIES, BROKERS, MEMBERS
from .world import World, expect

SAMPLES: Final = Path("crds") / "samples"
APPLIED: Final = ("tenant", "namespace", "topic", "subscription")
"""Of the samples; the others make clusters and start jobs, and are only checked by the server."""
TOPIC: Final = "persistent://shop/orders/created"
PARTITIONS: Final = 4
UNREAD: Final = 25
# kube-scheduler retries an unschedulable pod after 300 s at the latest, also if it missed the event
# that its volume was bound.
CLUSTER_S_MAX: Final = 400.0
RESOURCES_S_MAX: Final = 90.0
DRAIN_S_MAX: Final = 240.0
PUT_BACK_S_MAX: Final = 60.0

PRODUCE: Final = """
import sys, pulsar
client = pulsar.Client(sys.argv[1], operation_timeout_seconds=30)
producer = client.create_producer(sys.argv[2], schema=pulsar.schema.BytesSchema())
for number in range(int(sys.argv[3])):
    producer.send(b'{"id": "%d"}' % number)
client.close()
"""

DAMAGE: Final = """
import pathlib
damaged = 0
for path in pathlib.Path("/data").rglob("*.log"):
    content = bytearray(path.read_bytes())
    if path.parent.name == "journal" or len(content) < 2048:
        continue
    for at in range(1024, len(content), 97):
        content[at] ^= 0x40
    path.write_bytes(bytes(content))
    damaged += 1
print(damaged)
"""


def install(world: World) -> None:
    """One command brings the CRDs, the operator and a cluster, which it makes ready."""
    values = world.chart_values(operator={"enabled": True})
    world.install("install", values=values)
    world.kubectl(
        "wait", f"mcluster/{world.cluster}", "--for=condition=Ready",
        f"--timeout={CLUSTER_S_MAX:.0f}s", timeout_s=CLUSTER_S_MAX + 10,
    )  # fmt: skip
    for component, count in {"etcd": MEMBERS, "bookie": BOOKIES, "broker": BROKERS}.items():
        world.wait_ready(component, count)
    start_asker(world)


def cluster(world: World) -> dict[str, Any]:
    found = world.find("mcluster", world.cluster)
    expect(found, "the MagnetarCluster is gone")
    return found or {}


def is_ready(resource: dict[str, Any] | None) -> bool:
    """Raises what the resource says against it."""
    conditions = (resource or {}).get("status", {}).get("conditions", ())
    ready = next((each for each in conditions if each["type"] == "Ready"), None)
    expect(ready and ready["status"] == "True", f"Ready: {ready}")
    return True


def samples(world: World) -> None:
    """Applied as they are; the cluster is called as they say."""
    elsewhere = world.kubectl.within("default")
    for file in sorted(SAMPLES.glob("*.yaml")):
        elsewhere("apply", "--dry-run=server", "-f", file)
    for name in APPLIED:
        world.kubectl("apply", "-f", SAMPLES / f"{name}.yaml")
    kinds = {"mtenant": "shop", "mns": "orders", "mtopic": "orders-created", "msub": "billing"}
    for kind, name in kinds.items():
        world.eventually(
            f"{kind}/{name} is Ready",
            lambda kind=kind, name=name: is_ready(world.find(kind, name)),  # type: ignore[misc]
            RESOURCES_S_MAX,
        )
    metadata = world.get("/admin/v2/persistent/shop/orders/created/partitions")
    expect(metadata["partitions"] == PARTITIONS, f"REST says {metadata}")
    subscriptions = world.get("/admin/v2/persistent/shop/orders/created/subscriptions")
    expect("billing" in subscriptions, f"REST says {subscriptions}")


def columns(world: World, kind: str, name: str) -> dict[str, str]:
    """What `kubectl get` prints of one resource, by heading."""
    lines = world.kubectl("get", kind, name, "-o", "wide").splitlines()
    starts = [found.start() for found in re.finditer(r"\S+", lines[0])]
    ends = [*starts[1:], None]
    cut = [
        (lines[0][a:b].strip(), lines[1][a:b].strip()) for a, b in zip(starts, ends, strict=True)
    ]
    return dict(cut)


def kubectl_tells_the_truth(world: World) -> None:
    """Columns against REST and against the pods that there are."""
    world.exec(world.asker, "python", "-c", PRODUCE, world.service_url, TOPIC, str(UNREAD))
    stats = world.get("/admin/v2/persistent/shop/orders/created/partitioned-stats")
    backlog = stats["subscriptions"]["billing"]["msgBacklog"]
    expect(backlog == UNREAD, f"REST's backlog is {backlog}")
    shown = world.eventually(
        "kubectl get mtopic shows the backlog",
        lambda: (
            found
            if (found := columns(world, "mtopic", "orders-created")).get("BACKLOG") == str(UNREAD)
            else None
        ),
        RESOURCES_S_MAX,
    )
    expect(shown.get("PARTITIONS") == str(PARTITIONS), f"kubectl get mtopic: {shown}")
    expect(shown.get("READY") == "True", f"kubectl get mtopic: {shown}")
    world.note(f"kubectl get mtopic: {json.dumps(shown)}")
    row = columns(world, "mcluster", world.cluster)
    for heading, component in (("BROKERS", "broker"), ("BOOKIES", "bookie")):
        pods = len(world.ready_pods(component))
        expect(row.get(heading) == f"{pods}/{pods}", f"kubectl get mcluster: {row}, {pods} pods")
    world.note(f"kubectl get mcluster: {json.dumps(row)}")


def patch(world: World, spec: dict[str, Any]) -> None:
    body = json.dumps({"spec": spec})
    world.kubectl("patch", "mcluster", world.cluster, "--type=merge", "-p", body)


def scale_brokers(world: World, load: Load) -> None:
    load.mark("brokers")
    for count in (BROKERS + 1, BROKERS):
        world.kubectl("scale", f"mcluster/{world.cluster}", f"--replicas={count}")
        world.wait_ready("broker", count)
        world.eventually(
            f"REST knows {count} brokers",
            lambda count=count: len(world.get("/admin/v2/brokers")) == count,  # type: ignore[misc]
        )
    world.note(felt(load, "brokers 2, 3, 2", load.pause_of("brokers")))


def ledgers_move_on(world: World, namespace: str = "public/default") -> None:
    """New ledgers, which a bookie that came later has its share of."""
    status, text = world.ask("PUT", f"/admin/v2/namespaces/{namespace}/unload")
    expect(status in {200, 204}, f"unload: {status} {text}")


def scale_bookies(world: World, load: Load) -> None:
    """One more takes its share; then it is drained, proven and removed, while messages flow."""
    load.mark("bookies up")
    patch(world, {"bookie": {"replicas": BOOKIES + 1}})
    world.wait_ready("bookie", BOOKIES + 1, CLUSTER_S_MAX)
    ledgers_move_on(world)
    world.note(felt(load, "bookies 3 to 4", load.pause_of("bookies up", 400)))
    load.mark("bookies down")

    def drained() -> bool:
        drain = cluster(world).get("status", {}).get("drain") or {}
        expect(drain.get("step") != "Refused", f"the drain was refused: {drain}")
        return len(world.pods("bookie")) == BOOKIES

    with world.watched("mcluster", world.cluster, "{.status.drain.step}") as steps:
        patch(world, {"bookie": {"replicas": BOOKIES}})
        world.eventually("the fourth bookie is removed", drained, DRAIN_S_MAX)
        world.eventually("status.drain told of the drain", lambda: any(steps()))
        seen = [step for step, _ in groupby(filter(None, steps()))]
    world.wait_ready("bookie", BOOKIES)
    world.note(f"status.drain said {', '.join(seen)}")
    world.note(felt(load, "bookies 4 to 3", load.pause_of("bookies down")))


def condition(resource: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = resource.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def a_bookie_lies(world: World) -> None:
    """It answers for ledgers whose bytes it no longer has: no other may be removed then.

    Autorecovery rewrites those copies from the good ones, perhaps before anybody sees the refusal.
    A removal after that is right, and every copy that is left can be proven.
    """
    liar = f"{world.cluster}-bookie-0"
    for damage in (False, True):
        # A first stop in peace writes all it has to its entry logs.
        if damage:
            expect(int(world.exec(liar, "python", "-c", DAMAGE)), f"{liar} has no entry logs")
        uid = world.delete_pod(liar, kill=damage)
        world.eventually(
            f"{liar} is replaced",
            lambda uid=uid: all(pod["metadata"]["uid"] != uid for pod in world.pods("bookie")),  # type: ignore[misc]
        )
        world.wait_ready("bookie", BOOKIES)
    patch(world, {"bookie": {"replicas": BOOKIES - 1}})

    refused: list[dict[str, Any]] = []

    def ended() -> bool:
        seen = cluster(world)
        if condition(seen, "ScaleDownRefused").get("status") == "True":
            refused.append(seen)
        return bool(refused) or len(world.pods("bookie")) < BOOKIES

    world.eventually("the scale-down is refused, or right", ended, DRAIN_S_MAX)
    if refused:
        drain = refused[0]["status"]["drain"]
        expect(drain["ledgers"], f"no ledgers are named: {drain}")
        message = condition(refused[0], "ScaleDownRefused")["message"]
        world.note(f"ScaleDownRefused: {message[:200]}")
    else:
        world.eventually(
            "all copies of all entries are proven",
            lambda: world.exec(liar, "magnetar", "ledger", "check"),
        )
        world.note("autorecovery had rewritten the liar's copies before the proof")
    patch(world, {"bookie": {"replicas": BOOKIES}})


def scaled_by_hand(world: World) -> None:
    """Behind the operator's back: it is put back, and told."""
    name = f"{world.cluster}-bookie"
    world.kubectl("scale", f"statefulset/{name}", f"--replicas={BOOKIES - 1}")

    def back() -> bool:
        found = world.find("statefulset", name) or {}
        return bool(found.get("spec", {}).get("replicas") == BOOKIES)

    world.eventually("the StatefulSet's replicas are put back", back, PUT_BACK_S_MAX)
    world.wait_ready("bookie", BOOKIES)
    events = world.kubectl.json("get", "events")["items"]
    told = [e["message"] for e in events if e["involvedObject"]["kind"] == "MagnetarCluster"]
    expect(any("replicas" in text for text in told), f"no Event tells of it: {told}")


def new_setting(world: World, load: Load) -> None:
    """A changed setting rolls the brokers one by one."""
    before = {pod["metadata"]["uid"] for pod in world.pods("broker")}
    load.mark("setting")
    patch(world, {"broker": {"config": {"maxMessageSize": "4194304"}}})

    def rolled() -> bool:
        now = {pod["metadata"]["uid"] for pod in world.pods("broker")}
        return not before & now and len(world.ready_pods("broker")) == BROKERS

    world.eventually("all brokers are new", rolled, CLUSTER_S_MAX)
    world.note(felt(load, "a setting of the brokers", load.pause_of("setting")))


def operator_goes(world: World, load: Load) -> None:
    """Without its operator the cluster runs on, and nothing of it is deleted."""
    name = f"deployment/{world.cluster}-operator"
    before = owned(world)
    world.kubectl("scale", name, "--replicas=0")
    world.eventually("the operator is gone", lambda: not world.pods("operator"))
    load.flows(at_least=500)
    expect(owned(world) == before, f"{before} became {owned(world)}")
    world.kubectl("scale", name, "--replicas=1")
    world.wait_ready("operator", 1)
    load.flows(at_least=500)
    expect(owned(world) == before, f"{before} became {owned(world)}")


def owned(world: World) -> set[str]:
    """Of each component, its pods."""
    return {
        str(pod["metadata"]["uid"])
        for component in ("etcd", "bookie", "broker")
        for pod in world.pods(component)
    }


def resources_go(world: World) -> None:
    """What is deleted here is deleted there, unless it says KeepAfterDeletion."""
    for kind, name in (("msub", "billing"), ("mtopic", "orders-created")):
        world.kubectl("delete", kind, name, "--timeout=60s", timeout_s=70)
    status, _ = world.ask("GET", "/admin/v2/persistent/shop/orders/created/partitions")
    topics = world.get("/admin/v2/persistent/shop/orders/partitioned")
    expect(TOPIC not in topics, f"{TOPIC} is still there ({status})")
    for kind, name in (("mns", "orders"), ("mtenant", "shop")):
        world.kubectl("delete", kind, name, "--timeout=60s", timeout_s=70)
    kept = world.get("/admin/v2/tenants")
    expect("shop" in kept, f"KeepAfterDeletion did not keep the tenant: {kept}")


def uninstall(world: World) -> None:
    """The operator, the cluster's resource and its pods go; the volumes and CRDs stay."""
    world.uninstall()
    world.eventually("its pods are gone", lambda: not owned(world), CLUSTER_S_MAX)
    claims = world.kubectl.json("get", "pvc", "-l", f"cluster={world.cluster}")["items"]
    expect(len(claims) >= BOOKIES + MEMBERS, f"{len(claims)} claims are left")
    expect(world.find("crd", "topics.magnetar.io"), "the CRDs went with the release")
