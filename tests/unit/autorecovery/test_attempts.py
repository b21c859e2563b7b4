"""What goes wrong around an attempt: stores that are silent, locks that are lost, late changes."""

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

from magnetar.autorecovery import drain_worker, drains
from magnetar.autorecovery.drains import Drain, DrainState, drain_key, drain_lock_key
from magnetar.autorecovery.lease_lock import LockLost
from magnetar.autorecovery.ledger_check import LedgerReport
from magnetar.autorecovery.members import MemberWatch, Standing
from magnetar.autorecovery.next_step import Outcome, OutcomeKind
from magnetar.autorecovery.records import AUDITOR_KEY, UnderReplicated, encode, lock_key, record_key
from magnetar.autorecovery.worker import STORE_TIMEOUT_S
from magnetar.bookie.registration import known_key
from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore


def test_nobody_to_stand_in_is_said() -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.ready()
        await rig.gone("a")
        assert await rig.restore() == Outcome(
            OutcomeKind.NO_TARGET, "no bookie can stand in for bookie a (1)"
        )
        await rig.stage.ledger(1, (0, "b"), last=3, write_quorum=2)
        assert await rig.restore() == Outcome(
            OutcomeKind.NO_TARGET, "no bookie can stand in for more copies"
        )

    run(main)


def test_an_entry_is_counted_as_lost_once() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.ready()
        await rig.gone("a")
        rig.stage.by_name["b"].drop(1, 4)
        outcome = await rig.restore(UnderReplicated(1, ("copies",), 0, prove=True))
        assert outcome.detail == "1 entries have no copy left"

    run(main)


def test_every_holder_of_an_entry_is_asked_however_many_others_have() -> None:
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

        async def lost(record: UnderReplicated, holding: object) -> Outcome:
            raise LockLost("taken")

        rig.replicator.restore = lost  # type: ignore[method-assign]
        record = UnderReplicated(1, ("gone",), 0)
        await rig.stage.store.put(record_key(1), encode(record))
        await rig.worker._one(1)
        assert await rig.stage.listed() == {1: record}
        assert await rig.stage.store.get(lock_key(1)) is not None, "it may be another's by now"
        assert rig.stats.outcomes == {"lock lost": 1}
        assert rig.stats.failures == 0
        await rig.session.stop()

    run(main)


@pytest.mark.parametrize("silent", ["get", "transact", "put"])
def test_a_store_that_is_silent_holds_up_an_attempt_no_longer_than_its_bound(silent: str) -> None:
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
        await rig.worker._one(1)
        assert asyncio.get_running_loop().time() - began == pytest.approx(STORE_TIMEOUT_S)
        assert rig.stats.failures == 1
        assert rig.worker._busy == set()
        await rig.worker.stop()

    run(main)


def test_a_lock_that_another_has_taken_is_not_held_after_a_try_to_take_it() -> None:
    async def test(store: MemoryStore, one: Holder, other: Holder) -> None:
        await one.lock.take()
        await store.delete("/lock")
        await other.lock.take()
        assert not await one.lock.take()
        assert not one.lock.held

    with_two(test)


def test_a_finding_is_not_listed_by_one_that_is_no_longer_the_auditor() -> None:
    async def test(rig: AuditRig) -> None:
        report = LedgerReport(1, "lost", "closed", 1, 1, 2, entries_wrong=1)
        await rig.store.put(AUDITOR_KEY, b"another")
        with pytest.raises(LockLost, match="another is the auditor"):
            await rig.check._list(report, rig.lock)
        assert await rig.listed() == {}

    rigged(test)


# -- drains


def test_a_request_that_comes_together_with_another_reads_again() -> None:
    async def main() -> None:
        stage = Stage("a")
        put = stage.store.put
        others: list[Drain] = []

        async def overtaken(key: str, value: bytes, **how: Any) -> int:
            if not others:
                others.append(Drain("a", DrainState.COPYING, 3))
                await put(drain_key("a"), drains.encode(others[0]))
            return await put(key, value, **how)

        stage.store.put = overtaken  # type: ignore[method-assign]
        assert await drains.request(stage.store, "a", 5, "mine") == others[0]

        async def always(key: str, value: bytes, **how: Any) -> int:
            await put(key, drains.encode(Drain("a", DrainState.REFUSED, 3)))
            return await put(key, value, **how)

        stage.store.put = always  # type: ignore[method-assign]
        await always(drain_key("a"), b"")
        await put(drain_key("a"), drains.encode(Drain("a", DrainState.REFUSED, 3)))
        with pytest.raises(MetadataError, match="changes all the time"):
            await drains.request(stage.store, "a", 5, "mine")
        await stage.stop()

    run(main)


def test_a_proof_that_misses_a_record_names_it_as_the_reason() -> None:
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
        known = former._is_known

        async def late() -> bool:
            await stage.store.revoke_lease(collector.session.lease_id)
            await asyncio.sleep(LEASE_S)
            assert collector.session.valid
            return bool(await known())

        former._is_known = late
        for _ in range(3):
            assert await collector.once() == []
            await stage.store.put(known_key(collector.bookie.identity), b"{}")
        assert sorted(collector.bookie.holds(1))
        await end(collector)

    run(main)


def test_a_silent_store_ends_the_work_at_a_drain_after_its_bound() -> None:
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
            found = await drains.read(stage.store, "a")
            assert found is not None
            assert found.state is DrainState.COPYING, "it was begun again"

    run(main)


def test_a_bookie_that_nobody_saw_is_away_until_the_watch_is_old_enough() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        await asyncio.sleep(1_000)
        watch, gone = MemberWatch(stage.bookies, stage.clock, 10), stage.by_name["b"]
        stage.bookies.lose(gone)
        stranger = gone.identity
        assert watch.look().standing(stranger) is Standing.AWAY
        await asyncio.sleep(9.9)
        assert watch.look().strangers_are_away
        await asyncio.sleep(0.1)
        assert watch.look().standing(stranger) is Standing.GONE
        seen = stage.by_name["a"]
        stage.bookies.lose(seen)
        assert watch.look().standing(seen.identity) is Standing.AWAY
        await asyncio.sleep(9.9)
        assert watch.look().standing(seen.identity) is Standing.AWAY
        await asyncio.sleep(0.1)
        assert watch.look().standing(seen.identity) is Standing.GONE
        stage.bookies.back(seen)
        assert watch.look().standing(seen.identity) is Standing.LIVING
        stage.bookies.lose(seen)
        assert watch.look().standing(seen.identity) is Standing.AWAY, "it is timed anew"

    run(main)
