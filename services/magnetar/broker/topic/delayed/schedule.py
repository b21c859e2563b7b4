"""The moments of a topic that are still to come, and which of them are due. Pure.

`future` has the positions of all of them: consumers of shared types get no such entry. New moments
are in memory (`_near`). A flush moves them to a *run*, which is stored in pages, in order of time;
a run has in memory only the pages that come next. So memory is bounded by the number of new moments
and by the number of runs, besides two bytes at most per position.

Invariant: an entry whose time has come is not in `future`; an entry whose time is after `due_ms`
is, from when it is readable on. `due_ms` never moves back, whatever the clock does: moments are
released once, and an entry that is added later with a time up to `due_ms` is not delayed. While a
page is not in memory, `due_ms` stays before its first moment.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from magnetar.broker.topic.delayed.codec_v1 import PageInfo
from magnetar.broker.topic.delayed.moment import (
    MOMENT_BYTES,
    TIME_MS_MAX,
    moment,
    position_of,
    time_of,
)
from magnetar.managed_ledger.position_set import PositionSet

PAGE_MOMENTS: Final = 1_024
"""Moments of a full page."""
LOG_EXCESS_MAX: Final = 10_000
"""Released moments that `stored` may contain before it is built again."""


class Run:
    """A stored part of the schedule: its pages, and the next moments of it in memory."""

    __slots__ = ("_pages", "ledger_id", "loading", "moments", "next_page")

    def __init__(self, ledger_id: int, pages: Sequence[PageInfo], next_page: int) -> None:
        self.ledger_id = ledger_id
        self.moments: list[int] = []
        """The moments in memory, the last one first."""
        self.next_page = next_page
        """The first page whose moments were not loaded."""
        self.loading = False
        self._pages = [(page.first_ms, page.moments) for page in pages]

    @property
    def exhausted(self) -> bool:
        """Whether all moments were released."""
        return not self.moments and self.next_page == len(self._pages)

    @property
    def wants_page(self) -> bool:
        """Whether the next page is to be loaded now."""
        return (
            not self.loading
            and self.next_page < len(self._pages)
            and len(self.moments) < PAGE_MOMENTS // 2
        )

    @property
    def next_ms(self) -> int:
        """The time of the next moment; TIME_MS_MAX + 1 if there is none."""
        if self.moments:
            return time_of(self.moments[-1])
        if self.next_page < len(self._pages):
            return self._pages[self.next_page][0]
        return TIME_MS_MAX + 1

    @property
    def count(self) -> int:
        """The number of moments that were not released."""
        return len(self.moments) + sum(count for _, count in self._pages[self.next_page :])

    def loaded(self, moments: list[int]) -> None:
        """Adds the moments of the next page, which come after those in memory."""
        self.loading = False
        self.next_page += 1
        moments.reverse()
        self.moments[:0] = moments


class Schedule:
    """The moments of one topic that are still to come."""

    __slots__ = ("_flushed", "_frozen", "_near", "_stored", "due_ms", "future", "runs")

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms
        self.future = PositionSet()
        self.runs: list[Run] = []
        self._near: list[int] = []
        self._frozen: list[int] = []
        """The moments of the flush that is under way; they are released from here."""
        self._flushed = -1
        """The last moment that was released from `_frozen`."""
        self._stored = [bytearray(), bytearray()]
        """The moments of `_frozen` and `_near`, and some that were released, as they are stored."""

    def __len__(self) -> int:
        """The number of moments that were not released."""
        return self.in_memory + sum(run.count for run in self.runs)

    @property
    def in_memory(self) -> int:
        """The number of moments that are in no run."""
        return len(self._near) + len(self._frozen)

    @property
    def loaded(self) -> int:
        """The number of moments in memory, with those of runs."""
        return self.in_memory + sum(len(run.moments) for run in self.runs)

    @property
    def next_ms(self) -> int | None:
        """The time of the next moment, None without one."""
        times = [run.next_ms for run in self.runs]
        times += [time_of(heap[0]) for heap in (self._near, self._frozen) if heap]
        first_ms = min(times, default=TIME_MS_MAX + 1)
        return None if first_ms > TIME_MS_MAX else first_ms

    def add(self, time_ms: int, ledger_id: int, entry_id: int) -> bool:
        """Adds an entry that is about to become readable; returns whether it is delayed."""
        if time_ms <= self.due_ms:
            return False
        if (ledger_id, entry_id) in self.future:
            return True
        at = moment(time_ms, ledger_id, entry_id)
        heappush(self._near, at)
        self._stored[1] += at.to_bytes(MOMENT_BYTES)
        self.future.add(ledger_id, entry_id)
        return True

    def restore(self, moments: Iterable[int]) -> None:
        """Adds stored moments, without those whose time has come."""
        self._near = [at for at in moments if time_of(at) > self.due_ms]
        heapify(self._near)
        self.future.update(map(position_of, self._near))
        self._rebuild()

    def restore_run(self, ledger_id: int, pages: Sequence[PageInfo]) -> None:
        """Adds a stored run; its pages whose time has passed are not loaded."""
        first = 0
        while first < len(pages) and pages[first].last_ms <= self.due_ms:
            first += 1
        for page in pages[first:]:
            for entry_ledger, entries in page.positions.items():
                self.future.add_entries(entry_ledger, entries)
        self.runs.append(Run(ledger_id, pages, first))

    def release(self, cutoff_ms: int, moments_max: int) -> tuple[PositionSet, bool]:
        """Releases moments up to `cutoff_ms`; returns their positions, and whether more are due."""
        released, left = PositionSet(), moments_max
        if self.in_memory:
            for heap in (self._frozen, self._near):
                while left and heap and time_of(heap[0]) <= cutoff_ms:
                    at = heappop(heap)
                    if heap is self._frozen:
                        self._flushed = at
                    released.add(*position_of(at))
                    left -= 1
        for run in self.runs:
            moments = run.moments
            while left and moments and time_of(moments[-1]) <= cutoff_ms:
                released.add(*position_of(moments.pop()))
                left -= 1
        for ledger_id, entries in released.ledgers.items():
            self.future.discard_entries(ledger_id, entries)
        next_ms = self.next_ms
        reached = cutoff_ms if next_ms is None else min(cutoff_ms, next_ms - 1)
        self.due_ms = max(self.due_ms, reached)
        if len(self._stored[1]) // MOMENT_BYTES > 2 * len(self._near) + LOG_EXCESS_MAX:
            self._rebuild()
        return released, not left

    def release_all(self) -> PositionSet:
        """Releases all moments, whatever their time; returns their positions."""
        released = PositionSet()
        for ledger_id, entries in self.future.ledgers.items():
            released.add_entries(ledger_id, entries)
        self.future.clear()
        self.runs = []
        self._near, self._frozen = [], []
        self._stored = [bytearray(), bytearray()]
        return released

    def _rebuild(self) -> None:
        """Drops the released moments from the stored form of `_near`."""
        self._stored[1] = bytearray(b"".join([at.to_bytes(MOMENT_BYTES) for at in self._near]))

    @property
    def stored(self) -> bytes:
        """The stored form of the moments that are in no run, and of some that were released."""
        return b"".join(self._stored)

    # -- flush

    def freeze(self) -> list[int]:
        """Begins or repeats a flush: returns the moments to store, in no order."""
        if not self._frozen:
            self._frozen, self._near = self._near, []
            self._flushed = -1
            self._stored = [self._stored[1], bytearray()]
        return self._frozen.copy()

    def flushed(self, ledger_id: int, pages: Sequence[PageInfo], moments: Sequence[int]) -> Run:
        """Ends the flush of `moments`, which are in order: those left of it are in a run now.

        The page that comes next stays in memory, so nothing waits for what was just written.
        """
        self._frozen = []
        self._stored[0] = bytearray()
        first = bisect_right(moments, self._flushed)
        end = next_page = 0
        while end <= first and next_page < len(pages):
            end += pages[next_page].moments
            next_page += 1
        run = Run(ledger_id, pages, next_page)
        run.moments = list(moments[first:end])
        run.moments.reverse()
        self.runs.append(run)
        return run

    def drop_exhausted(self) -> list[int]:
        """Removes the runs without moments; returns their ledgers."""
        gone = [run.ledger_id for run in self.runs if run.exhausted]
        self.runs = [run for run in self.runs if not run.exhausted]
        return gone

    def forget_before(self, ledger_id: int) -> None:
        """Forgets the positions of trimmed ledgers: they have no entries that could be read."""
        self.future.discard_ledgers_before(ledger_id)

    def near(self) -> Iterator[int]:
        """Yields the moments in memory, in no order."""
        yield from self._near
        yield from self._frozen
        for run in self.runs:
            yield from run.moments
