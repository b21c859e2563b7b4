"""Why producers of a topic are refused or slow. Pure: the first finding is the reason."""

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
from magnetar.broker.explain.state import TopicState
from magnetar.documents.explain import Finding, utc
from magnetar.policies import caps, rates

RECENT_MS: Final = 5 * 60_000
"""A failed append counts for this long, unless messages were stored since."""
NAMED_MAX: Final = 10


def judge_topic(state: TopicState) -> list[Finding]:
    """Returns the reasons why messages are not published now; at least one."""
    findings = [cause for check in _CHECKS for cause in check(state)]
    if not findings:
        findings.append(_publishing(state))
    return [*findings, *_not_offloaded(state)]


def _moving(state: TopicState) -> Iterator[Finding]:
    if not state.serving:
        yield finding(
            Code.TOPIC_MOVING,
            f"{state.topic} is being moved or closed; its clients look it up again.",
            {"log_state": state.log_state},
            steps.advise("Wait some seconds and ask again."),
        )


def _terminated(state: TopicState) -> Iterator[Finding]:
    if state.terminated_at is not None:
        yield finding(
            Code.TOPIC_TERMINATED,
            f"The topic was terminated at {state.terminated_at}: it never takes messages again.",
            {"terminated_at": str(state.terminated_at)},
            steps.advise("Publish to another topic."),
        )


def _storage(state: TopicState) -> Iterator[Finding]:
    """Too few bookies, or appends that failed."""
    writable = state.bookies_running - len(state.bookies_read_only)
    if writable < state.bookies_wanted:
        full = ", ".join(state.bookies_read_only[:NAMED_MAX])
        yield finding(
            Code.BOOKIES_MISSING,
            f"{writable} bookies take writes, and an entry needs {state.bookies_wanted} copies"
            + (f"; read-only (disk full, or draining): {full}." if full else "."),
            {
                "bookies_running": state.bookies_running,
                "bookies_read_only": list(state.bookies_read_only),
                "copies_needed": state.bookies_wanted,
                "pending_appends": state.pending_appends,
                "last_error": state.last_publish_error or None,
            },
            steps.list_bookies(
                "Start the missing bookies, or make room on the read-only ones: the disk part of "
                "this answer says what takes the topic's bytes."
            ),
        )
    recent = state.now_ms - state.last_publish_error_ms <= RECENT_MS
    if state.last_publish_error and recent and state.last_published_ms < (
        state.last_publish_error_ms
    ):  # fmt: skip
        yield finding(
            Code.PUBLISH_FAILED,
            f"Messages could not be stored at {utc(state.last_publish_error_ms)}: "
            f"{state.last_publish_error}.",
            {
                "error": state.last_publish_error,
                "failed_appends": state.publish_errors,
                "log_state": state.log_state,
                "pending_appends": state.pending_appends,
                "last_stored": time(state.last_published_ms),
            },
            steps.list_bookies("Producers resend by themselves. See whether the bookies run:"),
            state.last_publish_error_ms,
        )


def _quotas(state: TopicState) -> Iterator[Finding]:
    for quota in state.quotas:
        hold = quota.action == "producer_request_hold"
        unit = "bytes" if quota.type == "destination_storage" else "s old"
        now = quota.backlog_bytes
        if unit != "bytes":
            now = max(0, state.now_ms - quota.oldest_ms) // 1000 if quota.oldest_ms else 0
        yield finding(
            Code.QUOTA_HOLD if hold else Code.QUOTA_EXCEPTION,
            f"The backlog of subscription {quota.subscription} is {now} {unit}, the quota "
            f"{quota.type} is {quota.limit}: producers "
            + ("wait until it shrinks." if hold else "are refused until it shrinks."),
            {
                "quota": quota.type,
                "limit": quota.limit,
                "action": quota.action,
                "subscription": quota.subscription,
                "backlog_bytes": quota.backlog_bytes,
                "oldest": time(quota.oldest_ms),
                **policy_evidence(quota.policy),
            },
            steps.skip_all(
                state.topic,
                quota.subscription,
                f"Consume the backlog of {quota.subscription} (magnetar explain subscription says "
                "why it stays), or raise the quota. If its messages are not needed, skip them:",
            ),
            quota.oldest_ms,
        )
        yield from overridden(state.topic, quota.policy)


