"""A broker's periodic rounds over its topics: they delete expired, excessive and unused data.

A round reads one policy of every loaded topic, which is a dictionary lookup, TOPICS_PER_TURN topics
at a time. Only topics with a value are worked on, CHECKED_AT_ONCE_MAX at a time, so that a slow
bookie of one topic does not delay the others. Topics that are not loaded are handled once they are.

The rounds skip suspended topics, because another broker may already serve them; the broker's own
system topics; and topics whose policies are uncertain (`AppliedPolicies.known`). Before a round
deletes anything, it confirms the policies with the store. Ages are judged by `core.steady_clock`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.explain.refusals import RecentRefusals
from magnetar.broker.lifecycle import enforcement
from magnetar.broker.lifecycle.inactivity import (
    MINUTE_MS,
    Use,
    in_use,
    inactive_of,
    should_delete,
    should_delete_subscription,
)
from magnetar.broker.lifecycle.limits import KEEPS_NOTHING, retention_of
from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.lifecycle.unacked_watch import UnackedWatch
from magnetar.broker.rates.broker_limits import BrokerLimits
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import PersistentTopic, as_persistent
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.core.errors import (
    ConsumerBusy,
    MagnetarError,
    PreconditionFailed,
    SubscriptionNotFound,
)
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.policies.admission import DEDUPLICATION_SNAPSHOT_INTERVAL
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    RETENTION,
    SUBSCRIPTION_EXPIRATION,
)

TOPICS_PER_TURN: Final = 256
"""Topics per turn of the loop: with a hundred thousand topics, urgent work must not wait."""
CHECKED_AT_ONCE_MAX: Final = 16
"""Topics whose entries are read or whose records are written at the same time."""

RETURN_MS: Final = 10 * MINUTE_MS
"""After a topic is loaded, its clients have this long to reconnect before it counts as unused."""

NOTES_PER_EXPIRATION: Final = 10
"""How often the use of a subscription is recorded within its expiration time."""

T = TypeVar("T", PersistentTopic, Topic)

log = get_logger("magnetar.lifecycle")


class Upkeep:
    """Runs the rounds: each public method is a round that the broker calls periodically."""

    def __init__(
        self,
        topics: TopicRegistry,
        clock: SteadyClock,
        limits: BrokerLimits,
        notify: Callable[[], None],
    ) -> None:
        """`notify` makes all topics apply their policies again."""
        self.refusals: RecentRefusals | None = None
        """Where deletions of unused topics are recorded, if the broker has it."""
        self._topics = topics
        self.unacked = UnackedWatch(limits, self.each_topic, notify)
        self._clock = clock
        self._agreed = True
        self._exceeded: dict[str, frozenset[QuotaType]] = {}
        """Topics above a quota at the last check, for the log."""

    async def each_topic(self) -> AsyncIterator[Topic]:
        """Iterates over all loaded topics, TOPICS_PER_TURN per turn of the loop."""
        for count, topic in enumerate(self._topics, 1):
            yield topic
            if not count % TOPICS_PER_TURN:
                await asyncio.sleep(0)

    async def _each_persistent(self) -> AsyncIterator[PersistentTopic]:
        """Iterates over the persistent ones of the loaded topics."""
        async for topic in self.each_topic():
            if (persistent := as_persistent(topic)) is not None:
                yield persistent

    def _check_clock(self) -> None:
        """Logs when the clocks start to disagree, and when they agree again."""
        if self._clock.agrees is self._agreed:
            return
        self._agreed = self._clock.agrees
        log.warning(
            "clocks agree again: data is kept no longer than configured"
            if self._agreed
            else "the wall clock has jumped: data is kept longer until the clock is corrected, or "
            "until this process is restarted with a correct clock",
            apart_s=self._clock.apart_ms // 1000,
        )

    async def trim(self) -> None:
        """Closes ledgers past their age, and deletes ledgers that are no longer needed."""
        self._check_clock()
        due = []
        async for topic in self._each_persistent():
            if not topic.serving:
                continue
            topic.managed_ledger.roll_if_aged()
            if topic.managed_ledger.has_to_trim:
                due.append(topic)
        await self._for_each(due, lambda topic: topic.managed_ledger.trim(), "ledgers not trimmed")

    async def expire_messages(self) -> None:
        """Acknowledges messages older than their topic's TTL."""
        due = [
            topic
            async for topic in self._each_persistent()
            if topic.policies.value(MESSAGE_TTL) and _has_backlog(topic) and _may_delete(topic)
        ]
        await self._for_each(due, _expire, "messages not expired")

    async def check_quotas(self) -> None:
        """Blocks producers of topics with too much backlog, or evicts from it."""
        # Topics of a namespace share one value object, so it is parsed once.
        parsed: dict[int, tuple[object, bool]] = {}
        due = []
        async for topic in self._each_persistent():
            value = topic.policies.value(BACKLOG_QUOTA)
            cached = parsed.get(id(value))
            if cached is None:
                parsed[id(value)] = cached = (value, bool(quotas_of(value)))
            if cached[1] and _may_delete(topic):
                due.append(topic)
        checked = {topic.full_name for topic in due}
        for name in [name for name in self._exceeded if name not in checked]:
            del self._exceeded[name]
        await self._for_each(due, self._check_quota, "backlog quota not checked")

    async def _check_quota(self, topic: PersistentTopic) -> None:
        limits = enforcement.limits_on(topic)
        before = self._exceeded.pop(topic.full_name, frozenset())
        exceeded = await enforcement.check_quotas(topic, limits)
        if exceeded:
            self._exceeded[topic.full_name] = exceeded
        for quota in limits.quotas:
            if (quota.type in exceeded) is (quota.type in before):
                continue
            name, size_bytes = enforcement.furthest_behind(topic)
            log.warning(
                "backlog quota exceeded, producers are blocked"
                if quota.type in exceeded
                else "backlog is below its quota again",
                topic=topic.full_name,
                subscription=name,
                quota=quota.type.value,
                limit=quota.limit,
                backlog_bytes=size_bytes,
            )

    async def expire_subscriptions(self) -> None:
        """Deletes durable subscriptions that were unused for their expiration time."""
        due = [
            topic
            async for topic in self._each_persistent()
            if topic.policies.value(SUBSCRIPTION_EXPIRATION) and _may_delete(topic)
        ]
        await self._for_each(due, self._expire_subscriptions, "subscriptions not expired")

    async def _expire_subscriptions(self, topic: PersistentTopic) -> None:
        minutes = topic.policies.value(SUBSCRIPTION_EXPIRATION) or 0
        for name, subscription in list(topic.subscriptions.items()):
            try:
                await self._note_use(subscription, minutes)
                if not self._unused(topic, subscription):
                    continue
                await topic.policies.confirm()
                if not self._unused(topic, subscription):
                    continue
                # It checks again for consumers, without an await in between.
                await topic.delete_subscription(name)
            except ConsumerBusy:
                continue
            except MagnetarError as error:
                # The topic's other subscriptions expire nevertheless.
                log.warning(
                    "subscription not expired",
                    topic=topic.full_name,
                    subscription=name,
                    error=str(error),
                )
                continue
            log.info(
                "unused subscription deleted",
                topic=topic.full_name,
                subscription=name,
                unused_minutes=minutes,
            )

    async def _note_use(self, subscription: PersistentSubscription, minutes: int) -> None:
        """Records periodically that a subscription is in use, for the topic's next owner."""
        cursor = subscription.cursor
        if cursor.durable and subscription.consumers:
            cursor.last_active_ms = self._clock.now_ms()
            await cursor.record_use(minutes * MINUTE_MS // NOTES_PER_EXPIRATION)

    def _unused(self, topic: PersistentTopic, subscription: PersistentSubscription) -> bool:
        """Whether the subscription is to be deleted now."""
        cursor = subscription.cursor
        if topic.subscriptions.get(subscription.name) is not subscription or not cursor.durable:
            return False  # a new subscription may have the name, with another cursor
        if not _may_delete(topic):
            return False
        if self._clock.is_future(cursor.last_active_ms):
            cursor.last_active_ms = self._clock.now_ms()
        minutes = topic.policies.value(SUBSCRIPTION_EXPIRATION) or 0
        return should_delete_subscription(
            minutes,
            attached=bool(subscription.consumers),
            last_active_ms=self._last_use_ms(topic, subscription, minutes),
            now_ms=self._clock.judged_ms(),
        )

    @staticmethod
    def _last_use_ms(
        topic: PersistentTopic, subscription: PersistentSubscription, minutes: int
    ) -> int:
        """Returns when the subscription was last used, or may have been.

        A time that a former owner recorded may be as old as the interval of its records. A client
        that was attached when that owner stopped must have had time to reconnect.
        """
        used_ms, expiration_ms = subscription.cursor.last_active_ms, minutes * MINUTE_MS
        if used_ms >= topic.loaded_ms:
            return used_ms
        back_ms = topic.loaded_ms + min(RETURN_MS, expiration_ms) - expiration_ms
        return max(used_ms + expiration_ms // NOTES_PER_EXPIRATION, back_ms)

    async def sweep_deduplication(self) -> None:
        """Stores the ids of deduplication if that is due, and forgets those unused for long."""
        async for topic in self._each_persistent():
            if topic.deduplication is not None and topic.serving:
                interval_s = topic.policies.value(DEDUPLICATION_SNAPSHOT_INTERVAL) or 0
                topic.deduplication.sweep(interval_s)

    async def sweep_delays(self) -> None:
        """Stores the indexes of delayed messages that are due, and forgets trimmed entries."""
        async for topic in self._each_persistent():
            if topic.delays is not None and topic.serving:
                topic.delays.sweep()

    async def restore_subscriptions(self) -> None:
        """Reads again the cursors that could not be read when their topics were opened.

        A subscription may have no consumer for long, and its cursor holds back all data meanwhile.
        """
        due = [
            topic
            async for topic in self._each_persistent()
            if topic.serving and topic.broken_subscriptions
        ]
        await self._for_each(due, _restore, "subscriptions not restored")

    async def delete_unused(self) -> None:
        """Deletes unused topics and their schemas; partitioned metadata stays."""
        due = [
            topic async for topic in self.each_topic() if self._should_delete(topic, noting=True)
        ]
        await self._for_each(due, self._delete, "unused topic not deleted")

    async def _delete(self, topic: Topic) -> None:
        persistent = as_persistent(topic)
        if persistent is None:
            self._topics.drop_idle(topic.name)
            return
        await topic.policies.confirm()
        if await persistent.managed_ledger.trim_limit() is not None:
            # The topic is compacted: its readers need no subscription (Pulsar has `__compaction`).
            topic.last_active_ms = self._clock.now_ms()
            return
        try:
            await self._topics.delete_if(topic, self._should_delete)
        except PreconditionFailed:
            return  # the topic is in use again
        mode = topic.policies.value(INACTIVE_TOPICS)
        if self.refusals is not None:
            self.refusals.deleted(topic.full_name, topic.last_active_ms, str(mode))
        log.info("unused topic deleted", topic=topic.full_name)

    def _should_delete(self, topic: Topic, *, noting: bool = False) -> bool:
        """Whether the topic is to be deleted; `noting` restarts the idle time if it is in use."""
        value = topic.policies.value(INACTIVE_TOPICS)
        if value is None or not value["deleteWhileInactive"]:
            return False
        if self._clock.is_future(topic.last_active_ms):
            topic.last_active_ms = self._clock.now_ms()
        policy, use, now_ms = inactive_of(value), _use_of(topic), self._clock.judged_ms()
        if noting and in_use(use, policy):
            topic.last_active_ms = self._clock.now_ms()
            return False
        retention = KEEPS_NOTHING
        if topic.name.persistent:
            retention = retention_of(topic.policies.value(RETENTION))
        return should_delete(use, policy, retention, now_ms) and _may_delete(topic)

    @staticmethod
    async def _for_each(topics: list[T], work: Callable[[T], Awaitable[None]], failed: str) -> None:
        """Awaits `work` for each topic, CHECKED_AT_ONCE_MAX at a time; logs failures."""
        for start in range(0, len(topics), CHECKED_AT_ONCE_MAX):
            batch = topics[start : start + CHECKED_AT_ONCE_MAX]
            results = await asyncio.gather(*map(work, batch), return_exceptions=True)
            for topic, error in zip(batch, results, strict=True):
                if isinstance(error, MagnetarError):
                    log.warning(failed, topic=topic.full_name, error=str(error))
                elif isinstance(error, Exception):
                    log.error(failed, topic=topic.full_name, exc_info=error)
                elif error is not None:
                    raise error


async def _expire(topic: PersistentTopic) -> None:
    await enforcement.expire(topic, enforcement.limits_on(topic))


async def _restore(topic: PersistentTopic) -> None:
    for name in topic.broken_subscriptions.keys() - topic.subscriptions.keys():
        try:
            await topic.restore_subscription(name)
        except CursorCorrupt:
            continue  # logged where it was read; the topic's other cursors may be readable
        except SubscriptionNotFound:
            continue  # deleted meanwhile
        log.info("cursor is readable again", topic=topic.full_name, subscription=name)


def _has_backlog(topic: Topic) -> bool:
    return any(subscription.backlog for subscription in topic.subscriptions.values())


def _may_delete(topic: Topic) -> bool:
    return topic.serving and topic.policies.known and not is_system_topic(topic.name)


def _use_of(topic: Topic) -> Use:
    backlog = _has_backlog(topic)
    subscriptions = len(topic.subscriptions)
    if broken := len(topic.broken_subscriptions):
        # Their position is unknown, so they may need everything that the topic holds.
        subscriptions, backlog = subscriptions + broken, True
    return Use(not topic.is_idle, subscriptions, backlog, topic.last_active_ms)
