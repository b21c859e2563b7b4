"""The worker of a drain: what ends it, what it refuses to prove, and what it proves again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run

from magnetar.autorecovery import drains
from magnetar.autorecovery.drain_worker import DrainWorker
from magnetar.autorecovery.drains import DRAINS_PREFIX, Drain, DrainState, drain_key
from magnetar.autorecovery.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.proving import Prover
from magnetar.autorecovery.rate import ByteRate
from magnetar.bookie.registration import draining_key
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, ledger_key
from magnetar.metadata.session import MetadataSession

DEADLINE_S = 600.0
"""Virtual."""


class Checker(LedgerChecker):
    """A checker that calls `before` once, before its first proof."""

    def __init__(self, stage: Stage) -> None:
        prover = Prover(stage.bookies, ByteRate(0, stage.clock), 30.0)
        super().__init__(stage.bookies, prover, None, 30.0)
        self.before: Callable[[], object] | None = None
        self.proven: list[int] = []

    async def check(
        self, metadata: LedgerMetadata, *, not_counting: Collection[str] = ()
    ) -> LedgerReport:
        before, self.before = self.before, None
        if before is not None:
            await before()  # type: ignore[misc]
        self.proven.append(metadata.ledger_id)
        return await super().check(metadata, not_counting=not_counting)


@asynccontextmanager
async def working(stage: Stage, checker: LedgerChecker | None = None) -> AsyncIterator[None]:
    """A node that works at drains and at nothing else."""
    session = MetadataSession(stage.store, LEASE_S, stage.clock, "drains")
    await session.start()
    token = f"drains {Random(1).getrandbits(32)}"
    worker = DrainWorker(
        stage.store, session, stage.bookies, checker or Checker(stage), stage.clock, token
    )
    worker.start()
    try:
        yield
    finally:
        await worker.stop()
        await session.stop()
        await stage.stop()


async def ask(stage: Stage, name: str = "a") -> None:
    await drains.request(stage.store, name, stage.clock.now_ms(), "test")


async def wait_for(
    stage: Stage, wanted: Callable[[Drain | None], bool], name: str = "a"
) -> Drain | None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await drains.read(stage.store, name)
            if wanted(found):
                return found
            await asyncio.sleep(0.5)


async def ended(stage: Stage) -> Drain:
    found = await wait_for(stage, lambda one: one is not None and one.state.ended)
    assert found is not None
    return found


async def spoil(stage: Stage, ledger_id: int) -> None:
    """Makes the ledger's record one that this release cannot read."""
    stored = await stage.store.get(ledger_key(ledger_id))
    assert stored is not None
    await stage.store.put(stored.key, b"\xff of a newer release", expected=stored.revision)


# -- the mark ------------------------------------------------------------------------------


def test_a_cancelled_drain_leaves_neither_a_mark_nor_a_proof() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        async with working(stage):
            await ask(stage)
            assert (await ended(stage)).state is DrainState.REMOVABLE
            assert await drains.cancel(stage.store, "a")
            assert await stage.store.get(draining_key("a")) is None
            assert await drains.read(stage.store, "a") is None

    run(main)


@pytest.mark.parametrize("state", [DrainState.COPYING, DrainState.REMOVABLE])
def test_a_drain_ends_with_its_mark(state: DrainState) -> None:
    """An older release's `--cancel` deletes the mark only."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        # Nobody moves what `a` holds: there is no autorecovery.
        await stage.ledger(1, (0, "a b c" if state is DrainState.COPYING else "b c d"), last=20)
        async with working(stage):
            await ask(stage)
            await wait_for(stage, lambda one: one is not None and one.state is state)
            assert await stage.store.delete(draining_key("a"))
            await wait_for(stage, lambda one: one is None)
            assert await stage.store.get(draining_key("a")) is None

    run(main)


def test_a_mark_that_goes_while_copies_are_proven_refuses_the_proof() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)
        states: list[DrainState] = []

        async def unmark() -> None:
            await stage.store.delete(draining_key("a"))

        def noted(one: Drain | None) -> bool:
            states.extend([] if one is None else [one.state])
            return one is None

        checker.before = unmark
        async with working(stage, checker):
            await ask(stage)
            await wait_for(stage, noted)
        assert DrainState.REMOVABLE not in states

    run(main)


def test_a_proof_is_cut_off_when_its_drain_is_cancelled() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)
        begun, never = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            begun.set()
            await never.wait()

        checker.before = hang
        async with working(stage, checker):
            await ask(stage)
            await begun.wait()
            assert await drains.cancel(stage.store, "a")
            await ask(stage)  # taken up at once: the first proof holds up nobody
            assert (await ended(stage)).state is DrainState.REMOVABLE

    run(main)


def test_a_mark_that_stands_already_is_kept() -> None:
    """`magnetar bookie decommission` put it there, and holds its own proof to its revision."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        revision = await stage.store.put(draining_key("a"), b"1")
        async with working(stage):
            await ask(stage)
            assert (await ended(stage)).state is DrainState.REMOVABLE
            stored = await stage.store.get(draining_key("a"))
            assert stored is not None
            assert stored.revision == revision

    run(main)


