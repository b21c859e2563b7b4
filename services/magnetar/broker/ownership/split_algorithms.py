"""The positions at which to split a bundle: Pulsar's four algorithms. Pure.

Each algorithm takes the bundle and its topics (position on the ring and load), and returns the
positions in order, all strictly inside the bundle; none if a split would not help.
`range_equally_divide` halves the range, `topic_count_equally_divide` halves the number of topics,
`specified_positions_divide` takes given positions, and `flow_or_qps_equally_divide` cuts at any
place where the load that it adds up from the lower edge exceeds the bounds of a bundle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.ownership.bundles import Bundle
from magnetar.core.errors import PreconditionFailed

RANGE: Final = "range_equally_divide"
TOPIC_COUNT: Final = "topic_count_equally_divide"
POSITIONS: Final = "specified_positions_divide"
FLOW: Final = "flow_or_qps_equally_divide"

NAMES: Final = (RANGE, TOPIC_COUNT, POSITIONS, FLOW)

MESSAGE_RATE_MAX: Final = 30_000.0
"""Messages per second, in and out (Pulsar: loadBalancerNamespaceBundleMaxMsgRate)."""
THROUGHPUT_BYTES_MAX: Final = 100 << 20
"""Bytes per second, in and out (Pulsar: loadBalancerNamespaceBundleMaxBandwidthMbytes)."""
EXCESS_RATIO: Final = 0.1
"""The share by which the load must exceed a bound before a split by load
(Pulsar: flowOrQpsDifferenceThresholdPercentage)."""


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic's position on the ring, and its traffic per second, in and out."""

    ring_position: int
    messages: float = 0.0
    size_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadBounds:
    """The load that one bundle may carry per second."""

    messages: float = MESSAGE_RATE_MAX
    size_bytes: float = THROUGHPUT_BYTES_MAX
    excess_ratio: float = EXCESS_RATIO


def range_equally_divide(bundle: Bundle) -> list[int]:
    """Returns the middle of the range."""
    return _inside(bundle, [bundle.lower + (bundle.upper - bundle.lower) // 2])


def topic_count_equally_divide(bundle: Bundle, places: Sequence[int]) -> list[int]:
    """Returns a position with half of the topics on each side; none for fewer than two topics."""
    if len(places) < 2:
        return []
    ordered = sorted(places)
    half = len(ordered) // 2
    return _inside(bundle, [_between(ordered[half - 1], ordered[half])])


def specified_positions_divide(bundle: Bundle, positions: Sequence[int]) -> list[int]:
    """Returns the positions that are inside the bundle; raises if none are given."""
    if not positions:
        raise PreconditionFailed("Split boundaries can't be empty")
    return _inside(bundle, positions)


def flow_or_qps_equally_divide(
    bundle: Bundle, loads: Sequence[TopicLoad], bounds: LoadBounds | None = None
) -> list[int]:
    """Returns positions so that no part exceeds the bounds, unless a single topic does."""
    bounds = bounds or LoadBounds()
    busy = sorted(
        (load for load in loads if load.messages > 0 or load.size_bytes > 0),
        key=lambda load: load.ring_position,
    )
    factor = 1 + bounds.excess_ratio
    messages = sum(load.messages for load in busy)
    size_bytes = sum(load.size_bytes for load in busy)
    calm = messages < bounds.messages * factor and size_bytes < bounds.size_bytes * factor
    if len(busy) < 2 or calm:
        return []
    positions: list[int] = []
    before = busy[0]
    messages, size_bytes = before.messages, before.size_bytes
    for load in busy[1:]:
        messages += load.messages
        size_bytes += load.size_bytes
        if messages > bounds.messages or size_bytes > bounds.size_bytes:
            positions.append(_between(before.ring_position, load.ring_position))
            messages, size_bytes = load.messages, load.size_bytes
        before = load
    return _inside(bundle, positions)


def check_algorithm(name: str) -> None:
    """Raises PreconditionFailed, with Pulsar's text, for an unknown algorithm."""
    if name not in NAMES:
        raise PreconditionFailed(
            "Unsupported namespace bundle split algorithm, supported algorithms are "
            f"[{', '.join(NAMES)}]"
        )


def split_positions(
    bundle: Bundle,
    algorithm: str,
    loads: Sequence[TopicLoad],
    positions: Sequence[int] = (),
    bounds: LoadBounds | None = None,
) -> list[int]:
    """Applies the algorithm of this name; raises PreconditionFailed for an unknown name."""
    algorithms: dict[str, Callable[[], list[int]]] = {
        RANGE: lambda: range_equally_divide(bundle),
        TOPIC_COUNT: lambda: topic_count_equally_divide(
            bundle, [load.ring_position for load in loads]
        ),
        POSITIONS: lambda: specified_positions_divide(bundle, positions),
        FLOW: lambda: flow_or_qps_equally_divide(bundle, loads, bounds),
    }
    check_algorithm(algorithm)
    return algorithms[algorithm]()


def _between(low: int, high: int) -> int:
    """Returns a cut with `low` on its left and `high` on its right, if they differ."""
    return low + (high - low + 1) // 2


def _inside(bundle: Bundle, positions: Sequence[int]) -> list[int]:
    return sorted({at for at in positions if bundle.lower < at < bundle.upper})
