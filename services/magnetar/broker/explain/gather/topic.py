"""Gathers the state of a topic, seen from its producers."""

from typing import Final

from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.state import (
    SHARED_RATE,
    PolicyValue,
    ProducerState,
    QuotaState,
    RateState,
    TopicState,
)
from magnetar.broker.lifecycle import enforcement
from magnetar.broker.lifecycle.expiry import oldest_ms
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import Producer
from magnetar.core.errors import MagnetarError
from magnetar.offload.policy import OffloadPlan
from magnetar.policies import admission, caps, rates
from magnetar.policies.lifecycle import BACKLOG_QUOTA

UNMOVED_SHOWN_MAX: Final = 20


async def topic_state(parts: Parts, topic: PersistentTopic) -> TopicState:
    """Returns the state. Quotas and offloading may read entries and metadata."""
    quotas = await _quotas(parts, topic)
    unmoved, why = await _offload(parts, topic)
    name, ledger, registry = topic.name, topic.managed_ledger, topic.producers
    client, counters = parts.ledgers.client, topic.counters
    wanted = ledger.quorums or client.settings.quorums
    living = client.living()
    encryption = parts.policy(name, admission.ENCRYPTION_REQUIRED)
    return TopicState(
        topic=name,
        now_ms=parts.clock.now_ms(),
        serving=topic.serving,
        terminated_at=ledger.terminated_at,
        log_state=ledger.state,
        pending_appends=ledger.pending_appends,
        producers=tuple(map(_producer, registry)),
        waiting=tuple(map(_producer, registry.waiting)),
        exclusive=registry.exclusive,
        epoch=registry.epoch,
        quotas=quotas,
        rate=_rate(parts, topic),
        limited_times=counters.publish_limited_times,
        producers_max=parts.policy(name, caps.MAX_PRODUCERS),
        encryption=encryption if encryption.value else None,
        refusals=parts.refusals.of(topic.full_name),
        publish_errors=counters.publish_errors,
        last_publish_error=counters.last_error,
        last_publish_error_ms=counters.last_error_ms,
        last_published_ms=counters.last_published_ms,
        bookies_wanted=wanted.ack_quorum,
        bookies_running=len(living),
        bookies_read_only=tuple(
            bookie.identity.bookie_id for bookie in living if not bookie.writable
        ),
        closed_unmoved=unmoved,
        offload=why,
    )


def _producer(producer: Producer) -> ProducerState:
    return ProducerState(
        producer.name,
        producer.sink.address,
        producer.access_mode.name,
        producer.connected_since_ms,
        ready=producer.ready,
        encrypted=producer.encrypted,
        held=producer.held is not None,
    )


def _rate(parts: Parts, topic: PersistentTopic) -> RateState | None:
    gate = topic.gate
    for limiter in () if gate is None else gate.limiters:
        if not limiter.waiting and limiter.may_go():
            continue
        policy = PolicyValue(SHARED_RATE, None, "broker")
        if gate is not None and limiter is gate.limiter:
            policy = parts.policy(topic.name, rates.PUBLISH_RATE)
        out_of = "bytes" if limiter.out_of_bytes else "messages"
        return RateState(policy, out_of, limiter.waiting)
    return None


async def _quotas(parts: Parts, topic: PersistentTopic) -> tuple[QuotaState, ...]:
    policy = parts.policy(topic.name, BACKLOG_QUOTA)
    exceeded = []
    for quota in enforcement.limits_on(topic).quotas:
        mark = await enforcement.exceeded_at(topic, quota)
        if mark is None or not quota.action.blocks:
            continue
        subscription, size_bytes = enforcement.furthest_behind(topic)
        since = await oldest_ms(topic.managed_ledger, mark)
        exceeded.append(
            QuotaState(
                PolicyValue(policy.name, quota.limit, policy.level, policy.overridden),
                quota.type.value,
                quota.limit,
                quota.action.value,
                subscription,
                size_bytes,
                since or 0,
            )
        )
    return tuple(exceeded)


async def _offload(parts: Parts, topic: PersistentTopic) -> tuple[tuple[tuple[int, int], ...], str]:
    """Returns the closed ledgers that were not offloaded, and why not."""
    ledger = topic.managed_ledger
    plan = parts.offloading.plan(topic.name)
    closed = [info for info in ledger.ledgers[:-1] if info.closed_ms and info.entries]
    if not closed or not (plan.store or plan.threshold_bytes >= 0 or plan.threshold_s >= 0):
        return (), ""
    try:
        moved = (await parts.offloading.refresh(ledger, always=True)).sizes
        status = await parts.offloading.status(ledger)
    except (MagnetarError, TimeoutError) as error:
        return (), f"the records of offloaded ledgers cannot be read: {error}"
    unmoved = [info for info in closed if info.ledger_id not in moved]
    if not unmoved:
        return (), ""
    age_s = (parts.clock.now_ms() - unmoved[0].closed_ms) // 1000
    why = status.last_error or _why(plan, ledger.bytes_total, age_s)
    shown = tuple((info.ledger_id, info.size_bytes) for info in unmoved[:UNMOVED_SHOWN_MAX])
    return shown, why


def _why(plan: OffloadPlan, size_bytes: int, oldest_age_s: int) -> str:
    """Returns why the oldest closed ledger is still on bookies only."""
    if plan.store is None:
        return "no offload driver is configured (managedLedgerOffloadDriver)"
    if not plan.automatic:
        return "no threshold is set, so ledgers are offloaded on request only"
    parts = []
    if plan.threshold_bytes >= 0:
        if size_bytes > plan.threshold_bytes:
            return "it is due: the next run of the offload job moves it"
        parts.append(f"the topic has {size_bytes} bytes, the threshold is {plan.threshold_bytes}")
    if plan.threshold_s >= 0:
        if oldest_age_s >= plan.threshold_s:
            return "it is due: the next run of the offload job moves it"
        parts.append(f"it was closed {oldest_age_s} s ago, the threshold is {plan.threshold_s} s")
    return "; ".join(parts)
