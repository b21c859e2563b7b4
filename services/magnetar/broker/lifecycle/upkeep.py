"""The rounds of a broker over its topics: what is too old, too much or not used any more goes.

A round asks every loaded topic for the value of one policy, which is a look into a dictionary, some
topics a turn; only those for which it holds are worked on, CHECKED_AT_ONCE_MAX at a time, so that a
bookie that is slow for one topic does not hold up the others. Topics that are not loaded need
nothing: they are looked at when they are.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from magnetar.broker.lifecycle import enforcing
from magnetar.broker.lifecycle.inactivity import (
    Use,
    in_use,
    inactive_of,
    is_to_go,
    subscription_is_to_go,
)
from magnetar.broker.lifecycle.limits import KEEPS_NOTHING, retention_of
from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.topic.nonpersistent import NonPersistentTopic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic, TopicRegistry
from magnetar.core.clock import Clock
from magnetar.core.errors import ConsumerBusy, MagnetarError, PreconditionFailed
from magnetar.core.log import get_logger
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

T = TypeVar("T", PersistentTopic, Topic)

log = get_logger("magnetar.lifecycle")


class Upkeep:
    """See the module's text. Each method is one round; who owns this calls them now and then."""

    def __init__(self, topics: TopicRegistry, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._exceeded: dict[str, frozenset[QuotaType]] = {}
        """Topics above a quota at the last look, for the log and for whoever asks."""

    async def each_topic(self) -> AsyncIterator[Topic]:
        """All loaded topics, some a turn."""
        for count, topic in enumerate(self._topics, 1):
            yield topic
            if not count % TOPICS_PER_TURN:
                await asyncio.sleep(0)

    # -- messages

    async def trim(self) -> None:
        """Closes ledgers past their age, and deletes those that nobody needs any more."""
        due = []
        async for topic in self.each_topic():
            if isinstance(topic, PersistentTopic):
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
            if found[1]:
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
            if isinstance(topic, PersistentTopic) and topic.policies.value(SUBSCRIPTION_EXPIRATION)
        ]
        await self._work(due, self._expire_subscriptions, "subscriptions not expired")

    async def _expire_subscriptions(self, topic: PersistentTopic) -> None:
        minutes = topic.policies.value(SUBSCRIPTION_EXPIRATION) or 0
        for name, subscription in list(topic.subscriptions.items()):
            if not subscription.cursor.durable or not subscription_is_to_go(
                minutes,
                attached=bool(subscription.consumers),
                last_active_ms=subscription.cursor.last_active_ms,
                now_ms=self._clock.now_ms(),
            ):
                continue
            try:
                # It looks itself whether somebody has attached, with nothing in between.
                await topic.delete_subscription(name)
            except ConsumerBusy:
                continue
            log.info(
                "unused subscription deleted",
                topic=topic.full_name,
                subscription=name,
                unused_minutes=minutes,
            )

    async def delete_unused(self) -> None:
        """Deletes topics that nobody uses; their schemas go, partitioned metadata stays."""
        due = [topic async for topic in self.each_topic() if self._is_to_go(topic, noting=True)]
        await self._work(due, self._delete, "unused topic not deleted")

    async def _delete(self, topic: Topic) -> None:
        if isinstance(topic, NonPersistentTopic):
            self._topics.drop_idle(topic.name)
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
        policy, use, now_ms = inactive_of(value), _use_of(topic), self._clock.now_ms()
        if noting and in_use(use, policy):
            topic.last_active_ms = now_ms
            return False
        retention = KEEPS_NOTHING
        if isinstance(topic, PersistentTopic):
            retention = retention_of(topic.policies.value(RETENTION))
        return is_to_go(use, policy, retention, now_ms)

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


def _use_of(topic: Topic) -> Use:
    backlog = isinstance(topic, PersistentTopic) and _has_backlog(topic)
    return Use(not topic.is_idle, len(topic.subscriptions), backlog, topic.last_active_ms)
