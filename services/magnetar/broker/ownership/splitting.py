"""Where to cut a bundle: Pulsar's four algorithms, as pure functions.

Each takes the bundle and what is in it (a topic's place on the ring, with its load), and gives the
positions to cut at, in order, all strictly inside the bundle; none where cutting would be of no
use. `range_equally_divide` halves the range, `topic_count_equally_divide` the number of topics,
`specified_positions_divide` takes the positions it is given, `flow_or_qps_equally_divide` cuts
where the load gathered from the lower edge on exceeds what a bundle may carry.
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

MESSAGE_RATE_MAX: Final = 30_000.0
"""Per second, in and out (Pulsar: loadBalancerNamespaceBundleMaxMsgRate)."""
THROUGHPUT_BYTES_MAX: Final = 100 << 20
"""Per second, in and out (Pulsar: loadBalancerNamespaceBundleMaxBandwidthMbytes)."""
EXCESS_RATIO: Final = 0.1
"""A bundle is cut by load where it is above a bound by this part
(Pulsar: flowOrQpsDifferenceThresholdPercentage)."""


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic's place on the ring and what it moves per second, in and out."""

    place: int
    messages: float = 0.0
    size_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadBounds:
    """What one bundle may carry per second."""

    messages: float = MESSAGE_RATE_MAX
    size_bytes: float = THROUGHPUT_BYTES_MAX
    excess_ratio: float = EXCESS_RATIO


def range_equally_divide(bundle: Bundle) -> list[int]:
    """The middle of the range."""
    return _inside(bundle, [bundle.lower + (bundle.upper - bundle.lower) // 2])


def topic_count_equally_divide(bundle: Bundle, places: Sequence[int]) -> list[int]:
    """Half of the topics on each side; nothing for fewer than two."""
    if len(places) < 2:
        return []
    ordered = sorted(places)
    half = len(ordered) // 2
    return _inside(bundle, [_between(ordered[half - 1], ordered[half])])


def specified_positions_divide(bundle: Bundle, positions: Sequence[int]) -> list[int]:
    """Those of the positions that are in the bundle; raises where there are none at all."""
    if not positions:
        raise PreconditionFailed("Split boundaries can't be empty")
    return _inside(bundle, positions)


def flow_or_qps_equally_divide(
    bundle: Bundle, loads: Sequence[TopicLoad], bounds: LoadBounds | None = None
) -> list[int]:
    """So that no part carries more than the bounds, as far as single topics allow it."""
    bounds = bounds or LoadBounds()
    busy = sorted(
        (load for load in loads if load.messages > 0 or load.size_bytes > 0),
        key=lambda load: load.place,
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
            positions.append(_between(before.place, load.place))
            messages, size_bytes = load.messages, load.size_bytes
        before = load
    return _inside(bundle, positions)


def split_positions(
    bundle: Bundle,
    algorithm: str,
    loads: Sequence[TopicLoad],
    positions: Sequence[int] = (),
    bounds: LoadBounds | None = None,
) -> list[int]:
    """By the algorithm of this name; PreconditionFailed for one that there is not."""
    algorithms: dict[str, Callable[[], list[int]]] = {
        RANGE: lambda: range_equally_divide(bundle),
        TOPIC_COUNT: lambda: topic_count_equally_divide(bundle, [load.place for load in loads]),
        POSITIONS: lambda: specified_positions_divide(bundle, positions),
        FLOW: lambda: flow_or_qps_equally_divide(bundle, loads, bounds),
    }
    chosen = algorithms.get(algorithm)
    if chosen is None:
        raise PreconditionFailed(
            f"Unsupported algorithm name: {algorithm}; there are {', '.join(algorithms)}"
        )
    return chosen()


def _between(low: int, high: int) -> int:
    """A cut with `low` on its left and `high` on its right, where they differ."""
    return low + (high - low + 1) // 2


def _inside(bundle: Bundle, positions: Sequence[int]) -> list[int]:
    return sorted({at for at in positions if bundle.lower < at < bundle.upper})
