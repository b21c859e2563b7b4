"""Does to a loaded topic what its limits ask for: expires, cuts backlogs, keeps producers away.

Everything is decided anew from what is in memory and a few reads; nothing is remembered between two
checks but whether a quota was exceeded, so that the log says when that begins and ends. Marks only
move forward, and only past what was found too old or too much: a check that comes late, twice, or
beside a client's own acknowledgements does no harm.
"""

from typing import Final

from magnetar.broker.lifecycle import expiry
from magnetar.broker.lifecycle.limits import Limits, limits_of
from magnetar.broker.lifecycle.outcome import Outcome, eviction_end, is_exceeded, outcome, slowest
from magnetar.broker.lifecycle.quota import PULSAR_TEXT, Quota, QuotaAction, QuotaType, quotas_of
from magnetar.broker.topic.persistent import PersistentTopic
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
    """`outcome.Times` of a log that is open."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger

    async def oldest_ms(self, after: Position) -> int | None:
        return await expiry.oldest_ms(self._ledger, after)

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        return await expiry.older_end(self._ledger, before_ms, after)


def limits_on(topic: PersistentTopic) -> Limits:
    """What holds for the topic now."""
    value = topic.policies.value
    return limits_of(value(RETENTION), value(MESSAGE_TTL), value(BACKLOG_QUOTA))


async def foresee(topic: PersistentTopic, limits: Limits) -> Outcome:
    """What the limits would make of the topic now."""
    ledger = topic.managed_ledger
    return await outcome(
        ledger.index,
        {name: each.cursor for name, each in topic.subscriptions.items()},
        limits,
        LedgerTimes(ledger),
        topic.judged_ms(),
        deletes=not ledger.broken_cursors,
        trim_limit=await ledger.trim_limit(),
    )


async def expire(topic: PersistentTopic, limits: Limits) -> int:
    """Acknowledges what is older than the topic's TTL, for every subscription; how many entries.

    Also for those without consumers. One search serves all of them.
    """
    waiting = [each for each in topic.subscriptions.values() if each.cursor.backlog]
    if not waiting or not limits.ttl_s:
        return 0
    start = min(each.cursor.mark_delete for each in waiting)
    before_ms = limits.expired_before_ms(topic.judged_ms())
    end = await expiry.older_end(topic.managed_ledger, before_ms, start)
    if end is not None and not await _still(topic, limits):
        return 0
    expired = 0
    for each in waiting:
        if not each.closed:
            each.expire_up_to(end)
            expired += each.last_expired
    return expired


async def check_quotas(topic: PersistentTopic, limits: Limits) -> frozenset[QuotaType]:
    """Does what the topic's quotas ask for; those that are exceeded, and still are afterwards."""
    exceeded = set()
    for quota in limits.quotas:
        mark = slowest(each.cursor for each in topic.subscriptions.values())
        if mark is None or not await _is_exceeded(topic, quota, mark):
            continue
        if quota.action.blocks:
            exceeded.add(quota.type)
            if len(topic.producers) or topic.producers.waiting_count:
                topic.producers.close_all()
        else:
            await _evict(topic, limits, quota, mark)
    return frozenset(exceeded)


async def refusal(topic: PersistentTopic) -> MagnetarError | None:
    """Why no producer is let in now; None where one is. Decided anew: a check may be late."""
    for quota in quotas_of(topic.policies.value(BACKLOG_QUOTA)):
        mark = slowest(each.cursor for each in topic.subscriptions.values())
        if mark is None or not quota.action.blocks:
            continue
        if await _is_exceeded(topic, quota, mark):
            return _REFUSALS[quota.action](PULSAR_TEXT)
    return None


async def _still(topic: PersistentTopic, limits: Limits) -> bool:
    """Whether the store says the same, and the topic is still served here: then there is no more
    to wait for before something goes."""
    await topic.policies.confirm()
    return topic.serving and topic.policies.known and limits_on(topic) == limits


async def _is_exceeded(topic: PersistentTopic, quota: Quota, mark: Position) -> bool:
    ledger = topic.managed_ledger
    return await is_exceeded(quota, ledger.index, mark, LedgerTimes(ledger), topic.judged_ms())


async def _evict(topic: PersistentTopic, limits: Limits, quota: Quota, mark: Position) -> None:
    ledger = topic.managed_ledger
    end = await eviction_end(quota, ledger.index, mark, LedgerTimes(ledger), topic.judged_ms())
    if end is None or not await _still(topic, limits):
        return
    for name, each in topic.subscriptions.items():
        if not each.cursor.durable or each.closed or end <= each.cursor.mark_delete:
            continue
        size_bytes = ledger.index.bytes_after(*each.cursor.mark_delete)
        evicted = each.evict_up_to(end)
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
    """The durable subscription that is furthest behind, and the bytes behind its mark."""
    marks = {
        name: each.cursor.mark_delete
        for name, each in topic.subscriptions.items()
        if each.cursor.durable
    }
    if not marks:
        return "", 0
    name = min(marks, key=lambda each: marks[each])
    return name, topic.managed_ledger.index.bytes_after(*marks[name])
