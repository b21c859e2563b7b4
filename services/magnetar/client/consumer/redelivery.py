"""Redelivery: negative acknowledgments, and messages whose ack timeout has passed.

Both keep entries with the time at which they are due, and ask for them when that time has come,
never before. One timer waits for the earliest time.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Final

from magnetar.client.options import RedeliveryBackoff

Place = tuple[int, int]

TIMER_STEP_S: Final = 0.001
"""Timers of redeliveries are at least this far apart, so that many nacks share a command."""

REPLACED_MIN: Final = 64
"""So many replaced times may wait besides those of the entries."""


class NegativeAcks:
    """The negatively acknowledged entries of one topic or partition.

    The heap also has the times that a repeated negative ack replaced. It is rebuilt if these
    are more than the entries, so that it has at most two times per entry, and REPLACED_MIN.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        delay_s: float,
        backoff: RedeliveryBackoff | None,
        redeliver: Callable[[list[Place]], None],
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._backoff = backoff
        self._redeliver = redeliver
        self._heap: list[tuple[float, Place]] = []
        self._due: dict[Place, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, place: Place, redelivery_count: int, delay_s: float | None = None) -> None:
        """Redelivers an entry after a delay, by default that of the options."""
        backoff = self._backoff
        if delay_s is None:
            delay_s = self._delay_s if backoff is None else backoff.delay_s(redelivery_count)
        due = self._loop.time() + delay_s
        self._due[place] = due
        heappush(self._heap, (due, place))
        self._drop_replaced()
        if self._timer is None or self._timer.when() > due:
            self._schedule()

    def _drop_replaced(self) -> None:
        if len(self._heap) > 2 * len(self._due) + REPLACED_MIN:
            self._heap = [(due, place) for place, due in self._due.items()]
            heapify(self._heap)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            at = max(self._heap[0][0], self._loop.time() + TIMER_STEP_S)
            self._timer = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        ready = []
        while self._heap and self._heap[0][0] <= now:
            due, place = heappop(self._heap)
            if self._due.get(place) == due:
                del self._due[place]
                ready.append(place)
        self._schedule()
        if ready:
            self._redeliver(ready)

    def clear(self) -> None:
        """Forgets all entries: the broker delivers them again by itself."""
        self._heap.clear()
        self._due.clear()
        self._schedule()


class UnackedTracker:
    """A time wheel of the entries that the user has and has not acknowledged.

    A slot is one tick long. An entry is in the slot in which its timeout passes, so that each
    addition and removal costs the same, whatever their number.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        tick_s: float,
        backoff: RedeliveryBackoff | None,
        expired: Callable[[list[Place]], None],
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._tick_s = tick_s
        self._backoff = backoff
        self._expired = expired
        self._slots: dict[int, set[Place]] = {}
        self._slot_of: dict[Place, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, place: Place, redelivery_count: int) -> None:
        """Starts the timeout of an entry; that of an entry which is there continues."""
        if place in self._slot_of:
            return
        delay_s = self._timeout_s
        if self._backoff is not None:
            delay_s += self._backoff.delay_s(redelivery_count)
        slot = ceil((self._loop.time() + delay_s) / self._tick_s)
        self._slots.setdefault(slot, set()).add(place)
        self._slot_of[place] = slot
        if self._timer is None:
            self._schedule()

    def discard(self, place: Place) -> None:
        """Forgets an acknowledged entry."""
        slot = self._slot_of.pop(place, None)
        if slot is not None:
            places = self._slots[slot]
            places.discard(place)
            if not places:
                del self._slots[slot]

    def discard_until(self, place: Place) -> None:
        """Forgets all entries up to one that was acknowledged cumulatively."""
        for known in [known for known in self._slot_of if known <= place]:
            self.discard(known)

    def _schedule(self) -> None:
        if self._slots:
            self._timer = self._loop.call_at(min(self._slots) * self._tick_s, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        ready: list[Place] = []
        for slot in sorted(slot for slot in self._slots if slot * self._tick_s <= now):
            ready += sorted(self._slots.pop(slot))
        for place in ready:
            del self._slot_of[place]
        self._schedule()
        if ready:
            self._expired(ready)

    def clear(self) -> None:
        """Forgets all entries."""
        self._slots.clear()
        self._slot_of.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
