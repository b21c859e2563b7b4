"""Why a subscription delivers nothing now. Pure: the first finding is the reason.

The checks run in the order in which the parts of a broker could stop a message: the topic, the
subscription, its consumers, the limits on them, the messages, and last the dispatcher itself. A
subscription with a backlog always gets a finding: if nothing holds it back, messages are flowing,
or the dispatcher has stalled.
"""

from collections.abc import Callable, Iterator
from typing import Final

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import (
    finding,
    overridden,
    policy_evidence,
    refused,
    time,
)
from magnetar.broker.explain.judge import delays, filters, keys, transactions
from magnetar.broker.explain.judge.readers import unreadable
from magnetar.broker.explain.state import (
    BROKER_CAP,
    ConsumerState,
    PolicyValue,
    SubscriptionState,
)
from magnetar.documents.explain import Evidence, Finding, utc
from magnetar.policies import caps, rates

STALL_MS: Final = 5_000
"""A dispatcher that could deliver and does not for this long has stalled."""
SINGLE: Final = ("Exclusive", "Failover")
"""The types with one active consumer."""
_RATES: Final = (rates.SUBSCRIPTION_DISPATCH_RATE, rates.DISPATCH_RATE)
NAMED_MAX: Final = 10
"""Consumers that one finding names."""


def judge_subscription(state: SubscriptionState) -> list[Finding]:
    """Returns the reasons why messages of the subscription are not delivered; at least one."""
    findings = [*_serving(state)]
    if not findings:
        findings = [*_nothing_to_deliver(state)] or [*_delivery(state)]
    attached = bool(state.consumers)
    findings += [*overridden(state.topic, _policy_of(state, findings))]
    if attached:
        findings += _refusals(state)
    return findings


def _serving(state: SubscriptionState) -> Iterator[Finding]:
    if not state.serving or state.suspended:
        yield moving(state)
    elif state.cursor_error:
        yield finding(
            Code.CURSOR_UNREADABLE,
            f"The stored state of subscription {state.name} cannot be read: {state.cursor_error}. "
            "Until then the topic keeps all messages.",
            {"error": state.cursor_error},
            steps.delete_subscription(
                state.topic,
                state.name,
                "Bring the bookies of its ledger back (magnetar ledger check), then attach a "
                "consumer: the broker reads the state again. If it is lost for good, delete the "
                "subscription:",
            ),
        )


def moving(state: SubscriptionState) -> Finding:
    """Returns the finding for a topic that this broker does not serve now."""
    return finding(
        Code.TOPIC_MOVING,
        f"{state.topic} is being moved or closed; its clients look it up again.",
        {"suspended": state.suspended},
        steps.advise(
            "Wait some seconds and ask again. If it stays so, see the log of the brokers for the "
            "bundle (pulsar-admin brokers leader-broker; magnetar_bundles metrics)."
        ),
    )


def _nothing_to_deliver(state: SubscriptionState) -> Iterator[Finding]:
    if state.backlog:
        return
    if not state.consumers:
        yield from _refusals(state)
    never_acked = state.initial is not None and state.mark_delete == state.initial
    if never_acked and state.stored_before_creation:
        yield wrong_position(state)
    if state.terminated_at is not None:
        yield finding(
            Code.TERMINATED,
            f"The topic was terminated at {state.terminated_at}, and the subscription has "
            "acknowledged everything.",
            {"terminated_at": str(state.terminated_at), "backlog": 0},
            steps.advise("Publish to another topic: a terminated one never takes messages again."),
        )
        return
    yield from filters.rejected_all(state)
    yield _caught_up(state)
    yield from filters.rejected_some(state)


def _caught_up(state: SubscriptionState) -> Finding:
    return finding(
        Code.CAUGHT_UP,
        f"Subscription {state.name} has acknowledged every message up to {state.last_confirmed}.",
        {
            "backlog": 0,
            "mark_delete": str(state.mark_delete),
            "last_message": str(state.last_confirmed),
            "consumers": len(state.consumers),
        },
        steps.advise(
            "Nothing: messages come when a producer sends some (magnetar explain topic "
            f"{state.topic})."
        ),
        max((consumer.last_acked_ms for consumer in state.consumers), default=0),
    )


