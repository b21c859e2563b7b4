"""Reads from any copy: the order of bookies, and the handling of failures."""

import asyncio
import math
from typing import Any

import pytest
from tests.unit.ledger.cluster import Cluster, Links, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import (
    BookieUnavailable,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    StoredEntry,
)
from magnetar.ledger.errors import ReadTimeout
from magnetar.ledger.metadata import ledger_key
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode

ENTRIES = [b"%d" % number * (number % 3 + 1) for number in range(40)]


async def written(cluster: Cluster) -> tuple[LedgerReader, Links]:
    """A closed ledger of ENTRIES, opened by another client."""
    writer, _ = await cluster.writer()
    for start in range(0, len(ENTRIES), 5):
        await write(writer, *ENTRIES[start : start + 5])
    await writer.close()
    client, links = cluster.client()
    return await client.open(writer.ledger_id, recover=False), links


def quorum(ensemble: int, write: int, ack: int, **changes: Any) -> LedgerSettings:
    fields = {"stripe_entries": 2} | changes
    return LedgerSettings(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, **fields)


async def all_of(reader: LedgerReader, bytes_max: int = 50) -> list[bytes]:
    found: list[StoredEntry] = []
    while len(found) <= reader.last_entry:
        some = await reader.read(len(found), reader.last_entry, bytes_max=bytes_max)
        assert some
        assert sum(len(entry.data) for entry in some) <= bytes_max or len(some) == 1
        found += some
    assert [entry.entry_id for entry in found] == list(range(len(found)))
    return [entry.data for entry in found]


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 2, 2), (3, 3, 2), (5, 3, 2), (2, 1, 1)])
@pytest.mark.parametrize("bytes_max", [1, 40, 1 << 20])
def test_everything_is_read_in_order_in_any_portion(
    shape: tuple[int, int, int], bytes_max: int
) -> None:
    async def main() -> None:
        reader, _ = await written(Cluster(5, quorum(*shape)))
        assert await all_of(reader, bytes_max) == ENTRIES

    virtual(main())


def test_stripes_are_read_together() -> None:
    async def main() -> None:
        reader, _ = await written(Cluster(3, quorum(3, 2, 2)))
        await all_of(reader)  # it knows now how large entries are
        begun = asyncio.get_running_loop().time()
        some = await reader.read(0, 15, bytes_max=1 << 20)
        assert len(some) == 16
        assert asyncio.get_running_loop().time() - begun < 0.005

    virtual(main())


@pytest.mark.parametrize("fault", ["wiped", "limbo", "corrupt", "lost requests"])
def test_the_next_copy_is_read_where_one_cannot_be(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 2, 2))
        reader, links = await written(cluster)
        if fault == "wiped":
            cluster.wipe("b1")
        elif fault == "limbo":
            cluster.disks["b1"].damage(lambda entry_id: entry_id % 5 == 0)
        elif fault == "corrupt":

            async def corrupt(*_: Any, **__: Any) -> list[StoredEntry]:
                raise EntryCorrupt("CRC", "log", 7)

            monkeypatch.setattr(cluster.disks["b1"], "read_entries", corrupt)
        else:
            next(iter(links.links.values())).lose_ratio = 1.0
        assert await all_of(reader) == ENTRIES

    virtual(main())


def test_a_copy_that_does_not_answer_has_another_one_asked() -> None:
    async def main() -> None:
        reader, links = await written(Cluster(2, quorum(2, 2, 2, speculative_read_delay_s=0.2)))
        held = list(links.links.values())[reader.ledger_id % 2]
        held.hold()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await all_of(reader) == ENTRIES
        assert loop.time() - begun < 0.5  # once; then the one that answers is asked first
        held.release()

    virtual(main())


