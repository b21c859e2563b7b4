"""Planted bugs of delayed delivery."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import delays, faults, many_shared, together, topics

from magnetar.broker.topic.delayed import delayed_delivery, store
from magnetar.broker.topic.delayed.codec_v1 import encode_snapshot
from magnetar.broker.topic.delayed.delaying import DelayingTopic
from magnetar.broker.topic.delayed.moment import MOMENT_BYTES, position_of
from magnetar.broker.topic.delayed.schedule import Run, Schedule


def the_watermark_is_ahead() -> None:
    def ahead(position: Any, runs: Sequence[int], moments: bytes) -> bytes:
        return encode_snapshot(position, runs, moments[:-MOMENT_BYTES])

    plant(store, "encode_snapshot", ahead)


def nothing_is_replayed() -> None:
    async def none(*_given: Any) -> int:
        return 0

    plant(delayed_delivery, "read_tail", none)


def a_run_replaces_the_former() -> None:
    flushed = Schedule.flushed

    def replaces(self: Schedule, *given: Any) -> Run:
        self.runs = []
        return flushed(self, *given)

    plant(Schedule, "flushed", replaces)


def what_is_due_at_a_move_stays_delayed() -> None:
    restore = Schedule.restore

    def stays(self: Schedule, moments: Iterable[int]) -> None:
        moments = list(moments)
        restore(self, moments)
        self.future.update(map(position_of, moments))

    plant(Schedule, "restore", stays)


def the_topic_is_served_before_its_index() -> None:
    load = DelayingTopic.load_delays

    async def later(self: DelayingTopic) -> None:
        self._context.tasks.start(load(self), "load of delays")

    plant(DelayingTopic, "load_delays", later)


MOVES: Final = faults("unload topic", "kill broker", "unload", count=8)
DELAYED: Final = together(topics(), many_shared(), MOVES)

BUGS: Final = (
    Bug(
        "the snapshot of delays is ahead of the index",
        "A snapshot lacks the last delayed message that its position covers; the next owner of "
        "the topic delivers it early.",
        the_watermark_is_ahead,
        0,
        together(DELAYED, delays(snapshot_entries=3, snapshot_s=1.0)),
    ),
    Bug(
        "delayed messages since the last snapshot are not replayed",
        "The next owner of a topic delivers at once the delayed messages after the last snapshot.",
        nothing_is_replayed,
        0,
        together(DELAYED, delays(snapshot_entries=20)),
    ),
    Bug(
        "a run of delays replaces the former",
        "The moments of a run are dropped when its successor is written.",
        a_run_replaces_the_former,
        0,
        together(DELAYED, delays(memory_moments=4, page_moments=2)),
    ),
    Bug(
        "a message that is due while its topic moves stays delayed",
        "Its time passes between two owners, and no timer releases it.",
        what_is_due_at_a_move_stays_delayed,
        3,
        together(DELAYED, delays(delay_s=1.0, snapshot_entries=3, snapshot_s=1.0)),
    ),
    Bug(
        "a topic is served before its index of delays is rebuilt",
        "Consumers attach while the index is read, and get delayed messages.",
        the_topic_is_served_before_its_index,
        0,
        together(DELAYED, delays(memory_moments=4, page_moments=2)),
    ),
)
