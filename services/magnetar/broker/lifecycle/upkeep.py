"""The rounds of a broker over its topics: what is too old, too much or not used any more goes.

A round asks every loaded topic for the value of one policy, which is a look into a dictionary, some
topics a turn; only those for which it holds are worked on, CHECKED_AT_ONCE_MAX at a time, so that a
bookie that is slow for one topic does not hold up the others. Topics that are not loaded need
nothing: they are looked at when they are.

Nothing is done to topics that rest, since another broker may serve them by now, nor to the broker's
own, nor while it is not known what holds (`AppliedPolicies.known`); and before something goes, the
store is asked whether what is known is what is set. Ages are judged as `core.steady_clock` says.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from magnetar.broker.lifecycle import enforcing
from magnetar.broker.lifecycle.inactivity import (
    MINUTE_MS,
    Use,
    in_use,
    inactive_of,
    is_to_go,
    subscription_is_to_go,
)
from magnetar.broker.lifecycle.limits import KEEPS_NOTHING, retention_of
from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.system_topics import is_system_topic
from magnetar.broker.topic.nonpersistent import NonPersistentTopic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic, TopicRegistry
from magnetar.core.errors import ConsumerBusy, MagnetarError, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    RETENTION,
    SUBSCRIPTION_EXPIRATION,
)

TOPICS_PER_TURN: Final = 256
"""Looked at in one turn of the loop: a hundred thousand must not hold up what is urgent."""
CHECKED_AT_ONCE_MAX: Final = 16
"""Topics whose entries are read or whose records are written at the same time."""

RETURN_MS: Final = 10 * MINUTE_MS
"""Clients of a topic that was loaded have so long to come back before anything counts as unused."""

NOTES_PER_EXPIRATION: Final = 10
"""So often is recorded that a subscription is in use, in the time after which it would expire."""

T = TypeVar("T", PersistentTopic, Topic)

log = get_logger("magnetar.lifecycle")


class Upkeep:
    """See the module's text. Each method is one round; who owns this calls them now and then."""

    def __init__(self, topics: TopicRegistry, clock: SteadyClock) -> None:
        self._topics = topics
        self._clock = clock
        self._agreed = True
        self._exceeded: dict[str, frozenset[QuotaType]] = {}
        """Topics above a quota at the last look, for the log and for whoever asks."""

    async def each_topic(self) -> AsyncIterator[Topic]:
        """All loaded topics, some a turn."""
        for count, topic in enumerate(self._topics, 1):
            yield topic
            if not count % TOPICS_PER_TURN:
                await asyncio.sleep(0)

    def _look_at_clock(self) -> None:
        """Says when the clocks begin to disagree, and when they agree again."""
        if self._clock.agrees is self._agreed:
            return
        self._agreed = self._clock.agrees
        log.warning(
            "clocks agree again: things are kept as long as they should be"
            if self._agreed
            else "the wall clock has jumped: things are kept longer, until it is put right or this "
            "process is started again with a clock that is right",
            apart_s=self._clock.apart_ms // 1000,
        )

    # -- messages

    async def trim(self) -> None:
        """Closes ledgers past their age, and deletes those that nobody needs any more."""
        self._look_at_clock()
        due = []
        async for topic in self.each_topic():
            if isinstance(topic, PersistentTopic):
                if not topic.serving:
                    continue
                topic.managed_ledger.roll_if_aged()
                if topic.managed_ledger.has_to_trim:
                    due.append(topic)
        await self._work(due, lambda topic: topic.managed_ledger.trim(), "ledgers not trimmed")

    async def expire_messages(self) -> None:
        """Acknowledges what is older than the TTL."""
        due = [
            topic
            async for topic in self.each_topic()
            if isinstance(topic, PersistentTopic)
            and topic.policies.value(MESSAGE_TTL)
            and _has_backlog(topic)
            and _may_be_cut(topic)
        ]
        await self._work(due, _expire, "messages not expired")

    async def check_quotas(self) -> None:
        """Keeps producers away from topics with too much backlog, or cuts it."""
        # Topics of a namespace have one and the same value: it is looked at once.
        known: dict[int, tuple[object, bool]] = {}
        due = []
        async for topic in self.each_topic():
            if not isinstance(topic, PersistentTopic):
                continue
            value = topic.policies.value(BACKLOG_QUOTA)
            found = known.get(id(value))
            if found is None:
                known[id(value)] = found = (value, bool(quotas_of(value)))
            if found[1] and _may_be_cut(topic):
                due.append(topic)
        checked = {topic.full_name for topic in due}
        for name in [name for name in self._exceeded if name not in checked]:
            del self._exceeded[name]
        await self._work(due, self._check_quota, "backlog quota not checked")

    async def _check_quota(self, topic: PersistentTopic) -> None:
        limits = enforcing.limits_on(topic)
        before = self._exceeded.pop(topic.full_name, frozenset())
        exceeded = await enforcing.check_quotas(topic, limits)
        if exceeded:
            self._exceeded[topic.full_name] = exceeded
        for quota in limits.quotas:
            if (quota.type in exceeded) is (quota.type in before):
                continue
            name, size_bytes = enforcing.furthest_behind(topic)
            log.warning(
                "backlog quota exceeded, producers are kept away"
                if quota.type in exceeded
                else "backlog is below its quota again",
                topic=topic.full_name,
                subscription=name,
                quota=quota.type.value,
                limit=quota.limit,
                backlog_bytes=size_bytes,
            )

    # -- subscriptions and topics

    async def expire_subscriptions(self) -> None:
        """Deletes durable subscriptions that nobody used for long."""
        due = [
            topic
            async for topic in self.each_topic()
            if isinstance(topic, PersistentTopic)
            and topic.policies.value(SUBSCRIPTION_EXPIRATION)
            and _may_be_cut(topic)
        ]
        await self._work(due, self._expire_subscriptions, "subscriptions not expired")

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
                # It looks itself whether somebody has attached, with nothing in between.
                await topic.delete_subscription(name)
            except ConsumerBusy:
                continue
            except MagnetarError as error:
                # The topic's other subscriptions expire all the same.
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
        """Records now and then that a subscription is in use: the next owner knows only that."""
        cursor = subscription.cursor
        if cursor.durable and subscription.consumers:
            cursor.last_active_ms = self._clock.now_ms()
            await cursor.record_use(minutes * MINUTE_MS // NOTES_PER_EXPIRATION)

    def _unused(self, topic: PersistentTopic, subscription: PersistentSubscription) -> bool:
        """Whether it is to be deleted now."""
        cursor = subscription.cursor
        if topic.subscriptions.get(subscription.name) is not subscription or not cursor.durable:
            return False  # one of that name may have come meanwhile, with another cursor
        if not _may_be_cut(topic):
            return False
        if self._clock.is_future(cursor.last_active_ms):
            cursor.last_active_ms = self._clock.now_ms()
        minutes = topic.policies.value(SUBSCRIPTION_EXPIRATION) or 0
        return subscription_is_to_go(
            minutes,
            attached=bool(subscription.consumers),
            last_active_ms=self._last_use_ms(topic, subscription, minutes),
            now_ms=self._clock.judged_ms(),
        )

    @staticmethod
    def _last_use_ms(
        topic: PersistentTopic, subscription: PersistentSubscription, minutes: int
    ) -> int:
        """When it was last used, or may have been.

        What another owner recorded is as old as its notes; and who was attached when that one
        ended must have had the time to come back.
        """
        used_ms, expiration_ms = subscription.cursor.last_active_ms, minutes * MINUTE_MS
        if used_ms >= topic.loaded_ms:
            return used_ms
        back_ms = topic.loaded_ms + min(RETURN_MS, expiration_ms) - expiration_ms
        return max(used_ms + expiration_ms // NOTES_PER_EXPIRATION, back_ms)

    async def delete_unused(self) -> None:
        """Deletes topics that nobody uses; their schemas go, partitioned metadata stays."""
        due = [topic async for topic in self.each_topic() if self._is_to_go(topic, noting=True)]
        await self._work(due, self._delete, "unused topic not deleted")

    async def _delete(self, topic: Topic) -> None:
        if isinstance(topic, NonPersistentTopic):
            self._topics.drop_idle(topic.name)
            return
        await topic.policies.confirm()
        if await topic.managed_ledger.trim_limit() is not None:
            # It is compacted: its readers need no subscription (Pulsar's `__compaction` is one).
            topic.last_active_ms = self._clock.now_ms()
            return
        try:
            await self._topics.delete_if(topic, self._is_to_go)
        except PreconditionFailed:
            return  # somebody came meanwhile
        log.info("unused topic deleted", topic=topic.full_name)

    def _is_to_go(self, topic: Topic, *, noting: bool = False) -> bool:
        """Whether the topic is to be deleted; with `noting`, time without use begins here."""
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
        if isinstance(topic, PersistentTopic):
            retention = retention_of(topic.policies.value(RETENTION))
        return is_to_go(use, policy, retention, now_ms) and _may_be_cut(topic)

    # -- working

    @staticmethod
    async def _work(topics: list[T], what: Callable[[T], Awaitable[None]], failed: str) -> None:
        for start in range(0, len(topics), CHECKED_AT_ONCE_MAX):
            some = topics[start : start + CHECKED_AT_ONCE_MAX]
            results = await asyncio.gather(*map(what, some), return_exceptions=True)
            for topic, error in zip(some, results, strict=True):
                if isinstance(error, MagnetarError):
                    log.warning(failed, topic=topic.full_name, error=str(error))
                elif isinstance(error, Exception):
                    log.error(failed, topic=topic.full_name, exc_info=error)
                elif error is not None:
                    raise error


async def _expire(topic: PersistentTopic) -> None:
    await enforcing.expire(topic, enforcing.limits_on(topic))


def _has_backlog(topic: PersistentTopic) -> bool:
    return any(each.cursor.backlog for each in topic.subscriptions.values())


def _may_be_cut(topic: Topic) -> bool:
    return topic.serving and topic.policies.known and not is_system_topic(topic.name)


def _use_of(topic: Topic) -> Use:
    backlog = isinstance(topic, PersistentTopic) and _has_backlog(topic)
    subscriptions = len(topic.subscriptions)
    if isinstance(topic, PersistentTopic) and (broken := len(topic.broken_subscriptions)):
        # How far behind they are is not known: what they need may be all that the topic holds.
        subscriptions, backlog = subscriptions + broken, True
    return Use(not topic.is_idle, subscriptions, backlog, topic.last_active_ms)
