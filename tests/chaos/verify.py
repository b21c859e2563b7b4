"""What must hold of everything that the clients saw, and how long each fault was felt. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MessageAt = tuple[int, int, int]
"""Ledger, entry, index in the batch (-1 outside one)."""


@dataclass(slots=True)
class TopicRecord:
    """One topic, as its producer and its consumers saw it."""

    receipts: dict[int, MessageAt] = field(default_factory=dict)
    receipt_times: list[float] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    sent: int = 0
    stored: list[tuple[MessageAt, int]] = field(default_factory=list)
    """Read back from the beginning at the end: where, and which message."""


@dataclass(slots=True)
class Observations:
    """All topics, and what the clients showed their users as errors."""

    topics: dict[str, TopicRecord] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def read(self, lines: Iterable[str]) -> None:
        """Takes lines of `workload`."""
        for line in lines:
            kind, topic, *words = line.split()
            if kind == "E":
                self.errors.append(f"{topic} {' '.join(words)}")
                continue
            if topic == "-":
                continue
            record = self.topics.setdefault(topic, TopicRecord())
            if kind == "R":
                record.receipts[int(words[0])] = place(words[1])
                record.receipt_times.append(float(words[3]))
            elif kind == "G":
                record.got.append(int(words[0]))
            elif kind == "D":
                record.sent = int(words[0])


def place(text: str) -> MessageAt:
    """`ledger:entry:batch` as numbers, which compare as positions do."""
    ledger, entry, batch = (int(part) for part in text.split(":"))
    return ledger, entry, batch


def violations(observations: Observations) -> list[str]:
    """Every broken promise, in words; none where all is well."""
    found: list[str] = []
    for topic, record in sorted(observations.topics.items()):
        found += (f"{topic}: {text}" for text in _of_topic(record))
    return found


def _of_topic(record: TopicRecord) -> Iterable[str]:
    at = [place for place, _ in record.stored]
    numbers = [number for _, number in record.stored]
    stored = set(numbers)
    if lost := sorted(record.receipts.keys() - stored):
        yield f"{len(lost)} receipted messages lost, first {lost[0]} at {record.receipts[lost[0]]}"
    if at != sorted(set(at)):
        yield "message ids do not grow"
    if (first := _disorder(numbers)) is not None:
        yield f"message {first} is stored behind a later one"
    if (first := _disorder(record.got)) is not None:
        yield f"message {first} was delivered behind a later one"
    if missing := sorted(record.receipts.keys() - set(record.got)):
        yield f"{len(missing)} receipted messages never delivered, first {missing[0]}"
    if phantoms := sorted(number for number in stored if number >= record.sent):
        yield f"messages that were never sent: {phantoms[:3]}"
    places = dict(record.stored)
    for number, where in sorted(record.receipts.items()):
        if places.get(where) != number:
            yield f"the receipt of {number} names {where}, where {places.get(where)} is"
            break


def _disorder(numbers: Sequence[int]) -> int | None:
    """The first number that comes for the first time behind a greater one."""
    greatest = -1
    seen: set[int] = set()
    for number in numbers:
        if number in seen:
            continue
        if number < greatest:
            return number
        seen.add(number)
        greatest = number
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to whom; times are of the monotonic clock."""

    kind: str
    target: str
    begun: float
    healed: float


@dataclass(frozen=True, slots=True)
class Felt:
    """How long the worst topic was without receipts because of a fault."""

    fault: Fault
    pause_s: float
    after_healing_s: float
    """How long after the fault was over that went on; 0 where it had ended before."""


def felt(fault: Fault, observations: Observations, until: float) -> Felt:
    """Looks at the gaps between receipts from the fault on, up to the next fault."""
    pause = after = 0.0
    for record in observations.topics.values():
        times = record.receipt_times
        low = max(bisect_left(times, fault.begun) - 1, 0)
        high = min(bisect_right(times, until) + 1, len(times))
        for earlier, later in zip(times[low:high], times[low + 1 : high], strict=False):
            ended = min(later, until)
            pause = max(pause, ended - max(earlier, fault.begun))
            if earlier < fault.healed < ended:
                after = max(after, ended - fault.healed)
    return Felt(fault, pause, after)


def quantile(values: Sequence[float], share: float) -> float:
    """Of the sorted values, the one at this share; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
