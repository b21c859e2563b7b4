"""Delayed messages: when consumers may and must get them.

A consumer of a shared type gets a message with a delivery time

- not before that time by the clock of any broker: the checker adds what a broker's clock was ahead
  of the true time at most, up to then, and a tick unless the run is strict;
- at most `LATE_S_MAX` after the latest of its delivery time, the heal and the creation of the
  subscription. Broker clocks are right after the heal; a timer that was set by a wrong one waits
  for up to 30 s.

Acks that arrive before the time (`Consumer.ack_early`) are acks like others: once one has its
receipt, the message does not come. Small limits make the index write runs, pages and snapshots
after a few entries; large ones make it write none.
"""

from typing import TYPE_CHECKING, Any, Final

from tests.sim.clocks import WALL_MS_AT_START
from tests.sim.history import Position, SubscriptionHistory

from magnetar.broker import assemble
from magnetar.broker.topic.delayed import run_files, schedule, store
from magnetar.broker.topic.delayed.limits import DelayLimits

if TYPE_CHECKING:
    from tests.sim.world import World

LATE_S_MAX: Final = 60.0


def prepare_delays(world: "World") -> None:
    """Sets, before the run, the sizes of runs, pages and snapshots of the index."""
    delays = world.plan.delays
    if not delays.chance:
        return
    limits = DelayLimits(delays.strict, delays.memory_moments)
    for owner, name, value in (
        (assemble, "DelayLimits", lambda *_: limits),
        (schedule, "PAGE_MOMENTS", delays.page_moments),
        (run_files, "PAGE_MOMENTS", delays.page_moments),
        (store, "SNAPSHOT_ENTRIES", delays.snapshot_entries),
        (store, "SNAPSHOT_INTERVAL_S", delays.snapshot_s),
    ):
        getattr(owner, name)  # it must be there
        setattr(owner, name, value)


class Delays:
    """The checks of one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._counts = world.watching.counts

    def delivered(self, of: SubscriptionHistory, metadata: Any, position: Position) -> None:
        """A consumer of a shared type gets an entry that has a delivery time."""
        world, plan = self._world, self._world.plan.delays
        now = world.loop.now
        deliver_at = (metadata.deliver_at_time - WALL_MS_AT_START) / 1000
        ahead_ms = max(0, *(broker.ahead_ms for broker in world.brokers))
        early_ms = 1 if plan.strict else plan.tick_ms  # a clock has whole milliseconds
        self._counts["delayed: delivered"] += 1
        if deliver_at - now > (ahead_ms + early_ms) / 1000:
            world.history.violated(
                f"{of.name}: {position} came {deliver_at - now:.3f} s before its delivery time"
            )
        key = (metadata.producer_name, metadata.sequence_id)
        if of.delivered.get(key):
            self._counts["delayed: delivered again"] += 1
        elif world.healed_at:
            self._judge_lateness(of, key, position, deliver_at)

    def _judge_lateness(
        self, of: SubscriptionHistory, key: tuple[str, int], position: Position, deliver_at: float
    ) -> None:
        world = self._world
        late_s = world.loop.now - max(deliver_at, world.healed_at, of.since)
        if late_s > LATE_S_MAX:
            world.history.violated(
                f"{of.name}: {key} at {position} came {late_s:.1f} s after its delivery time, the "
                f"heal and the creation of the subscription"
            )
