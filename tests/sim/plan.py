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

CHURN_KINDS: Final = (
    "unload topic",
    "unload bundles",
    "split bundle",
    "expire lease",
    "outlive lease",
    "slow writes",
    "late writes",
    "unanswered writes",
    "writes under way",
    "writes under way",
    "cut off bookies",
)
"""Faults that close topics, move bundles and leave writes under way, drawn beside the others."""

HAZARD_KINDS: Final = (
    "most bookies down",
    "most bookies down",
    "fence a ledger",
    "fail at the swap",
    "cursors unreadable",
    "kill at a receipt",
    "late renewals",
    "stop past the lease",
    "claims race a split",
    "claims race a split",
    "split without an answer",
    "split bundle",
    "split bundle",
    "decommission",
    "leap of all clocks",
)
"""Faults of a kind that others seldom come to: drawn beside them, in runs of topics."""
LEDGER_HAZARD_KINDS: Final = ("most bookies down", "fail at the swap", "late quorum", "late quorum")

HAZARDS: Final = 0x4A2D
CHURN: Final = 0xC4B2
AGES: Final = 0xA6E5
AGES_CHANCE: Final = 0.3
TELLS: Final = 0x7E11
TELLS_CHANCE: Final = 0.5
TXNS: Final = 0x7A45
TXNS_CHANCE: Final = 0.4
JOINT: Final = 0x701E
JOINT_CHANCE: Final = 0.4
"""Of the runs with transactions."""
STRIKES: Final = 0x57A1
STRIKES_CHANCE: Final = 0.5
"""Of the runs with transactions."""
DELAYS: Final = 0xDE1A
DELAYS_CHANCE: Final = 0.35
TABLE: Final = 0x7AB1
TABLE_CHANCE: Final = 0.08
LETTERS: Final = 0x1E77
LETTERS_CHANCE: Final = 0.2
"""Of the runs with transactions."""
APP: Final = 0xA4B
APP_CHANCE: Final = 0.3
DEDUPLICATION: Final = 0xDED0
DEDUPLICATION_CHANCE: Final = 0.3

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
class ChurnPlan:
    """What is deleted, made again, closed and cut off under load; nothing by default."""

    churners: int = 0
    """Clients that make, cut off, delete and make again a subscription of their own."""
    topics: int = 0
    """Topics that are deleted and created again while they are used."""
    namespaces: bool = False
    """Each of those topics has its own namespace, which is deleted and created again, too."""
    cut_chance: float = 0.0
    """That a client closes its connection while a command is under way."""
    rest_chance: float = 0.0
    """That a producer pauses before its next message, for seconds."""
    hoard_chance: float = 0.0
    """That an ack waits until the topic is being closed."""
    reloads: bool = False
    """Once all is done, every topic is unloaded, and all must still be as it was."""
    cursor_bytes: int = 0
    """A cursor ledger is rolled beyond this size; 0: as the product has it."""


@dataclass(slots=True)
class HazardPlan:
    """What else may go wrong; nothing by default."""

    etcd_leases: bool = False
    """Leases are those of the product's etcd client (`etcd_leases.py`)."""
    again_chance: float = 0.0
    """That a client acks a message twice, and awaits the second receipt only."""
    error_s_max: float = 0.0
    """How long a producer sends on after a SEND_ERROR, at most."""
    offloads: bool = False
    """A job moves closed ledgers to an object store (`offloads.py`)."""
    retention_s: float = 0.0
    """How long messages are kept once they are acked; 0: not at all."""
    quota_s: int = 0
    """Messages that are not acked for longer are evicted; 0: none. Longer than any run."""


@dataclass(slots=True)
class TxnPlan:
    """Clients that move messages between topics in transactions (`transactions.py`)."""

    messages: int = 0
    """How many are moved; 0: there are no such clients, and transactions are off."""
    source_kind: int = 1
    cumulative: bool = False
    """An exclusive mover acks cumulatively."""
    reader_kind: int = 1
    timeout_s: float = 5.0
    retention_s: int = 600
    """How long outcomes are kept. Short: most participants find no record."""
    abort_chance: float = 0.2
    leave_chance: float = 0.05
    plain_chance: float = 0.2
    pace_s: float = 0.05
    joint_chance: float = 0.0
    """How often a mover commits several transactions at once. Not with cumulative acks."""


@dataclass(slots=True)
class DelayPlan:
    """Messages with delivery times (`delays.py`); none by default."""

    chance: float = 0.0
    """That a SEND has a delivery time; 0: the run has no delayed messages."""
    delay_s: float = 1.0
    """The mean of the delays."""
    early_acks: float = 0.0
    """That a consumer acks a delayed message when its producer has the receipt."""
    strict: bool = False
    tick_ms: int = 1_000
    memory_moments: int = 50_000
    """More of them are stored as a run."""
    page_moments: int = 1_024
    snapshot_entries: int = 10_000
    snapshot_s: float = 120.0


@dataclass(slots=True)
class AppPlan:
    """An application with our own client (`apps.py`); none by default."""

    messages: int = 0
    pace_s: float = 0.1
    """The mean time between two sends."""


