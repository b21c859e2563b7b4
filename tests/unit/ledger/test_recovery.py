"""Ending ledgers over several bookies: what may be concluded from which answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.ledger.cluster import Cluster, Links, virtual
from tests.unit.ledger.stage import write

from magnetar.bookie.api import BookieError, BookieIdentity, LedgerFenced
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.quorum import write_set
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter


def quorum(ensemble: int, write: int, ack: int, **changes: Any) -> LedgerSettings:
    fields = {
        "stripe_entries": 2,
        "add_timeout_s": 1000.0,
        "recovery_request_timeout_s": 1.0,
        "recovery_timeout_s": 30.0,
    } | changes
    return LedgerSettings(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, **fields)


def store_on(
    cluster: Cluster, writer: LedgerWriter, slots: Sequence[int], entry_id: int, data: bytes
) -> None:
    """An entry that reached only some bookies before its writer died."""
    for slot in slots:
        disk = cluster.disks[writer.bookies[slot].bookie_id]
        assert disk.add_now(writer.ledger_id, entry_id, [data], -1, recovery=False) is None


def reach_only(links: Links, writer: LedgerWriter, *slots: int) -> None:
    for slot, identity in enumerate(writer.bookies):
        if slot not in slots:
            links.links[identity].hold()


def test_an_entry_on_one_bookie_is_stored_on_all_before_it_counts() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        store_on(cluster, writer, [1], 1, b"b")
        reader = await cluster.client()[0].open(writer.ledger_id, recover=True)
        if reader.last_entry == 1:
            assert cluster.has(writer.ledger_id, 1) == {"b0", "b1", "b2"}
        else:
            assert reader.last_entry == 0  # two were certain before the third had answered
        with pytest.raises(LedgerFenced):
            await write(writer, b"late")

    virtual(main())


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_one_bookie_less_than_the_ack_quorum_may_be_dead(dead: int) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 2, 2))
        writer, _ = await cluster.writer()
        for number in range(11):
            await write(writer, b"%d" % number)
        client, links = cluster.client()
        reach_only(links, writer, *({0, 1, 2} - {dead}))
        reader = await client.open(writer.ledger_id, recover=True)
        assert (reader.last_entry, reader.length_bytes) == (10, 12)
        for entry_id in range(11):
            (entry, *_) = await reader.read(entry_id, entry_id, bytes_max=1)
            assert entry.data == b"%d" % entry_id

    virtual(main())


def test_with_too_few_bookies_the_ledger_stays_in_recovery_and_says_why() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 2, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        client, links = cluster.client()
        reach_only(links, writer, 1)
        with pytest.raises(RecoveryFailed, match="too few of its bookies can be fenced") as caught:
            await client.open(writer.ledger_id, recover=True)
        assert writer.bookies[0].bookie_id in str(caught.value)
        assert caught.value.http_status == 503
        assert (await cluster.record(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        cluster.heal()
        assert (await client.open(writer.ledger_id, recover=True)).last_entry == 0

    virtual(main())


def test_an_empty_disk_under_an_old_name_is_not_believed() -> None:
    """apache/bookkeeper#4812, #2612: bookies that were replaced under their names."""

    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        cluster.wipe("b0")
        assert (await cluster.client()[0].open(writer.ledger_id, recover=True)).last_entry == 0
        second, _ = await cluster.writer()
        await write(second, b"b")
        cluster.wipe("b0")
        cluster.wipe("b1")
        with pytest.raises(RecoveryFailed, match="incarnation"):
            await cluster.client()[0].open(second.ledger_id, recover=True)
        assert (await cluster.record(second.ledger_id)).state is LedgerState.OPEN

    virtual(main())


