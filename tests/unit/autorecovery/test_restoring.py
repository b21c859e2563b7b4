"""One attempt at one ledger: its changes, its outcome, and what it must not change."""

import asyncio
from random import Random

import msgspec
import pytest
from tests.support.brokers import View
from tests.unit.autorecovery.stage import LEASE_S, Stage, data_of, names_of, run

from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.check.repairer import Repairer
from magnetar.autorecovery.copier import Copier
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.members import MemberWatch
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import RecordState, UnderReplicated, lock_key, record_key
from magnetar.autorecovery.repair.next_step import (
    Outcome,
    OutcomeKind,
)
from magnetar.autorecovery.repair.replicator import SWAPS_LOST_MAX, Replicator
from magnetar.autorecovery.repair.worker import Worker
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.ledger.affinity import Affinity
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerState, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import Check

SETTINGS = AutorecoverySettings()
DELAY_S = SETTINGS.lost_bookie_delay_s
LOCK = "/lock"


class Rig:
    """A replicator and a worker, without an auditor."""

    def __init__(self, *names: str) -> None:
        self.stage = Stage(*names)
        self.view = View(self.stage.store)
        clock, bookies = self.stage.clock, self.stage.bookies
        self.stats = AutorecoveryStats(clock, 100)
        self.members = MemberWatch(bookies, clock, DELAY_S)
        copier = Copier(bookies, SETTINGS, ByteRate(0, clock), self.stats)
        repairer = Repairer(Prover(bookies, ByteRate(0, clock), 30.0), copier)
        client = LedgerClient(self.view, bookies, clock, rng=Random(1))
        self.replicator = Replicator(
            self.view,
            bookies,
            client,
            self.members,
            copier,
            repairer,
            clock,
            SETTINGS,
            Random(1),
        )
        self.session = MetadataSession(self.view, LEASE_S, clock, "worker")
        self.worker = Worker(
            self.view,
            self.session,
            self.replicator,
            clock,
            SETTINGS,
            self.stats,
            "worker",
            Random(1),
        )

    async def ready(self) -> None:
        """Lets the watch see all bookies, for longer than the delay of lost bookies."""
        await self.stage.store.put(LOCK, b"")
        self.members.observe()
        await asyncio.sleep(DELAY_S)
        self.members.observe()

    async def lose(self, *names: str) -> None:
        for name in names:
            self.stage.bookies.lose(self.stage.by_name[name])
        self.members.observe()
        await asyncio.sleep(DELAY_S)

    async def restore(self, record: UnderReplicated | None = None) -> Outcome:
        stored = await self.stage.store.get(LOCK)
        assert stored is not None
        return await self.replicator.restore(
            record or UnderReplicated(1, ("gone",), 0), lambda: Check(LOCK, stored.revision)
        )

    def size(self, *ids: int) -> int:
        return sum(len(data_of(1, entry_id)) for entry_id in ids)


def test_a_ledger_is_copied_and_its_record_changed_once_for_each_ensemble() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c", "d")
        await rig.stage.ledger(1, (0, "a b"), (4, "a c"), (8, "b c"), last=9)
        await rig.ready()
        await rig.lose("a")
        outcome = await rig.restore()
        assert outcome == Outcome(OutcomeKind.REPAIRED, entries=8, bytes=rig.size(*range(8))), (
            outcome
        )
        metadata = await rig.stage.metadata(1)
        assert "a" not in " ".join(names for _, names in names_of(metadata))
        assert names_of(metadata)[2] == (8, "b c")
        assert (await rig.stage.check(1)).verdict == "healthy"
        assert await rig.restore() == Outcome(OutcomeKind.HEALTHY)

    run(main)


