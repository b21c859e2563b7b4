"""One timer for many waits."""

import asyncio

from magnetar.core.deadlines import Deadlines


async def test_late_waits_end_in_order_and_removed_ones_do_not() -> None:
    deadlines = Deadlines(0.02)
    late: list[str] = []
    both = asyncio.Event()

    def first() -> None:
        late.append("first")

    def removed() -> None:
        late.append("removed")

    def last() -> None:
        late.append("last")
        both.set()

    for wait in (first, removed, last):
        deadlines.add(wait)
    deadlines.remove(removed)
    deadlines.remove(removed)
    assert len(deadlines) == 2
    async with asyncio.timeout(30):
        await both.wait()
    assert late == ["first", "last"]
    assert len(deadlines) == 0


async def test_a_wait_that_fails_keeps_no_other_waiting() -> None:
    deadlines = Deadlines(0.01)
    ended = asyncio.Event()

    def broken() -> None:
        raise ValueError("broken")

    deadlines.add(broken)
    deadlines.add(ended.set)
    async with asyncio.timeout(30):
        await ended.wait()


async def test_a_closed_timer_ends_nothing_more() -> None:
    deadlines = Deadlines(0.001)
    late: list[None] = []
    deadlines.add(lambda: late.append(None))
    deadlines.close()
    await asyncio.sleep(0.01)
    assert late == []
    ended = asyncio.Event()
    deadlines.add(ended.set)  # a later wait starts the timer again
    async with asyncio.timeout(30):
        await ended.wait()
