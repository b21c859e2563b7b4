"""Checks the demo's promises against the reports of publisher and consumers. Pure: no IO, no clock.

A consumer reports each message with the time of its arrival, and acks it afterwards. All processes
share one monotonic clock. A Key_Shared subscription may redeliver a message, if its consumer died
or its ack was lost with the server. But no message may arrive before all earlier messages of its
key have arrived: the first sightings of a key are in the order of their sequence numbers. The
broker must guarantee this, because a consumer acks a message only after it reported it, and another
consumer gets the key's next message only after the ack.
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
    """A published message: its key, its sequence number in the key, and its checksum."""

    key: str
    sequence: int
    checksum: int


@dataclass(slots=True)
class Verdict:
    """The result: counters, the number of faults by kind, and examples."""

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
        """Sightings beyond the first of each message, which are allowed."""
        return self.sightings - self.seen


class _Faults:
    """Counts faults by kind and keeps the first EXAMPLES_MAX of each as text."""

    def __init__(self, counts: dict[str, int], examples: list[str]) -> None:
        self.counts = counts
        self.examples = examples

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= EXAMPLES_MAX:
            self.examples.append(f"{kind}: {example}")


class Checker:
    """Collects reports in any order; `verdict` checks them."""

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
        """Whether every message was receipted and seen."""
        return self.receipted == self.seen == len(self._expected)

    def receipt(self, number: int, partition: int, message_id: tuple[int, int, int]) -> None:
        """Records a receipt of the publisher: (ledger, entry, index in the batch).

        Receipts of a partition must be reported in the order of their arrival.
        """
        if not self._receipted[number]:
            self._receipted[number] = 1
            self.receipted += 1
        last = self._last_receipt.get(partition)
        if last is not None and message_id <= last:
            self._faults.add("id went back", f"partition {partition}: {message_id} after {last}")
        self._last_receipt[partition] = message_id

    def sighting(self, number: int, time_ns: int, checksum: int) -> None:
        """Records a message that a consumer received. `number` is -1 if it could not be parsed."""
        self.sightings += 1
        if not 0 <= number < len(self._expected):
            self._faults.add("phantom", f"message {number} was never sent")
            return
        if checksum != self._expected[number].checksum:
            self._faults.add("altered", f"{self._named(number)} differs from the message sent")
            return
        first = self._first_seen_ns[number]
        if first == _NEVER:
            self.seen += 1
        if first == _NEVER or time_ns < first:
            self._first_seen_ns[number] = time_ns

    def verdict(self) -> Verdict:
        """Checks all reports so far."""
        faults = _Faults(dict(self._faults.counts), list(self._faults.examples))
        self._check_presence(faults)
        self._check_order(faults)
        return Verdict(
            published=len(self._expected),
            receipted=self.receipted,
            seen=self.seen,
            sightings=self.sightings,
            faults=faults.counts,
            examples=faults.examples,
        )

    def _check_presence(self, faults: _Faults) -> None:
        for number in range(len(self._expected)):
            if not self._receipted[number]:
                faults.add("unreceipted", f"{self._named(number)} got no receipt")
            elif self._first_seen_ns[number] == _NEVER:
                faults.add("lost", f"{self._named(number)} was receipted and never received")

    def _check_order(self, faults: _Faults) -> None:
        """Compares each message with the latest first sighting of its key's earlier messages."""
        latest: dict[str, tuple[int, int]] = {}
        expected = self._expected
        for number in sorted(range(len(expected)), key=lambda number: expected[number].sequence):
            seen_ns = self._first_seen_ns[number]
            if seen_ns == _NEVER:
                continue
            key = expected[number].key
            latest_ns, former = latest.get(key, (_NEVER, number))
            if seen_ns < latest_ns:
                early_ms = (latest_ns - seen_ns) / 1e6
                faults.add(
                    "reordered",
                    f"{self._named(number)} was received {early_ms:.3f} ms before "
                    f"#{expected[former].sequence}",
                )
            else:
                latest[key] = (seen_ns, number)

    def _named(self, number: int) -> str:
        expected = self._expected[number]
        return f"flight {number} ({expected.key} #{expected.sequence})"
