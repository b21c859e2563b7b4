"""Bounds of autorecovery: bytes per second, bytes in memory, and the time without progress."""

import asyncio

import pytest
from tests.unit.autorecovery.stage import LoopClock, run

from magnetar.autorecovery.check.check_all import CheckSummary
from magnetar.autorecovery.check.prover import Verdict
from magnetar.autorecovery.drain.decommission import UNREADABLE_NAMED_MAX, eta_s, unreadable_records
from magnetar.autorecovery.rate import ByteBudget, ByteRate
from magnetar.autorecovery.records import LOST_RANGES_MAX, Answer, merge_lost
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.bookie.api import BookieIdentity


def now() -> float:
    return asyncio.get_running_loop().time()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_bytes_are_spent_at_the_rate_without_credit_for_idle_time() -> None:
    async def main() -> None:
        began, rate = now(), ByteRate(100, LoopClock())
        times = []
        for count in (100, 50, 100):
            await rate.spend(count)
            times.append(now() - began)
        assert times == [0, pytest.approx(1), pytest.approx(1.5)]
        await asyncio.sleep(100)
        idle = now()
        await rate.spend(100)
        assert now() == idle
        await rate.spend(1)
        assert now() - idle == pytest.approx(1)

    run(main)


def test_a_rate_of_zero_is_unbounded() -> None:
    async def main() -> None:
        began, rate = now(), ByteRate(0, LoopClock())
        for _ in range(3):
            await rate.spend(1 << 40)
        assert now() == began

    run(main)


def test_bytes_in_memory_are_granted_in_the_order_of_requests() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        await budget.take(4)
        await budget.take(6)
        large, small = (asyncio.ensure_future(budget.take(count)) for count in (5, 1))
        budget.release(4)
        await turns()
        assert (large.done(), small.done(), budget.held) == (False, False, 6)
        later = asyncio.ensure_future(budget.take(1))
        await turns()
        assert not later.done(), "a request that fits does not overtake waiting ones"
        budget.release(6)
        await turns()
        assert all(task.done() for task in (large, small, later))
        assert budget.held == 7

    run(main)


def test_a_request_above_the_bound_is_served_alone() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        await budget.take(1)
        alone = asyncio.ensure_future(budget.take(11))
        await turns()
        assert not alone.done()
        budget.release(1)
        await alone
        assert budget.held == 11
        other = asyncio.ensure_future(budget.take(1))
        await turns()
        assert not other.done()
        budget.release(11)
        await other

    run(main)


