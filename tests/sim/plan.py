"""What one run is made of, drawn from its seed: sizes, workload, weather, faults.

Every run leaves some kinds of fault out, so that those that are left meet each other in many
ways: a run in which everything happens finds less.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.sim.network import Weather

FAULT_KINDS: Final = (
    "kill bookie",
    "kill broker",
    "power off bookie",
    "pause bookie",
    "pause broker",
    "isolate",
    "cut one way",
    "cut both ways",
    "stalls",
    "late copy",
    "cut off metadata",
    "metadata down",
    "metadata loses answers",
    "metadata compacts",
    "slow disk",
    "full disk",
    "flip bits",
    "flip journal",
    "wipe bookie",
    "clock jump",
    "resets",
    "slow network",
    "unload",
    "stop broker",
    "stop bookie",
)
LOSSY: Final = frozenset(("flip bits", "flip journal", "wipe bookie"))
"""Kinds that take a copy for good: a run has at most one such, on one bookie."""

AGES: Final = 0xA6E5
AGES_CHANCE: Final = 0.3
TELLS: Final = 0x7E11
TELLS_CHANCE: Final = 0.5

QUORUMS: Final = ((3, 2, 2), (2, 2, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2))


@dataclass(slots=True)
class TopicPlan:
    """One topic: its subscriptions by kind, and how much is sent."""

    name: str
    subscriptions: tuple[tuple[str, int, int], ...]
    """Name, kind, consumers."""
    audited: bool
    """A subscription that acks nothing keeps everything; else ledgers are trimmed."""
    producers: int
    messages: int
    pace_s: float
    size_bytes: int


@dataclass(slots=True)
class FaultPlan:
    """One fault: when it begins, and how long it lasts."""

    kind: str
    at_s: float
    for_s: float
    seed: int


@dataclass(slots=True)
class Plan:
    """One run."""

    seed: int
    world: str
    """`topics`, or `ledgers`: see `ledger_world.py`."""
    bookies: int
    brokers: int
    quorum: tuple[int, int, int]
    stripe_entries: int
    rollover_entries: int
    topics: list[TopicPlan] = field(default_factory=list)
    faults: list[FaultPlan] = field(default_factory=list)
    ages: bool = False
    """Messages expire that are older than any run is long; wall clocks make great leaps."""
    tells: bool = False
    """Idle writers tell their bookies what is confirmed; others read open ledgers."""
    weather: Weather = field(default_factory=Weather)

    @property
    def fault_phase_s(self) -> float:
        return max((fault.at_s + fault.for_s for fault in self.faults), default=0.0)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(seed)
    quorum = rng.choice(QUORUMS)
    plan = Plan(
        seed=seed,
        world=rng.choice(("topics", "topics", "topics", "ledgers")),
        bookies=max(quorum[0], rng.choice((3, 3, 4, 5))),
        brokers=rng.choice((1, 2, 2, 3)),
        quorum=quorum,
        stripe_entries=rng.choice((1, 2, 5, 100)),
        rollover_entries=rng.choice((5, 15, 40, 1000)),
        weather=Weather(
            latency_s=rng.choice((0.0001, 0.0005, 0.003)),
            jitter_s=rng.choice((0.0001, 0.001, 0.01)),
            slow_chance=rng.choice((0.0, 0.002, 0.02)),
            slow_s=rng.choice((0.05, 0.3)),
        ),
    )
    # Of its own randomness: what other seeds draw stays what it was.
    plan.ages = plan.world == "topics" and Random(seed ^ AGES).random() < AGES_CHANCE
    plan.tells = Random(seed ^ TELLS).random() < TELLS_CHANCE
    fault_span_s = rng.choice((6.0, 12.0, 20.0))
    if plan.world == "ledgers":
        plan.brokers = rng.choice((2, 3))
        fault_span_s = 8.0
    for number in range(rng.choice((1, 1, 2, 3)) if plan.world == "topics" else 0):
        plan.topics.append(draw_topic(rng, number, fault_span_s))
    kinds = [kind for kind in FAULT_KINDS if rng.random() < 0.35] or ["kill broker"]
    lossy = [kind for kind in kinds if kind in LOSSY]
    for kind in lossy[1:]:
        kinds.remove(kind)
    lossy_left = 1
    for _ in range(rng.choice((0, 2, 4, 7, 10))):
        kind = rng.choice(kinds)
        if kind in LOSSY:
            if not lossy_left:
                continue
            lossy_left -= 1
        at_s, for_s = rng.uniform(0.2, fault_span_s), min(rng.expovariate(0.4), 15.0)
        plan.faults.append(FaultPlan(kind, at_s, for_s, rng.randrange(1 << 30)))
    plan.faults.sort(key=lambda fault: fault.at_s)
    return plan


def draw_topic(rng: Random, number: int, span_s: float) -> TopicPlan:
    kinds = [("work", rng.choice((0, 1, 2, 3)), 1)]
    if rng.random() < 0.4:
        kinds.append(("more", rng.choice((1, 2, 3)), 2))
    if kinds[0][1] != 0:
        kinds[0] = ("work", kinds[0][1], rng.choice((1, 2)))
    messages = rng.choice((40, 80, 150))
    return TopicPlan(
        name=f"persistent://public/default/t{number}",
        subscriptions=tuple(kinds),
        audited=rng.random() < 0.7,
        producers=rng.choice((1, 1, 2)),
        messages=messages,
        # Over most of the time in which faults come.
        pace_s=span_s / messages * rng.choice((0.3, 1.5, 4.0)),
        size_bytes=rng.choice((20, 200, 1500)),
    )
