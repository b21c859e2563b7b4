"""The gate of removals: it is closed while anything about any ledger is not known."""

import asyncio

from tests.unit.autorecovery.stage import Stage, run

from magnetar.autorecovery.health_summary import LedgerHealth, ledger_health
from magnetar.autorecovery.records import record_key
from magnetar.bookie.registration import BOOKIES_PREFIX
from magnetar.ledger.metadata import encode, ledger_key

DEADLINE_S = 600.0
"""Virtual."""


async def health(stage: Stage) -> LedgerHealth:
    return await ledger_health(stage.store, stage.bookies)


async def until(stage: Stage, *, healthy: bool) -> LedgerHealth:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await health(stage)
            if found.healthy is healthy and found.audit_is_current:
                return found
            await asyncio.sleep(1)


def test_a_ledger_record_that_cannot_be_read_closes_the_gate_until_it_is_mended() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        for ledger_id in (1, 2):
            metadata = await stage.ledger(ledger_id, (0, "a b"), last=8)
        key = ledger_key(2)
        await stage.store.put(key, b"\xff of a newer release")
        await stage.node()
        found = await until(stage, healthy=False)
        assert (found.unreadable, found.under_replicated) == (1, 0)
        assert key in found.reason
        await stage.store.put(key, encode(metadata))
        found = await health(stage)
        assert (found.healthy, found.unreadable) == (True, 0)
        await stage.stop()

    run(main)


def test_an_entry_of_the_list_that_cannot_be_read_counts_and_is_made_anew() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=8)
        # It said that a copy is wrong, which the ledger's record does not show.
        stage.by_name["a"].corrupt.add((1, 3))
        await stage.store.put(record_key(1), b"\xff of a newer release")
        assert (await health(stage)).under_replicated == 1
        await stage.node()
        await until(stage, healthy=True)
        assert not stage.by_name["a"].corrupt
        await stage.stop()

    run(main)


def test_a_registration_that_cannot_be_read_does_not_hide_the_rest() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.store.put(f"{BOOKIES_PREFIX}x", b"\xff of a newer release")
        assert [one.bookie_id for one in (await health(stage)).bookies] == ["a", "b", "c"]
        await stage.stop()

    run(main)
