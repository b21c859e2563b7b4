"""Bundles: the ranges of a namespace's hash ring, and the mapping from topics to them. Pure.

A topic's position on the ring is the CRC-32 of its full name (a partition is a topic of its own). A
bundle is `[lower, upper)`; the last one includes its upper edge. Its text is Pulsar's:
`0x00000000_0x40000000`, prefixed by the namespace if that is not known from the context. The edges
are the namespace's policy `bundles.boundaries`.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

from magnetar.broker.catalog.namespace_policies import (
    BUNDLES_DEFAULT,
    BUNDLES_MAX,
    bundle_boundaries,
)
from magnetar.core.errors import PreconditionFailed
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import NamespaceName, TopicName

RING_END: Final = 0xFFFFFFFF

_RANGE: Final = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


class RingTopic(Protocol):
    """An open topic with its position on the ring of bundles."""

    name: TopicName
    ring_position: int


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """A range of a namespace's ring. `str()` is `tenant/namespace/0x00000000_0x40000000`."""

    namespace: NamespaceName
    lower: int
    upper: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    @property
    def range(self) -> str:
        """The range without the namespace, as in Pulsar's URLs."""
        return f"0x{self.lower:08x}_0x{self.upper:08x}"

    def __contains__(self, topic: TopicName) -> bool:
        return topic.namespace == self.namespace and self.covers(bundle_hash(str(topic)))

    def holds(self, topic: RingTopic) -> bool:
        """Whether an open topic is in the bundle; fast, since it runs for every open topic."""
        return self.covers(topic.ring_position) and topic.name.namespace == self.namespace

    def covers(self, ring_position: int) -> bool:
        """Whether this ring position is in the bundle."""
        return self.lower <= ring_position < self.upper or ring_position == self.upper == RING_END

    def overlaps(self, other: "Bundle") -> bool:
        """Whether a topic could be in both bundles."""
        same = self.namespace == other.namespace
        return same and self.lower < other.upper and other.lower < self.upper

    @classmethod
    def parse(cls, text: str) -> "Bundle":
        """The inverse of `str`; raises PreconditionFailed."""
        namespace, _, edges = text.rpartition("/")
        match = _RANGE.fullmatch(edges)
        if match is None or int(match[1], 16) >= int(match[2], 16):
            raise PreconditionFailed(
                f"{text} is no bundle, such as tenant/ns/0x00000000_0xffffffff"
            )
        return cls(NamespaceName.parse(namespace), int(match[1], 16), int(match[2], 16))


class Ring:
    """The bundles of a namespace, as sorted edges; finds a topic's bundle by bisection."""

    __slots__ = ("_edges", "namespace")

    def __init__(self, namespace: NamespaceName, edges: Sequence[int]) -> None:
        self.namespace = namespace
        self._edges = tuple(edges)

    @classmethod
    def of(cls, namespace: NamespaceName, policies: dict[str, Any]) -> "Ring":
        """Builds the ring from the namespace's policies."""
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
        """All bundles, in order."""
        return [Bundle(self.namespace, low, high) for low, high in pairwise(self._edges)]

    def __contains__(self, bundle: Bundle) -> bool:
        """Whether exactly this range is a bundle of the namespace."""
        return bundle == self.at(bundle.lower)

    def at(self, ring_position: int) -> Bundle:
        """Returns the bundle at a position on the ring."""
        at = min(bisect_right(self._edges, ring_position), len(self._edges) - 1)
        return Bundle(self.namespace, self._edges[at - 1], self._edges[at])

    def of_topic(self, topic: TopicName) -> Bundle:
        """Returns the topic's bundle."""
        return self.at(bundle_hash(str(topic)))


def with_split(
    policies: dict[str, Any], bundle: Bundle, positions: Sequence[int]
) -> dict[str, Any]:
    """Returns the policies with `bundle` split at `positions`; raises PreconditionFailed."""
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
    """Returns the bundles that result from splitting `bundle` at `positions`."""
    edges = [bundle.lower, *sorted(set(positions)), bundle.upper]
    return [Bundle(bundle.namespace, low, high) for low, high in pairwise(edges)]


def requested(bundles: dict[str, Any] | None, default: int = BUNDLES_DEFAULT) -> dict[str, Any]:
    """Returns the bundles of a new namespace, from the REST document of the request.

    The document is `{"numBundles": …}` or has explicit boundaries. `default` is the number if it
    has neither.
    """
    if not bundles:
        return {"boundaries": bundle_boundaries(default), "numBundles": default}
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
    # Pulsar and its tools take 0 and less as "the default".
    count = count if count > 0 else default
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
    """Returns the namespace's bundles as ranges, such as `0x00000000_0x40000000`."""
    edges = policies["bundles"]["boundaries"]
    return [f"{low}_{high}" for low, high in pairwise(edges)]


def bundle_of(policies: dict[str, Any], topic: TopicName) -> str:
    """Returns the range of the topic's bundle."""
    return Ring.of(topic.namespace, policies).of_topic(topic).range


def checked(policies: dict[str, Any], namespace: NamespaceName, bundle: str) -> str:
    """Returns `bundle` if it exists; else raises PreconditionFailed with Pulsar's text."""
    existing = ranges(policies)
    if bundle in existing:
        return bundle
    low = bundle.partition("_")[0]
    for bundle_range in existing:
        if bundle_range.startswith(low):
            raise PreconditionFailed(
                f"Invalid upper boundary for bundle {namespace}/{bundle}. "
                f"Expected upper boundary of {namespace}/{bundle_range}"
            )
    raise PreconditionFailed(
        f"Invalid lower boundary for bundle {namespace}/{bundle}: no bundle starts there"
    )