def wrong_position(state: SubscriptionState) -> Finding:
    """Returns the finding for a subscription that was created behind stored messages."""
    return finding(
        Code.WRONG_INITIAL_POSITION,
        f"Subscription {state.name} was created behind {state.initial}: the "
        f"{state.stored_before_creation} stored entries up to there were never its.",
        {
            "created": time(state.created_ms),
            "created_at_position": str(state.initial),
            "stored_entries_before": state.stored_before_creation,
        },
        steps.reset_cursor(
            state.topic,
            state.name,
            None,
            "To get them, move the subscription back; consumers get everything again from there. "
            "For new subscriptions, set the initial position Earliest in the consumer.",
        ),
        state.created_ms,
    )


def _delivery(state: SubscriptionState) -> Iterator[Finding]:
    if not state.consumers:
        yield from _refusals(state)
        yield _no_consumer(state)
        return
    blocked = False
    for check in _CHECKS:
        for blocking in check(state):
            blocked = True
            yield blocking
    if not blocked:
        yield flowing(state)


def _no_consumer(state: SubscriptionState) -> Finding:
    return finding(
        Code.NO_CONSUMER,
        f"No consumer is attached to subscription {state.name}; {state.backlog} entries wait.",
        {"backlog": state.backlog, "oldest": _text(state.next_unacked)},
        steps.consume(state.topic, state.name),
    )


def _switching(state: SubscriptionState) -> Iterator[Finding]:
    if state.switching:
        active = next((consumer.name for consumer in state.consumers if consumer.active), None)
        yield finding(
            Code.SWITCHING,
            f"The subscription hands over to consumer {active} after a delay, so that consumers "
            "that attach together settle first.",
            {"consumer": active, "consumers": len(state.consumers)},
            steps.advise("Wait: activeConsumerFailoverDelayTimeMillis, a second by default."),
        )


def _failure(state: SubscriptionState) -> Iterator[Finding]:
    if state.failure is not None:
        yield unreadable(state.topic, state.failure)


def _dispatched(state: SubscriptionState) -> Iterator[Finding]:
    """All that consumers may get was delivered: it is in flight, or a transaction has it."""
    if state.readable:
        return
    yield from transactions.blocking(state)
    if state.type in SINGLE:
        held = state.delivered - sum(txn.acked_entries for txn in state.ack_transactions)
        if held > 0:
            active = [consumer for consumer in state.consumers if consumer.active]
            yield in_flight(state, active, f"{held} entries")
        return
    holders = [consumer for consumer in state.consumers if consumer.pending_entries]
    if holders:
        yield in_flight(state, holders, str(sum(consumer.unacked for consumer in holders)))


def in_flight(state: SubscriptionState, holders: list[ConsumerState], held: str) -> Finding:
    """Returns the finding for messages that were delivered and not acknowledged.

    `held` says how many: a dispatcher with one active consumer counts entries.
    """
    names = ", ".join(consumer.name for consumer in holders[:NAMED_MAX])
    return finding(
        Code.IN_FLIGHT,
        f"Every readable message was delivered, and {names} has not acknowledged {held} of them.",
        {
            "backlog": state.backlog,
            "oldest_unacknowledged": _text(state.next_unacked),
            "consumers": [_held(consumer) for consumer in holders[:NAMED_MAX]],
        },
        steps.unload(
            state.topic,
            "Find out why the application does not acknowledge. To have the messages delivered "
            "again, restart the consumer, or disconnect all clients of the topic:",
        ),
    )


def _held(consumer: ConsumerState) -> Evidence:
    return {
        "consumer": consumer.name,
        "address": consumer.address,
        "unacked_messages": consumer.unacked,
        "oldest": _text(consumer.oldest_pending),
        "last_delivery": time(consumer.last_consumed_ms),
        "last_ack": time(consumer.last_acked_ms),
    }


def _subscription_cap(state: SubscriptionState) -> Iterator[Finding]:
    cap = state.subscription_cap
    if not state.blocked or cap is None:
        return
    most = max(state.consumers, key=lambda consumer: consumer.unacked)
    of_broker = cap.name == BROKER_CAP
    step = steps.advise(
        "Have the applications acknowledge: the broker counts all of its subscriptions. Or raise "
        "its setting maxUnackedMessagesPerBroker."
    )
    if not of_broker:
        step = steps.raise_cap(
            state.topic,
            caps.MAX_UNACKED_PER_SUBSCRIPTION,
            _number(cap),
            "Have the applications acknowledge, or raise the cap for this topic:",
        )
    yield finding(
        Code.UNACKED_CAP_BROKER if of_broker else Code.UNACKED_CAP_SUBSCRIPTION,
        f"The consumers hold {state.unacked} unacknowledged messages together, the cap is "
        f"{cap.value}; most of them ({most.unacked}) are at {most.name}.",
        {
            "unacked_messages": state.unacked,
            "cap": _number(cap),
            "resumes_at": _number(cap) // 2,
            "most_at": most.name,
            "consumers": [_held(consumer) for consumer in state.consumers[:NAMED_MAX]],
            **policy_evidence(cap),
        },
        step,
        state.last_event_ms,
    )


