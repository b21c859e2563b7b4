"""How single entries are read again: by runs, within bounds, and each by its own failures."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.unit.broker.dispatch.reading import LEDGER, HandLog, Mark, as_cursor, as_ledger, turns
from tests.unit.ledger.cluster import virtual

from magnetar.bookie.api import EntryCorrupt
from magnetar.broker.dispatch.reader import (
    READ_TIMEOUT_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    EntryReader,
)
from magnetar.broker.dispatch.replay import PositionPair
from magnetar.broker.dispatch.replay_reader import REPLAY_READ_ENTRIES_MAX, ReplayReader
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.errors import MetadataError
from magnetar.core.tasks import TaskSet

ENTRY_BYTES = 10
CORRUPT = EntryCorrupt("corrupt", "memory", 0)


class Rig:
    """A replay reader over a log that a test answers for."""

    def __init__(self, *, read_bytes_max: int = 1_000, skip_unreadable: bool = False) -> None:
        self.log = HandLog(999, entry_bytes=ENTRY_BYTES)
        self.mark, self.tasks = Mark(), TaskSet("test")
        self.ready: list[list[int]] = []
        limits = SubscriptionLimits(read_bytes_max=read_bytes_max, skip_unreadable=skip_unreadable)
        self.reader = ReplayReader(as_ledger(self.log), as_cursor(self.mark), self.tasks, limits)
        self.reader.open(self.on_ready)

    def on_ready(self, positions: Sequence[PositionPair]) -> None:
        self.ready.append([entry_id for _, entry_id in positions])

    def request(self, *entry_ids: int) -> None:
        self.reader.request([(LEDGER, each) for each in entry_ids])

    def take(self, entry_id: int) -> int | None:
        found = self.reader.take((LEDGER, entry_id))
        return None if found is None else found.entry_id

    def heard(self) -> list[list[int]]:
        ready, self.ready = self.ready, []
        return ready


def rigged(test: Callable[[Rig], Awaitable[None]], **how: object) -> None:
    async def main() -> None:
        rig = Rig(**how)  # type: ignore[arg-type]
        await test(rig)
        rig.reader.close()
        await turns()
        assert len(rig.tasks) == 0
        await rig.tasks.stop()

    virtual(main())


# -- reading


def test_adjacent_positions_are_read_together_and_each_is_taken_once() -> None:
    async def test(rig: Rig) -> None:
        rig.request(7, 5, 6, 9)
        assert (len(rig.reader), (LEDGER, 9) in rig.reader) == (4, True)
        assert rig.take(5) is None
        assert await rig.log.asked() == [(5, 3)]
        assert rig.reader.reading
        read = await rig.log.answer()
        assert read.bytes_max == 1_000
        assert rig.heard() == [[5, 6, 7]]
        assert (len(rig.reader), (LEDGER, 5) in rig.reader) == (1, False)
        assert await rig.log.asked() == [(9, 1)]
        assert [rig.take(each) for each in (6, 6, 5, 7)] == [6, None, 5, 7]
        await rig.log.answer()
        assert rig.heard() == [[9], []], "and the end of the reads"
        assert not rig.reader.reading
        assert rig.take(9) == 9
        assert await rig.log.asked() == []

    rigged(test)


def test_cached_entries_need_no_read() -> None:
    async def test(rig: Rig) -> None:
        rig.log.cached = True
        assert rig.take(5) == 5
        assert rig.take(1_000) is None
        assert rig.heard() == []

    rigged(test)


def test_a_position_is_requested_once_and_a_short_answer_is_read_on() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 2, 3)
        await turns()
        rig.request(2, 4)
        assert await rig.log.asked() == [(1, 3)], "4 came when it had begun"
        await rig.log.answer(entries=1)
        assert rig.heard() == [[1]]
        assert await rig.log.asked() == [(2, 3)]
        await rig.log.answer()
        assert rig.heard() == [[2, 3, 4], []]

    rigged(test)


def test_a_read_is_of_so_many_entries() -> None:
    async def test(rig: Rig) -> None:
        rig.request(*range(REPLAY_READ_ENTRIES_MAX + 1))
        assert await rig.log.asked() == [(0, REPLAY_READ_ENTRIES_MAX)]

    rigged(test, read_bytes_max=1 << 20)


@pytest.mark.parametrize("by", ["take", "forget", "skip"])
def test_no_further_read_begins_while_enough_waits_to_be_taken(by: str) -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 2, 4, 6)
        await rig.log.answer()
        assert await rig.log.asked() == [], "20 bytes are the bound"
        assert rig.heard() == [[1, 2], []]
        if by == "take":
            assert rig.take(1) == 1
        else:
            if by == "forget":
                rig.reader.forget((LEDGER, 1))
            else:
                rig.reader.forget_up_to((LEDGER, 1))
            rig.request(8)
        assert await rig.log.asked() == [(4, 1)]
        await rig.log.answer()
        assert await rig.log.asked() == []
        assert rig.heard() == [[4], []]

    rigged(test, read_bytes_max=2 * ENTRY_BYTES)


# -- what need not be sent any more


def test_a_position_forgotten_during_its_read_is_not_ready() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 2, 3)
        await turns()
        assert rig.reader.forget((LEDGER, 2))
        assert not rig.reader.forget((LEDGER, 2)), "it is asked for no more"
        await rig.log.answer()
        assert rig.heard() == [[1, 3], []]
        assert [rig.take(each) for each in (1, 2, 3)] == [1, None, 3]

    rigged(test)


def test_a_skip_forgets_what_is_up_to_it_wanted_or_ready() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 2, 3)
        await rig.log.answer()
        rig.request(10, 11, 12)
        await turns()
        rig.reader.forget_up_to((LEDGER, 11))
        assert [rig.take(each) for each in (1, 2, 3)] == [None] * 3
        assert len(rig.reader) == 1
        rig.heard()
        await rig.log.answer()
        assert rig.heard() == [[12], []]
        assert rig.take(12) == 12

    rigged(test)


def test_a_closed_reader_forgets_all_and_may_be_opened_again() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 2)
        await rig.log.answer()
        rig.request(5, 7)
        await rig.log.answer(MetadataError("away"))
        rig.heard()
        for _ in range(2):
            rig.reader.close()
            assert (len(rig.reader), rig.reader.reading, rig.reader.failures) == (0, False, {})
        assert rig.take(1) is None
        await asyncio.sleep(10 * RETRY_MAX_S)
        assert (await rig.log.asked(), rig.heard()) == ([], [])
        rig.reader.open(rig.on_ready)
        rig.request(1)
        await rig.log.answer()
        assert rig.heard() == [[1], []]
        assert rig.take(1) == 1

    rigged(test)


def test_a_closed_reader_does_not_keep_its_dispatcher_alive() -> None:
    """Closed readers are freed at once, without the garbage collector."""

    class Dispatcher:
        def ready(self, positions: Sequence[PositionPair] = ()) -> None:
            """Gets the notices."""

    async def test(rig: Rig) -> None:
        forward = EntryReader(
            as_ledger(rig.log), as_cursor(rig.mark), rig.tasks, SubscriptionLimits()
        )
        dispatcher = Dispatcher()
        known = weakref.ref(dispatcher)
        rig.reader.open(dispatcher.ready)
        forward.open(dispatcher.ready)
        rig.reader.close()
        forward.close()
        gc.disable()
        try:
            del dispatcher
            assert known() is None
        finally:
            gc.enable()

    rigged(test)


# -- failures


def test_a_position_that_cannot_be_read_is_retried_and_holds_up_no_other() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 5)
        delay_s = RETRY_MIN_S
        await rig.log.answer(MetadataError("away"))
        assert await rig.log.asked() == [(5, 1)]
        await rig.log.answer()
        assert rig.heard() == [[5], []]
        for attempt in range(1, 13):
            failure = rig.reader.failures[LEDGER, 1]
            assert (failure.position.entry_id, failure.attempts) == (1, attempt)
            assert "away" in failure.error
            assert not rig.reader.reading
            waited_s = await rig.log.next_read()
            assert delay_s / 2 <= waited_s <= delay_s
            delay_s = min(2 * delay_s, RETRY_MAX_S)
            await rig.log.answer(MetadataError("away") if attempt < 12 else None)
        assert delay_s == RETRY_MAX_S
        assert rig.reader.failures == {}
        assert [1] in rig.heard()
        assert rig.take(1) == 1

    rigged(test)


def test_a_read_that_hangs_or_brings_nothing_counts_as_failed() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1)
        await asyncio.sleep(READ_TIMEOUT_S * 0.99)
        assert rig.reader.failures == {}
        await asyncio.sleep(READ_TIMEOUT_S * 0.01 + RETRY_MIN_S / 2)
        assert "TimeoutError" in rig.reader.failures[LEDGER, 1].error
        rig.reader.forget((LEDGER, 1))
        assert rig.reader.failures == {}
        await turns()
        rig.log.reads.clear()
        rig.request(2)
        await rig.log.answer(entries=0)
        assert rig.reader.failures[LEDGER, 2].error == "the entry is in no ledger"

    rigged(test)


def test_an_entry_acked_meanwhile_is_reported_and_not_retried() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1)
        await turns()
        rig.mark.ack(LEDGER, 1)
        await rig.log.answer(MetadataError("away"))
        assert rig.heard() == [[1], []]
        assert (len(rig.reader), rig.reader.failures) == (0, {})
        await asyncio.sleep(10)
        assert await rig.log.asked() == []

    rigged(test)


def test_a_forgotten_failure_is_not_retried() -> None:
    async def test(rig: Rig) -> None:
        rig.request(1, 5)
        await rig.log.answer(MetadataError("away"))
        await rig.log.answer(MetadataError("away"))
        rig.reader.forget_up_to((LEDGER, 1))
        assert set(rig.reader.failures) == {(LEDGER, 5)}
        await asyncio.sleep(2 * RETRY_MIN_S)
        assert await rig.log.asked() == [(5, 1)]

    rigged(test)


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("error", [CORRUPT, MetadataError("away"), ValueError("a bug")])
def test_an_entry_is_given_up_only_if_it_is_corrupt_and_may_be(
    skips: bool, error: Exception
) -> None:
    async def test(rig: Rig) -> None:
        rig.request(1)
        await rig.log.answer(error)
        passed = skips and error is CORRUPT
        assert rig.mark.acked == ({(LEDGER, 1)} if passed else set())
        assert rig.heard() == ([[1], []] if passed else [[]])
        assert bool(rig.reader.failures) is not passed
        assert len(rig.reader) == (not passed)

    rigged(test, skip_unreadable=skips)
