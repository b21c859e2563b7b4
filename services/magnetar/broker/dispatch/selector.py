"""Assigns key hashes to the consumers of a Key_Shared subscription.

`RingSelector` (AUTO_SPLIT) places `ring_points` points of each consumer on a ring of 65,535 hashes.
A hash belongs to the consumer of the first point at or after it. A point follows from the
consumer's name and its number among the consumers of that name, so a consumer that reconnects gets
its hashes again. If two points coincide, the earlier consumer has the point, and the later one gets
it when the earlier one leaves.

`RangeSelector` (STICKY) assigns each consumer the ranges that it requested; they may leave gaps,
but not overlap. Sources: Pulsar's `ConsistentHashingStickyKeyConsumerSelector`,
`HashRangeExclusiveStickyKeyConsumerSelector`.
"""

from bisect import bisect_left, bisect_right
from typing import Final, Protocol

from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec
from magnetar.core.errors import ConsumerAssignError
from magnetar.core.hashing import STICKY_HASH_RANGE, murmur3_32, sticky_key_hash

HASH_MAX: Final = STICKY_HASH_RANGE - 1

HashRange = tuple[int, int]
"""First and last hash, both inclusive."""


class Selector(Protocol):
    """Assigns hashes (1 to 65,535) to consumers."""

    def hash_of(self, key: bytes) -> int:
        """The hash of a sticky key; never 0."""

    def add(self, consumer: Consumer) -> None:
        """Adds a consumer; raises ConsumerAssignError if its ranges are invalid or taken."""

    def remove(self, consumer: Consumer) -> None:
        """Removes a consumer; its hashes go to others."""

    def select(self, sticky_hash: int) -> Consumer | None:
        """The owner of a hash; None if it has none."""

    def ranges(self) -> dict[Consumer, list[HashRange]]:
        """The ranges of each consumer, ascending."""


class RingSelector:
    """Divides the hashes among all consumers by consistent hashing (AUTO_SPLIT)."""

    def __init__(self, points_per_consumer: int) -> None:
        self._points_per_consumer = points_per_consumer
        self._holders: dict[int, list[Consumer]] = {}
        self._points: list[int] = []
        self._numbers: dict[Consumer, int] = {}
        self._known: dict[int, Consumer] = {}

    def hash_of(self, key: bytes) -> int:
        """See `Selector.hash_of`."""
        return sticky_key_hash(key)

    def add(self, consumer: Consumer) -> None:
        """See `Selector.add`."""
        taken = {number for other, number in self._numbers.items() if other.name == consumer.name}
        self._numbers[consumer] = next(
            number for number in range(len(taken) + 1) if number not in taken
        )
        for point in self._points_of(consumer):
            self._holders.setdefault(point, []).append(consumer)
        self._changed()

    def remove(self, consumer: Consumer) -> None:
        """See `Selector.remove`."""
        for point in self._points_of(consumer):
            holders = self._holders[point]
            holders.remove(consumer)
            if not holders:
                del self._holders[point]
        del self._numbers[consumer]
        self._changed()

    def select(self, sticky_hash: int) -> Consumer | None:
        """See `Selector.select`."""
        consumer = self._known.get(sticky_hash)
        if consumer is None and self._points:
            at = bisect_left(self._points, sticky_hash) % len(self._points)
            consumer = self._known[sticky_hash] = self._holders[self._points[at]][0]
        return consumer

    def ranges(self) -> dict[Consumer, list[HashRange]]:
        """See `Selector.ranges`."""
        owned: dict[Consumer, list[HashRange]] = {consumer: [] for consumer in self._numbers}
        start = 1
        ends = [*self._points, HASH_MAX] if self._points else []
        for end in ends:
            if start > end:
                continue
            owner = self.select(end)
            assert owner is not None  # noqa: S101 - there are points, so there are holders
            ranges = owned[owner]
            if ranges and ranges[-1][1] == start - 1:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
            start = end + 1
        return owned

    def _points_of(self, consumer: Consumer) -> list[int]:
        number = self._numbers[consumer]
        # Points of one consumer may coincide as well; the consumer then holds that point once.
        return list(
            dict.fromkeys(
                sticky_key_hash(f"{consumer.name}\0{number}\0{point}".encode())
                for point in range(self._points_per_consumer)
            )
        )

    def _changed(self) -> None:
        self._points = sorted(self._holders)
        self._known.clear()


class RangeSelector:
    """Assigns the ranges that consumers request (STICKY)."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, Consumer]] = []

    def hash_of(self, key: bytes) -> int:
        """See `Selector.hash_of`."""
        return murmur3_32(key) % STICKY_HASH_RANGE or 1

    def add(self, consumer: Consumer) -> None:
        """See `Selector.add`."""
        key_shared = consumer.spec.key_shared
        if key_shared is None:
            raise ConsumerAssignError("Must specify key shared meta for consumer.")
        if not key_shared.ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        ranges = sorted(key_shared.ranges)
        for index, (start, end) in enumerate(ranges):
            if start > end:
                raise ConsumerAssignError(
                    f"Fixed hash range start > end for range: [{start},{end}]"
                )
            if index and start <= ranges[index - 1][1]:
                first, last = ranges[index - 1]
                raise ConsumerAssignError(
                    f"Consumer's own ranges conflict: [{first},{last}] overlaps with "
                    f"[{start},{end}]"
                )
            for first, last, owner in self._taken:
                if start <= last and first <= end:
                    raise ConsumerAssignError(f"Range conflict with consumer {owner}")
        self._taken.extend((start, end, consumer) for start, end in ranges)
        self._taken.sort(key=lambda taken: taken[0])

    def remove(self, consumer: Consumer) -> None:
        """See `Selector.remove`."""
        self._taken = [taken for taken in self._taken if taken[2] is not consumer]

    def select(self, sticky_hash: int) -> Consumer | None:
        """See `Selector.select`."""
        at = bisect_right(self._taken, sticky_hash, key=lambda taken: taken[0]) - 1
        if at < 0:
            return None
        _, end, consumer = self._taken[at]
        return consumer if sticky_hash <= end else None

    def ranges(self) -> dict[Consumer, list[HashRange]]:
        """See `Selector.ranges`."""
        owned: dict[Consumer, list[HashRange]] = {}
        for start, end, consumer in self._taken:
            owned.setdefault(consumer, []).append((start, end))
        return owned


def new_selector(policy: KeySharedSpec, ring_points: int) -> Selector:
    """Returns the selector of a Key_Shared policy."""
    return RangeSelector() if policy.mode is KeySharedMode.STICKY else RingSelector(ring_points)
