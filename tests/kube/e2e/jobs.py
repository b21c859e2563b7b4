"""Spark jobs: the samples of all three kinds from `kubectl apply` to done, and a schedule.

Cold data is on a volume of the cluster's node, which brokers and jobs mount (`offload` with the
driver `filesystem`). What was sent is read again by the official client after bookies let go.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from .load import start_asker
from .operated import APPLIED, CLUSTER_S_MAX, RESOURCES_S_MAX, SAMPLES, is_ready, ledgers_move_on
from .world import CLIENT, StepError, World, expect

CLAIM: Final = "cold"
TOPIC: Final = "persistent://shop/orders/created"
MESSAGES: Final = 2_000
KEYS: Final = 100
ROUNDS: Final = 3
RUN_S_MAX: Final = 420.0
TWICE_S_MAX: Final = 600.0
GONE_S_MAX: Final = 60.0
EVERY_MINUTE: Final = "every-minute"
ON_THRESHOLD: Final = "compact-on-threshold"
WATCHING_S_MAX: Final = 60.0
BROKER_CONFIG: Final = {
    "compaction_topic_size_mb_max": "0",  # compactions are left to jobs
    "brokerServiceCompactionMonitorIntervalInSeconds": "5",
}
REQUESTS: Final = {"requests": {"cpu": "20m", "memory": "64Mi"}}

SEND: Final = (
    CLIENT
    + """
client = connected(sys.argv[1])
producer = client.create_producer(sys.argv[2], batching_enabled=True, block_if_queue_full=True)
first, count, keys = map(int, sys.argv[3:6])
for number in range(first, first + count):
    producer.send_async(b"%d" % number, lambda *_: None, partition_key=str(number % keys))
producer.flush()
client.close()
"""
)
READ: Final = (
    CLIENT
    + """
client = connected(sys.argv[1])
compacted = sys.argv[3] == "compacted"
found = 0
seen = set()
for partition in range(int(sys.argv[4])):
    reader = client.create_reader(f"{sys.argv[2]}-partition-{partition}",
                                  pulsar.MessageId.earliest, is_read_compacted=compacted)
    while reader.has_message_available():
        seen.add(int(reader.read_next(30_000).data()))
        found += 1
client.close()
print("FOUND", found, len(seen), min(seen), max(seen))
"""
)


CLOSED: Final[dict[str, Any]] = {
    "tls": {"enabled": True},
    "auth": {"authentication": {"enabled": True}, "authorization": {"enabled": True}},
}


def install_closed(world: World) -> None:
    """The same, closed: jobs present a certificate and a token."""
    world.has_tls = world.has_tokens = True
    install(world, CLOSED)


def install(world: World, more: dict[str, Any] | None = None) -> None:
    """A small cluster whose cold data has a volume."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    world.kubectl.apply(claim)
    values = world.chart_values(
        operator={"enabled": True, "resources": REQUESTS},
        offload={"driver": "filesystem", "volumeClaim": {"name": CLAIM}},
        etcd={"replicaCount": 1, "resources": REQUESTS},
        bookkeeper={"replicaCount": 2, "resources": REQUESTS},
        broker={"replicaCount": 1, "resources": REQUESTS, "configData": BROKER_CONFIG},
        **(more or {}),
    )
    world.install("install", values=values)
    world.kubectl(
        "wait", f"mcluster/{world.cluster}", "--for=condition=Ready",
        f"--timeout={CLUSTER_S_MAX:.0f}s", timeout_s=CLUSTER_S_MAX + 10,
    )  # fmt: skip
    start_asker(world)


def messages(world: World) -> None:
    """Into a topic of the samples, with ledgers that are closed."""
    for name in APPLIED:
        world.kubectl("apply", "-f", SAMPLES / f"{name}.yaml")
    world.eventually(
        "the topic is Ready",
        lambda: is_ready(world.find("mtopic", "orders-created")),
        RESOURCES_S_MAX,
    )
    for number in range(ROUNDS):
        send(world, number)
        ledgers_move_on(world, "shop/orders")


def send(world: World, number: int) -> None:
    """Sends the messages of a round."""
    world.exec(
        world.asker, "python", "-c", SEND, world.service_url, TOPIC,
        str(number * MESSAGES), str(MESSAGES), str(KEYS), timeout_s=120,
    )  # fmt: skip


def read(world: World, how: str) -> list[int]:
    """Messages, different ones, the first and the last."""
    metadata = world.get("/admin/v2/persistent/shop/orders/created/partitions")
    out = world.exec(
        world.asker, "python", "-c", READ, world.service_url, TOPIC, how,
        str(metadata["partitions"]), timeout_s=180,
    )  # fmt: skip
    words = next(line for line in out.splitlines() if line.startswith("FOUND ")).split()
    return [int(word) for word in words[1:]]


def status(world: World, name: str) -> dict[str, Any]:
    return dict((world.find("mspark", name) or {}).get("status") or {})


