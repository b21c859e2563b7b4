"""Brokers by load: a step of load brings brokers, its end takes them away, with few reversals.

A cluster with one broker whose autoscaler wants 60 % of a small CPU request, and that scales down
after a short quiet time so that the part ends within minutes (the default waits five). The load is
four producers that send as fast as they may; when it ends, brokers go one by one, each draining its
bundles, while a slow stream of messages that must not be lost goes on.
"""

import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from .load import Load, pod
from .operated import cluster
from .world import StepError, World, expect

BROKERS_MAX: Final = 3
QUIET_S: Final = 45
UP_S_MAX: Final = 240.0
DOWN_S_MAX: Final = 420.0
REVERSALS_MAX: Final = 2
METRICS_API: Final = "/apis/external.metrics.k8s.io/v1beta1"
HAMMER: Final = "hammer"

HAMMER_PROGRAM: Final = """
import os, pulsar, threading
client = pulsar.Client(os.environ["SERVICE_URL"], operation_timeout_seconds=30)
def work(number):
    producer = client.create_producer(
        f"persistent://public/default/hammer-{number}", batching_enabled=False,
        block_if_queue_full=True)
    while True:
        producer.send_async(b"x" * 512, lambda *_: None)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()
threads[0].join()
"""

AUTOSCALING: Final = {
    "enabled": True,
    "minReplicas": 1,
    "maxReplicas": BROKERS_MAX,
    "targetCpuPercent": 60,
    "backlog": {"enabled": True, "timeToDrain": "30s"},
    "behavior": {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": QUIET_S,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}],
        },
    },
}


def begin(world: World) -> None:
    """From two brokers to one that its load scales."""
    change = {"broker": {"autoscaling": AUTOSCALING, "resources": {"requests": {"cpu": "200m"}}}}
    world.kubectl(
        "patch", "mcluster", world.cluster, "--type=merge", "-p", json.dumps({"spec": change})
    )
    world.eventually("an autoscaler is there", lambda: world.find("hpa", f"{world.cluster}-broker"))
    # Its own service and certificate, through the API server's aggregation.
    found = world.eventually(
        "the metrics API answers",
        lambda: world.kubectl("get", "--raw", METRICS_API),
        UP_S_MAX,
    )
    expect("magnetar_drain_pressure_percent" in found, found)
    scaled_to(world, 1, DOWN_S_MAX)


def scales_up_and_down(world: World, load: Load) -> None:
    """The autoscaler's decisions are read off the cluster's own number of brokers."""
    seen = [brokers(world)]
    environment = {"SERVICE_URL": world.service_url}
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": HAMMER},
        "data": {"hammer.py": HAMMER_PROGRAM},
    }
    world.kubectl.apply(
        program, pod(HAMMER, world.images.tools, ["/load/hammer.py"], environment, HAMMER)
    )
    began = time.monotonic()
    follow(world, seen, lambda: seen[-1] > 1, UP_S_MAX, "more brokers under load")
    first = time.monotonic() - began
    # It may be enough, or not: until it has been the same for as long as a step down would take.
    settled = time.monotonic() + QUIET_S
    follow(world, seen, lambda: time.monotonic() > settled, UP_S_MAX, "it settles")
    most = max(seen)
    world.kubectl("delete", "pod", HAMMER, "--grace-period=0", "--force")
    ended = time.monotonic()
    follow(world, seen, lambda: seen[-1] == 1, DOWN_S_MAX, "one broker after the load")
    scaled_to(world, 1, DOWN_S_MAX)
    turns = reversals(seen)
    world.note(f"brokers: {', '.join(map(str, seen))}; {turns} reversals")
    world.note(
        f"the first after {first:.0f} s of load, {most} at most, back to one "
        f"{time.monotonic() - ended:.0f} s after its end"
    )
    expect(turns <= REVERSALS_MAX, f"{turns} reversals: {seen}")
    load.flows(at_least=60)


def brokers(world: World) -> int:
    """That are wanted."""
    return int(cluster(world)["spec"]["broker"]["replicas"])


def follow(
    world: World, seen: list[int], until: Callable[[], bool], timeout_s: float, what: str
) -> None:
    """Notes every change of the number."""
    deadline = time.monotonic() + timeout_s
    while not until():
        if time.monotonic() > deadline:
            shown = world.kubectl("get", "hpa", "-o", "wide")
            raise StepError(f"{what}: not within {timeout_s:.0f} s; {seen}\n{shown}")
        if (now := brokers(world)) != seen[-1]:
            seen.append(now)
        time.sleep(1)


def reversals(seen: list[int]) -> int:
    """How often the direction changed."""
    steps = [after - before for before, after in pairwise(seen)]
    return sum(one * two < 0 for one, two in pairwise(steps))


def scaled_to(world: World, count: int, timeout_s: float) -> None:
    world.eventually(
        f"{count} brokers are wanted", lambda: brokers(world) == count or None, timeout_s
    )
    world.wait_ready("broker", count, timeout_s)