@dataclass(slots=True)
class TablePlan:
    """A topic that brokers compact while it is written and read (`tables.py`); none by default."""

    messages: int = 0
    """How many are sent; 0: there is no such topic."""
    keys: int = 5
    pace_s: float = 0.05
    tombstone_chance: float = 0.2
    threshold_bytes: int = 1
    check_s: float = 1.0
    """Between a broker's checks of thresholds; 0: only requests compact."""
    request_s: float = 2.0
    """The mean time between two requests of an operator."""
    strike_chance: float = 0.0
    """That an event hits the owner of the topic at a record of a compaction."""
    bad_store_chance: float = 0.0
    """That the object store refuses a request, or damages an upload."""


@dataclass(slots=True)
class LettersPlan:
    """Dead letters that brokers move back to their origin (`dead_letters.py`); none by default."""

    messages: int = 0
    """How many are sent; 0: there are none."""
    pace_s: float = 0.1
    redrive_s: float = 2.0
    """The mean time between two requests of an operator."""
    strike_chance: float = 0.0
    """That an event hits the owner of the letters at a record of a transaction."""


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
    """Idle writers send their last confirmed entries to bookies; others read open ledgers."""
    weather: Weather = field(default_factory=Weather)
    churn: ChurnPlan = field(default_factory=ChurnPlan)
    hazards: HazardPlan = field(default_factory=HazardPlan)
    txn: TxnPlan = field(default_factory=TxnPlan)
    delays: DelayPlan = field(default_factory=DelayPlan)
    app: AppPlan = field(default_factory=AppPlan)
    table: TablePlan = field(default_factory=TablePlan)
    letters: LettersPlan = field(default_factory=LettersPlan)
    deduplicates: int = 0
    """Topics deduplicate, and store their ids after this number of entries; 0: they do not."""

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
    # Drawn independently, so that the rest of the plan does not change.
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


def add_churn(plan: Plan) -> None:
    """Adds what closes, deletes and makes again, to a run of topics.

    Of its own randomness: what else the seed draws stays what it is.
    """
    if plan.world != "topics":
        return
    rng = Random(plan.seed ^ CHURN)
    plan.churn = ChurnPlan(
        churners=rng.choice((0, 1, 2, 3)),
        topics=rng.choice((0, 0, 1, 2)),
        namespaces=rng.random() < 0.5,
        cut_chance=rng.choice((0.0, 0.1, 0.4)),
        rest_chance=rng.choice((0.0, 0.0, 0.05, 0.2)),
        hoard_chance=rng.choice((0.0, 0.2, 0.5)),
        reloads=True,
        cursor_bytes=rng.choice((0, 1, 200, 1000)),
    )
    span_s = max(plan.fault_phase_s, 6.0)
    for topic in plan.topics:
        # What is audited is never trimmed.
        topic.audited = topic.audited and rng.random() < 0.6
    if rng.random() < 0.5:
        plan.rollover_entries = rng.choice((2, 4, 8))
    kinds = [kind for kind in CHURN_KINDS if rng.random() < 0.35] or ["unload topic"]
    for _ in range(rng.choice((1, 2, 4, 6))):
        at_s, for_s = rng.uniform(0.2, span_s), min(1.0 + rng.expovariate(0.4), 15.0)
        plan.faults.append(FaultPlan(rng.choice(kinds), at_s, for_s, rng.randrange(1 << 30)))
    plan.faults.sort(key=lambda fault: fault.at_s)


def add_hazards(plan: Plan) -> None:
    """Adds events of `HAZARD_KINDS` and `HazardPlan`, drawn independently."""
    rng = Random(plan.seed ^ HAZARDS)
    topics = plan.world == "topics"
    plan.hazards = HazardPlan(
        etcd_leases=rng.random() < 0.5,
        again_chance=rng.choice((0.0, 0.1, 0.4)),
        offloads=topics and rng.random() < 0.3,
        retention_s=rng.choice((0.0, 0.0, 3_600.0)),
        quota_s=rng.choice((0, 0, 3_600)),
    )
    if not topics and rng.random() < 0.5:
        plan.quorum, plan.bookies = rng.choice((((3, 3, 2), 5), ((4, 3, 2), 5)))
    every = HAZARD_KINDS if topics else LEDGER_HAZARD_KINDS
    kinds = [kind for kind in every if rng.random() < 0.35] or [every[0]]
    if "decommission" in kinds:
        plan.bookies = max(plan.bookies, plan.quorum[0] + 1)
    if plan.hazards.retention_s or plan.hazards.quota_s:
        kinds.append("leap of all clocks")
    if plan.hazards.offloads:
        kinds += ["bad object store"] * 3
    span_s = max(plan.fault_phase_s, 6.0)
    for _ in range(rng.choice((0, 1, 2, 4))):
        at_s, for_s = rng.uniform(0.2, span_s), min(1.0 + rng.expovariate(0.4), 10.0)
        plan.faults.append(FaultPlan(rng.choice(kinds), at_s, for_s, rng.randrange(1 << 30)))
    plan.faults.sort(key=lambda fault: fault.at_s)


