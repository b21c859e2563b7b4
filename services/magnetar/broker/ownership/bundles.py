"""Bundles: the ranges that a namespace's hash ring is cut into, and which topic is in which.

A topic's place on the ring is the CRC-32 of its full name (a partition is a topic). A bundle is
`[lower, upper)`, the last one with its upper edge, and is written as Pulsar writes it:
`0x00000000_0x40000000`, with its namespace before it where it stands alone. The edges are the
namespace's policy `bundles.boundaries`. Everything here is pure.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

from magnetar.broker.namespace_policies import BUNDLES_DEFAULT, BUNDLES_MAX, bundle_boundaries
from magnetar.core.errors import PreconditionFailed
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import NamespaceName, TopicName

RING_END: Final = 0xFFFFFFFF

_RANGE: Final = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


class Placed(Protocol):
    """A topic that knows its place on the ring."""

    name: TopicName
    place: int


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """One range of a namespace. `str()` is `tenant/namespace/0x00000000_0x40000000`."""

    namespace: NamespaceName
    lower: int
    upper: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    @property
    def range(self) -> str:
        """The range alone, as it stands in Pulsar's URLs."""
        return f"0x{self.lower:08x}_0x{self.upper:08x}"

    def __contains__(self, topic: TopicName) -> bool:
        return topic.namespace == self.namespace and self.covers(bundle_hash(str(topic)))

    def holds(self, topic: Placed) -> bool:
        """Whether an open topic is in the bundle; quick, for there may be very many."""
        return self.covers(topic.place) and topic.name.namespace == self.namespace

    def covers(self, place: int) -> bool:
        """Whether this place of the ring is in the bundle."""
        return self.lower <= place < self.upper or place == self.upper == RING_END

    def overlaps(self, other: "Bundle") -> bool:
        """Whether any topic could be in both."""
        same = self.namespace == other.namespace
        return same and self.lower < other.upper and other.lower < self.upper

    @classmethod
    def parse(cls, text: str) -> "Bundle":
        """The inverse of `str`; raises PreconditionFailed."""
        namespace, _, edges = text.rpartition("/")
        found = _RANGE.fullmatch(edges)
        if found is None or int(found[1], 16) >= int(found[2], 16):
            raise PreconditionFailed(
                f"{text} is no bundle, such as tenant/ns/0x00000000_0xffffffff"
            )
        return cls(NamespaceName.parse(namespace), int(found[1], 16), int(found[2], 16))


class Ring:
    """A namespace's bundles, for finding a topic's."""

    __slots__ = ("_edges", "namespace")

    def __init__(self, namespace: NamespaceName, edges: Sequence[int]) -> None:
        self.namespace = namespace
        self._edges = tuple(edges)

    @classmethod
    def of(cls, namespace: NamespaceName, policies: dict[str, Any]) -> "Ring":
        """From the namespace's policies."""
        return cls(namespace, [int(edge, 16) for edge in policies["bundles"]["boundaries"]])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ring)
            and self.namespace == other.namespace
            and self._edges == other._edges
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def bundles(self) -> list[Bundle]:
        """All of them, in order."""
        return [Bundle(self.namespace, low, high) for low, high in pairwise(self._edges)]

    def __contains__(self, bundle: Bundle) -> bool:
        """Whether this very range is a bundle now."""
        return bundle == self.at(bundle.lower)

    def at(self, place: int) -> Bundle:
        """The bundle of a place on the ring."""
        at = min(bisect_right(self._edges, place), len(self._edges) - 1)
        return Bundle(self.namespace, self._edges[at - 1], self._edges[at])

    def of_topic(self, topic: TopicName) -> Bundle:
        """The bundle that the topic is in."""
        return self.at(bundle_hash(str(topic)))


def with_split(
    policies: dict[str, Any], bundle: Bundle, positions: Sequence[int]
) -> dict[str, Any]:
    """The policies with `bundle` cut at `positions`; PreconditionFailed where that cannot be."""
    ring = Ring.of(bundle.namespace, policies)
    if bundle not in ring:
        raise PreconditionFailed(f"{bundle} is not a bundle of its namespace any more")
    if not positions or any(not bundle.lower < at < bundle.upper for at in positions):
        raise PreconditionFailed(f"{bundle} cannot be split at {list(positions)}")
    edges = sorted({int(edge, 16) for edge in policies["bundles"]["boundaries"]} | set(positions))
    if len(edges) - 1 > BUNDLES_MAX:
        raise PreconditionFailed(f"{bundle.namespace} has {BUNDLES_MAX} bundles already")
    document = {"boundaries": [f"0x{edge:08x}" for edge in edges], "numBundles": len(edges) - 1}
    return {**policies, "bundles": document}


def parts_of(bundle: Bundle, positions: Sequence[int]) -> list[Bundle]:
    """What `bundle` becomes when it is cut at `positions`."""
    edges = [bundle.lower, *sorted(set(positions)), bundle.upper]
    return [Bundle(bundle.namespace, low, high) for low, high in pairwise(edges)]


# -- as the REST side writes them --------------------------------------------------------------


def requested(bundles: dict[str, Any] | None) -> dict[str, Any]:
    """The bundles of a new namespace, from `{"numBundles": …}` or given boundaries."""
    if not bundles:
        return {"boundaries": bundle_boundaries(BUNDLES_DEFAULT), "numBundles": BUNDLES_DEFAULT}
    if not isinstance(bundles, dict):
        raise PreconditionFailed("Invalid bundles: they must be an object")
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
    """The range of the bundle that the topic is in."""
    return Ring.of(topic.namespace, policies).of_topic(topic).range


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