def finished(world: World, name: str, runs: int = 1) -> Callable[[], dict[str, Any] | None]:
    """The newest run, once so many have ended, or one of them badly."""

    def look() -> dict[str, Any] | None:
        found = status(world, name)
        ended = [one for one in found.get("runs", ()) if one["state"] == "Succeeded"]
        bad = [one for one in found.get("runs", ()) if one["state"] in ("Failed", "Stopped")]
        return bad[0] if bad else ended[0] if len(ended) >= runs else None

    return look


def succeeded(world: World, name: str, runs: int = 1, wait_s: float = RUN_S_MAX) -> dict[str, Any]:
    """The same; what went wrong is the step's failure, with the driver's last words."""
    run = world.eventually(f"{name} has run", finished(world, name, runs), wait_s)
    if run["state"] != "Succeeded":
        log = world.kubectl.run("logs", f"job/{run['name']}", "--tail=60").stdout
        raise StepError(f"{name}: {run}\n{log}")
    world.note(f"{name}: {run['message'][:300]}")
    return run


def run_to_its_end(world: World, file: Path, *annotations: str) -> dict[str, Any]:
    """A sample, as it is."""
    name = str(yaml.safe_load(file.read_text())["metadata"]["name"])
    world.kubectl("apply", "-f", file)
    if annotations:
        world.kubectl("annotate", "mspark", name, "--overwrite", *annotations)
    return succeeded(world, name)


def offload(world: World) -> None:
    run = run_to_its_end(world, SAMPLES / "sparkjob-offload.yaml")
    expect(run["result"], f"it tells no figures: {run}")
    # Once more, now without the time of grace: bookies let go.
    body = '{"spec":{"options":{"threshold":0,"deletion-lag":0}}}'
    world.kubectl("patch", "mspark", "offload-orders", "--type=merge", "-p", body)
    world.kubectl("annotate", "mspark", "offload-orders", "magnetar.io/run=let-go")
    succeeded(world, "offload-orders", 2)
    found = read(world, "all")
    total = ROUNDS * MESSAGES
    expect(found == [total, total, 0, total - 1], f"of {total} messages read again: {found}")


def compact(world: World) -> None:
    run_to_its_end(world, SAMPLES / "sparkjob-compact.yaml")
    found, different, _, last = read(world, "compacted")
    total = ROUNDS * MESSAGES
    expect(
        found == different and KEYS <= found < total and last == total - 1,
        f"of {total} messages of {KEYS} keys a compacted reader has {found}, up to {last}",
    )


def compact_on_threshold(world: World) -> None:
    """The operator starts a run once the topic is above its threshold, and none before."""
    world.kubectl("apply", "-f", SAMPLES / "sparkjob-on-threshold.yaml")
    send(world, ROUNDS)

    def watching() -> dict[str, Any] | None:
        found = status(world, ON_THRESHOLD)
        return found if found.get("phase") == "Watching" else None

    before = world.eventually("the operator asks the brokers", watching, WATCHING_S_MAX)
    expect(not before.get("runs"), f"a run without a topic that waits: {before}")
    body = '{"spec":{"policies":{"compactionThreshold":1}}}'
    world.kubectl("patch", "mtopic", "orders-created", "--type=merge", "-p", body)
    run = succeeded(world, ON_THRESHOLD)
    world.note(f"began {run['startedAt']}, ended {run['endedAt']}")
    found = read(world, "compacted")
    total = (ROUNDS + 1) * MESSAGES
    expect(
        found[0] == found[1] and KEYS <= found[0] < MESSAGES and found[3] == total - 1,
        f"of {total} messages of {KEYS} keys a compacted reader has {found}",
    )


def backlog(world: World) -> None:
    """It has a schedule; this run is asked for."""
    run_to_its_end(world, SAMPLES / "sparkjob-backlog.yaml", "magnetar.io/run=now")
    found = status(world, "backlog-report")
    expect(found["phase"] == "Scheduled" and found["nextRunAt"], f"its schedule stands: {found}")


def schedule(world: World) -> None:
    """It runs twice by the clock, and with it go its runs."""
    sample = yaml.safe_load((SAMPLES / "sparkjob-backlog.yaml").read_text())
    made = copy.deepcopy(sample)
    made["metadata"]["name"] = EVERY_MINUTE
    made["spec"] |= {"schedule": "* * * * *"}
    world.kubectl.apply(made)
    succeeded(world, EVERY_MINUTE, 2, TWICE_S_MAX)
    runs = status(world, EVERY_MINUTE)["runs"]
    world.note("began " + ", ".join(one["startedAt"] for one in runs))
    world.kubectl("delete", "mspark", EVERY_MINUTE, "--timeout=60s", timeout_s=70)

    def nothing_left() -> bool:
        label = f"magnetar.io/sparkjob={EVERY_MINUTE}"
        left = world.kubectl.json("get", "cronjobs,jobs,pods", "-l", label)["items"]
        return not left

    world.eventually("nothing of it is left", nothing_left, GONE_S_MAX)