def _unavailable(state: SubscriptionState) -> Iterator[Finding]:
    """No consumer takes messages now: caps, permits, or connections."""
    active = [consumer for consumer in state.consumers if consumer.active]
    if not state.readable or state.blocked or any(consumer.available for consumer in active):
        return
    blocked = [consumer for consumer in active if consumer.blocked]
    empty = [consumer for consumer in active if not consumer.blocked and consumer.permits <= 0]
    slow = [consumer for consumer in active if not consumer.blocked and consumer.permits > 0]
    reasons = [(blocked, _consumer_cap), (empty, _no_permits), (slow, _slow)]
    for consumers, reason in sorted(reasons, key=lambda pair: -len(pair[0])):
        if consumers:
            yield reason(state, consumers)
    standing_by = [consumer for consumer in state.consumers if not consumer.active]
    if standing_by:
        yield finding(
            Code.STANDBY,
            f"{len(standing_by)} other consumers stand by: a Failover subscription has one active "
            "consumer.",
            {"consumers": [consumer.name for consumer in standing_by[:NAMED_MAX]]},
            steps.advise("Close the active consumer to make another one active."),
        )


def _consumer_cap(state: SubscriptionState, consumers: list[ConsumerState]) -> Finding:
    cap = state.consumer_cap
    limit = 0 if cap is None else _number(cap)
    first = consumers[0]
    return finding(
        Code.UNACKED_CAP_CONSUMER,
        f"Consumer {first.name} holds {first.unacked} unacknowledged messages, its cap is {limit}"
        + (f"; so do {len(consumers) - 1} others." if len(consumers) > 1 else "."),
        {
            "cap": limit,
            "resumes_at": limit // 2,
            "consumers": [_held(consumer) for consumer in consumers[:NAMED_MAX]],
            **policy_evidence(cap),
        },
        steps.raise_cap(
            state.topic,
            caps.MAX_UNACKED_PER_CONSUMER,
            limit,
            "Have the application acknowledge, or raise the cap for this topic:",
        ),
        max(consumer.last_consumed_ms for consumer in consumers),
    )


def _no_permits(_: SubscriptionState, consumers: list[ConsumerState]) -> Finding:
    first = consumers[0]
    since = max(consumer.last_consumed_ms or consumer.connected_ms for consumer in consumers)
    return finding(
        Code.NO_PERMITS,
        f"Consumer {first.name} has no permits: its receive queue is full, or its application has "
        "not called receive"
        + (f"; so have {len(consumers) - 1} others." if len(consumers) > 1 else "."),
        {
            "consumers": [
                {
                    "consumer": consumer.name,
                    "address": consumer.address,
                    "permits": consumer.permits,
                    "unacked_messages": consumer.unacked,
                    "last_flow": time(consumer.last_flow_ms),
                    "last_delivery": time(consumer.last_consumed_ms),
                }
                for consumer in consumers[:NAMED_MAX]
            ]
        },
        steps.advise(
            f"See what the application of {first.name} at {first.address} does: it holds messages "
            "in its receive queue and does not take them (receive, listener). A receive queue of "
            "size 0 takes one message per call of receive."
        ),
        since,
    )


def _slow(_: SubscriptionState, consumers: list[ConsumerState]) -> Finding:
    first = consumers[0]
    return finding(
        Code.SLOW_CONNECTION,
        f"The connection of consumer {first.name} at {first.address} does not drain.",
        {
            "consumers": [
                {
                    "consumer": consumer.name,
                    "address": consumer.address,
                    "permits": consumer.permits,
                }
                for consumer in consumers[:NAMED_MAX]
            ]
        },
        steps.advise(
            "See whether the client process runs (stopped, out of CPU, garbage collection), and "
            "the network between it and the broker: ss -tn shows its Send-Q."
        ),
        max(consumer.last_consumed_ms for consumer in consumers),
    )