def test_a_cancelled_waiter_holds_nothing_and_blocks_no_other() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        await budget.take(10)
        first, second = (asyncio.ensure_future(budget.take(5)) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        budget.release(10)
        await second
        assert budget.held == 5
        third = asyncio.ensure_future(budget.take(6))
        fourth = asyncio.ensure_future(budget.take(6))
        await turns()
        budget.release(5)
        third.cancel()  # its bytes were granted in this turn
        await fourth
        assert third.cancelled()
        assert budget.held == 6

    run(main)


def test_due_work_without_progress_is_unhealthy() -> None:
    async def main() -> None:
        stats = AutorecoveryStats(LoopClock(), 100)
        start = now()

        async def at(seconds: float) -> bool:
            await asyncio.sleep(start + seconds - now())
            return stats.health().ok

        assert await at(0), "it has not looked yet"
        assert await at(500)
        stats.list_read(listed=3, due=2, parked=1, lost=0)
        assert (stats.listed, stats.due, stats.parked, stats.lost) == (3, 2, 1, 0)
        assert stats.health().reason == "2 ledgers are due"
        assert await at(599)
        stats.list_read(listed=3, due=2, parked=1, lost=0)
        assert await at(599.9)
        assert not await at(600)
        assert stats.health().reason == "2 ledgers are due, and nothing was done for 100 s"
        stats.failed(ValueError("no"))
        assert stats.health().reason.endswith("(last error: ValueError: no)")
        assert stats.failures == 1
        stats.copied(3, 30)
        assert stats.health().ok
        assert (stats.entries_copied, stats.bytes_copied) == (3, 30)
        assert await at(699.9)
        stats.list_read(listed=0, due=0, parked=0, lost=0)
        assert (await at(700), stats.health().reason) == (True, "nothing is due")
        stats.list_read(listed=1, due=1, parked=0, lost=0)
        stats.list_read(listed=1, due=1, parked=0, lost=0)
        assert await at(799)
        stats.ended("failed")
        stats.ended("failed")
        assert stats.outcomes == {"failed": 2}
        assert await at(898)

    run(main)


def test_progress_at_time_zero_counts() -> None:
    async def main() -> None:
        assert now() == 0
        due, idle = (AutorecoveryStats(LoopClock(), 100) for _ in range(2))
        due.list_read(listed=1, due=1, parked=0, lost=0)
        idle.list_read(listed=0, due=0, parked=0, lost=0)
        await asyncio.sleep(100)
        assert (due.health().ok, idle.health().ok) == (False, True)
        await asyncio.sleep(1)
        assert not idle.health().ok

    run(main)


def test_a_node_that_no_longer_reads_the_list_is_unhealthy() -> None:
    async def main() -> None:
        stats = AutorecoveryStats(LoopClock(), 100)
        await asyncio.sleep(1)
        stats.list_read(listed=0, due=0, parked=0, lost=0)
        await asyncio.sleep(100)
        assert stats.health().ok
        await asyncio.sleep(1)
        assert stats.health().reason == "idle for 101 s"
        assert not stats.health().ok
        stats.ended("repaired")
        assert stats.health().ok

    run(main)


@pytest.mark.parametrize(
    ("verdicts", "unreadable", "code"),
    [
        ([], [], 0),
        ([Verdict.HEALTHY], [], 0),
        ([Verdict.HEALTHY, Verdict.UNPROVEN], [], 2),
        ([Verdict.UNPROVEN, Verdict.TOO_FEW], [], 1),
        ([Verdict.LOST], [], 1),
        ([Verdict.HEALTHY], ["k"], 1),
        ([Verdict.UNPROVEN], ["k"], 1),
    ],
)
def test_a_run_succeeds_only_if_every_ledger_is_healthy(
    verdicts: list[Verdict], unreadable: list[str], code: int
) -> None:
    summary = CheckSummary(verdicts={verdict.value: 1 for verdict in verdicts})
    for key in unreadable * 2:
        summary.add_unreadable(key)
    assert summary.unreadable == unreadable
    assert summary.exit_code == code


def test_the_remaining_time_follows_the_rate_so_far() -> None:
    assert eta_s(100, 50, 10) == 10
    assert eta_s(100, 99, 1) == 99
    assert eta_s(100, 100, 10) is None
    assert eta_s(100, 101, 10) is None
    assert eta_s(100, 50, 0) is None
    assert eta_s(100, 0, 5) == 0


def test_a_refusal_names_some_unreadable_records_and_counts_all() -> None:
    keys = [f"/k{number}" for number in range(UNREADABLE_NAMED_MAX + 1)]
    assert "and 1 more" in unreadable_records(keys)
    assert "/k10" not in unreadable_records(keys)
    assert "the records of 11 ledgers" in unreadable_records(keys)
    assert "more" not in unreadable_records(keys[:-1])
    assert "/k9" in unreadable_records(keys[:-1])


def test_lost_ranges_are_bounded() -> None:
    answers = (Answer(BookieIdentity("a", "1"), "unknown"),)
    merged = merge_lost([(2 * number, answers) for number in range(LOST_RANGES_MAX + 5)])
    assert len(merged) == LOST_RANGES_MAX
    more = merge_lost(
        [*((2 * number, answers) for number in range(LOST_RANGES_MAX)), (199, answers)]
    )
    assert (merged[-1].last, more[-1].last) == (198, 199)
