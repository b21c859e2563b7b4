"""The limiters of the resource groups that this broker's topics use, and its shares of their rates.

A group has one limiter for publishing and one for dispatch on each broker, which all topics of its
namespaces share. Their rates are this broker's share (`resource_groups.share`). While topics use a
group, the broker reports its demand every REPORT_INTERVAL_S, and at once when the first of them
begins to use it; the report is deleted when none has used it for that long, and with the broker's
lease. A broker without a cluster has the whole rate and reports nothing.

What that guarantees: brokers that have seen the same reports have shares that add up to the rate.
The sum exceeds it only while a report is on its way, by at most the share that a broker begins with
(`share`). A broker that loses touch with the store pauses all its topics. Each broker's limiter
allows a burst of half a second of its share.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.broker.rates.chain import Limiters
from magnetar.broker.rates.limiter import RateLimiter, Waiter
from magnetar.broker.rates.resource_groups import (
    GROUPS_PREFIX,
    LIMITS,
    USAGE_PREFIX,
    Demand,
    GroupUsage,
    ResourceGroup,
    demand,
    share,
    usage_record,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore, Record, StoreClosed

REPORT_INTERVAL_S: Final = 5.0
REPORT_SECONDS_MIN: Final = 1.0
"""A rate over a shorter time counts as one over this time."""
RETRY_S: Final = 1.0
CALL_TIMEOUT_S: Final = 10.0
CHANGE_MIN: Final = 0.1
"""A demand that differs by less than this part is not reported again."""

log = get_logger("magnetar.rates.groups")


class GroupLimiter(RateLimiter):
    """A limiter that counts what is taken, and whether senders had to wait."""

    __slots__ = ("_lacks_bytes", "_lacks_messages", "_used", "taken_bytes", "taken_messages")

    def __init__(self, clock: Clock, source: str, used: Callable[[], None]) -> None:
        super().__init__(clock, source)
        self._used = used
        self._lacks_messages = self._lacks_bytes = False
        self.taken_messages = self.taken_bytes = 0

    def restart(self) -> None:
        """Begins to count again."""
        self.taken_messages = self.taken_bytes = 0
        if not self.waiting:
            self._lacks_messages = self._lacks_bytes = False

    @property
    def used(self) -> bool:
        """Whether tokens were taken or lacking since the last `restart`."""
        lacking = self._lacks_messages or self._lacks_bytes
        return bool(self.taken_messages) or bool(self.waiting) or lacking

    def take(self, messages: int, size_bytes: int) -> None:
        """Takes tokens and counts them."""
        if not self.taken_messages:
            self._used()
        self.taken_messages += messages
        self.taken_bytes += size_bytes
        super().take(messages, size_bytes)

    def wait(self, waiter: Waiter) -> None:
        """Queues a sender that had to wait."""
        self._lacks_messages |= self.out_of_messages
        self._lacks_bytes |= self.out_of_bytes
        super().wait(waiter)

    def demands(self, seconds: float, messages_max: int, bytes_max: int) -> tuple[float, float]:
        """Returns the messages and bytes per second that senders want."""
        messages, size_bytes = self.limits
        short, short_bytes = self._lacks_messages, self._lacks_bytes
        return (
            demand(self.taken_messages, seconds, messages_max, messages, waited=short),
            demand(self.taken_bytes, seconds, bytes_max, size_bytes, waited=short_bytes),
        )


@dataclass(slots=True)
class _InForce:
    """A group that topics of this broker use."""

    publish: GroupLimiter
    dispatch: GroupLimiter
    counted: bool = False
    """Whether this broker's last report has the group."""


