"""The health that gates removals: unhealthy while any ledger record is unreadable."""

import asyncio

from tests.unit.autorecovery.stage import Stage, run

from magnetar.autorecovery.audit.health_summary import LedgerHealth, ledger_health
from magnetar.autorecovery.records import record_key
from magnetar.bookie.registration import BOOKIES_PREFIX
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.records import encode

DEADLINE_S = 600.0
"""Virtual."""


async def health(stage: Stage) -> LedgerHealth:
    return await ledger_health(stage.store, stage.bookies)


async def until(stage: Stage, *, healthy: bool) -> LedgerHealth:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await health(stage)
            if answer.healthy is healthy and answer.audit_is_current:
                return answer
            await asyncio.sleep(1)


def test_an_unreadable_ledger_record_closes_the_gate_until_it_is_repaired() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        for ledger_id in (1, 2):
            metadata = await stage.ledger(ledger_id, (0, "a b"), last=8)
        key = ledger_key(2)
        await stage.store.put(key, b"\xff of a newer release")
        await stage.node()
        answer = await until(stage, healthy=False)
        assert (answer.unreadable, answer.under_replicated) == (1, 0)
        assert key in answer.reason
        await stage.store.put(key, encode(metadata))
        answer = await health(stage)
        assert (answer.healthy, answer.unreadable) == (True, 0)
        await stage.stop()

    run(main)


def test_an_unreadable_record_of_the_list_counts_and_is_rewritten() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=8)
        # The record had `prove` set, for a wrong copy that the ledger's record does not show.
        stage.by_name["a"].corrupt.add((1, 3))
        await stage.store.put(record_key(1), b"\xff of a newer release")
        assert (await health(stage)).under_replicated == 1
        await stage.node()
        await until(stage, healthy=True)
        assert not stage.by_name["a"].corrupt
        await stage.stop()

    run(main)


def test_an_unreadable_registration_does_not_hide_the_others() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.store.put(f"{BOOKIES_PREFIX}x", b"\xff of a newer release")
        assert [bookie.bookie_id for bookie in (await health(stage)).bookies] == ["a", "b", "c"]
        await stage.stop()

    run(main)