def test_without_speculation_another_copy_is_asked_only_after_an_error() -> None:
    async def main() -> None:
        never = quorum(2, 2, 2, speculative_read_delay_s=math.inf, read_timeout_s=5.0)
        reader, links = await written(Cluster(2, never))
        late = 0
        for link in links.links.values():
            link.hold()
            try:
                assert await all_of(reader) == ENTRIES
            except ReadTimeout:
                late += 1
            link.release()
        assert late >= 1  # that of the copy that is asked first
        for link in links.links.values():
            link.lose_ratio = 1.0
            assert await all_of(reader) == ENTRIES
            link.lose_ratio = 0.0

    virtual(main())


def test_a_quarantined_copy_is_asked_last() -> None:
    async def main() -> None:
        reader, links = await written(Cluster(2, quorum(2, 2, 2)))
        links.quarantined = {"b0"}
        asked = links.links[reader.metadata.ensembles[0].bookies[0]]
        for link in links.links.values():
            if link.identity.bookie_id == "b0":
                asked = link
        asked.hold()
        begun = asyncio.get_running_loop().time()
        assert await all_of(reader) == ENTRIES
        assert asyncio.get_running_loop().time() - begun < 0.1
        asked.release()

    virtual(main())


def test_no_copy_answers_in_time() -> None:
    async def main() -> None:
        reader, links = await written(Cluster(2, quorum(2, 2, 2, read_timeout_s=2.0)))
        for link in links.links.values():
            link.hold()
        with pytest.raises(ReadTimeout, match=r"did not return entry \d+:0 within 2 s"):
            await reader.read(0, 0, bytes_max=10)

    virtual(main())


def test_there_is_no_such_entry_only_where_every_copy_is_certain() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        reader, links = await written(cluster)
        for disk in cluster.disks.values():
            del disk.ledger(reader.ledger_id).entries[7]
        with pytest.raises(NoSuchEntry):
            await reader.read(7, 7, bytes_max=10)
        cluster.disks["b1"].limbo = True
        with pytest.raises(EntryUnknown):
            await reader.read(7, 7, bytes_max=10)
        cluster.disks["b1"].limbo = False
        links.links.pop(cluster.disks["b1"].identity)
        with pytest.raises(BookieUnavailable):
            await reader.read(7, 7, bytes_max=10)
        assert len(await reader.read(0, 39, bytes_max=1 << 20)) == 7

    virtual(main())


def test_a_reader_finds_copies_that_autorecovery_has_moved() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        reader, links = await written(cluster)
        record = await cluster.record(reader.ledger_id)
        old = record.ensembles[0].bookies
        spare = next(disk for disk in cluster.disks.values() if disk.identity not in old)
        for entry_id, data in enumerate(ENTRIES):
            spare.add_now(reader.ledger_id, entry_id, [data], -1, recovery=True)
        ensemble = type(record.ensembles[0])(0, (spare.identity, old[1]))
        moved = record.with_ensembles((ensemble,))
        await MemoryStore.put(cluster.store, ledger_key(reader.ledger_id), encode(moved))
        for identity in old:
            links.links.pop(identity)
        assert await all_of(reader) == ENTRIES

    virtual(main())


def test_reads_at_the_same_time_all_find_copies_that_have_moved() -> None:
    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        reader, links = await written(cluster)
        record = await cluster.record(reader.ledger_id)
        old = record.ensembles[0].bookies
        new = [disk for disk in cluster.disks.values() if disk.identity not in old]
        for disk in new:
            for entry_id, data in enumerate(ENTRIES):
                disk.add_now(reader.ledger_id, entry_id, [data], -1, recovery=True)
        ensemble = type(record.ensembles[0])(0, tuple(disk.identity for disk in new))
        moved = record.with_ensembles((ensemble,))
        await MemoryStore.put(cluster.store, ledger_key(reader.ledger_id), encode(moved))
        for identity in old:
            links.links.pop(identity)
        reads = [reader.read(id_, id_, bytes_max=1) for id_ in range(len(ENTRIES))]
        found = await asyncio.gather(*reads)
        assert [one.data for entries in found for one in entries] == ENTRIES

    virtual(main())
