"""The gate: decides whether the cluster can do without one of its bookies now. Pure: no IO.

Every planned loss of a bookie passes this gate: a restart for an upgrade, a removal, an eviction
that the disruption budget allows. The gate is open only if every bookie and every etcd member is
ready, no volume is lost or being deleted, and the brokers report that every ledger has all its
copies on the present bookies. Anything unknown closes the gate.
"""

from collections.abc import Collection
from typing import Final

from magnetar.documents.bookies import LedgerHealth
from magnetar_operator.cluster.manifests.names import BOOKIE, ETCD, Cluster
from magnetar_operator.cluster.observed import Observed, Pod, claim_name, first_trouble

LEDGERS_NAMED_MAX: Final = 10


def why_not(
    cluster: Cluster,
    observed: Observed,
    bookies: int,
    *,
    besides: str = "",
    spared: Collection[str] = (),
) -> str:
    """Why no bookie may be taken away now; empty if the gate is open.

    `besides`: the bookie in question, which may be down and have a lost or deleted volume;
    `spared`: other bookies whose volumes may be lost or being deleted.
    """
    pods = observed.of(BOOKIE)
    missing = _not_ready(pods, bookies, cluster.object_name(BOOKIE), besides)
    if missing:
        return f"{', '.join(missing)} not ready" + _because(pods)
    members = observed.of(ETCD)
    missing = _not_ready(members, cluster.etcd_members, cluster.object_name(ETCD), "")
    if missing:
        return f"{', '.join(missing)} not ready" + _because(members)
    lost = volumes_in_trouble(observed, besides=(besides, *spared))
    if lost:
        return "; ".join(lost)
    return ledgers_why_not(observed)


def ledgers_why_not(observed: Observed) -> str:
    """Why the ledgers close the gate, with their ids; empty if they leave it open."""
    health = observed.ledgers.health
    if health is None:
        return f"it is unknown whether all ledgers have their copies: {observed.ledgers.unknown}"
    return "" if health.healthy else health.reason + named(health)


def named(health: LedgerHealth) -> str:
    """The ledgers that lack copies, and the bookies that restarted with an empty volume."""
    parts = []
    if health.ledgers:
        ids = ", ".join(str(ledger.ledger_id) for ledger in health.ledgers[:LEDGERS_NAMED_MAX])
        more = len(health.ledgers) - LEDGERS_NAMED_MAX
        parts.append(f"ledgers {ids}" + (f" and {more} more" if more > 0 else ""))
    wiped = [bookie.bookie_id for bookie in health.bookies if bookie.incarnations_before]
    if wiped:
        parts.append(f"{', '.join(wiped)} restarted with an empty volume")
    return f" ({'; '.join(parts)})" if parts else ""


def volumes_in_trouble(observed: Observed, *, besides: Collection[str] = ()) -> list[str]:
    """Volumes of existing pods that are lost or being deleted, except those of `besides`.

    Volumes of removed pods do not count: nothing needs them.
    """
    used = {claim_name(pod.name) for pod in observed.pods if pod.name not in besides}
    texts = []
    for claim in observed.claims:
        name, phase = claim["metadata"]["name"], claim.get("status", {}).get("phase", "")
        if name not in used:
            continue
        if "deletionTimestamp" in claim["metadata"]:
            texts.append(f"volume {name} is being deleted")
        elif phase == "Lost":
            texts.append(f"volume {name} is lost")
    return texts


def _not_ready(pods: list[Pod], count: int, name: str, besides: str) -> list[str]:
    ready = {pod.name for pod in pods if pod.ready}
    wanted = [f"{name}-{index}" for index in range(count)]
    return [name for name in wanted if name not in ready and name != besides]


def _because(pods: list[Pod]) -> str:
    trouble = first_trouble(pods)
    return f" ({trouble})" if trouble else ""
