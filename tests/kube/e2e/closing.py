"""An open cluster becomes a closed one under load, by the steps of docs/run/kubernetes.md.

Each step is a `helm upgrade` with the values of the document, which are read from it, so that the
document is what is tested. Three generations of clients run one after the other: without TLS, with
TLS, with TLS and tokens. None of them may have an error. The chart runs the cluster; its Job issues
the certificates.
"""

import copy
import re
from pathlib import Path
from typing import Any, Final

import yaml

from .closed import BOOKIES, BROKERS, MEMBERS, REQUESTS, STRANGER, entered, nothing_was_lost
from .load import Load, start_asker, start_idle
from .ports import are_closed
from .world import World, expect

DOCUMENT: Final = Path("docs") / "run" / "kubernetes.md"
HEADING: Final = "### From an open cluster to a closed one"
ROLLED_S_MAX: Final = 300.0
TOPICS: Final = 3
SMALL: Final[dict[str, Any]] = {
    "etcd": {"resources": REQUESTS},
    "bookkeeper": {"resources": REQUESTS},
    "broker": {"resources": REQUESTS},
}
FIRST_BOOKIES: Final[dict[str, Any]] = {"tls": {"bookie": {"clients": False}}}
"""Without the operator: brokers change only after every bookie has TLS."""
ONLY_TLS: Final[dict[str, Any]] = {"tls": {"enabled": True, "etcd": {"peers": False}}}
CLOSED: Final[dict[str, Any]] = {
    "auth": {"authentication": {"enabled": True}, "authorization": {"enabled": True}}
}


def documented() -> list[dict[str, Any]]:
    """The values in the document's steps, in order."""
    text = DOCUMENT.read_text().partition(HEADING)[2].partition("\n## ")[0]
    blocks = re.findall(r"\n\n((?: {7,}\S.*\n)+)", text)
    return [yaml.safe_load(block) for block in blocks]


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Values as helm merges them: later ones have precedence."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def upgrade(world: World, *layers: dict[str, Any]) -> None:
    """One step: `helm upgrade`, until every pod is of the new template and ready."""
    world.install("upgrade", values=world.chart_values(**merged(SMALL, *layers)))
    for kind, component in (("sts", "etcd"), ("sts", "bookie"), ("deploy", "broker")):
        world.kubectl(
            "rollout", "status", f"{kind}/{world.cluster}-{component}",
            f"--timeout={ROLLED_S_MAX:.0f}s", timeout_s=ROLLED_S_MAX + 10,
        )  # fmt: skip
    for component, count in {"etcd": MEMBERS, "bookie": BOOKIES, "broker": BROKERS}.items():
        world.wait_ready(component, count)


def install(world: World) -> None:
    """An open cluster."""
    world.install("install", values=world.chart_values(**SMALL))
    for component, count in {"etcd": MEMBERS, "bookie": BOOKIES, "broker": BROKERS}.items():
        world.wait_ready(component, count)
    start_asker(world)


def both_ports(world: World, load: Load) -> None:
    """Step 1: certificates; every port admits clients with and without TLS."""
    load.mark("both")
    both = documented()[0]
    upgrade(world, both, FIRST_BOOKIES)
    upgrade(world, both)
    world.note(f"receipts paused for {load.pause_of('both'):.1f} s")


def clients_with_tls(world: World, plain: Load, secured: Load) -> None:
    """Step 2: clients change the address."""
    nothing_was_lost(world, plain)
    world.has_tls = True
    start_asker(world, "asker-tls")
    secured.start(TOPICS)


def tls_only(world: World, load: Load) -> None:
    """Step 3: no port without TLS."""
    load.mark("tls only")
    upgrade(world, ONLY_TLS)
    world.note(f"receipts paused for {load.pause_of('tls only'):.1f} s")


def tokens(world: World, secured: Load, closed: Load) -> None:
    """Steps 4 and 5: tokens, which clients begin to present, and rights."""
    secured.mark("tokens")
    upgrade(world, ONLY_TLS, documented()[1])
    nothing_was_lost(world, secured)
    world.has_tokens = True
    closed.start(TOPICS)
    role = closed.role
    status, text = world.ask(
        "POST", f"/admin/v2/namespaces/public/default/permissions/{role}", ["produce", "consume"]
    )
    expect(status in {200, 204}, f"grant to {role}: {status} {text}")


def closes(world: World, load: Load) -> None:
    """Step 6: clients without a token are refused; those with one notice nothing."""
    load.mark("closed")
    upgrade(world, ONLY_TLS, documented()[1], CLOSED)
    world.note(f"receipts paused for {load.pause_of('closed'):.1f} s")
    start_asker(world, "asker-token")
    start_idle(world, STRANGER, "")
    expect(world.get("/admin/v2/clusters"), "REST has no cluster")
    outcomes = entered(world, "")
    expect(outcomes != ["admitted"], "a client without a token is admitted")


def ports(world: World) -> None:
    # Members keep reaching each other without TLS (`etcd.peers`): only NetworkPolicies guard them.
    are_closed(world, STRANGER, of_etcd=frozenset({"/members"}))


def remove(world: World) -> None:
    """Nothing of this part stays but its claims, which go with the namespace."""
    world.uninstall()