def test_a_replacement_is_of_the_groups_of_the_ledger() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c", "d", "e")
        rig.stage.bookies.groups = {"a": "g", "b": "g", "e": "g"}
        await rig.stage.ledger(1, (0, "a b"), last=9)
        stored = await rig.stage.metadata(1)
        properties = Affinity(frozenset({"g"})).properties
        await rig.stage.store.put(
            ledger_key(1), encode(msgspec.structs.replace(stored, properties=properties))
        )
        await rig.ready()
        await rig.lose("a")
        assert (await rig.restore()).kind is OutcomeKind.REPAIRED
        ((_, bookies),) = names_of(await rig.stage.metadata(1))
        assert sorted(bookies.split()) == ["b", "e"]
        await rig.lose("e")
        await rig.restore()
        ((_, bookies),) = names_of(await rig.stage.metadata(1))
        assert sorted(bookies.split()) == ["b", "e"], "no other bookie gets a copy"

    run(main)


def test_an_attempt_waits_for_a_bookie_that_is_away() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.ready()
        rig.stage.bookies.lose(rig.stage.by_name["a"])
        outcome = await rig.restore()
        assert outcome == Outcome(
            OutcomeKind.WAITS, "bookie a (1) is away", wait_ms=int(DELAY_S * 1000)
        )
        assert names_of(await rig.stage.metadata(1)) == [(0, "a b")]

    run(main)


def test_a_replacement_that_fails_is_itself_replaced() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c", "d")
        await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.ready()
        await rig.lose("a")
        broken = {rig.stage.by_name[name] for name in "cd"}
        for bookie in broken:
            bookie.silent = True
        outcome = await rig.restore()
        assert outcome.kind is OutcomeKind.FAILED
        assert outcome.detail.startswith("the replacements for bookie a (1) failed: ")
        assert all(f"bookie {name} (1): silent" in outcome.detail for name in "cd")
        assert names_of(await rig.stage.metadata(1)) == [(0, "a b")]
        rig.stage.by_name["d"].silent = False
        assert (await rig.restore()).kind is OutcomeKind.REPAIRED
        assert names_of(await rig.stage.metadata(1)) == [(0, "d b")]

    run(main)


def test_lost_entries_are_named_and_all_others_are_moved() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.ready()
        await rig.lose("a")
        rig.stage.by_name["b"].drop(1, 4)
        outcome = await rig.restore()
        assert (outcome.kind, outcome.entries) == (OutcomeKind.LOST, 9)
        assert outcome.detail == "1 entries have no copy left"
        (lost,) = outcome.lost
        assert (lost.first, lost.last) == (4, 4)
        assert names_of(await rig.stage.metadata(1)) == [(0, "c b"), (4, "a b"), (5, "c b")]

    run(main)


@pytest.mark.parametrize("late", ["away", "silent"])
def test_an_entry_that_may_exist_is_not_lost(late: str) -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c", "d")
        await rig.stage.ledger(1, (0, "a b c"), last=9, write_quorum=2)
        await rig.ready()
        await rig.lose("a")
        if late == "away":
            rig.stage.bookies.lose(rig.stage.by_name["b"])
        else:
            rig.stage.by_name["b"].silent = True
        outcome = await rig.restore()
        assert outcome.kind is OutcomeKind.FAILED
        text = "not registered" if late == "away" else "unavailable"
        assert f"bookie b (1): {text}" in outcome.detail
        assert "entry 0 could not be read" in outcome.detail
        assert names_of(await rig.stage.metadata(1)) == [(0, "a b c")]

    run(main)


def test_wrong_copies_that_only_reading_reveals_are_rewritten() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.ready()
        rig.stage.by_name["a"].drop(1, 4)
        prove = UnderReplicated(1, ("copies",), 0, prove=True)
        assert (await rig.restore()).kind is OutcomeKind.HEALTHY
        outcome = await rig.restore(prove)
        assert outcome == Outcome(OutcomeKind.REPAIRED, entries=1, bytes=rig.size(4))
        assert (await rig.stage.check(1)).verdict == "healthy"
        rig.stage.by_name["a"].drop(1, 5)
        rig.stage.by_name["b"].corrupt.add((1, 5))
        outcome = await rig.restore(prove)
        assert outcome.kind is OutcomeKind.LOST
        assert [(entries.first, entries.last) for entries in outcome.lost] == [(5, 5)]
        rig.stage.by_name["b"].corrupt.clear()
        rig.stage.by_name["a"].full = True
        outcome = await rig.restore(prove)
        assert outcome.kind is OutcomeKind.FAILED
        assert outcome.detail.startswith("copies could not be rewritten")

    run(main)


