"""Biases of plans for bugs: fewer other events, more of the events that the bug needs."""

from random import Random

from tests.sim.bugs.bug import Lean
from tests.sim.plan import (
    LOSSY,
    AppPlan,
    DelayPlan,
    FaultPlan,
    LettersPlan,
    Plan,
    TablePlan,
    add_churn,
    add_transactions,
    draw_topic,
)

SPAN_S = 8.0


def ledgers() -> Lean:
    """Only runs of the world of ledgers."""

    def lean(plan: Plan) -> None:
        plan.world = "ledgers"
        plan.brokers = max(plan.brokers, 2)
        plan.topics.clear()

    return lean


def topics() -> Lean:
    """Only runs of the world of topics."""

    def lean(plan: Plan) -> None:
        plan.world = "topics"
        if not plan.topics:
            plan.topics.append(draw_topic(Random(plan.seed), 0, SPAN_S))

    return lean


def ages() -> Lean:
    """Messages have a TTL, and wall clocks make great leaps."""

    def lean(plan: Plan) -> None:
        plan.ages = True

    return lean


def tells() -> Lean:
    """Idle writers send their last confirmed entries to bookies; others read open ledgers."""

    def lean(plan: Plan) -> None:
        plan.tells = True

    return lean


def churn(**more: float) -> Lean:
    """Subscriptions, topics and namespaces are deleted and made again; `more` of what `ChurnPlan`
    has at least."""

    def lean(plan: Plan) -> None:
        add_churn(plan)
        for name, value in more.items():
            setattr(plan.churn, name, max(value, getattr(plan.churn, name)))

    return lean


def hazards(**more: float) -> Lean:
    """`more` of what `HazardPlan` has."""

    def lean(plan: Plan) -> None:
        for name, value in more.items():
            setattr(plan.hazards, name, value)

    return lean


def deduplicates(entries: int) -> Lean:
    """Topics deduplicate, and store their ids after this number of entries."""

    def lean(plan: Plan) -> None:
        plan.deduplicates = entries

    return lean


def delays(**more: float) -> Lean:
    """Most messages have a delivery time, which is kept strictly, with `more` of `DelayPlan`."""

    def lean(plan: Plan) -> None:
        plan.delays = DelayPlan(chance=0.7, delay_s=4.0, strict=True, tick_ms=10)
        for name, value in more.items():
            getattr(plan.delays, name)  # it must be there
            setattr(plan.delays, name, value)

    return lean


def app() -> Lean:
    """An application with our own client sends often."""

    def lean(plan: Plan) -> None:
        plan.app = AppPlan(messages=150, pace_s=0.02)

    return lean


def table(**more: float) -> Lean:
    """A compacted topic, with `more` of what `TablePlan` has."""

    def lean(plan: Plan) -> None:
        plan.table = TablePlan(messages=80, pace_s=0.05, check_s=0.5, request_s=1.0)
        for name, value in more.items():
            getattr(plan.table, name)  # it must be there
            setattr(plan.table, name, value)

    return lean


def letters(**more: float) -> Lean:
    """Dead letters that are moved back, with `more` of what `LettersPlan` has."""

    def lean(plan: Plan) -> None:
        plan.letters = LettersPlan(messages=40, pace_s=0.2, redrive_s=0.5, strike_chance=0.4)
        for name, value in more.items():
            getattr(plan.letters, name)  # it must be there
            setattr(plan.letters, name, value)

    return lean


def apart() -> Lean:
    """Three brokers, so that topics that belong together are mostly on different ones."""

    def lean(plan: Plan) -> None:
        plan.brokers = 3

    return lean


def transactions(**more: float) -> Lean:
    """Clients move messages in transactions, with `more` of what `TxnPlan` has."""

    def lean(plan: Plan) -> None:
        if not plan.txn.messages:
            add_transactions(plan, always=True)
        for name, value in more.items():
            setattr(plan.txn, name, value)

    return lean


def faults(*kinds: str, count: int = 6, for_s: float = 2.0) -> Lean:
    """These faults and no others; one that takes a copy for good comes once."""

    def lean(plan: Plan) -> None:
        rng = Random(plan.seed)
        plan.faults.clear()
        left = list(kinds)
        for _ in range(count):
            if not left:
                break
            kind = rng.choice(left)
            if kind in LOSSY:
                left.remove(kind)
            at_s, length_s = rng.uniform(0.2, SPAN_S), rng.expovariate(1 / for_s)
            plan.faults.append(FaultPlan(kind, at_s, length_s, rng.randrange(1 << 30)))
        plan.faults.sort(key=lambda fault: fault.at_s)

    return lean


def quorum(ensemble_size: int, write_quorum: int, ack_quorum: int) -> Lean:
    """These quorums."""

    def lean(plan: Plan) -> None:
        plan.quorum = ensemble_size, write_quorum, ack_quorum
        plan.bookies = max(plan.bookies, ensemble_size)

    return lean


def bookies(count: int) -> Lean:
    """So many bookies."""

    def lean(plan: Plan) -> None:
        plan.bookies = count

    return lean


def many_rollovers() -> Lean:
    """Ledgers of a few entries, under a steady load."""

    def lean(plan: Plan) -> None:
        plan.rollover_entries = 3
        del plan.topics[1:]
        for topic in plan.topics:
            topic.audited = False
            topic.messages, topic.pace_s, topic.size_bytes = 150, SPAN_S / 50, 20

    return lean


def key_shared() -> Lean:
    """Every topic has a Key_Shared subscription of three consumers, and steady traffic."""

    def lean(plan: Plan) -> None:
        for topic in plan.topics:
            topic.subscriptions = (("work", 3, 3),)
            topic.messages, topic.pace_s = 150, SPAN_S / 60

    return lean


def many_shared() -> Lean:
    """Every topic has a Shared and a Key_Shared subscription, and steady traffic."""

    def lean(plan: Plan) -> None:
        for topic in plan.topics:
            topic.subscriptions = (("work", 1, 2), ("more", 3, 2))
            topic.messages, topic.pace_s = 150, SPAN_S / 60

    return lean


def together(*leans: Lean) -> Lean:
    """One after the other."""

    def lean(plan: Plan) -> None:
        for one in leans:
            one(plan)

    return lean
