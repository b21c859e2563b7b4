"""Drains whose lock, record or ledgers change while the worker executes them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run
from tests.unit.autorecovery.test_drain_worker import Checker, ask, ended, spoil, wait_for, working

from magnetar.autorecovery.check.ledger_check import LedgerReport
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.decommission import Decommission, Remaining
from magnetar.autorecovery.drain.drains import Drain, DrainState, drain_key, drain_lock_key
from magnetar.autorecovery.drain.worker import (
    DRAINS_AT_ONCE,
    STUCK_POLLS_MAX,
    DrainCancelled,
    _DrainRun,
)
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.records import RecordState, UnderReplicated, record_key
from magnetar.bookie.registration import draining_key
from magnetar.ledger.metadata import LedgerState
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession

STUCK = Remaining(ledgers=2, hopeless=2)


@asynccontextmanager
async def work_on(stage: Stage, name: str = "a") -> AsyncIterator[_DrainRun]:
    """The run of one drain, under its lock."""
    session = MetadataSession(stage.store, LEASE_S, stage.clock, "drains")
    await session.start()
    lock = LeaseLock(stage.store, session, drain_lock_key(name), "drains 1")
    assert await lock.take()
    yield _DrainRun(stage.store, stage.bookies, Checker(stage), stage.clock, name, lock)
    await session.stop()
    await stage.stop()


def answer_with(work: _DrainRun, answers: Sequence[Remaining]) -> Iterator[Remaining]:
    """Lets `Decommission.remaining` return these answers; returns those that are left."""
    left = iter(answers)

    async def remaining() -> Remaining:
        return next(left)

    work._job.remaining = remaining  # type: ignore[method-assign]
    return left


@pytest.mark.parametrize("lost", ["lock", "record", "mark"])
def test_a_worker_writes_nothing_after_its_lock_its_record_or_the_mark_changed(
    lost: str,
) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=3)
        async with work_on(stage) as work:
            await ask(stage)
            original = Decommission.remaining

            async def remaining(job: Decommission) -> Remaining:
                key = {
                    "lock": drain_lock_key("a"),
                    "record": drain_key("a"),
                    "mark": draining_key("a"),
                }
                record = await stage.store.get(key[lost])
                assert record is not None
                await stage.store.put(record.key, record.value)
                return await original(job)

            work._job.remaining = remaining.__get__(work._job)  # type: ignore[method-assign]
            before = await stage.store.get(drain_key("a"))
            with pytest.raises(LockLost if lost == "lock" else DrainCancelled):
                await work.execute()
            drain = await drains.read(stage.store, "a")
            assert before is not None
            assert drain is not None
            assert drain.state is DrainState.COPYING
            assert drain.in_the_way == (), "nothing was written after the read"

    run(main)


def test_a_ledger_is_not_listed_by_a_worker_that_lost_its_lock() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        async with work_on(stage) as work:
            await stage.store.put(drain_lock_key("a"), b"another")
            report = LedgerReport(1, "lost", "closed", 1, 1, 2, entries_wrong=1)
            with pytest.raises(LockLost):
                await work._list_for_repair(report, 5)
            assert await stage.listed() == {}

    run(main)


def test_a_ledger_that_returns_to_the_bookie_during_its_proof_is_moved_again() -> None:
    """Its copies elsewhere are proven, but its record names the bookie again."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)
        checker.before = lambda: stage.ledger(1, (0, "a b c"), last=20)

        def goes_on(drain: Drain | None) -> bool:
            return (
                bool(checker.proven) and drain is not None and drain.state is not DrainState.PROVING
            )

        async with working(stage, checker):
            await ask(stage)
            drain = await wait_for(stage, goes_on)
            assert drain is not None
            assert (drain.state, drain.ledgers_left) == (DrainState.COPYING, 1)
            await stage.ledger(1, (0, "b c d"), last=20)
            assert (await ended(stage)).state is DrainState.REMOVABLE

    run(main)