def test_new_copies_of_a_deleted_ledger_are_deleted() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c", "d")
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.ready()
        await rig.lose("a")
        transact = rig.view.transact

        async def deleted(operations: object) -> int:
            await rig.stage.store.delete(ledger_key(1))
            return await transact(operations)  # type: ignore[arg-type]

        rig.view.transact = deleted  # type: ignore[method-assign]
        outcome = await rig.restore()
        assert (outcome.kind, outcome.entries) == (OutcomeKind.DELETED, 10)
        assert not any(rig.stage.by_name[name].holds(1) for name in "cd")
        assert rig.stage.by_name["b"].holds(1)

    run(main)


def test_a_failed_deletion_of_copies_does_not_fail_the_attempt() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.ready()
        await rig.lose("a")
        target, transact = rig.stage.by_name["c"], rig.view.transact

        async def never(ledger_id: int) -> None:
            await asyncio.Event().wait()

        async def deleted(operations: object) -> int:
            target.delete_ledger = never  # type: ignore[method-assign]
            await rig.stage.store.delete(ledger_key(1))
            return await transact(operations)  # type: ignore[arg-type]

        rig.view.transact = deleted  # type: ignore[method-assign]
        assert (await rig.restore()).kind is OutcomeKind.DELETED

    run(main)


def test_a_record_that_keeps_changing_ends_the_attempt() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.ready()
        await rig.lose("a")
        transact, tries = rig.view.transact, []

        async def changed(operations: object) -> int:
            tries.append(1)
            await rig.stage.ledger(1, (0, "a b"), last=1)
            return await transact(operations)  # type: ignore[arg-type]

        rig.view.transact = changed  # type: ignore[method-assign]
        outcome = await rig.restore()
        assert outcome.detail == "its record kept changing"
        assert len(tries) == SWAPS_LOST_MAX

    run(main)


def test_nothing_is_changed_without_the_lock() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.ready()
        await rig.lose("a")

        def lost() -> Check:
            raise LockLost("gone")

        with pytest.raises(LockLost):
            await rig.replicator.restore(UnderReplicated(1, (), 0), lost)
        assert rig.stage.by_name["c"].adds == 0
        revision = (await rig.stage.store.get(LOCK)).revision  # type: ignore[union-attr]
        await rig.stage.store.put(LOCK, b"another's")
        with pytest.raises(Exception, match=LOCK):
            await rig.replicator.restore(UnderReplicated(1, (), 0), lambda: Check(LOCK, revision))
        assert names_of(await rig.stage.metadata(1)) == [(0, "a b")]

    run(main)


def test_an_open_ledger_is_closed_only_after_the_grace_time() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=3, state=LedgerState.OPEN)
        await rig.ready()
        await rig.lose("a")
        until = rig.stage.clock.now_ms() + 5000
        record = UnderReplicated(1, ("gone",), 0, grace_until_ms=until)
        outcome = await rig.restore(record)
        assert outcome == Outcome(
            OutcomeKind.WAITS, "its writer may still replace the lost bookie", wait_ms=5000
        )
        assert (await rig.stage.metadata(1)).state is LedgerState.OPEN
        await asyncio.sleep(5)
        assert (await rig.restore(record)).kind is OutcomeKind.REPAIRED
        metadata = await rig.stage.metadata(1)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 3)
        assert names_of(metadata) == [(0, "c b")]

    run(main)


