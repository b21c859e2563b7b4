"""Failures around an attempt: silent stores, lost locks, late changes."""

import asyncio
from typing import Any

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, names_of, run
from tests.unit.autorecovery.test_auditing import Rig as AuditRig
from tests.unit.autorecovery.test_auditing import rigged
from tests.unit.autorecovery.test_copying import Rig as CopyRig
from tests.unit.autorecovery.test_drain_worker import Checker, ask, ended, spoil, working
from tests.unit.autorecovery.test_former_copies import end, moved
from tests.unit.autorecovery.test_lease_lock import Holder, with_two
from tests.unit.autorecovery.test_restoring import Rig

from magnetar.autorecovery.check.ledger_check import LedgerReport
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain import worker as drain_worker
from magnetar.autorecovery.drain.drains import Drain, DrainState, drain_key, drain_lock_key
from magnetar.autorecovery.lease_lock import LockLost
from magnetar.autorecovery.members import BookieState, MemberWatch
from magnetar.autorecovery.records import AUDITOR_KEY, UnderReplicated, lock_key, record_key
from magnetar.autorecovery.repair.next_step import Outcome, OutcomeKind
from magnetar.autorecovery.repair.worker import STORE_TIMEOUT_S
from magnetar.bookie.registration import known_key
from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode


def test_the_outcome_names_bookies_without_a_replacement() -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.ready()
        await rig.lose("a")
        assert await rig.restore() == Outcome(
            OutcomeKind.NO_TARGET, "no bookie can replace bookie a (1)"
        )
        await rig.stage.ledger(1, (0, "b"), last=3, write_quorum=2)
        assert await rig.restore() == Outcome(
            OutcomeKind.NO_TARGET, "no bookie can replace more copies"
        )

    run(main)


def test_an_entry_is_counted_as_lost_once() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.ready()
        await rig.lose("a")
        rig.stage.by_name["b"].drop(1, 4)
        outcome = await rig.restore(UnderReplicated(1, ("copies",), 0, prove=True))
        assert outcome.detail == "1 entries have no copy left"

    run(main)


def test_every_holder_of_an_entry_is_asked() -> None:
    async def main() -> None:
        rig = CopyRig(last=2)
        rig.stage.by_name["a"].drop(1, 1)
        rig.stage.by_name["a"].drop(1, 2)
        done = await rig.copy(
            {0: rig.need("a", "c"), 1: rig.need("a b", "c"), 2: rig.need("a", "c")}
        )
        assert rig.holds("c") == [0, 1]
        assert done.lost == [(2, (rig.answer("a", "no such entry"),))]

    run(main)


def test_a_lock_that_is_lost_in_an_attempt_leaves_the_record_to_its_new_holder() -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.session.start()
        await rig.ready()

        async def lost(record: UnderReplicated, check_lock: object) -> Outcome:
            raise LockLost("taken")

        rig.replicator.restore = lost  # type: ignore[method-assign]
        record = UnderReplicated(1, ("gone",), 0)
        await rig.stage.store.put(record_key(1), encode(record))
        await rig.worker._attempt_under_lock(1)
        assert await rig.stage.listed() == {1: record}
        assert await rig.stage.store.get(lock_key(1)) is not None, "it may be another's by now"
        assert rig.stats.outcomes == {"lock lost": 1}
        assert rig.stats.failures == 0
        await rig.session.stop()

    run(main)


@pytest.mark.parametrize("silent", ["get", "transact", "put"])
def test_a_silent_store_delays_an_attempt_no_longer_than_the_timeout(silent: str) -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.session.start()
        await rig.ready()
        await rig.stage.store.put(record_key(1), encode(UnderReplicated(1, ("gone",), 0)))

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        setattr(rig.view, silent, never)
        began = asyncio.get_running_loop().time()
        await rig.worker._attempt_under_lock(1)
        assert asyncio.get_running_loop().time() - began == pytest.approx(STORE_TIMEOUT_S)
        assert rig.stats.failures == 1
        assert rig.worker._busy == set()
        await rig.worker.stop()

    run(main)


def test_a_lock_that_another_holder_has_is_not_held_after_a_take() -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        await first.lock.take()
        await store.delete("/lock")
        await second.lock.take()
        assert not await first.lock.take()
        assert not first.lock.held

    with_two(test)


def test_a_former_auditor_lists_no_finding() -> None:
    async def test(rig: AuditRig) -> None:
        report = LedgerReport(1, "lost", "closed", 1, 1, 2, entries_wrong=1)
        await rig.store.put(AUDITOR_KEY, b"another")
        with pytest.raises(LockLost, match="another node is the auditor"):
            await rig.check._list(report, rig.lock)
        assert await rig.listed() == {}

    rigged(test)