def test_a_drain_that_cannot_be_read_holds_up_no_other() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        await stage.store.put(f"{DRAINS_PREFIX}0", b"\xff of a newer release")
        async with working(stage):
            await ask(stage)
            assert (await ended(stage)).state is DrainState.REMOVABLE
            assert [one.bookie_id for one in await drains.read_all(stage.store)] == ["a"]

    run(main)


# -- records that cannot be read -----------------------------------------------------------


@pytest.mark.parametrize("living", [True, False])
def test_a_record_that_cannot_be_read_refuses_the_proof(*, living: bool) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        await stage.ledger(2, (0, "a b c"), last=20)
        await spoil(stage, 2)
        if not living:
            stage.bookies.lose(stage.by_name["a"])
        async with working(stage):
            await ask(stage)
            found = await ended(stage)
            assert found.state is DrainState.REFUSED
            assert ledger_key(2) in found.refused

    run(main)


def test_a_record_that_becomes_unreadable_during_the_proof_refuses_it() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in (1, 2):
            await stage.ledger(ledger_id, (0, "b c d"), last=20)
            stage.by_name["a"].put(ledger_id, 0, b"a former copy", 0)
        checker = Checker(stage)
        checker.before = lambda: spoil(stage, 2)
        async with working(stage, checker):
            await ask(stage)
            found = await ended(stage)
            assert found.state is DrainState.REFUSED
            assert ledger_key(2) in found.refused

    run(main)


# -- what comes during the proof -----------------------------------------------------------


def test_a_ledger_that_comes_to_name_the_bookie_during_the_proof_is_copied_first() -> None:
    """A broker that has not seen the mark yet creates it."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)
        checker.before = lambda: stage.ledger(2, (0, "a b c"), last=20)

        def copying_again(one: Drain | None) -> bool:
            return bool(checker.proven) and one is not None and one.state is DrainState.COPYING

        stage.bookies.drain(stage.by_name["a"])
        async with working(stage, checker):
            await ask(stage)
            await wait_for(stage, copying_again)
            found = await drains.read(stage.store, "a")
            assert found is not None
            assert found.ledgers_left == 1
            await stage.node()
            assert (await ended(stage)).state is DrainState.REMOVABLE
            ensembles = (await stage.metadata(2)).ensembles
            assert "a" not in {one.bookie_id for each in ensembles for one in each.bookies}
        assert checker.proven.count(2) == 1

    run(main)


def test_a_ledger_that_only_the_bookie_itself_knows_of_is_proven_too() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        await stage.ledger(2, (0, "b c d"), last=20, state=LedgerState.CLOSED)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)

        async def add() -> None:
            stage.by_name["a"].put(2, 0, b"a late copy", 0)

        checker.before = add
        async with working(stage, checker):
            await ask(stage)
            assert (await ended(stage)).state is DrainState.REMOVABLE
        assert set(checker.proven) == {1, 2}

    run(main)


def test_a_cancelled_record_is_not_written_again() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=20)  # nobody moves it
        async with working(stage):
            await ask(stage)
            await wait_for(stage, lambda one: one is not None and one.ledgers_left == 1)
            assert await drains.cancel(stage.store, "a")
            await asyncio.sleep(3600)  # virtual
            assert await stage.store.get(drain_key("a")) is None
            assert await stage.store.get(draining_key("a")) is None

    run(main)
