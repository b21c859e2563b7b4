"""Enforces a loaded topic's limits: expires messages, evicts backlogs, blocks producers.

Every check decides from memory and a few reads. Marks only move forward, and only past
messages that were found too old or too many, so a check that runs late, twice, or concurrently with
a client's acknowledgments does no harm.
"""

from typing import Final

from magnetar.broker.lifecycle import expiry
from magnetar.broker.lifecycle.limits import Limits, limits_of
from magnetar.broker.lifecycle.outcome import Outcome, eviction_end, is_exceeded, outcome, slowest
from magnetar.broker.lifecycle.quota import PULSAR_TEXT, Quota, QuotaAction, QuotaType, quotas_of
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import PersistentTopic, as_persistent
from magnetar.core.errors import BacklogQuotaExceeded, BacklogQuotaExceededException, MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION

_REFUSALS: Final[dict[QuotaAction, type[MagnetarError]]] = {
    QuotaAction.HOLD: BacklogQuotaExceeded,
    QuotaAction.EXCEPTION: BacklogQuotaExceededException,
}

log = get_logger("magnetar.lifecycle")


class LedgerTimes:
    """`outcome.Times` of an open managed ledger."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger

    async def oldest_ms(self, after: Position) -> int | None:
        """Returns when the first entry after `after` arrived."""
        return await expiry.oldest_ms(self._ledger, after)

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        """Returns the last entry after `after` that arrived before this time."""
        return await expiry.older_end(self._ledger, before_ms, after)


def limits_on(topic: PersistentTopic) -> Limits:
    """Returns the limits that apply to the topic now."""
    value = topic.policies.value
    return limits_of(value(RETENTION), value(MESSAGE_TTL), value(BACKLOG_QUOTA))


async def predict(topic: PersistentTopic, limits: Limits) -> Outcome:
    """Returns what the limits would do to the topic now."""
    ledger = topic.managed_ledger
    return await outcome(
        ledger.index,
        {name: subscription.cursor for name, subscription in topic.subscriptions.items()},
        limits,
        LedgerTimes(ledger),
        topic.judged_ms(),
        deletes=not ledger.broken_cursors,
        trim_limit=await ledger.trim_limit(),
    )


async def expire(topic: PersistentTopic, limits: Limits) -> int:
    """Acknowledges messages older than the topic's TTL, of all subscriptions; returns their number.

    This includes subscriptions without consumers. One search serves all subscriptions.
    """
    pending = [
        subscription for subscription in topic.subscriptions.values() if subscription.cursor.backlog
    ]
    if not pending or not limits.ttl_s:
        return 0
    start = min(subscription.cursor.mark_delete for subscription in pending)
    before_ms = limits.expired_before_ms(topic.judged_ms())
    end = await expiry.older_end(topic.managed_ledger, before_ms, start)
    if end is not None and not await _is_confirmed(topic, limits):
        return 0
    expired = 0
    for subscription in pending:
        if not subscription.closed:
            subscription.expire_up_to(end)
            expired += subscription.last_expired
    return expired


async def check_quotas(topic: PersistentTopic, limits: Limits) -> frozenset[QuotaType]:
    """Enforces the topic's quotas; returns those that are still exceeded afterwards."""
    exceeded = set()
    for quota in limits.quotas:
        mark = _slowest(topic)
        if mark is None or not await _is_exceeded(topic, quota, mark):
            continue
        if quota.action.blocks:
            exceeded.add(quota.type)
            if len(topic.producers) or topic.producers.waiting_count:
                topic.producers.close_all()
        else:
            await _evict(topic, limits, quota, mark)
    return frozenset(exceeded)


async def refusal(topic: Topic) -> MagnetarError | None:
    """Returns the error for a new producer, None if it is admitted. A check may be late."""
    persistent = as_persistent(topic)
    if persistent is None:
        return None
    for quota in quotas_of(topic.policies.value(BACKLOG_QUOTA)):
        mark = _slowest(persistent)
        if mark is None or not quota.action.blocks:
            continue
        if await _is_exceeded(persistent, quota, mark):
            return _REFUSALS[quota.action](PULSAR_TEXT)
    return None


async def exceeded_at(topic: PersistentTopic, quota: Quota) -> Position | None:
    """Returns the mark of the slowest subscription if the quota is exceeded, else None."""
    mark = _slowest(topic)
    return mark if mark is not None and await _is_exceeded(topic, quota, mark) else None


def _slowest(topic: PersistentTopic) -> Position | None:
    return slowest(subscription.cursor for subscription in topic.subscriptions.values())


async def _is_confirmed(topic: PersistentTopic, limits: Limits) -> bool:
    """Whether the store has the same limits, and this broker still serves the topic.

    After this, nothing may be awaited before the deletion.
    """
    await topic.policies.confirm()
    return topic.serving and topic.policies.known and limits_on(topic) == limits


async def _is_exceeded(topic: PersistentTopic, quota: Quota, mark: Position) -> bool:
    ledger = topic.managed_ledger
    return await is_exceeded(quota, ledger.index, mark, LedgerTimes(ledger), topic.judged_ms())


async def _evict(topic: PersistentTopic, limits: Limits, quota: Quota, mark: Position) -> None:
    ledger = topic.managed_ledger
    end = await eviction_end(quota, ledger.index, mark, LedgerTimes(ledger), topic.judged_ms())
    if end is None or not await _is_confirmed(topic, limits):
        return
    for name, subscription in topic.subscriptions.items():
        cursor = subscription.cursor
        if not cursor.durable or subscription.closed or end <= cursor.mark_delete:
            continue
        size_bytes = ledger.index.bytes_after(*cursor.mark_delete)
        evicted = subscription.evict_up_to(end)
        log.warning(
            "backlog evicted",
            topic=topic.full_name,
            subscription=name,
            quota=quota.type.value,
            limit=quota.limit,
            backlog_bytes=size_bytes,
            entries=evicted,
        )
    if quota.type is QuotaType.SIZE:
        topic.counters.evictions_by_size += 1
    else:
        topic.counters.evictions_by_age += 1


def furthest_behind(topic: PersistentTopic) -> tuple[str, int]:
    """Returns the slowest durable subscription, and the bytes of its backlog."""
    marks = {
        name: subscription.cursor.mark_delete
        for name, subscription in topic.subscriptions.items()
        if subscription.cursor.durable
    }
    if not marks:
        return "", 0
    name = min(marks, key=lambda name: marks[name])
    return name, topic.managed_ledger.index.bytes_after(*marks[name])
