"""A rollover whose time is over at the very moment at which its ledger is there."""

import asyncio
import contextlib

import pytest
from tests.support.late_store import LateStore
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns


@pytest.mark.parametrize("after", range(16))
async def test_a_ledger_that_comes_as_its_time_is_over_is_the_next_one(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the record: forgotten, it would stay unfinished there, and no broker could open
    the topic any more once another ledger stands behind it."""
    timeouts: list[asyncio.Timeout] = []
    of_asyncio = asyncio.timeout

    def timeout(delay: float | None) -> asyncio.Timeout:
        timeouts.append(of_asyncio(delay))
        return timeouts[-1]

    stage = Stage()
    stage.store = store = LateStore()
    ledger = await stage.factory().open(NAME)
    store.hold()
    with monkeypatch.context() as patch:
        patch.setattr("magnetar.managed_ledger.appender.asyncio.timeout", timeout)
        appends = Appends()
        ledger.append([b"a"], appends)
        await store.landed.wait()
    (rolling, *_) = timeouts
    store.answering.set()
    await turns(after)
    if not rolling.expired() and rolling.when() is not None and not appends.results:
        with contextlib.suppress(RuntimeError):  # it was quicker
            rolling.reschedule(asyncio.get_running_loop().time() - 1)
    await appends.wait(1)
    await publish(ledger, b"b")
    await ledger.roll_over()
    await publish(ledger, b"c")
    again = await stage.factory().open(NAME)
    assert [info.entries > 0 for info in again.ledgers] == [True] * len(again.ledgers)