class GroupLimits:
    """Gives topics the limiters of their groups; `run` follows the groups and reports."""

    def __init__(
        self, store: MetadataStore, clock: Clock, broker_id: str, session: MetadataSession | None
    ) -> None:
        self._store = store
        self._clock = clock
        self._broker_id = broker_id
        self._session = session
        self._record = usage_record(broker_id)
        self._groups: dict[str, ResourceGroup] = {}
        self._in_force: dict[str, _InForce] = {}
        self._usage: dict[str, dict[str, Demand]] = {}
        self._reported = GroupUsage(1)
        self._lease_id = 0
        self._measured_s = 0.0
        self._news = asyncio.Event()
        self._following = Follower(store, GROUPS_PREFIX, self._changed)
        self.run = self._following.run
        self.ready = self._following.ready
        self.on_change: Callable[[], None] = lambda: None
        """Called when groups were created, changed or deleted: topics then read them again."""

    def publishing(self, group: str) -> Limiters:
        """Returns the limiters that publishes to a topic of the group pass after its own."""
        limiters = self._limiters(group)
        return () if limiters is None or not _limits(limiters.publish) else (limiters.publish,)

    def dispatching(self, group: str) -> Limiters:
        """Returns the limiters that dispatches of a topic of the group pass after its own."""
        limiters = self._limiters(group)
        return () if limiters is None or not _limits(limiters.dispatch) else (limiters.dispatch,)

    def _limiters(self, name: str) -> _InForce | None:
        group = self._groups.get(name) if name else None
        if group is None:
            return None
        limiters = self._in_force.get(name)
        if limiters is None:
            source = f"resource group {name}"
            limiters = self._in_force[name] = _InForce(
                GroupLimiter(self._clock, source, lambda: self._used(name)),
                GroupLimiter(self._clock, source, lambda: self._used(name)),
            )
            self._apply(name, group, limiters)
        return limiters

    def _used(self, name: str) -> None:
        limiters = self._in_force.get(name)
        if limiters is not None and not limiters.counted:
            self._news.set()

    def _apply(self, name: str, group: ResourceGroup, limiters: _InForce) -> None:
        """Sets the limiters to this broker's share."""
        own = self._usage.get(self._broker_id, {}).get(name)
        others = [
            usage[name]
            for broker, usage in self._usage.items()
            if broker != self._broker_id and name in usage
        ]

        def part(field: str, limit: int) -> float:
            mine = None if own is None else getattr(own, field)
            return share(limit, mine, [getattr(other, field) for other in others])

        limiters.publish.set(
            part("publish_messages", group.publish_rate_in_msgs),
            part("publish_bytes", group.publish_rate_in_bytes),
            1.0,
        )
        limiters.dispatch.set(
            part("dispatch_messages", group.dispatch_rate_in_msgs),
            part("dispatch_bytes", group.dispatch_rate_in_bytes),
            1.0,
        )

    def _changed(self, key: str, record: Record | None) -> None:
        try:
            if key == LIMITS.key:
                self._limits_changed(record)
            elif key.startswith(USAGE_PREFIX):
                self._usage_changed(key.removeprefix(USAGE_PREFIX), record)
        except MetadataError as error:
            log.error("record of resource groups ignored", error=str(error))

    def _limits_changed(self, record: Record | None) -> None:
        self._groups = {} if record is None else dict(LIMITS.decode(record).groups)
        for name, limiters in list(self._in_force.items()):
            if (group := self._groups.get(name)) is None:
                del self._in_force[name]
                limiters.publish.close()
                limiters.dispatch.close()
            else:
                self._apply(name, group, limiters)
        self.on_change()

    def _usage_changed(self, broker_id: str, record: Record | None) -> None:
        before = self._usage.pop(broker_id, {})
        if record is not None:
            self._usage[broker_id] = usage_record(broker_id).decode(record).groups
        for name in before.keys() | self._usage.get(broker_id, {}).keys():
            limiters = self._in_force.get(name)
            if limiters is not None:
                self._apply(name, self._groups[name], limiters)

    async def run_reports(self) -> None:
        """Reports this broker's demand while topics use groups, until the store is closed."""
        self._measured_s = self._clock.monotonic()
        while True:
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S if self._reported.groups else None):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self.report()
            except StoreClosed:
                return
            except (MagnetarError, TimeoutError) as error:
                log.info("usage of resource groups not reported, retrying", error=str(error))
                await asyncio.sleep(RETRY_S)
                self._news.set()

    async def report(self) -> None:
        """Reports the demand since the last report, if it differs from what was reported."""
        session = self._session
        if session is None:
            return
        if not session.valid:
            raise ServiceNotReady("the lease is in doubt")
        now_s = self._clock.monotonic()
        seconds = max(now_s - self._measured_s, REPORT_SECONDS_MIN)
        self._measured_s = now_s
        measured = {
            name: _demand(self._groups[name], limiters, seconds)
            for name, limiters in self._in_force.items()
            if _is_used(limiters)
        }
        for name, limiters in self._in_force.items():
            limiters.counted = name in measured
            limiters.publish.restart()
            limiters.dispatch.restart()
        lease_id = session.lease_id
        if lease_id == self._lease_id and not _differs(self._reported.groups, measured):
            return
        usage = GroupUsage(1, measured)
        # Also if the outcome of the write is unknown, the next report is written.
        self._lease_id = 0
        if measured:
            value = encode(usage)
            revision = await self._store.put(self._record.key, value, lease_id=lease_id)
            self._following.seen(Record(self._record.key, value, revision))
        else:
            await self._store.delete(self._record.key)
        self._reported, self._lease_id = usage, lease_id


def _limits(limiter: RateLimiter) -> bool:
    return any(limit > 0 for limit in limiter.limits)


def _is_used(limiters: _InForce) -> bool:
    return limiters.publish.used or limiters.dispatch.used


def _demand(group: ResourceGroup, limiters: _InForce, seconds: float) -> Demand:
    return Demand(
        *limiters.publish.demands(seconds, group.publish_rate_in_msgs, group.publish_rate_in_bytes),
        *limiters.dispatch.demands(
            seconds, group.dispatch_rate_in_msgs, group.dispatch_rate_in_bytes
        ),
    )


def _differs(before: dict[str, Demand], now: dict[str, Demand]) -> bool:
    """Whether a demand changed by more than CHANGE_MIN, or a group is new or unused."""
    if before.keys() != now.keys():
        return True
    pairs = [
        (getattr(before[name], field), getattr(now[name], field))
        for name in now
        for field in Demand.__struct_fields__
    ]
    return any(abs(old - new) > CHANGE_MIN * max(old, new) for old, new in pairs)
