"""What the demo proves, judged from what publisher and consumers reported. Pure: no IO, no clock.

A consumer reports a message with the time at which it got it, before it acks it; the times of all
processes are of one monotonic clock. A Key_Shared subscription may hand a message out again (its
consumer died, or its ack was lost with the server), but a message must not be seen before all
earlier ones of its key have been: their first sightings are in the order of their sequence. Why
that is fair: a message is acked after it was reported only, and the next of its key goes to
another consumer after that only.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

KINDS: Final = ("lost", "unreceipted", "reordered", "phantom", "altered", "id went back")
EXAMPLES_MAX: Final = 5
_NEVER: Final = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """One message as it was published: where it stands in its key, and the sum over its bytes."""

    key: str
    sequence: int
    checksum: int


@dataclass(slots=True)
class Verdict:
    """How many messages broke which promise, with examples of each."""

    published: int = 0
    receipted: int = 0
    seen: int = 0
    sightings: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(self.faults.values())

    @property
    def redelivered(self) -> int:
        """Sightings beyond the first: allowed, but worth knowing."""
        return self.sightings - self.seen


class _Faults:
    """Counts by kind, with the first few of each in words."""

    def __init__(self, counts: dict[str, int], examples: list[str]) -> None:
        self.counts = counts
        self.examples = examples

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= EXAMPLES_MAX:
            self.examples.append(f"{kind}: {example}")


class Checker:
    """Takes reports in any order, and judges at the end."""

    def __init__(self, expected: Sequence[Expected]) -> None:
        self._expected = expected
        self._first_seen_ns = array("Q", bytes(8 * len(expected)))
        self._receipted = bytearray(len(expected))
        self._last_receipt: dict[int, tuple[int, int, int]] = {}
        self._faults = _Faults(dict.fromkeys(KINDS, 0), [])
        self.receipted = 0
        self.seen = 0
        self.sightings = 0

    @property
    def complete(self) -> bool:
        """Whether all was receipted and seen, in whatever order."""
        return self.receipted == self.seen == len(self._expected)

    def receipt(self, number: int, partition: int, message_id: tuple[int, int, int]) -> None:
        """The publisher got a receipt with (ledger, entry, index in the batch).

        The receipts of a partition are reported in the order in which they came.
        """
        if not self._receipted[number]:
            self._receipted[number] = 1
            self.receipted += 1
        last = self._last_receipt.get(partition)
        if last is not None and message_id <= last:
            self._faults.add("id went back", f"partition {partition}: {message_id} after {last}")
        self._last_receipt[partition] = message_id

    def sighting(self, number: int, time_ns: int, checksum: int) -> None:
        """A consumer got a message. `number` is -1 where it could not be read."""
        self.sightings += 1
        if not 0 <= number < len(self._expected):
            self._faults.add("phantom", f"a message that nobody sent, number {number}")
            return
        if checksum != self._expected[number].checksum:
            self._faults.add("altered", f"{self._named(number)} is not what was sent")
            return
        first = self._first_seen_ns[number]
        if first == _NEVER:
            self.seen += 1
        if first == _NEVER or time_ns < first:
            self._first_seen_ns[number] = time_ns

    def verdict(self) -> Verdict:
        """Judges everything reported so far, as if no more came."""
        faults = _Faults(dict(self._faults.counts), list(self._faults.examples))
        self._judge_presence(faults)
        self._judge_order(faults)
        return Verdict(
            published=len(self._expected),
            receipted=self.receipted,
            seen=self.seen,
            sightings=self.sightings,
            faults=faults.counts,
            examples=faults.examples,
        )

    def _judge_presence(self, faults: _Faults) -> None:
        for number in range(len(self._expected)):
            if not self._receipted[number]:
                faults.add("unreceipted", f"{self._named(number)} got no receipt")
            elif self._first_seen_ns[number] == _NEVER:
                faults.add("lost", f"{self._named(number)} was receipted and never seen")

    def _judge_order(self, faults: _Faults) -> None:
        """Each message against the latest first sighting of those before it in its key."""
        latest: dict[str, tuple[int, int]] = {}
        expected = self._expected
        for number in sorted(range(len(expected)), key=lambda number: expected[number].sequence):
            seen_ns = self._first_seen_ns[number]
            if seen_ns == _NEVER:
                continue
            key = expected[number].key
            before_ns, before = latest.get(key, (_NEVER, number))
            if seen_ns < before_ns:
                early_ms = (before_ns - seen_ns) / 1e6
                faults.add(
                    "reordered",
                    f"{self._named(number)} was seen {early_ms:.3f} ms before "
                    f"#{expected[before].sequence}",
                )
            else:
                latest[key] = (seen_ns, number)

    def _named(self, number: int) -> str:
        expected = self._expected[number]
        return f"flight {number} ({expected.key} #{expected.sequence})"
