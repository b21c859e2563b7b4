"""Recovery's reads of entries that may be confirmed: the answers that count, and the waits."""

import asyncio
from typing import Any

import pytest
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import write
from tests.unit.ledger.test_recovery import quorum, reach_only, store_on

from magnetar.bookie.api import (
    BookieError,
    BookieUnavailable,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    StoredEntry,
)
from magnetar.ledger.bookies import blames_bookie
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.metadata import LedgerState


@pytest.mark.parametrize("ids", [(), (0,), (2,), (2, 1)])
def test_a_bookie_that_answers_for_other_entries_is_not_certain_of_anything(
    ids: tuple[int, ...],
) -> None:
    """Taken for "no such entry", such answers would cut confirmed entries off."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, links = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        links.links[writer.bookies[2]].hold()
        await write(writer, b"b")  # confirmed by the two others
        client, reach = cluster.client()

        async def others(*_: Any, **__: Any) -> list[StoredEntry]:
            return [StoredEntry(entry_id, b"?") for entry_id in ids]

        for identity in writer.bookies[:2]:
            reach.links[identity].read_entries = others  # type: ignore[method-assign]
        with pytest.raises(RecoveryFailed):
            await client.open(writer.ledger_id, recover=True)
        assert (await cluster.record(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        assert {identity for identity, _ in reach.failures} >= set(writer.bookies[:2])
        reader = await cluster.client()[0].open(writer.ledger_id, recover=True)
        assert reader.last_entry == 1

    virtual(main())


def test_a_silent_bookie_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.ledger.recovery.READ_BYTES", 1)  # an entry at a time

    async def main() -> None:
        cluster = Cluster(4, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        for entry_id in range(60):
            store_on(cluster, writer, [0, 1], entry_id, b"x")
        client, links = cluster.client()
        reach_only(links, writer, 0, 1)
        begun = asyncio.get_running_loop().time()
        reader = await client.open(writer.ledger_id, recover=True)
        assert (reader.last_entry, reader.length_bytes) == (59, 60)
        assert asyncio.get_running_loop().time() - begun < 2.5

    virtual(main())


@pytest.mark.parametrize(
    ("errors", "ended"),
    [
        ((NoSuchEntry("1"), NoSuchEntry("2"), None), True),
        ((NoSuchEntry("1"), NoSuchEntry("2"), BookieUnavailable("3")), True),
        ((NoSuchEntry("1"), BookieUnavailable("2"), BookieUnavailable("3")), False),
        ((NoSuchEntry("1"), EntryUnknown("2"), EntryUnknown("3")), False),
        ((EntryUnknown("1"), EntryUnknown("2"), EntryUnknown("3")), False),
    ],
)
def test_a_ledger_ends_where_enough_are_certain(
    errors: tuple[BookieError | None, ...], ended: bool
) -> None:
    """Of three copies two acks confirm: two that are certain leave no ack quorum."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        client, links = cluster.client()
        for identity, error in zip(writer.bookies, errors, strict=True):

            async def fails(*_: Any, error: BookieError | None = error, **__: Any) -> Any:
                if error is None:
                    await asyncio.sleep(1e6)
                    raise AssertionError
                raise error

            links.links[identity].read_entries = fails  # type: ignore[method-assign]
        if ended:
            assert (await client.open(writer.ledger_id, recover=True)).last_entry == -1
        else:
            with pytest.raises(RecoveryFailed, match="an entry 0 cannot be known"):
                await client.open(writer.ledger_id, recover=True)

    virtual(main())


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ((EntryCorrupt("CRC", "log", 7), EntryUnknown("?")), True),
        ((EntryUnknown("?"), EntryCorrupt("CRC", "log", 7)), True),
        ((EntryCorrupt("CRC", "log", 7), BookieUnavailable("gone")), False),  # it may have it
    ],
)
def test_an_entry_that_is_harmed_wherever_it_is_stays_part_of_the_ledger(
    others: tuple[BookieError, BookieError], kept: bool
) -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        client, links = cluster.client()
        harmed = (EntryCorrupt("CRC", "log", 1), *others)
        for identity, error in zip(writer.bookies, harmed, strict=True):
            read = links.links[identity].read_entries

            async def fails(
                ledger_id: int,
                first: int,
                last: int,
                *,
                error: BookieError = error,
                read: Any = read,
                **more: Any,
            ) -> Any:
                if first == 0:
                    raise error
                return await read(ledger_id, first, last, **more)

            links.links[identity].read_entries = fails  # type: ignore[method-assign]
        if kept:
            reader = await client.open(writer.ledger_id, recover=True)
            assert (reader.last_entry, reader.length_bytes) == (0, 0)
        else:
            with pytest.raises(RecoveryFailed):
                await client.open(writer.ledger_id, recover=True)

    virtual(main())


