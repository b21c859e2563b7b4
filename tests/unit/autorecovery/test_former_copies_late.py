"""Former copies whose ledger changes between the proof and the deletion."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.autorecovery.stage import Stage, run
from tests.unit.autorecovery.test_former_copies import (
    LAST,
    Collector,
    Obstacle,
    end,
    listed,
    locked,
    moved,
    named_again,
    not_closed,
    not_known,
    unreadable,
)

from magnetar.autorecovery.check.ledger_check import LedgerReport
from magnetar.autorecovery.lease_lock import RELEASE_PAUSES_S
from magnetar.autorecovery.repair.former_copies import STORE_TIMEOUT_S
from magnetar.ledger.metadata import Ensemble, ledger_key
from magnetar.metadata.records import encode


async def rewritten(stage: Stage) -> object:
    """The record is the same, at another revision."""
    return await stage.store.put(ledger_key(1), encode(await stage.metadata(1)))


async def deleted(stage: Stage) -> object:
    return await stage.store.delete(ledger_key(1))


def after_proofs(collector: Collector, obstacle: Obstacle | None = None) -> list[int]:
    """Returns the list of ledgers that are proven from now on; runs `obstacle` after each proof."""
    former: Any = collector.garbage.former
    check, proven = former._checker.check, []

    async def checked(metadata: Any, **how: Any) -> LedgerReport:
        report: LedgerReport = await check(metadata, **how)
        proven.append(metadata.ledger_id)
        if obstacle is not None:
            await obstacle(collector.stage)
        return report

    former._checker.check = checked
    return proven


@pytest.mark.parametrize(
    "obstacle",
    [listed, locked, unreadable, not_closed, not_known, named_again, rewritten, deleted],
)
def test_a_copy_stays_if_its_ledger_changes_after_the_proof(obstacle: Obstacle) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        assert await collector.once() == []
        proven = after_proofs(collector, obstacle)
        assert await collector.once() == []
        assert proven == [1]
        assert collector.bookie.holds(1)
        await end(collector)

    run(main)


def test_no_copy_is_read_for_a_ledger_that_is_on_the_list() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1, 2)
        await listed(stage)
        await collector.once()
        proven = after_proofs(collector)
        assert await collector.once() == [2]
        assert proven == [2]
        await end(collector)

    run(main)


async def silent_elsewhere(stage: Stage) -> object:
    """A bookie that does not answer may have its copies, which proves nothing."""
    stage.by_name["b"].silent = True
    return None


async def named_before(stage: Stage) -> object:
    return await stage.ledger(1, (0, "a b c"), (5, "d b c"), last=LAST)


async def begins_late(stage: Stage) -> object:
    """No ensemble of the record covers the ledger's first entry."""
    metadata = await stage.metadata(1)
    bookies = metadata.ensembles[0].bookies
    late = msgspec.structs.replace(metadata, ensembles=(Ensemble(1, bookies),))
    return await stage.store.put(ledger_key(1), encode(late))


@pytest.mark.parametrize("obstacle", [silent_elsewhere, named_before, begins_late])
def test_a_copy_stays_unless_every_entry_is_whole_elsewhere(obstacle: Obstacle) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        await obstacle(stage)
        for _ in range(3):
            assert await collector.once() == []
        assert collector.bookie.holds(1)
        await end(collector)

    run(main)


def test_a_copy_that_returns_must_be_seen_twice_again() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        await collector.once()
        assert await collector.once() == [1]
        stage.by_name["a"].add_entries(
            1, [0], [b"again"], last_add_confirmed=LAST, on_added=lambda _: None, recovery=True
        )
        assert await collector.once() == []
        assert await collector.once() == [1]
        await end(collector)

    run(main)


@pytest.mark.parametrize("silent", ["list", "get", "put"])
def test_a_silent_store_ends_a_round_over_former_copies_after_its_bound(silent: str) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1)
        former: Any = collector.garbage.former
        assert await former.collect([1]) == []
        answers = getattr(stage.store, silent)

        async def never(*_: Any, **__: Any) -> Any:
            setattr(stage.store, silent, answers)
            await asyncio.Event().wait()

        setattr(stage.store, silent, never)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await former.collect([1])
        doubt_s = sum(RELEASE_PAUSES_S) if silent == "put" else 0.0
        assert 0 <= loop.time() - began - STORE_TIMEOUT_S - doubt_s < 2
        assert collector.bookie.holds(1)
        await end(collector)

    run(main)
