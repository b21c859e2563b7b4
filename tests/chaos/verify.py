"""What must hold of everything that the clients saw, and how long each fault was felt. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MessageAt = tuple[int, int, int]
"""Ledger, entry, index in the batch (-1 outside one)."""


@dataclass(slots=True)
class Life:
    """A subscription from the SUCCESS of its first SUBSCRIBE until its deletion begins."""

    since: float
    anew_at: float
    """It was made at the latest position, not before this; -1: it may be older, or earlier."""
    over: bool = False
    got: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Where each message was that came first."""


@dataclass(slots=True)
class TopicRecord:
    """One topic, as its producer and its consumers saw it."""

    receipts: dict[int, MessageAt] = field(default_factory=dict)
    receipt_times: list[float] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    sent: int = 0
    sent_at: dict[int, float] = field(default_factory=dict)
    received_at: dict[int, float] = field(default_factory=dict)
    """Of each receipt: when its message was sent, and when it came."""
    lives: dict[int, Life] = field(default_factory=dict)
    """Of the subscription that is deleted and made again, by number."""
    broken: list[str] = field(default_factory=list)
    """What that subscription's client saw itself."""
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
            self._take(kind, topic, words)

    def read_churn(self, lines: Iterable[str]) -> None:
        """Takes lines of `churn`."""
        for line in lines:
            kind, topic, *words = line.split()
            record = self.topics.setdefault(topic, TopicRecord())
            if kind == "E":
                self.errors.append(f"{topic} {' '.join(words)}")
            elif kind == "V":
                record.broken.append(" ".join(words))
            elif kind == "S":
                record.lives[int(words[0])] = Life(float(words[1]), float(words[2]))
            elif kind == "X":
                if (life := record.lives.get(int(words[0]))) is not None:
                    life.over = True
            elif kind == "G":
                ledger, entry = words[2].split(":")
                record.lives[int(words[0])].got.setdefault(int(words[1]), (int(ledger), int(entry)))

    def _take(self, kind: str, topic: str, words: list[str]) -> None:
        record = self.topics.setdefault(topic, TopicRecord())
        if kind == "R":
            number = int(words[0])
            record.receipts[number] = place(words[1])
            record.sent_at[number], record.received_at[number] = float(words[2]), float(words[3])
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
    yield from _of_lives(record)


def missing_of(record: TopicRecord, life: Life) -> list[int]:
    """What must have come to the subscription, and has not."""
    return [
        number
        for number in sorted(record.receipts)
        if record.sent_at[number] > life.since and number not in life.got
    ]


def _of_lives(record: TopicRecord) -> Iterable[str]:
    yield from record.broken
    for number, life in sorted(record.lives.items()):
        if not life.over and (missing := missing_of(record, life)):
            yield f"life {number}: {len(missing)} messages never delivered, first {missing[0]}"
        for message, at in sorted(life.got.items()):
            receipt = record.receipts.get(message)
            if receipt is None or at > receipt[:2]:
                continue
            if record.received_at[message] < life.anew_at:
                yield f"life {number}, made anew, got {message} at {at}, receipted before that"
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