def test_a_drain_is_refused_only_after_several_hopeless_reads_in_a_row() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.store.put(drain_key("a"), encode(Drain("a", DrainState.COPYING, 1)))
        async with work_on(stage) as work:
            stored = await stage.store.get(drain_key("a"))
            assert stored is not None
            work._revision = stored.revision
            stuck, hope = [STUCK] * (STUCK_POLLS_MAX - 1), [Remaining(ledgers=2, hopeless=1)]
            answer_with(work, [*stuck, *hope, *stuck, Remaining()])
            assert await work._wait_until_copied()
            more = answer_with(work, [STUCK] * (STUCK_POLLS_MAX + 1))
            assert not await work._wait_until_copied()
            assert len(list(more)) == 1
            drain = await drains.read(stage.store, "a")
            assert drain is not None
            assert (drain.state, drain.ledgers_left) == (DrainState.REFUSED, 2)

    run(main)


def test_a_node_executes_a_bounded_number_of_drains_concurrently() -> None:
    async def main() -> None:
        names = [f"b{number}" for number in range(DRAINS_AT_ONCE + 1)]
        stage = Stage(*names, "x", "y")
        for number, name in enumerate(names, 1):
            await stage.ledger(number, (0, f"{name} x"), last=1)  # no autorecovery moves it
        async with working(stage):
            for name in names:
                await ask(stage, name)
            await asyncio.sleep(60)
            states = [drain.state for drain in await drains.read_all(stage.store)]
            assert states.count(DrainState.COPYING) == DRAINS_AT_ONCE
            assert states.count(DrainState.REQUESTED) == 1
            for drain in await drains.read_all(stage.store):
                if drain.state is DrainState.COPYING:
                    await drains.cancel(stage.store, drain.bookie_id)
                    break
            await asyncio.sleep(60)
            states = [drain.state for drain in await drains.read_all(stage.store)]
            assert states == [DrainState.COPYING] * DRAINS_AT_ONCE

    run(main)


def test_a_node_that_continues_a_drain_keeps_its_totals() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=3, changes={"length_bytes": 20})
        await stage.store.put(draining_key("a"), b"1")
        began = Drain("a", DrainState.COPYING, 1, ledgers_total=7, bytes_total=70)
        await stage.store.put(drain_key("a"), encode(began))
        async with working(stage):
            drain = await wait_for(
                stage, lambda drain: drain is not None and drain.ledgers_left == 1
            )
            assert drain is not None
            assert (drain.ledgers_total, drain.bytes_total) == (7, 70)
            assert drain.bytes_left == 20

    run(main)


def test_no_copy_is_read_if_an_unreadable_record_refuses_the_proof() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        for ledger_id in (1, 2):
            await stage.ledger(ledger_id, (0, "b c"), last=3)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        await spoil(stage, 2)
        checker = Checker(stage)
        async with working(stage, checker):
            await ask(stage)
            assert (await ended(stage)).state is DrainState.REFUSED
        assert checker.proven == []

    run(main)


def test_only_pages_with_ledgers_of_the_bookie_are_read_until_these_are_empty() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        job = Decommission(stage.store, stage.bookies, stage.clock, "a")
        await stage.ledger(1, (0, "a b"), last=3)
        await stage.ledger(2, (0, "b c"), last=3)
        await job.preflight()
        await stage.ledger(1003, (0, "a b"), state=LedgerState.IN_RECOVERY)
        assert (await job.remaining()).ledgers == 1
        for ledger_id in (1, 1004):
            await stage.ledger(ledger_id, (0, "b c"), last=3)
        left = await job.remaining()
        assert (left.ledgers, left.open) == (1, 1), "one under recovery is not closed yet"
        await stage.store.put(
            record_key(1003), encode(UnderReplicated(1003, (), 0, RecordState.PARKED))
        )
        assert [ledger.why for ledger in (await job.remaining()).in_the_way] == ["parked"]
        await stage.stop()

    run(main)


def test_no_ledger_counts_as_open_once_none_remains() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), state=LedgerState.OPEN)
        async with working(stage):
            await ask(stage)
            await wait_for(stage, lambda drain: drain is not None and drain.ledgers_open == 1)
            await stage.ledger(1, (0, "c b"), last=3)
            done = await ended(stage)
            assert (done.state, done.ledgers_left, done.ledgers_open) == (
                DrainState.REMOVABLE,
                0,
                0,
            )

    run(main)
