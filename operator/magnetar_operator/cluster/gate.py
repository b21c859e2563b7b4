"""Whether the cluster can do without one of its bookies now. Pure.

The one gate before anything that takes a bookie away by will: a restart for an upgrade, a removal,
the disruption budget's leave for an eviction. It is open only where every bookie is ready, every
member of etcd is, no volume is lost or going, and the brokers say that every ledger has all its
copies, of the bookies as they are now. What is not known counts as no.
"""

from collections.abc import Collection
from typing import Final

from magnetar_operator.cluster.manifests.naming import BOOKIE, ETCD, Cluster
from magnetar_operator.cluster.observed import (
    LedgerHealth,
    Observed,
    Pod,
    claim_name,
    first_trouble,
)

LEDGERS_TOLD_MAX: Final = 10


def why_not(
    cluster: Cluster,
    observed: Observed,
    bookies: int,
    *,
    besides: str = "",
    spared: Collection[str] = (),
) -> str:
    """Why no bookie may go; empty where one may.

    `besides`: the one it is about may be down, and its volume lost or going. `spared`:
    bookies whose volumes may be, too.
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
    """What the brokers say against it, with the ledgers."""
    health = observed.ledgers.health
    if health is None:
        return f"whether all ledgers have their copies is not known: {observed.ledgers.unknown}"
    return "" if health.healthy else health.reason + named(health)


def named(health: LedgerHealth) -> str:
    """The ledgers that lack copies, and bookies whose disks are others than before."""
    parts = []
    if health.ledgers:
        ids = ", ".join(str(one.ledger_id) for one in health.ledgers[:LEDGERS_TOLD_MAX])
        more = len(health.ledgers) - LEDGERS_TOLD_MAX
        parts.append(f"ledgers {ids}" + (f" and {more} more" if more > 0 else ""))
    wiped = [one.bookie_id for one in health.bookies if one.incarnations_before]
    if wiped:
        parts.append(f"{', '.join(wiped)} came back with an empty volume")
    return f" ({'; '.join(parts)})" if parts else ""


def volumes_in_trouble(observed: Observed, *, besides: Collection[str] = ()) -> list[str]:
    """Volumes that are lost, or on their way out; `besides`: pods of which that is known.

    Of pods that there are: one that was removed left its volume behind, which nothing needs.
    """
    used = {claim_name(one.name) for one in observed.pods if one.name not in besides}
    found = []
    for one in observed.claims:
        name, phase = one["metadata"]["name"], one.get("status", {}).get("phase", "")
        if name not in used:
            continue
        if "deletionTimestamp" in one["metadata"]:
            found.append(f"volume {name} is being deleted")
        elif phase == "Lost":
            found.append(f"volume {name} is lost")
    return found


def _not_ready(pods: list[Pod], count: int, name: str, besides: str) -> list[str]:
    ready = {one.name for one in pods if one.ready}
    wanted = [f"{name}-{index}" for index in range(count)]
    return [one for one in wanted if one not in ready and one != besides]


def _because(pods: list[Pod]) -> str:
    trouble = first_trouble(pods)
    return f" ({trouble})" if trouble else ""
