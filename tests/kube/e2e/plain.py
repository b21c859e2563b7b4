"""The chart alone: from `helm install` to an uninstall that keeps the data."""

from typing import Final

from .load import Load, felt, settle, start_asker, verdict
from .world import READY_S_MAX, World, expect

BOOKIES: Final = 3
BROKERS: Final = 2
MEMBERS: Final = 3
BETWEEN_FAULTS_S: Final = 3.0
KEPT: Final = "persistent://public/default/kept"
KEPT_MESSAGES: Final = 50

KEEP: Final = """
import sys, pulsar
url, topic, verb, count = sys.argv[1:4] + [int(sys.argv[4])]
client = pulsar.Client(url, operation_timeout_seconds=30)
consumer = client.subscribe(topic, "kept")
if verb == "write":
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(b"%d" % number)
else:
    found = [int(consumer.receive(timeout_millis=30000).data()) for _ in range(count)]
    assert found == list(range(count)), found
client.close()
"""


def install(world: World) -> None:
    """One command, as in the README, until all of it is ready."""
    world.install("install", values=world.chart_values())
    world.wait_ready("etcd", MEMBERS)
    world.wait_ready("bookie", BOOKIES)
    world.wait_ready("broker", BROKERS)
    start_asker(world)


def helm_test(world: World) -> None:
    text = world.helm("test", world.cluster, timeout_s=READY_S_MAX)
    expect("Succeeded" in text, text)


def first_messages(world: World) -> None:
    """A batch that is read only after everything that follows."""
    world.exec(
        world.asker, "python", "-c", KEEP, world.service_url, KEPT, "write", str(KEPT_MESSAGES),
        timeout_s=READY_S_MAX,
    )  # fmt: skip
    stats = world.get("/admin/v2/persistent/public/default/kept/stats")
    backlog = stats["subscriptions"]["kept"]["msgBacklog"]
    expect(backlog == KEPT_MESSAGES, f"backlog {backlog}, not {KEPT_MESSAGES}")
    brokers = world.get("/admin/v2/brokers")
    expect(len(brokers) == BROKERS, f"brokers {brokers}")


def messages_are_there(world: World) -> None:
    world.exec(
        world.asker, "python", "-c", KEEP, world.service_url, KEPT, "read", str(KEPT_MESSAGES),
        timeout_s=READY_S_MAX,
    )  # fmt: skip


def pods_are_killed(world: World, load: Load) -> None:
    """One of each kind, at once and without a farewell, while messages flow."""
    counts = {"broker": BROKERS, "bookie": BOOKIES, "etcd": MEMBERS}
    for component, count in counts.items():
        victim = world.wait_ready(component, count)[0]
        load.mark(component)
        uid = world.delete_pod(victim)
        world.eventually(
            f"{victim} is replaced",
            lambda uid=uid, component=component: all(  # type: ignore[misc]
                pod["metadata"]["uid"] != uid for pod in world.pods(component)
            ),
        )
        world.wait_ready(component, count)
        world.note(felt(load, f"a {component} killed", load.pause_of(component)))
        settle(BETWEEN_FAULTS_S)


def upgrade_and_rollback(world: World, load: Load) -> None:
    """A changed setting restarts pods one by one; a rollback does it again."""
    load.mark("upgrade")
    values = world.chart_values(
        broker={"configData": {"maxMessageSize": "4194304"}},
    )
    before = {pod["metadata"]["uid"] for pod in world.pods("broker")}
    world.install("upgrade", "--wait", f"--timeout={READY_S_MAX:.0f}s", values=values)

    def rolled() -> bool:
        now = {pod["metadata"]["uid"] for pod in world.pods("broker")}
        return not before & now and len(world.ready_pods("broker")) == len(now) == BROKERS

    world.eventually("the upgrade restarted all brokers", rolled)
    shown = world.get("/admin/v2/brokers/configuration/runtime")
    expect(str(shown.get("maxMessageSize")) == "4194304", f"maxMessageSize {shown}")
    world.note(felt(load, "upgrade", load.pause_of("upgrade")))
    load.mark("rollback")
    world.helm("rollback", world.cluster, "--wait", f"--timeout={READY_S_MAX:.0f}s", timeout_s=240)
    world.wait_ready("broker", BROKERS)
    world.note(felt(load, "rollback", load.pause_of("rollback")))


def nothing_was_lost(world: World, load: Load) -> None:
    world.note(verdict(load.finish()))
    world.kubectl("delete", "pod", load.pod, "--wait=false", "--grace-period=0", "--force")


def uninstall_keeps_data(world: World) -> None:
    """Everything goes but the volumes; an install under the same name finds them."""
    world.uninstall()
    left = world.kubectl.json("get", "pods", "-l", f"app=magnetar,cluster={world.cluster}")["items"]
    expect(not left, f"pods are left: {[pod['metadata']['name'] for pod in left]}")
    claims = world.kubectl.json("get", "pvc", "-l", f"cluster={world.cluster}")["items"]
    expect(len(claims) == BOOKIES + MEMBERS, f"{len(claims)} claims are left")
    install(world)
    messages_are_there(world)


def remove(world: World) -> None:
    """Nothing of this part stays but its claims, which go with the namespace."""
    world.uninstall()
    world.kubectl("delete", "pvc", "-l", f"cluster={world.cluster}", "--wait=false")