def add_deduplication(plan: Plan, *, always: bool = False) -> None:
    """Adds deduplication to some runs of topics, drawn independently."""
    rng = Random(plan.seed ^ DEDUPLICATION)
    if plan.world == "topics" and (rng.random() < DEDUPLICATION_CHANCE or always):
        plan.deduplicates = rng.choice((1, 5, 20, 1_000))


def add_delays(plan: Plan, *, always: bool = False) -> None:
    """Adds delayed messages to some runs of topics, drawn independently."""
    rng = Random(plan.seed ^ DELAYS)
    if plan.world != "topics" or not (rng.random() < DELAYS_CHANCE or always):
        return
    plan.delays = DelayPlan(
        chance=rng.choice((0.1, 0.5, 0.9)),
        delay_s=rng.choice((0.5, 3.0, 12.0)),
        early_acks=rng.choice((0.0, 0.1, 0.4)),
        strict=rng.random() < 0.5,
        tick_ms=rng.choice((10, 200, 1_000, 1_000)),
        memory_moments=rng.choice((2, 5, 20, 50_000)),
        page_moments=rng.choice((2, 5, 1_024)),
        snapshot_entries=rng.choice((1, 4, 15, 10_000)),
        snapshot_s=rng.choice((1.0, 5.0, 120.0)),
    )


def add_app(plan: Plan, *, always: bool = False) -> None:
    """Adds an application with our own client to some runs of topics, drawn independently."""
    rng = Random(plan.seed ^ APP)
    if plan.world == "topics" and (rng.random() < APP_CHANCE or always):
        plan.app = AppPlan(rng.choice((40, 100)), rng.choice((0.01, 0.05, 0.2)))


def add_table(plan: Plan, *, always: bool = False) -> None:
    """Adds a compacted topic to some runs of topics, drawn independently."""
    rng = Random(plan.seed ^ TABLE)
    if plan.world == "topics" and (rng.random() < TABLE_CHANCE or always):
        plan.table = TablePlan(
            messages=rng.choice((60, 120)),
            keys=rng.choice((2, 5, 20)),
            pace_s=rng.choice((0.02, 0.08, 0.2)),
            tombstone_chance=rng.choice((0.0, 0.2, 0.5)),
            threshold_bytes=rng.choice((1, 500, 5_000)),
            check_s=rng.choice((0.0, 0.5, 2.0)),
            request_s=rng.choice((0.5, 2.0, 6.0)),
            strike_chance=rng.choice((0.0, 0.1, 0.3)),
            bad_store_chance=rng.choice((0.0, 0.0, 0.05, 0.2)),
        )


def add_letters(plan: Plan, *, always: bool = False) -> None:
    """Adds dead letters to some runs with transactions, drawn independently."""
    rng = Random(plan.seed ^ LETTERS)
    if plan.txn.messages and (rng.random() < LETTERS_CHANCE or always):
        plan.letters = LettersPlan(
            messages=rng.choice((20, 60)),
            pace_s=rng.choice((0.02, 0.1, 0.3)),
            redrive_s=rng.choice((0.5, 2.0, 5.0)),
            strike_chance=rng.choice((0.0, 0.1, 0.3)),
        )


def add_transactions(plan: Plan, *, always: bool = False) -> None:
    """Adds transactional clients to some runs of topics, drawn independently."""
    rng = Random(plan.seed ^ TXNS)
    if plan.world == "topics" and (rng.random() < TXNS_CHANCE or always):
        plan.txn = TxnPlan(
            messages=rng.choice((30, 60, 120)),
            source_kind=rng.choice((0, 1, 1, 2, 3)),
            cumulative=rng.random() < 0.5,
            reader_kind=rng.choice((0, 1, 2, 3)),
            timeout_s=rng.choice((2.0, 5.0, 20.0)),
            retention_s=rng.choice((1, 10, 600)),
            abort_chance=rng.choice((0.1, 0.3, 0.5)),
            leave_chance=rng.choice((0.0, 0.05, 0.2)),
            plain_chance=rng.choice((0.0, 0.3)),
            pace_s=rng.choice((0.0, 0.05, 0.5)),
        )
        rng = Random(plan.seed ^ JOINT)
        if rng.random() < JOINT_CHANCE:
            plan.txn.joint_chance = rng.choice((0.3, 1.0))


def add_strikes(plan: Plan) -> None:
    """Adds faults at the records of transactions to some runs with them, drawn independently."""
    rng = Random(plan.seed ^ STRIKES)
    if not plan.txn.messages or rng.random() >= STRIKES_CHANCE:
        return
    span_s = max(plan.fault_phase_s, 6.0)
    for _ in range(rng.choice((1, 2, 4))):
        at_s, for_s = rng.uniform(0.2, span_s), 1.0 + rng.expovariate(0.4)
        plan.faults.append(FaultPlan("strike at a record", at_s, for_s, rng.randrange(1 << 30)))
    plan.faults.sort(key=lambda fault: fault.at_s)


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
