"""A recovery that follows an interrupted one, and finds its entries and fences."""

import asyncio

import pytest
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write
from tests.unit.ledger.test_recovery import quorum, store_on

from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.quorum import write_set


def test_entries_that_an_interrupted_recovery_stored_elsewhere_do_not_count_as_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its new ensembles are in no record: an entry that is on those only lacks copies where the
    record says. The next recovery must examine it, so no bookie may report it as confirmed."""
    monkeypatch.setattr("magnetar.ledger.recovery.READ_BYTES", 1)  # an entry at a time

    async def main(seed: int) -> None:
        cluster = Cluster(4, quorum(3, 3, 2), seed)
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        for entry_id in (1, 2, 3):
            store_on(cluster, writer, [0], entry_id, b"%d" % entry_id)
        lacking = cluster.disks[writer.bookies[1].bookie_id]
        first, links = cluster.client()
        links.links[writer.bookies[2]].hold()
        cut_short = asyncio.ensure_future(first.open(writer.ledger_id, recover=True))
        while 3 not in lacking.ids(writer.ledger_id):  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.0005)
        cut_short.cancel()
        await asyncio.wait([cut_short])
        assert (await cluster.record(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        cluster.heal()
        closed = (await cluster.client()[0].open(writer.ledger_id, recover=True)).metadata
        for entry_id in range(closed.last_entry + 1):
            copies = {one.bookie_id for one in write_set(closed, entry_id)}
            assert copies <= cluster.has(writer.ledger_id, entry_id), f"entry {entry_id}"

    for seed in range(4):
        virtual(main(seed))