def _rate(state: SubscriptionState) -> Iterator[Finding]:
    rate = state.rate
    if rate is None or not state.readable:
        return
    policies = {policy.name: policy for policy in _RATES}
    text = "Raise the rate, or remove the limit:"
    step = steps.advise(
        "Topics share this rate: raise the broker's (dispatchThrottlingRateInMsg, "
        "dispatchThrottlingRateInByte), or that of the namespace's resource group (pulsar-admin "
        "resourcegroups)."
    )
    if (policy := policies.get(rate.policy.name)) is not None:
        step = steps.remove_policy(state.topic, policy, rate.policy.level, text)
    yield finding(
        Code.RATE_LIMITED,
        f"{rate.policy.name}, set at the level {rate.policy.level}, has no tokens for "
        f"{rate.out_of} now.",
        {
            "out_of": rate.out_of,
            "waiting_subscriptions": rate.waiting,
            **policy_evidence(rate.policy),
        },
        step,
    )


def _reading(state: SubscriptionState) -> Iterator[Finding]:
    if state.reading and state.readable and state.failure is None and not state.buffered:
        yield finding(
            Code.READING,
            f"The broker reads entries from {state.read_position} on, from bookies or object "
            "storage.",
            {"read_position": str(state.read_position), "backlog": state.backlog},
            steps.advise("Wait: a read that takes over 30 s fails, and is then shown here."),
        )


_CHECKS: Final[tuple[Callable[[SubscriptionState], Iterator[Finding]], ...]] = (
    _switching,
    _dispatched,
    delays.blocking,
    _subscription_cap,
    _unavailable,
    _rate,
    keys.blocking,
    _failure,
    _reading,
)


def may_have_stalled(state: SubscriptionState) -> bool:
    """Whether the dispatcher could deliver something at this moment."""
    return (
        any(consumer.available for consumer in state.consumers)
        and state.readable > state.parked
        and not (state.reading or state.turn_due or state.switching or state.blocked)
        and state.rate is None
        and state.failure is None
        and keys.deliverable(state)
    )


def stalled(state: SubscriptionState) -> bool:
    """Whether the dispatcher could deliver for STALL_MS, and has delivered nothing."""
    return may_have_stalled(state) and state.now_ms - state.last_event_ms >= STALL_MS


def flowing(state: SubscriptionState) -> Finding:
    """Returns the finding for a subscription that nothing holds back."""
    last = max((consumer.last_consumed_ms for consumer in state.consumers), default=0)
    evidence: Evidence = {
        "backlog": state.backlog,
        "readable": state.readable,
        "permits": sum(consumer.permits for consumer in state.consumers),
        "last_delivery": time(last),
    }
    if stalled(state):
        evidence["state"] = str(state.dump)
        return finding(
            Code.DISPATCH_STALL,
            f"Consumers have permits and {state.readable} entries are readable, but nothing was "
            f"dispatched since {utc(state.last_event_ms)}: a fault of the broker.",
            evidence,
            steps.unload(
                state.topic,
                "Report the state in the evidence. To have the topic dispatch again:",
            ),
            state.last_event_ms,
        )
    return finding(
        Code.FLOWING,
        f"Nothing holds subscription {state.name} back; {state.backlog} entries are not "
        "acknowledged yet.",
        evidence,
        steps.advise("If the backlog grows, add consumers or make them faster."),
    )


def _refusals(state: SubscriptionState) -> list[Finding]:
    return [
        refused(state.topic, refusal)
        for refusal in state.refusals
        if refusal.kind == "consumer" and refusal.subscription == state.name
    ]


def _policy_of(state: SubscriptionState, findings: list[Finding]) -> PolicyValue | None:
    """Returns the policy that the first finding blames."""
    if not findings:
        return None
    match findings[0].code:
        case Code.UNACKED_CAP_CONSUMER:
            return state.consumer_cap
        case Code.UNACKED_CAP_SUBSCRIPTION:
            return state.subscription_cap
        case Code.RATE_LIMITED:
            return None if state.rate is None else state.rate.policy
    return None


def _number(policy: PolicyValue) -> int:
    return policy.value if isinstance(policy.value, int) else 0


def _text(position: object) -> str | None:
    return None if position is None else str(position)
