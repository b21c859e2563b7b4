"""How entries are read in order: once each, ahead of need, and again where a read fails."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.dispatch.reading import HandLog, Mark, as_cursor, as_ledger, at, ids, turns
from tests.unit.ledger.cluster import virtual

from magnetar.bookie.api import EntryCorrupt
from magnetar.broker.dispatch.reader import (
    READ_TIMEOUT_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    EntryReader,
)
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.errors import MetadataError
from magnetar.core.tasks import TaskSet

LIMITS = SubscriptionLimits(read_entries_min=4, read_entries_max=16, read_bytes_max=77)
CORRUPT = EntryCorrupt("corrupt", "memory", 0)


class Rig:
    """A reader over a log that a test answers for."""

    def __init__(self, last: int = 99, limits: SubscriptionLimits = LIMITS) -> None:
        self.log, self.mark, self.tasks = HandLog(last), Mark(), TaskSet("test")
        self.woken = 0
        self.reader = EntryReader(as_ledger(self.log), as_cursor(self.mark), self.tasks, limits)

    def open(self) -> "Rig":
        self.reader.open(self.wake)
        return self

    def wake(self) -> None:
        self.woken += 1

    def take(self, count: int = 100) -> list[int]:
        return ids(self.reader.take(count))

    async def read(self, count: int = 100) -> list[int]:
        """Takes entries, including those of a read that this starts."""
        taken = self.take(count)
        if not taken and await self.log.asked():
            await self.log.answer()
            taken = self.take(count)
        return taken


def rigged(test: Callable[[Rig], Awaitable[None]], **how: object) -> None:
    async def main() -> None:
        rig = Rig(**how).open()  # type: ignore[arg-type]
        await test(rig)
        rig.reader.close()
        await rig.tasks.stop()

    virtual(main())


# -- reading ahead


def test_a_read_grows_while_its_buffer_is_emptied_and_begins_small_after_a_rewind() -> None:
    async def test(rig: Rig) -> None:
        assert rig.take() == []
        assert await rig.log.asked() == [(0, 4)]
        assert (rig.reader.reading, rig.woken) == (True, 0)
        read = await rig.log.answer()
        assert read.bytes_max == 77
        assert (rig.reader.buffered, rig.woken) == (4, 1)
        assert not rig.reader.reading
        assert rig.take() == [0, 1, 2, 3]
        assert await rig.log.asked() == [(4, 8)]
        await rig.log.answer()
        assert rig.take() == list(range(4, 12))
        await rig.log.answer()
        assert rig.take() == list(range(12, 28))
        assert await rig.log.asked() == [(28, 16)], "no read is larger"
        rig.reader.rewind(at(2))
        assert (rig.reader.buffered, rig.reader.reading) == (0, False)
        assert rig.take() == []
        assert (await rig.log.asked())[-1] == (2, 4)

    rigged(test)


def test_the_next_read_begins_once_less_than_half_of_one_is_left() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await rig.log.answer()
        assert rig.take(2) == [0, 1]
        assert await rig.log.asked() == [], "half of it is left"
        assert rig.take(1) == [2]
        assert await rig.log.asked() == [(4, 4)], "it goes on behind what is buffered"
        assert rig.take(1) == [3]
        assert await rig.log.asked() == [(4, 4)], "one at a time"
        assert rig.take() == []
        await rig.log.answer()
        assert rig.take() == [4, 5, 6, 7]

    rigged(test)


def test_nothing_is_read_beyond_the_last_entry_and_an_append_wakes() -> None:
    async def test(rig: Rig) -> None:
        assert rig.reader.caught_up is False
        assert await rig.read() == [0, 1, 2]
        assert rig.take() == []
        assert await rig.log.asked() == []
        assert rig.reader.caught_up
        woken = rig.woken
        rig.log.append()
        assert rig.woken == woken + 1
        assert not rig.reader.caught_up
        assert rig.take() == []
        assert not rig.reader.caught_up, "it is being read"
        await rig.log.answer()
        assert not rig.reader.caught_up, "it waits to be handed over"
        assert rig.take() == [3]
        assert rig.reader.caught_up

    rigged(test, last=2)


def test_cached_entries_are_returned_at_once_within_bounds() -> None:
    async def test(rig: Rig) -> None:
        rig.log.cached = True
        assert rig.take(3) == [0, 1, 2]
        assert rig.mark.read_position == at(3)
        assert rig.take(1_000) == list(range(3, 19)), "at most one read's worth"
        assert await rig.log.asked() == []
        rig.log.last = 18
        assert rig.take() == []
        assert rig.mark.read_position == at(19)

    rigged(test)


def test_entries_put_back_come_next() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await rig.log.answer()
        taken = rig.reader.take(3)
        rig.reader.give_back(taken[1:])
        assert rig.mark.read_position == at(1)
        rig.reader.give_back([])
        assert rig.take() == [1, 2, 3]
        assert rig.mark.read_position == at(4)

    rigged(test)


# -- open and closed


def test_a_closed_reader_listens_to_nothing_reads_nothing_and_holds_nothing() -> None:
    async def main() -> None:
        rig = Rig()
        assert rig.take() == []
        assert await rig.log.asked() == [], "it is not open yet"
        rig.open().open()
        assert len(rig.log.listeners) == 1
        rig.take()
        await rig.log.answer()
        rig.take(3)
        assert await rig.log.asked() == [(4, 4)]
        for _ in range(2):
            rig.reader.close()
            assert rig.log.listeners == []
            assert (rig.reader.buffered, rig.reader.reading) == (0, False)
        await turns()
        assert len(rig.tasks) == 0
        woken = rig.woken
        rig.log.append()
        assert rig.take() == []
        assert (await rig.log.asked(), rig.woken) == ([], woken)
        rig.open()
        assert (len(rig.log.listeners), rig.take()) == (1, [])
        assert await rig.log.asked() == [(3, 4)]
        rig.reader.close()

    virtual(main())


def test_a_read_that_was_given_up_brings_nothing_late() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await turns()
        (first,) = rig.log.reads
        rig.log.reads.clear()
        rig.reader.rewind(at(50))
        first.answer.cancel()
        await turns()
        assert (rig.reader.buffered, rig.woken) == (0, 0)
        assert rig.take() == []
        assert await rig.log.asked() == [(50, 4)]

    rigged(test)


@pytest.mark.parametrize("later", range(6))
def test_a_read_that_ends_at_the_moment_of_a_rewind_brings_nothing(later: int) -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await turns()
        (read,) = rig.log.reads
        read.answer.set_result([rig.log.entry(number) for number in range(4)])
        for _ in range(later):
            await asyncio.sleep(0)
        rig.reader.rewind(at(50))
        await turns()
        assert rig.take() == []
        assert rig.mark.read_position == at(50)
        assert await rig.log.asked() == [(50, 4)]

    rigged(test)


# -- acks during a read


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 9)),
            st.tuples(st.just("skip"), st.integers(0, 45)),
            st.tuples(st.just("answer"), st.integers(1, 16)),
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.tuples(st.just("give back"), st.integers(1, 3)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_each_entry_comes_once_in_order_and_none_that_was_skipped(
    steps: list[tuple[str, int]], cached: bool
) -> None:
    async def test(rig: Rig) -> None:
        rig.log.cached = cached
        due = 0
        for step, number in [*steps, *[("answer", 16), ("take", 16)] * 12]:
            if step == "take":
                taken = rig.reader.take(number)
                assert ids(taken) == list(range(due, due + len(taken)))
                due += len(taken)
            elif step == "give back":
                taken = rig.reader.take(5)
                assert ids(taken) == list(range(due, due + len(taken)))
                rig.reader.give_back(taken[number:])
                due += min(number, len(taken))
            elif step == "skip":
                rig.reader.skip_up_to(at(number))
                due = max(due, number + 1)
            elif step == "append":
                rig.log.append(number)
            elif await rig.log.asked():
                await rig.log.answer(entries=number)
        assert due > rig.log.last, "all of them came"
        assert rig.reader.buffered <= 32

    rigged(test, last=30)


def test_buffered_entries_after_a_skip_are_not_read_again() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await rig.log.answer()
        assert rig.take(1) == [0]
        rig.reader.skip_up_to(at(0))
        assert rig.reader.buffered == 3
        rig.reader.skip_up_to(at(1))
        assert (rig.reader.buffered, rig.mark.read_position) == (0, at(2))
        rig.reader.rewind(at(10))
        rig.reader.skip_up_to(at(4))
        assert rig.mark.read_position == at(10), "it never goes back"

    rigged(test)


def test_a_skip_of_what_was_taken_already_cuts_off_no_read() -> None:
    async def test(rig: Rig) -> None:
        assert await rig.read() == [0, 1, 2, 3]
        assert await rig.log.asked() == [(4, 8)]
        rig.reader.skip_up_to(at(3))
        assert rig.reader.reading
        await rig.log.answer()
        assert rig.take() == list(range(4, 12))

    rigged(test)


def test_a_skip_while_a_read_is_under_way_reads_behind_it() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        assert await rig.log.asked() == [(0, 4)]
        rig.reader.skip_up_to(at(7))
        assert not rig.reader.reading
        await turns()
        rig.log.reads.clear()
        assert rig.take() == []
        assert await rig.log.asked() == [(8, 4)]

    rigged(test)


# -- failures


def test_a_read_that_fails_is_retried_and_shown_until_it_succeeds() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        delay_s = RETRY_MIN_S
        for attempt in range(1, 14):
            await rig.log.answer(MetadataError("away") if attempt % 2 else ValueError())
            failure = rig.reader.failure
            assert failure is not None
            text = "away" if attempt % 2 else "ValueError"
            assert (failure.position, failure.error, failure.attempts) == (at(0), text, attempt)
            assert rig.reader.reading, "it waits to be retried"
            waited_s = await rig.log.next_read()
            assert delay_s / 2 <= waited_s <= delay_s
            delay_s = min(2 * delay_s, RETRY_MAX_S)
        assert delay_s == RETRY_MAX_S
        assert rig.woken == 0
        await rig.log.answer()
        assert rig.reader.failure is None
        assert rig.take() == [0, 1, 2, 3]

    rigged(test)


def test_a_read_that_hangs_counts_as_failed() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await asyncio.sleep(READ_TIMEOUT_S * 0.99)
        assert rig.reader.failure is None
        await asyncio.sleep(READ_TIMEOUT_S * 0.02)
        failure = rig.reader.failure
        assert failure is not None
        assert (failure.error, failure.attempts) == ("TimeoutError", 1)

    rigged(test)


def test_a_rewind_ends_the_retries_and_the_failure() -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await rig.log.answer(MetadataError("away"))
        rig.reader.rewind(at(5))
        assert (rig.reader.failure, rig.reader.reading) == (None, False)
        await asyncio.sleep(10 * RETRY_MAX_S)
        assert await rig.log.asked() == []
        assert len(rig.tasks) == 0

    rigged(test)


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("error", [CORRUPT, MetadataError("away")])
def test_an_entry_that_cannot_be_read_is_passed_over_only_if_it_is_corrupt_and_may_be(
    skips: bool, error: Exception
) -> None:
    async def test(rig: Rig) -> None:
        rig.take()
        await rig.log.answer(error)
        passed = skips and error is CORRUPT
        assert rig.mark.acked == ({(1, 0)} if passed else set())
        if passed:
            assert await rig.log.asked() == [(1, 4)], "at once"
            assert rig.reader.failure is None
            await rig.log.answer()
            assert rig.take() == [1, 2, 3, 4]
        else:
            assert await rig.log.asked() == []
            assert rig.reader.failure is not None

    limits = SubscriptionLimits(read_entries_min=4, read_entries_max=16, skip_unreadable=skips)
    rigged(test, limits=limits)
