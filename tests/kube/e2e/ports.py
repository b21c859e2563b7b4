"""Every listening port of every pod, tried without credentials.

The ports are those of the kernel (`/proc/net/tcp` in each pod's network namespace, read by a
container that is added to the pod), so a port that nobody thought of is tried as well. The
attempts are those of `probe_program`. Only the paths of PUBLIC may answer strangers: what the
kubelet's probes and Prometheus read. All else must be refused.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from .world import StepError, World, expect

PROGRAM: Final = Path(__file__).with_name("probe_program.py")
SELECTOR: Final = "app=magnetar"
PROBE_S_MAX: Final = 300.0
LISTED_S_MAX: Final = 60.0
SHOWN_MAX: Final = 20

LISTENERS: Final = """
import ipaddress, json
from pathlib import Path
found = set()
for name in ("tcp", "tcp6"):
    file = Path("/proc/net") / name
    for line in file.read_text().splitlines()[1:] if file.exists() else ():
        words = line.split()
        if words[3] == "0A":
            address, _, port = words[1].partition(":")
            groups = [bytes.fromhex(address[at:at + 8])[::-1] for at in range(0, len(address), 8)]
            found.add((int(port, 16), ipaddress.ip_address(b"".join(groups)).is_loopback))
print("LISTENERS", json.dumps(sorted(found)))
"""

HEALTH: Final = frozenset({"/healthz", "/readyz"})
PROCESS: Final = HEALTH | {"/", "/metrics", "/status"}
"""Of `magnetar.observe.health`: figures of a process, nothing of a tenant."""
PUBLIC: Final[dict[str, frozenset[str]]] = {
    "broker": HEALTH | {"/status.html"},
    "bookie": PROCESS,
    "recovery": PROCESS,
    "etcd": HEALTH | {"/health", "/metrics", "/version"},
    "operator": PROCESS,
}
"""The paths that answer everybody, by component."""
DENIED: Final = frozenset({"status 400", "status 401", "status 403", "status 404", "status 405"})
"""404 and 405: nothing is served there. A 404 of a broker is refused by its own rule."""
CLOSED: Final = frozenset({"refused", "silence", "closing", "command ERROR"})

Answer = tuple[str, int, str, str]


def list_ports(world: World, pod: str, name: str) -> None:
    """Starts a container in a pod that prints its listening ports."""
    container = [f"--container={name}", f"--image={world.images.tools}", "--profile=restricted"]
    world.kubectl(
        "debug", pod, *container, "--image-pull-policy=IfNotPresent", "--attach=false",
        "--quiet", "--", "python", "-c", LISTENERS,
    )  # fmt: skip


def listening(world: World, pod: str, name: str) -> list[int]:
    """The ports of a pod that other pods reach."""

    def look() -> list[list[Any]] | None:
        found = re.search(r"LISTENERS (\[.*\])", world.kubectl("logs", pod, "-c", name))
        return json.loads(found[1]) if found else None

    found = world.eventually(f"the listening ports of {pod}", look, LISTED_S_MAX)
    return sorted({int(port) for port, loopback in found if not loopback})


def refusal(component: str, answer: Answer, also: frozenset[str]) -> str:
    """Why an answer to a stranger is wrong; empty if it is right."""
    _, _, attempt, outcome = answer
    if outcome in CLOSED:
        return ""
    path = attempt.split()[-1]
    if path in PUBLIC.get(component, frozenset()) or (component == "etcd" and path in also):
        return ""
    if outcome in DENIED and not (component == "broker" and outcome == "status 404"):
        return ""
    return f"{component} {answer[0]}:{answer[1]}: {attempt}: {outcome}"


def tried(world: World, targets: Sequence[tuple[str, int]], client: str) -> list[Answer]:
    """The answers to all attempts, from a pod that has the authorities and no more."""
    text = world.exec(
        client, "python", "-c", PROGRAM.read_text(), json.dumps(targets), timeout_s=PROBE_S_MAX
    )
    return [tuple(each) for each in json.loads(text.splitlines()[-1])]


def are_closed(
    world: World, client: str, suffix: str = "a", of_etcd: frozenset[str] = frozenset()
) -> None:
    """Tries all ports of all pods.

    `suffix` tells repeated runs apart; `of_etcd` are further paths that etcd may answer.
    """
    pods = [
        pod
        for pod in world.kubectl.json("get", "pods", "-l", SELECTOR)["items"]
        if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]
    owners: dict[tuple[str, int], tuple[str, str]] = {}
    container = f"ports-{suffix}"
    names = [str(pod["metadata"]["name"]) for pod in pods]
    for name in names:
        list_ports(world, name, container)
    for name, pod in zip(names, pods, strict=True):
        for port in listening(world, name, container):
            owners[pod["status"]["podIP"], port] = (pod["metadata"]["labels"]["component"], name)
    expect(owners, "no port listens")
    answers = tried(world, list(owners), client)
    wrong = [
        text
        for answer in answers
        if (text := refusal(owners[answer[0], answer[1]][0], answer, of_etcd))
    ]
    if wrong:
        raise StepError(f"{len(wrong)} answers to strangers:\n" + "\n".join(wrong[:SHOWN_MAX]))
    by_component: dict[str, set[int]] = {}
    for (_, port), (component, _) in owners.items():
        by_component.setdefault(component, set()).add(port)
    expect({"broker", "bookie", "etcd"} <= set(by_component), f"ports of {by_component} only")
    counts = f"{len(answers)} attempts on {len(owners)} ports of {len(pods)} pods"
    world.note(f"{counts}: {listed(by_component.items())}")


def listed(found: Iterable[tuple[str, set[int]]]) -> str:
    """For a step's note."""
    return "; ".join(
        f"{name} {', '.join(map(str, sorted(ports)))}" for name, ports in sorted(found)
    )