def _rate(state: TopicState) -> Iterator[Finding]:
    rate = state.rate
    if rate is None:
        return
    held = [producer.name for producer in state.producers if producer.held]
    step = steps.advise(
        "Topics share this rate: raise the broker's, or that of the namespace's resource group "
        "(pulsar-admin resourcegroups)."
    )
    if rate.policy.name == rates.PUBLISH_RATE.name:
        text = "Raise the rate, or remove the limit:"
        step = steps.remove_policy(state.topic, rates.PUBLISH_RATE, rate.policy.level, text)
    yield finding(
        Code.PUBLISH_RATE_LIMITED,
        f"{rate.policy.name}, set at the level {rate.policy.level}, has no tokens for "
        f"{rate.out_of} now; {rate.waiting} producers wait.",
        {
            "out_of": rate.out_of,
            "waiting_producers": held[:NAMED_MAX],
            "limited_times": state.limited_times,
            **policy_evidence(rate.policy),
        },
        step,
    )
    yield from overridden(state.topic, rate.policy)


def _exclusive(state: TopicState) -> Iterator[Finding]:
    """Producers wait for exclusive access, or are refused because another one has it."""
    turned_away = any("exclusive producer" in refusal.text for refusal in state.refusals)
    if not state.waiting and not (state.exclusive and turned_away):
        return
    holders = (
        [state.exclusive] if state.exclusive else [producer.name for producer in state.producers]
    )
    since = min((producer.since_ms for producer in state.producers), default=0)
    yield finding(
        Code.EXCLUSIVE_PRODUCER,
        f"{', '.join(holders[:NAMED_MAX]) or 'No producer'} has the topic; "
        f"{len(state.waiting)} producers wait for exclusive access, others are refused.",
        {
            "exclusive_producer": state.exclusive or None,
            "producers": [producer.name for producer in state.producers[:NAMED_MAX]],
            "waiting": [producer.name for producer in state.waiting[:NAMED_MAX]],
            "epoch": state.epoch,
        },
        steps.unload(
            state.topic,
            "Close the producer that has the access: the first one that waits gets it. If that "
            "client hangs, disconnect all clients of the topic:",
        ),
        since,
    )


def _cap(state: TopicState) -> Iterator[Finding]:
    policy = state.producers_max
    cap = policy.value if policy is not None and isinstance(policy.value, int) else 0
    if policy is None or cap <= 0 or len(state.producers) < cap:
        return
    yield finding(
        Code.PRODUCERS_CAP,
        f"The topic has {len(state.producers)} producers, its maximum; more are refused.",
        {
            "cap": cap,
            "producers": [producer.name for producer in state.producers[:NAMED_MAX]],
            **policy_evidence(policy),
        },
        steps.raise_cap(
            state.topic, caps.MAX_PRODUCERS, cap, "Close a producer, or raise the maximum:"
        ),
    )
    yield from overridden(state.topic, policy)


def _refusals(state: TopicState) -> Iterator[Finding]:
    for refusal in state.refusals:
        if refusal.kind == "producer":
            yield refused(state.topic, refusal)


_CHECKS: Final[tuple[Callable[[TopicState], Iterator[Finding]], ...]] = (
    _moving,
    _terminated,
    _storage,
    _quotas,
    _exclusive,
    _cap,
    _refusals,
    _rate,
)


def _publishing(state: TopicState) -> Finding:
    return finding(
        Code.PUBLISHING,
        f"Nothing refuses or delays the {len(state.producers)} producers of the topic.",
        {
            "producers": [producer.name for producer in state.producers[:NAMED_MAX]],
            "last_stored": time(state.last_published_ms),
            "pending_appends": state.pending_appends,
        },
        steps.advise("If a producer hangs all the same, see its client's log."),
    )


def _not_offloaded(state: TopicState) -> Iterator[Finding]:
    if state.offload and state.closed_unmoved:
        ledger, _ = state.closed_unmoved[0]
        yield finding(
            Code.NOT_OFFLOADED,
            f"Closed ledger {ledger} is not offloaded: {state.offload}.",
            {
                "why": state.offload,
                "ledgers": [
                    {"ledger": ledger_id, "bytes": size} for ledger_id, size in state.closed_unmoved
                ],
            },
            steps.offload(
                state.topic,
                "To have the next run of the offload job move all closed ledgers, request it:",
            ),
        )