def test_the_bookie_that_has_most_is_copied_from() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        for entry_id in range(3):
            store_on(cluster, writer, [1], entry_id, b"x")
        store_on(cluster, writer, [0, 2], 0, b"x")
        client, links = cluster.client()
        asked: dict[str, list[int]] = {}
        for one in links.links.values():
            add = one.add_entries

            def noted(ledger_id, ids, entries, *, name=one.identity.bookie_id, add=add, **more):
                asked.setdefault(name, []).extend(ids)
                assert more["recovery"]
                add(ledger_id, ids, entries, **more)

            one.add_entries = noted  # type: ignore[assignment,method-assign]
        reader = await client.open(writer.ledger_id, recover=True)
        assert (reader.last_entry, reader.length_bytes) == (2, 3)
        first, second, third = (one.bookie_id for one in writer.bookies)
        assert second not in asked  # it has them
        assert asked == {first: [0, 1, 2], third: [0, 1, 2]}
        for entry_id in range(3):
            assert cluster.has(writer.ledger_id, entry_id) == {first, second, third}

    virtual(main())


def test_a_bookie_that_answers_and_is_not_fenced_does_not_count_as_fenced() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 1))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        await asyncio.sleep(0.1)
        client, links = cluster.client()
        link = links.links[writer.bookies[0]]
        end = link.ledger_end

        async def not_fenced(ledger_id: int, *, fence: bool = False) -> Any:
            assert fence
            return await end(ledger_id, fence=False)

        link.ledger_end = not_fenced  # type: ignore[method-assign]
        with pytest.raises(RecoveryFailed, match="too few of its bookies can be fenced"):
            await client.open(writer.ledger_id, recover=True)

    virtual(main())


def test_a_ledger_whose_bookies_are_not_here_keeps_its_writer() -> None:
    """The record stays OPEN: the writer may be well, and only this process cut off."""

    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        await write(writer, b"a")
        client, links = cluster.client()
        for identity in writer.bookies[:2]:
            del links.links[identity]
        with pytest.raises(RecoveryFailed, match="is not here"):
            await client.open(writer.ledger_id, recover=True)
        assert (await cluster.record(writer.ledger_id)).state is LedgerState.OPEN
        assert await write(writer, b"b") == 1
        await asyncio.sleep(0.1)
        links.links[writer.bookies[0]] = cluster.sets[0].links[writer.bookies[0]]
        assert (await client.open(writer.ledger_id, recover=True)).last_entry == 1

    virtual(main())


def test_a_recovery_ends_in_the_named_time() -> None:
    async def main() -> None:
        settings = quorum(1, 1, 1, recovery_timeout_s=5.0, recovery_request_timeout_s=1000.0)
        cluster = Cluster(1, settings)
        writer, _ = await cluster.writer()
        client, links = cluster.client()
        reach_only(links, writer)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(RecoveryFailed, match="could not be ended within 5 s"):
            await client.open(writer.ledger_id, recover=True)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(5.0, abs=0.1)

    virtual(main())


def test_a_request_of_a_recovery_ends_in_the_named_time_and_its_bookie_is_blamed() -> None:
    async def main() -> None:
        cluster = Cluster(2, quorum(2, 2, 2, recovery_request_timeout_s=2.0))
        writer, _ = await cluster.writer()
        client, links = cluster.client()
        reach_only(links, writer)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(RecoveryFailed, match="did not answer within 2 s"):
            await client.open(writer.ledger_id, recover=True)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(2.0, abs=0.1)
        assert {identity for identity, _ in links.failures} == set(writer.bookies)

    virtual(main())


def test_entries_that_no_bookie_can_store_are_not_confirmed() -> None:
    async def main() -> None:
        cluster = Cluster(3, quorum(3, 3, 2))
        writer, _ = await cluster.writer()
        store_on(cluster, writer, [0], 0, b"x")
        client, _ = cluster.client()
        others = [cluster.disks[one.bookie_id] for one in writer.bookies[1:]]
        for disk in others:
            disk.read_only = True
            disk.limbo = True  # not certain: the entry has to be looked at
        with pytest.raises(RecoveryFailed, match="1 of 2 bookies can store it"):
            await client.open(writer.ledger_id, recover=True)
        others[0].read_only = others[0].limbo = False
        reader = await client.open(writer.ledger_id, recover=True)
        assert reader.last_entry == 0
        members = {one.bookie_id for one in reader.metadata.ensembles[-1].bookies}
        assert members == {writer.bookies[0].bookie_id, others[0].identity.bookie_id}

    virtual(main())


@pytest.mark.parametrize(
    ("error", "blames"),
    [
        (BookieUnavailable("gone"), True),
        (BookieError("?"), True),
        (NoSuchEntry("?"), False),
        (EntryUnknown("?"), False),
        (EntryCorrupt("CRC", "log", 7), False),
    ],
)
def test_a_bookie_is_blamed_for_what_is_of_itself(error: BookieError, blames: bool) -> None:
    assert blames_bookie(error) is blames