def test_the_outcome_says_why_a_ledger_cannot_be_closed() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=3, state=LedgerState.OPEN)
        await rig.ready()
        await rig.lose("a")
        rig.stage.by_name["b"].silent = True
        outcome = await rig.restore()
        assert outcome.kind is OutcomeKind.FAILED
        assert outcome.detail.startswith("it could not be closed")
        assert (await rig.stage.metadata(1)).state is not LedgerState.CLOSED

    run(main)


async def attempted(rig: Rig, record: UnderReplicated) -> UnderReplicated | None:
    """Returns the listed record after a worker's attempt."""
    key = record_key(record.ledger_id)
    await rig.stage.store.put(key, encode(record))
    await rig.worker._attempt_under_lock(record.ledger_id)
    await asyncio.sleep(0.01)
    assert await rig.stage.store.get(lock_key(record.ledger_id)) is None
    return (await rig.stage.listed()).get(record.ledger_id)


def test_the_record_and_the_lock_are_deleted_in_one_transaction() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.session.start()
        await rig.ready()
        await rig.lose("a")
        assert await attempted(rig, UnderReplicated(1, ("gone",), 0)) is None
        assert rig.stats.outcomes == {"repaired": 1}
        await rig.session.stop()

    run(main)


def test_only_due_ledgers_are_attempted() -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.session.start()
        await rig.ready()
        now = rig.stage.clock.now_ms()
        for record in (
            UnderReplicated(1, ("gone",), 0, RecordState.PARKED),
            UnderReplicated(1, ("gone",), 0, RecordState.LOST),
            UnderReplicated(1, ("gone",), 0, not_before_ms=now + 2000),
        ):
            assert await attempted(rig, record) == record
        assert rig.stats.outcomes == {}
        await asyncio.sleep(2)
        assert await attempted(rig, UnderReplicated(1, ("x",), 0, not_before_ms=now + 2000)) is None
        await rig.session.stop()

    run(main)


def test_an_attempt_that_raises_any_error_counts_as_failed() -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.session.start()
        await rig.ready()
        await rig.stage.store.put(ledger_key(1), b"of another release")
        after = await attempted(rig, UnderReplicated(1, ("gone",), 0, attempts=2))
        assert after is not None
        assert (after.state, after.attempts) == (RecordState.WAITING, 3)
        assert after.detail.startswith("MetadataError: ")
        pause = after.not_before_ms - rig.stage.clock.now_ms()
        bound = SETTINGS.backoff_first_s * 4 * 1000
        assert bound / 2 - 20 <= pause <= bound
        assert rig.stats.failures == 1
        last = SETTINGS.attempts_max - 1
        parked = await attempted(rig, UnderReplicated(1, ("gone",), 0, attempts=last))
        assert parked is not None
        assert parked.state is RecordState.PARKED
        await rig.session.stop()

    run(main)


def test_a_worker_leaves_records_that_another_node_holds_or_has_changed() -> None:
    async def main() -> None:
        rig = Rig("a", "b")
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.session.start()
        await rig.ready()
        other_session = MetadataSession(rig.stage.store, LEASE_S, rig.stage.clock, "other")
        await other_session.start()
        lock = LeaseLock(rig.stage.store, other_session, lock_key(1), "other")
        await lock.take()
        record = UnderReplicated(1, ("gone",), 0)
        await rig.stage.store.put(record_key(1), encode(record))
        await rig.worker._attempt_under_lock(1)
        assert (await rig.stage.listed())[1] == record
        assert rig.stats.outcomes == {"held by another node": 1}
        assert lock.held
        await lock.release()
        newer = UnderReplicated(1, ("newer",), 0)
        transact = rig.view.transact

        async def overtaken(operations: object) -> int:
            await rig.stage.store.put(record_key(1), encode(newer))
            return await transact(operations)  # type: ignore[arg-type]

        rig.view.transact = overtaken  # type: ignore[method-assign]
        assert await attempted(rig, record) == newer
        await other_session.stop()
        await rig.session.stop()

    run(main)