def test_a_bookie_that_lost_state_does_not_count_as_certain() -> None:
    """pravega#6221: it said "no such entry", and confirmed entries were cut off."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        links.links[writer.bookies[2]].hold()
        await write(writer, b"b")  # confirmed by the two others
        forgetful, holder = writer.bookies[0].bookie_id, writer.bookies[1]
        cluster.disks[forgetful].damage(lambda entry_id: entry_id < 1)
        client, reach = cluster.client()
        reach.links[holder].hold()
        with pytest.raises(RecoveryFailed, match="entry 1 cannot be known"):
            await client.open(writer.ledger_id, recover=True)
        reach.links[holder].release()
        assert (await client.open(writer.ledger_id, recover=True)).last_entry == 1

    virtual(main())


def test_recovery_reads_fence() -> None:
    """apache/bookkeeper#2614: a bookie that no fence had reached said that it had no such entry."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        first, second, third = writer.bookies
        links.links[second].hold()
        links.links[third].hold()
        confirming = asyncio.ensure_future(write(writer, b"b"))
        await asyncio.sleep(0.1)
        assert cluster.has(writer.ledger_id, 1) == {first.bookie_id}
        client, reach = cluster.client()

        async def fence_lost(*_: Any, **__: Any) -> Any:
            raise BookieError("the fence was lost")

        async def silent(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(100)

        reach.links[third].ledger_end = fence_lost  # type: ignore[method-assign]
        reach.links[first].read_entries = silent  # type: ignore[method-assign]
        reader = await client.open(writer.ledger_id, recover=True)
        assert reader.last_entry == 0
        links.links[third].release()  # with the first it would be an ack quorum
        with pytest.raises(LedgerFenced):
            await confirming

    virtual(main())


def test_bookies_that_fail_while_entries_are_stored_are_replaced_in_the_closing_record_only() -> (
    None
):
    async def main() -> None:
        cluster = Cluster(5, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        store_on(cluster, writer, [0, 1], 1, b"b")
        failing = writer.bookies[2]
        cluster.disks[failing.bookie_id].read_only = True
        reader = await cluster.client()[0].open(writer.ledger_id, recover=True)
        assert reader.last_entry == 1
        (ensemble,) = reader.metadata.ensembles  # no bookie knew that entry 0 was confirmed
        assert failing not in ensemble.bookies
        assert set(writer.bookies) - {failing} < set(ensemble.bookies)  # those that are well stay
        for entry_id in (0, 1):
            members = {one.bookie_id for one in ensemble.bookies}
            assert members <= cluster.has(writer.ledger_id, entry_id)

    virtual(main())


def test_a_recovery_that_is_interrupted_leaves_the_ensembles_alone() -> None:
    """Else the next one would ask bookies that have nothing yet, and cut the ledger short."""

    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        before = (await cluster.record(writer.ledger_id)).ensembles
        client, links = cluster.client()
        for link in links.links.values():
            link.refuse(1000)
        for disk in cluster.disks.values():
            disk.read_only = True
        store_failed = asyncio.ensure_future(client.open(writer.ledger_id, recover=True))
        await asyncio.wait([store_failed])
        record = await cluster.record(writer.ledger_id)
        assert record.ensembles == before
        cluster.heal()
        assert (await client.open(writer.ledger_id, recover=True)).last_entry == 0

    virtual(main())


def test_recovery_begins_with_the_last_ensemble() -> None:
    """apache/bookkeeper#2615: an empty last ensemble knows of nothing that is confirmed."""

    async def main() -> None:
        cluster = Cluster(4, quorum(2, 2, 2))
        writer, links = await cluster.writer()
        for number in range(5):
            await write(writer, b"%d" % number)
        old = list(writer.bookies)
        for identity in old:
            links.leave(identity)
        await asyncio.sleep(1)
        assert set(writer.bookies).isdisjoint(old)
        client, _ = cluster.client()
        reader = await client.open(writer.ledger_id, recover=True)
        assert reader.last_entry == 4
        for identity in writer.bookies:
            assert not cluster.disks[identity.bookie_id].ids(writer.ledger_id)

    virtual(main())


def test_any_number_of_recoverers_agree_with_each_other_and_the_closing_writer() -> None:
    async def main() -> None:
        cluster = Cluster(5, quorum(5, 3, 2))
        writer, _ = await cluster.writer()
        adding = []
        for number in range(30):
            adding.append(asyncio.ensure_future(write(writer, b"%d" % number, b"+")))
            if number % 10 == 9:
                await asyncio.sleep(0.002)
        clients = [cluster.client()[0] for _ in range(5)]

        async def recovered(client: LedgerClient) -> tuple[int, int]:
            reader = await client.open(writer.ledger_id, recover=True)
            return reader.last_entry, reader.length_bytes

        async def closed() -> tuple[int, int] | None:
            try:
                metadata = await writer.close()
            except LedgerFenced:
                return None
            return metadata.last_entry, metadata.length_bytes

        ends = await asyncio.gather(*map(recovered, clients), closed())
        found = {end for end in ends if end is not None}
        assert len(found) == 1
        ((last_entry, _),) = found
        for number, done in enumerate(adding):
            if done.done() and done.exception() is None:
                assert last_entry >= 2 * number + 1

    virtual(main())


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 2, 2), (3, 3, 2), (5, 3, 2), (2, 2, 1)])
def test_the_length_is_right_whatever_the_shape(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = Cluster(6, quorum(*shape, count_entries=7))
        writer, links = await cluster.writer()
        total = 0
        for number in range(25):
            data = b"x" * (number * 7 % 11 + 1)
            total += len(data)
            await write(writer, data)
            if number == 12:
                links.leave(writer.bookies[0])
        await asyncio.sleep(0.1)
        reader = await cluster.client()[0].open(writer.ledger_id, recover=True)
        assert (reader.last_entry, reader.length_bytes) == (24, total)
        for entry_id in range(25):
            copies = {one.bookie_id for one in write_set(reader.metadata, entry_id)}
            assert len(copies & cluster.has(writer.ledger_id, entry_id)) >= shape[2]

    virtual(main())


def test_an_open_ledger_is_read_up_to_what_any_bookie_knows_to_be_confirmed() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        for number in range(4):
            await write(writer, b"%d" % number)
            await asyncio.sleep(0.1)
        client, links = cluster.client()
        links.links[writer.bookies[0]].hold()
        reader = await client.open(writer.ledger_id, recover=False)
        assert (reader.last_entry, reader.closed) == (2, False)
        assert await write(writer, b"4") == 4
        fresh, _ = await cluster.writer()
        assert (await client.open(fresh.ledger_id, recover=False)).last_entry == -1

    virtual(main())


def test_a_deletion_does_not_wait_for_a_dead_bookie() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        client, links = cluster.client()
        links.links[BookieIdentity("b0", "0")].hold()
        cluster.wipe("b1")
        async with asyncio.timeout(2):
            await client.delete(writer.ledger_id)
            await client.delete(writer.ledger_id)
        assert cluster.has(writer.ledger_id, 0) == {"b0"}
        assert await cluster.store.list("/ledgers/") == []

    virtual(main())
