"""A bookie that goes by will, under load: it gets a new volume, or is evicted as by a drain."""

import json
import time
from typing import Any, Final

from .load import Load, felt
from .operated import cluster, condition
from .plain import BOOKIES
from .world import World, expect

REPLACED_S_MAX: Final = 240.0
BACK_S_MAX: Final = 120.0
ANNOTATION: Final = "magnetar.io/replace-volume"


def claims(world: World) -> dict[str, str]:
    """The bookies' volumes: uid by name."""
    labels = f"cluster={world.cluster},component=bookie"
    items = world.kubectl.json("get", "pvc", "-l", labels)["items"]
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in items}


def replace_volume(world: World, load: Load) -> None:
    """Asked for with an annotation; emptied and proven first, then claim and pod are made anew."""
    bookie = f"{world.cluster}-bookie-1"
    before, began = claims(world), time.monotonic()
    load.mark("volume")
    world.kubectl("annotate", "mcluster", world.cluster, f"{ANNOTATION}={bookie}")
    steps: list[str] = []

    def done() -> bool:
        found = cluster(world)
        drain = found.get("status", {}).get("drain") or {}
        step = str(drain.get("step", ""))
        if step and (not steps or steps[-1] != step):
            steps.append(step)
        expect(step != "Refused", f"it was refused: {drain}")
        told = condition(found, "ReplacingVolume")
        asked = ANNOTATION in found["metadata"].get("annotations", {})
        return not asked and not drain and told.get("status") == "False" and bool(steps)

    world.eventually(f"{bookie} has a new volume", done, REPLACED_S_MAX)
    after = claims(world)
    changed = {name for name in before if after.get(name) != before[name]}
    expect(changed == {f"data-{bookie}"}, f"other volumes: {changed}")
    world.wait_ready("bookie", BOOKIES)
    health = world.get("/admin/v2/magnetar/ledgers/health")
    known = {one["bookieId"]: one for one in health["bookies"]}
    expect(not known[bookie]["draining"], f"it takes no new ledgers: {known[bookie]}")
    expect(not known[bookie].get("incarnationsBefore"), f"old disks are known: {known[bookie]}")
    world.note(f"status.drain said {', '.join(steps)}; {time.monotonic() - began:.0f} s")
    world.note(felt(load, "a new volume", load.pause_of("volume")))


def evict(world: World, pod: str) -> str:
    """By the eviction subresource, as `kubectl drain` asks it; the refusal, or nothing."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": world.kubectl.namespace},
    }
    path = f"/api/v1/namespaces/{world.kubectl.namespace}/pods/{pod}/eviction"
    done = world.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
    return done.stderr.strip() if done.returncode else ""


def evictable(world: World) -> bool:
    """Whether the bookies' disruption budget lets one go now."""
    found = world.find("pdb", f"{world.cluster}-bookie") or {}
    status: dict[str, Any] = found.get("status", {})
    generation = found.get("metadata", {}).get("generation")
    return bool(status.get("observedGeneration") == generation and status["disruptionsAllowed"])


def evictions(world: World, load: Load) -> None:
    """One bookie may go while all is well; the next only when the first is back, ledgers whole."""
    world.eventually("a bookie may be evicted", lambda: evictable(world), BACK_S_MAX)
    first, second = (f"{world.cluster}-bookie-{index}" for index in (0, 2))
    uid = (world.find("pod", first) or {})["metadata"]["uid"]
    load.mark("evicted")
    refused = evict(world, first)
    expect(not refused, f"{first} was not evicted: {refused}")
    refused = evict(world, second)
    expect("disruption budget" in refused, f"a second one was evicted: {refused}")
    began = time.monotonic()
    world.eventually(
        f"{first} is another pod",
        lambda: uid not in {pod["metadata"]["uid"] for pod in world.pods("bookie")},
        BACK_S_MAX,
    )
    world.wait_ready("bookie", BOOKIES)
    world.eventually("the next may be evicted", lambda: evictable(world), BACK_S_MAX)
    world.note(f"429: {refused.splitlines()[-1][:160]}")
    world.note(f"the next one may go {time.monotonic() - began:.0f} s after the first")
    world.note(felt(load, "a bookie evicted", load.pause_of("evicted")))
