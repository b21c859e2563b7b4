"""Former copies: when a bookie deletes them, and the conditions that keep them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.autorecovery.stage import LEASE_S, Stage, TroubledBookie, run

from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.lease_lock import LeaseLock
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import lock_key, record_key
from magnetar.autorecovery.repair.former_copies import FormerCopies
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.shape import holders
from magnetar.bookie.api import BookieError, BookieReadOnly, LedgerFenced, OnAdded
from magnetar.bookie.registration import KNOWN_PREFIX, known_key
from magnetar.bookie.upkeep.ledger_garbage import LedgerGarbage
from magnetar.ledger.metadata import LedgerState, decode, ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataUnavailable, Operation, Record

LAST = 20
SEEDS = 25
"""The number of races; about a third of them detect a collector without locks."""


class Collector:
    """The former copies of one bookie, which a test collects."""

    def __init__(self, stage: Stage, name: str = "a") -> None:
        self.stage = stage
        self.bookie = stage.by_name[name]
        self.session = MetadataSession(stage.store, LEASE_S, stage.clock, name)
        prover = Prover(stage.bookies, ByteRate(0, stage.clock), 30.0)
        checker = LedgerChecker(stage.bookies, prover, None, 30.0)
        self.garbage = LedgerGarbage(self.bookie, stage.store, lambda: self.session.valid)
        self.garbage.former = FormerCopies(
            self.bookie, stage.store, self.session, checker, stage.clock, f"former {name}"
        )

    async def start(self) -> None:
        await self.session.start()
        await self.stage.store.put(known_key(self.bookie.identity), b"{}")

    async def once(self) -> list[int]:
        await self.garbage.compare()
        return await self.garbage.collect_former()


async def moved(stage: Stage, *ledger_ids: int) -> Collector:
    """Ledgers on `b c d`; `a` was away and has former copies of them."""
    for ledger_id in ledger_ids:
        await stage.ledger(ledger_id, (0, "a b c"), last=LAST)
        await stage.ledger(ledger_id, (0, "d b c"), last=LAST)
    collector = Collector(stage)
    await collector.start()
    return collector


async def end(collector: Collector) -> None:
    await collector.session.stop()
    await collector.stage.stop()


def test_copies_that_were_replaced_while_a_bookie_was_away_are_deleted() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in (1, 2, 1003):
            await stage.ledger(ledger_id, (0, "a b c"), last=LAST)
        await stage.ledger(1004, (0, "a b c"), last=-1, state=LedgerState.OPEN)
        await stage.node()
        a = stage.by_name["a"]
        stage.bookies.lose(a)
        await asyncio.sleep(600)  # virtual: autorecovery copies to `d`
        stage.bookies.back(a)
        collector = Collector(stage)
        await collector.start()
        assert await collector.once() == []
        assert await collector.once() == [1, 2, 1003]
        assert await a.list_ledgers() == []
        for ledger_id in (1, 2, 1003):
            assert (await stage.check(ledger_id)).verdict == "healthy"
            assert await stage.store.get(lock_key(ledger_id)) is None
        await end(collector)

    run(main)


def test_a_dropped_copy_stays_fenced_and_can_be_copied_back() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        await collector.once()
        assert await collector.once() == [1]
        answers: list[BookieError | None] = []
        collector.bookie.add_entries(
            1, [LAST + 1], [b"late"], last_add_confirmed=LAST, on_added=answers.append
        )
        await asyncio.sleep(0)
        assert [type(answer) for answer in answers] == [LedgerFenced]
        await stage.node()
        stage.bookies.lose(stage.by_name["d"])
        await asyncio.sleep(600)  # virtual: `a` is the only possible replacement
        names = {
            bookie.bookie_id
            for ensemble in (await stage.metadata(1)).ensembles
            for bookie in ensemble.bookies
        }
        assert names == {"a", "b", "c"}
        assert (await stage.check(1)).verdict == "healthy"
        assert await collector.once() == []
        assert await collector.once() == []
        await end(collector)

    run(main)


Obstacle = Callable[[Stage], Awaitable[object]]


async def listed(stage: Stage) -> object:
    return await stage.store.put(record_key(1), b"\xff of a newer release")


async def locked(stage: Stage) -> object:
    return await stage.store.put(lock_key(1), b"another node")


async def unreadable(stage: Stage) -> object:
    return await stage.store.put(ledger_key(1), b"\xff of a newer release")


async def not_closed(stage: Stage) -> object:
    recovering = (await stage.metadata(1)).in_recovery()
    return await stage.store.put(ledger_key(1), encode(recovering))


async def not_known(stage: Stage) -> object:
    return await stage.store.delete(known_key(stage.by_name["a"].identity))


async def lost_elsewhere(stage: Stage) -> object:
    stage.by_name["b"].drop(1, 3)
    return None


async def away_elsewhere(stage: Stage) -> object:
    stage.bookies.lose(stage.by_name["b"])
    return None


async def named_again(stage: Stage) -> object:
    return await stage.ledger(1, (0, "d b c"), (LAST, "a b c"), last=LAST)


async def other_disks(stage: Stage) -> object:
    """The record names a former incarnation of the bookie."""
    stage.by_name["a"] = stage.bookies.add("a", incarnation="2")
    return await named_again(stage)


@pytest.mark.parametrize(
    "obstacle",
    [
        listed,
        locked,
        unreadable,
        not_closed,
        not_known,
        lost_elsewhere,
        away_elsewhere,
        named_again,
        other_disks,
    ],
)
@pytest.mark.parametrize("between", [False, True])
def test_a_copy_is_kept_while_any_condition_is_unmet(obstacle: Obstacle, *, between: bool) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        if not between:
            await obstacle(stage)
        await collector.once()
        if between:
            await obstacle(stage)
        for _ in range(3):
            assert await collector.once() == []
        assert collector.bookie.holds(1)
        await end(collector)

    run(main)


def test_unproven_copies_do_not_starve_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.autorecovery.repair.former_copies.PROVEN_PER_ROUND_MAX", 2)

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1, 2, 3, 4)
        for ledger_id in (1, 2):
            stage.by_name["b"].drop(ledger_id, 3)
        deleted = [ledger_id for _ in range(5) for ledger_id in await collector.once()]
        assert sorted(deleted) == [3, 4]
        await end(collector)

    run(main)


def test_a_record_that_changed_between_two_collections_counts_as_new() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        for _ in range(3):
            assert await collector.once() == []
            await stage.store.put(ledger_key(1), encode(await stage.metadata(1)))
        assert await collector.once() == []
        assert await collector.once() == [1]
        await end(collector)

    run(main)


def test_a_lock_whose_request_was_not_answered_is_released() -> None:
    class Silent(MemoryStore):
        """Takes the lock, but its answer is lost."""

        silent = True

        async def put(
            self,
            key: str,
            value: bytes,
            *,
            expected: int | None = None,
            lease_id: int | None = None,
        ) -> int:
            revision = await super().put(key, value, expected=expected, lease_id=lease_id)
            if self.silent and key == lock_key(1):
                self.silent = False
                raise MetadataUnavailable("no answer")
            return revision

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        stage.store = Silent(stage.clock)
        collector = await moved(stage, 1)
        await collector.once()
        with pytest.raises(MetadataUnavailable):
            await collector.once()
        assert await stage.store.get(lock_key(1)) is None
        await end(collector)

    run(main)


class SlowStore(MemoryStore):
    """Answers after a random time."""

    rng: Random

    async def get(self, key: str) -> Record | None:
        await asyncio.sleep(self.rng.random() * 0.5)
        record = await super().get(key)
        # This is the last request before copies are dropped; a long answer leaves time for races.
        slow = key.startswith(KNOWN_PREFIX)
        await asyncio.sleep(self.rng.random() * (20.0 if slow else 0.5))
        return record

    async def transact(self, operations: Sequence[Operation]) -> int:
        await asyncio.sleep(self.rng.random() * 0.5)
        revision = await super().transact(operations)
        await asyncio.sleep(self.rng.random() * 0.5)
        return revision


class SlowBookie(TroubledBookie):
    """Drops copies in a random time; accepts no add meanwhile, as on a real disk."""

    rng: Random

    def __init__(self, bookie_id: str, incarnation: str) -> None:
        super().__init__(bookie_id, incarnation)
        self.dropping: set[int] = set()

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        if ledger_id in self.dropping:
            asyncio.get_running_loop().call_soon(on_added, BookieReadOnly("is being dropped"))
            return
        super().add_entries(
            ledger_id,
            entry_ids,
            entries,
            last_add_confirmed=last_add_confirmed,
            on_added=on_added,
            recovery=recovery,
        )

    async def drop_copies(self, ledger_ids: Sequence[int]) -> list[int]:
        self.dropping.update(ledger_ids)
        await asyncio.sleep(self.rng.random() * 20.0)
        self.dropping.difference_update(ledger_ids)
        return await super().drop_copies(ledger_ids)


class Race:
    """Bookies leave and return, autorecovery copies, and every bookie collects at any moment.

    No copy is corrupted and no disk is wiped, so every copy that a record names must exist.
    """

    NAMES = ("a", "b", "c", "d", "e")
    LEDGERS = 2
    LAST = 4
    ROUNDS = 12

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        quick = AutorecoverySettings(observe_interval_s=0.5, lost_bookie_delay_s=1.0)
        self.stage = Stage(settings=quick)
        self.store = self.stage.store = SlowStore(self.stage.clock)
        self.store.rng = self.rng
        self.deleted = 0
        for name in self.NAMES:
            bookie = SlowBookie(name, "1")
            bookie.rng = self.rng
            self.stage.bookies._all[bookie.identity] = bookie
            self.stage.bookies.back(bookie)
            self.stage.by_name[name] = bookie

    async def run(self) -> None:
        stage, rng = self.stage, self.rng
        for ledger_id in range(1, self.LEDGERS + 1):
            names = " ".join(rng.sample(self.NAMES, 3))
            await stage.ledger(ledger_id, (0, names), last=self.LAST, write_quorum=2)
        for number in (1, 2):
            await stage.node(number)
        collectors = [Collector(stage, name) for name in self.NAMES]
        for collector in collectors:
            await collector.start()
        tasks = [asyncio.ensure_future(self._collect(collector)) for collector in collectors]
        try:
            for _ in range(self.ROUNDS):
                await self._away(rng.choice(self.NAMES))
                await self.judge()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for collector in collectors:
                await collector.session.stop()
            await stage.stop()

    async def _collect(self, collector: Collector) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * 5.0)
            self.deleted += len(await collector.once())

    async def _away(self, name: str) -> None:
        """Loses a bookie for a time, which may be long enough to be replaced."""
        bookie = self.stage.by_name[name]
        self.stage.bookies.lose(bookie)
        await asyncio.sleep(self.rng.random() * 15.0)
        self.stage.bookies.back(bookie)
        await asyncio.sleep(self.rng.random() * 15.0)

    async def judge(self) -> None:
        for ledger_id in range(1, self.LEDGERS + 1):
            # From the store itself: no time passes between the record and the copies.
            record = self.store._records[ledger_key(ledger_id)]
            metadata = decode(record.key, record.value)
            for entry_id in range(self.LAST + 1):
                bookies = [e for e in metadata.ensembles if e.first_entry <= entry_id][-1].bookies
                for identity in holders(bookies, 2, 1, entry_id):
                    held = self.stage.bookies._all[identity].holds(ledger_id)
                    assert entry_id in held, (ledger_id, entry_id, identity)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_copy_that_a_record_names_is_never_deleted(seed: int) -> None:
    run(Race(seed).run)


def test_these_races_do_delete_copies() -> None:
    def deleted(seed: int) -> int:
        race = Race(seed)
        run(race.run)
        return race.deleted

    assert any(deleted(seed) for seed in range(SEEDS))


def test_these_races_find_a_collector_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    take, held = LeaseLock.take, LeaseLock.held

    def is_former(lock: LeaseLock) -> bool:
        return lock._token.startswith("former")

    async def taken(lock: LeaseLock) -> bool:
        return True if is_former(lock) else await take(lock)

    def always(lock: LeaseLock) -> bool:
        return True if is_former(lock) else bool(held.__get__(lock))

    monkeypatch.setattr(LeaseLock, "take", taken)
    monkeypatch.setattr(LeaseLock, "held", property(always))

    def races() -> None:
        for seed in range(SEEDS):
            run(Race(seed).run)

    with pytest.raises(AssertionError):
        races()
