"""Reading back through the writer of a ledger whose older copies were put elsewhere."""

import asyncio

import pytest
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write
from tests.unit.ledger.test_recovery import quorum

from magnetar.bookie.api import BookieError, StoredEntry
from magnetar.ledger.metadata import Ensemble, ledger_key
from magnetar.metadata.records import encode


def test_an_open_ledger_is_read_where_autorecovery_has_put_its_older_entries() -> None:
    """Its writer learns of that only when it changes the record itself, which may be hours later:
    so long its subscribers would not get past those entries."""

    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        first, second = writer.bookies
        for lost in (first, second):
            links.leave(lost)
            await asyncio.sleep(0.5)
            await write(writer, b"next")
        assert {first, second}.isdisjoint(writer.bookies)
        for identity in writer.bookies:
            for entry_id, data in enumerate((b"a", b"next")):
                disk = cluster.disks[identity.bookie_id]
                assert disk.add_now(writer.ledger_id, entry_id, [data], 0, recovery=True) is None
        key = ledger_key(writer.ledger_id)
        record = await cluster.store.get(key)
        assert record is not None
        moved = (await cluster.record(writer.ledger_id)).with_ensembles(
            (Ensemble(0, tuple(writer.bookies)),)
        )
        await cluster.store.put(key, encode(moved), expected=record.revision)
        for lost in (first, second):
            links.gone(lost)
        found: list[StoredEntry] = []
        while len(found) < 3:
            found += await writer.read(len(found), 2, bytes_max=1 << 20)
        assert [entry.data for entry in found] == [b"a", b"next", b"next"]
        # From then on it reads there at once, and not the record each time.
        cluster.store.reads_fail = True
        assert [one.data for one in await writer.read(1, 2, bytes_max=1 << 20)] == [b"next"] * 2
        cluster.store.reads_fail = False
        # What cannot be had anywhere is said as before.
        for identity in tuple(writer.bookies):
            links.links.pop(identity)
        with pytest.raises(BookieError, match="not here"):
            await writer.read(0, 2, bytes_max=1 << 20)

    virtual(main())


def test_what_a_writer_has_changed_since_counts_before_what_it_found_on_record() -> None:
    async def main() -> None:
        cluster = Cluster(6, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        key = ledger_key(writer.ledger_id)
        former = writer.bookies
        spares = [one for one in sorted(links.links) if one not in former][:2]
        for identity in spares:
            disk = cluster.disks[identity.bookie_id]
            assert disk.add_now(writer.ledger_id, 0, [b"a"], 0, recovery=True) is None
        record = await cluster.record(writer.ledger_id)
        moved = record.with_ensembles((Ensemble(0, tuple(spares)), Ensemble(1, tuple(former))))
        stored = await cluster.store.get(key)
        assert stored is not None
        await cluster.store.put(key, encode(moved), expected=stored.revision)
        for identity in former:
            links.links[identity].disk.ledger(writer.ledger_id).entries.clear()
        assert [one.data for one in await writer.read(0, 0, bytes_max=1000)] == [b"a"]
        for identity in former:
            links.leave(identity)
            await asyncio.sleep(0.5)
            await write(writer, b"next")
        for identity in former:
            links.gone(identity)
        cluster.store.reads_fail = True
        for entry_id, data in enumerate((b"a", b"next", b"next")):
            assert (await writer.read(entry_id, entry_id, bytes_max=1000))[0].data == data

    virtual(main())
