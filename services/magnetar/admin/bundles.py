"""A namespace's bundles: the ranges its hash ring is cut into, and which topics are in one.

A bundle is `[lower, upper)` of a topic's CRC-32, the last one with its upper edge.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import Any, Final

from magnetar.broker.namespace_policies import BUNDLES_DEFAULT, BUNDLES_MAX, bundle_boundaries
from magnetar.core.errors import PreconditionFailed
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import NamespaceName, TopicName

RING_END: Final = 0xFFFFFFFF


def requested(bundles: dict[str, Any] | None) -> dict[str, Any]:
    """The bundles of a new namespace, from `{"numBundles": …}` or given boundaries."""
    if not bundles:
        return {"boundaries": bundle_boundaries(BUNDLES_DEFAULT), "numBundles": BUNDLES_DEFAULT}
    if given := bundles.get("boundaries"):
        edges = _edges(given)
        return {"boundaries": [f"0x{edge:08x}" for edge in edges], "numBundles": len(edges) - 1}
    count = bundles.get("numBundles") or 0
    if not isinstance(count, int) or count > BUNDLES_MAX:
        raise PreconditionFailed(
            f"Invalid number of bundles. Number of numBundles has to be in the range of "
            f"(0, {BUNDLES_MAX}]."
        )
    # Pulsar takes 0 and less for "the default", and so do its tools.
    count = count if count > 0 else BUNDLES_DEFAULT
    return {"boundaries": bundle_boundaries(count), "numBundles": count}


def _edges(boundaries: object) -> list[int]:
    try:
        edges = [int(str(edge), 16) for edge in boundaries]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise PreconditionFailed("Invalid bundle boundaries: they are not hex numbers") from None
    whole = edges and edges[0] == 0 and edges[-1] == RING_END
    if not whole or len(edges) - 1 > BUNDLES_MAX or sorted(set(edges)) != edges:
        raise PreconditionFailed(
            "Invalid bundle boundaries: they must rise from 0x00000000 to 0xffffffff"
        )
    return edges


def ranges(policies: dict[str, Any]) -> list[str]:
    """The namespace's bundles, such as `0x00000000_0x40000000`."""
    edges = policies["bundles"]["boundaries"]
    return [f"{low}_{high}" for low, high in pairwise(edges)]


def bundle_of(policies: dict[str, Any], topic: TopicName) -> str:
    """The bundle that the topic is in."""
    edges = [int(edge, 16) for edge in policies["bundles"]["boundaries"]]
    at = min(bisect_right(edges, bundle_hash(str(topic))), len(edges) - 1)
    return f"0x{edges[at - 1]:08x}_0x{edges[at]:08x}"


def checked(policies: dict[str, Any], namespace: NamespaceName, bundle: str) -> str:
    """The bundle, where it is one of the namespace's; PreconditionFailed in Pulsar's words."""
    known = ranges(policies)
    if bundle in known:
        return bundle
    low = bundle.partition("_")[0]
    for each in known:
        if each.startswith(low):
            raise PreconditionFailed(
                f"Invalid upper boundary for bundle {namespace}/{bundle}. "
                f"Expected upper boundary of {namespace}/{each}"
            )
    raise PreconditionFailed(
        f"Invalid lower boundary for bundle {namespace}/{bundle}: no bundle starts there"
    )