def test_concurrent_requests_of_a_drain_read_the_record_again() -> None:
    async def main() -> None:
        stage = Stage("a")
        put = stage.store.put
        others: list[Drain] = []

        async def overtaken(key: str, value: bytes, **how: Any) -> int:
            if not others:
                others.append(Drain("a", DrainState.COPYING, 3))
                await put(drain_key("a"), encode(others[0]))
            return await put(key, value, **how)

        stage.store.put = overtaken  # type: ignore[method-assign]
        assert await drains.request(stage.store, "a", 5, "mine") == others[0]

        async def always(key: str, value: bytes, **how: Any) -> int:
            await put(key, encode(Drain("a", DrainState.REFUSED, 3)))
            return await put(key, value, **how)

        stage.store.put = always  # type: ignore[method-assign]
        await always(drain_key("a"), b"")
        await put(drain_key("a"), encode(Drain("a", DrainState.REFUSED, 3)))
        with pytest.raises(MetadataError, match="kept changing"):
            await drains.request(stage.store, "a", 5, "mine")
        await stage.stop()

    run(main)


def test_a_proof_names_the_unreadable_record_as_the_reason() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "b c"), last=3)
        await stage.ledger(2, (0, "b c"), last=3)
        for ledger_id in (1, 2):
            stage.by_name["a"].put(ledger_id, 0, b"left", 0)
        checker = Checker(stage)
        checker.before = lambda: spoil(stage, 2)
        async with working(stage, checker):
            await ask(stage)
            done = await ended(stage)
            assert done.state is DrainState.REFUSED
            assert done.refused.startswith("the records of 1 ledgers cannot be read")

    run(main)


def test_a_drain_that_was_cancelled_is_not_written_by_its_worker() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=3)
        async with working(stage):
            await ask(stage)
            await asyncio.sleep(5)
            assert await drains.cancel(stage.store, "a")
            await asyncio.sleep(30)
            assert await drains.read(stage.store, "a") is None
            assert names_of(await stage.metadata(1)) == [(0, "a b")]

    run(main)


def test_a_former_copy_stays_if_the_lock_is_lost_before_the_copy_is_dropped() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        former: Any = collector.garbage.former
        assert former is not None
        original = former._is_known

        async def late() -> bool:
            await stage.store.revoke_lease(collector.session.lease_id)
            await asyncio.sleep(LEASE_S)
            assert collector.session.valid
            return bool(await original())

        former._is_known = late
        for _ in range(3):
            assert await collector.once() == []
            await stage.store.put(known_key(collector.bookie.identity), b"{}")
        assert sorted(collector.bookie.holds(1))
        await end(collector)

    run(main)


def test_a_silent_store_ends_a_drains_run_after_the_timeout() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=3)
        transact = stage.store.transact

        async def never(operations: Any) -> int:
            await asyncio.Event().wait()
            return 0

        async with working(stage):
            await asyncio.sleep(5)
            stage.store.transact = never  # type: ignore[method-assign]
            await ask(stage)
            await asyncio.sleep(10)
            assert await stage.store.get(drain_lock_key("a")) is not None
            await asyncio.sleep(drain_worker.STORE_TIMEOUT_S)
            stage.store.transact = transact  # type: ignore[method-assign]
            await asyncio.sleep(2 * drain_worker.STORE_TIMEOUT_S)
            drain = await drains.read(stage.store, "a")
            assert drain is not None
            assert drain.state is DrainState.COPYING, "the drain has restarted"

    run(main)


def test_a_bookie_that_was_never_seen_is_away_until_the_delay_has_passed() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        await asyncio.sleep(1_000)
        watch, lost = MemberWatch(stage.bookies, stage.clock, 10), stage.by_name["b"]
        stage.bookies.lose(lost)
        stranger = lost.identity
        assert watch.observe().state_of(stranger) is BookieState.AWAY
        await asyncio.sleep(9.9)
        assert watch.observe().unseen_are_away
        await asyncio.sleep(0.1)
        assert watch.observe().state_of(stranger) is BookieState.GONE
        seen = stage.by_name["a"]
        stage.bookies.lose(seen)
        assert watch.observe().state_of(seen.identity) is BookieState.AWAY
        await asyncio.sleep(9.9)
        assert watch.observe().state_of(seen.identity) is BookieState.AWAY
        await asyncio.sleep(0.1)
        assert watch.observe().state_of(seen.identity) is BookieState.GONE
        stage.bookies.back(seen)
        assert watch.observe().state_of(seen.identity) is BookieState.LIVING
        stage.bookies.lose(seen)
        assert watch.observe().state_of(seen.identity) is BookieState.AWAY, "the delay starts again"

    run(main)
