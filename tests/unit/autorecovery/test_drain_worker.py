"""The drain worker: the ends of drains, refused proofs, and repeated proofs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run

from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.drains import DRAINS_PREFIX, Drain, DrainState, drain_key
from magnetar.autorecovery.drain.worker import DrainWorker
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
        self, metadata: LedgerMetadata, *, excluded: Collection[str] = ()
    ) -> LedgerReport:
        before, self.before = self.before, None
        if before is not None:
            await before()  # type: ignore[misc]
        self.proven.append(metadata.ledger_id)
        return await super().check(metadata, excluded=excluded)


@asynccontextmanager
async def working(stage: Stage, checker: LedgerChecker | None = None) -> AsyncIterator[None]:
    """A node that only executes drains."""
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
            drain = await drains.read(stage.store, name)
            if wanted(drain):
                return drain
            await asyncio.sleep(0.5)


async def ended(stage: Stage) -> Drain:
    drain = await wait_for(stage, lambda drain: drain is not None and drain.state.ended)
    assert drain is not None
    return drain


async def spoil(stage: Stage, ledger_id: int) -> None:
    """Makes the ledger's record unreadable."""
    stored = await stage.store.get(ledger_key(ledger_id))
    assert stored is not None
    await stage.store.put(stored.key, b"\xff of a newer release", expected=stored.revision)


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
    """The `--cancel` of an older release deletes only the mark."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        # No autorecovery moves the ledgers of `a`.
        await stage.ledger(1, (0, "a b c" if state is DrainState.COPYING else "b c d"), last=20)
        async with working(stage):
            await ask(stage)
            await wait_for(stage, lambda drain: drain is not None and drain.state is state)
            assert await stage.store.delete(draining_key("a"))
            await wait_for(stage, lambda drain: drain is None)
            assert await stage.store.get(draining_key("a")) is None

    run(main)


def test_a_mark_that_is_deleted_during_the_proof_ends_the_drain() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)
        states: list[DrainState] = []

        async def unmark() -> None:
            await stage.store.delete(draining_key("a"))

        def noted(drain: Drain | None) -> bool:
            states.extend([] if drain is None else [drain.state])
            return drain is None

        checker.before = unmark
        async with working(stage, checker):
            await ask(stage)
            await wait_for(stage, noted)
        assert DrainState.REMOVABLE not in states

    run(main)


def test_a_proof_is_cancelled_with_its_drain() -> None:
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
            await ask(stage)  # starts at once: the first proof does not delay it
            assert (await ended(stage)).state is DrainState.REMOVABLE

    run(main)


def test_an_existing_mark_is_kept() -> None:
    """`magnetar bookie decommission` set the mark, and checks its revision after its own proof."""

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


def test_an_unreadable_drain_blocks_no_other() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        await stage.store.put(f"{DRAINS_PREFIX}0", b"\xff of a newer release")
        async with working(stage):
            await ask(stage)
            assert (await ended(stage)).state is DrainState.REMOVABLE
            assert [drain.bookie_id for drain in await drains.read_all(stage.store)] == ["a"]

    run(main)


@pytest.mark.parametrize("living", [True, False])
def test_an_unreadable_record_refuses_the_proof(*, living: bool) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        await stage.ledger(2, (0, "a b c"), last=20)
        await spoil(stage, 2)
        if not living:
            stage.bookies.lose(stage.by_name["a"])
        async with working(stage):
            await ask(stage)
            drain = await ended(stage)
            assert drain.state is DrainState.REFUSED
            assert ledger_key(2) in drain.refused

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
            drain = await ended(stage)
            assert drain.state is DrainState.REFUSED
            assert ledger_key(2) in drain.refused

    run(main)


def test_a_ledger_that_names_the_bookie_only_during_the_proof_is_copied_first() -> None:
    """A broker that has not seen the mark creates the ledger."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        stage.by_name["a"].put(1, 0, b"a former copy", 0)
        checker = Checker(stage)
        checker.before = lambda: stage.ledger(2, (0, "a b c"), last=20)

        def copying_again(drain: Drain | None) -> bool:
            return bool(checker.proven) and drain is not None and drain.state is DrainState.COPYING

        stage.bookies.drain(stage.by_name["a"])
        async with working(stage, checker):
            await ask(stage)
            await wait_for(stage, copying_again)
            drain = await drains.read(stage.store, "a")
            assert drain is not None
            assert drain.ledgers_left == 1
            await stage.node()
            assert (await ended(stage)).state is DrainState.REMOVABLE
            ensembles = (await stage.metadata(2)).ensembles
            assert "a" not in {
                bookie.bookie_id for ensemble in ensembles for bookie in ensemble.bookies
            }
        assert checker.proven.count(2) == 1

    run(main)


def test_a_ledger_that_only_the_bookie_knows_is_proven_too() -> None:
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
        await stage.ledger(1, (0, "a b c"), last=20)  # no autorecovery moves it
        async with working(stage):
            await ask(stage)
            await wait_for(stage, lambda drain: drain is not None and drain.ledgers_left == 1)
            assert await drains.cancel(stage.store, "a")
            await asyncio.sleep(3600)  # virtual
            assert await stage.store.get(drain_key("a")) is None
            assert await stage.store.get(draining_key("a")) is None

    run(main)
