"""When a bookie returns the memory that its flushes freed: after a flush in quiet times only."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ledger.stage import ManualClock

from magnetar.bookie.cache import write_stage
from magnetar.bookie.local import LocalBookie

from .conftest import SMALL, add, until


class Rig:
    """A bookie with threads; the test drives its clock and the timer of the release."""

    def __init__(self, bookie: LocalBookie, clock: ManualClock) -> None:
        self.bookie, self.clock = bookie, clock
        self.released = 0
        self.timers: list[Callable[[], object]] = []
        """The releases that are due."""
        self._first = 0

    async def add(self) -> None:
        assert await add(self.bookie, 1, range(self._first, self._first + 3)) is None
        self._first += 3

    async def flush_old(self) -> None:
        """Adds entries and lets a tick flush them because of their age."""
        await self.add()
        flushes = self.bookie.stats().flushes
        self.clock.advance(60_000)
        self.bookie._stage.tick()
        await until(lambda: self.bookie.stats().flushes == flushes + 1)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    clock = ManualClock()
    settings = replace(SMALL, tick_s=1e6, flush_age_s=60.0)
    bookie = await LocalBookie.open(tmp_path, "b1", settings=settings, clock=clock)
    made = Rig(bookie, clock)

    def count() -> None:
        made.released += 1

    monkeypatch.setattr(write_stage, "release_freed_memory", count)
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def scheduled(delay: float, call: Callable[..., object], *arguments: object) -> object:
        if call == bookie._stage._release_memory:
            assert delay == write_stage.TRIM_DELAY_S
            made.timers.append(call)
            return None
        return call_later(delay, call, *arguments)

    monkeypatch.setattr(loop, "call_later", scheduled)
    yield made
    await bookie.close()


async def test_only_a_flush_that_no_load_forced_releases_memory(rig: Rig) -> None:
    """A release takes about 10 ms of the flush's thread: under load no flush has them."""
    await rig.add()
    await rig.bookie.flush()
    assert rig.timers == []
    for count in (1, 2):
        await rig.flush_old()
        assert len(rig.timers) == count
        await rig.add()
        await rig.bookie.flush()
        assert len(rig.timers) == count
    for release in rig.timers:
        release()
    await until(lambda: rig.released == 2)


@pytest.mark.parametrize(("part", "step"), [("logs", "create"), ("ledgers", "take")])
async def test_a_tick_that_retries_a_failed_flush_releases_no_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, part: str, step: str
) -> None:
    await rig.add()
    with monkeypatch.context() as failing:
        failing.setattr(getattr(rig.bookie._parts, part), step, _fail)
        with pytest.raises(OSError, match="no room"):
            await rig.bookie.flush()
    rig.clock.advance(1_000)
    rig.bookie._stage.tick()
    await until(lambda: rig.bookie.stats().flushes == 1)
    assert rig.timers == []


def _fail(*_: object) -> object:
    raise OSError("no room")


async def test_a_release_that_is_due_after_the_close_does_nothing(rig: Rig) -> None:
    await rig.flush_old()
    await rig.bookie.close()
    (release,) = rig.timers
    release()
    assert rig.released == 0
