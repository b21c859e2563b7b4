"""Creating ledgers: bounds of a transaction, conflicts, callers that fail or leave."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.stage import Stage

from magnetar.core.errors import MetadataError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.creation import CREATE_ATTEMPTS_MAX, GROUP_BYTES_MAX
from magnetar.ledger.metadata import LEDGER_ID_KEY
from magnetar.ledger.settings import LedgerSettings, Quorums
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import (
    ABSENT,
    TRANSACTION_OPS_MAX,
    MetadataUnavailable,
    Operation,
    Put,
)

SETTINGS = LedgerSettings(metadata_timeout_s=5.0)


def watched(store: MemoryStore) -> list[list[Operation]]:
    """The transactions from now on."""
    transact, seen = store.transact, list[list[Operation]]()

    async def noted(operations: Sequence[Operation]) -> int:
        seen.append(list(operations))
        return await transact(operations)

    store.transact = noted  # type: ignore[method-assign]
    return seen


def size_of(operations: Sequence[Operation]) -> int:
    return sum(len(one.value) for one in operations if isinstance(one, Put))


async def test_a_transaction_is_as_large_as_the_store_takes_and_no_larger() -> None:
    stage = Stage()
    seen = watched(stage.store)
    client = stage.client()

    def with_ledger(number: int) -> list[Operation]:
        return [Put(f"/{number}/{part}", b"", ABSENT) for part in range(4)]

    writers = await asyncio.gather(*(client.create({}, with_ledger=with_ledger) for _ in range(80)))
    assert sorted(writer.ledger_id for writer in writers) == list(range(1, 81))
    assert all(len(operations) <= TRANSACTION_OPS_MAX for operations in seen)
    assert max(map(len, seen)) > TRANSACTION_OPS_MAX - 5
    assert [one.value for one in seen[-1] if one.key == LEDGER_ID_KEY] == [b"80"]  # type: ignore[union-attr]


async def test_a_transaction_stays_below_the_stores_bound_of_bytes() -> None:
    stage = Stage()
    seen = watched(stage.store)
    client = stage.client()
    large = {"k": "x" * (GROUP_BYTES_MAX // 5)}
    await asyncio.gather(*(client.create(large) for _ in range(12)))
    assert [len(operations) - 1 for operations in seen] == [4, 4, 4]
    assert all(size_of(operations) <= GROUP_BYTES_MAX + 100 for operations in seen)
    seen.clear()
    # One that is larger by itself is not held back: the store decides.
    await client.create({"k": "x" * GROUP_BYTES_MAX})
    assert len(seen) == 1


async def test_owners_of_the_same_key_are_not_put_into_one_transaction() -> None:
    stage = Stage()
    seen = watched(stage.store)
    client = stage.client()

    def with_ledger(ledger_id: int) -> list[Operation]:
        return [Put("/shared", b"%d" % ledger_id)]

    first, second = await asyncio.gather(
        *(client.create({}, with_ledger=with_ledger) for _ in range(2))
    )
    assert len(seen) == 2
    record = await stage.store.get("/shared")
    assert record is not None
    assert int(record.value) == max(first.ledger_id, second.ledger_id)
    assert {first.revision, second.revision} == {record.revision, record.revision - 1}


async def test_an_operation_that_all_share_is_written_once() -> None:
    stage = Stage()
    seen = watched(stage.store)
    client = stage.client()
    await asyncio.gather(
        *(client.create({}, with_ledger=lambda _: [Put("/same", b"same")]) for _ in range(5))
    )
    (operations,) = seen
    assert [one.key for one in operations].count("/same") == 1


async def test_a_caller_that_raises_leaves_no_gap_and_harms_no_other() -> None:
    stage = Stage()
    client = stage.client()

    def raising(_ledger_id: int) -> list[Operation]:
        raise MetadataError("its owner has changed its mind")

    first, failed, second = await asyncio.gather(
        client.create({}),
        client.create({}, with_ledger=raising),
        client.create({}),
        return_exceptions=True,
    )
    assert isinstance(first, LedgerWriter)
    assert isinstance(second, LedgerWriter)
    assert (first.ledger_id, second.ledger_id) == (1, 2)
    assert isinstance(failed, MetadataError)
    with pytest.raises(MetadataError, match="its mind"):
        await client.create({}, with_ledger=raising)
    assert (await client.create({})).ledger_id == 3


def test_the_counter_that_others_move_all_the_time_is_given_up_in_the_end() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()
        transact, attempts, conflicts = cluster.store.transact, 0, CREATE_ATTEMPTS_MAX - 1

        async def contended(operations: Sequence[Operation]) -> int:
            nonlocal attempts
            attempts += 1
            if attempts <= conflicts:
                current = await MemoryStore.get(cluster.store, LEDGER_ID_KEY)
                moved = int(current.value) + 10 if current else 10
                await MemoryStore.put(cluster.store, LEDGER_ID_KEY, b"%d" % moved)
            return await transact(operations)

        cluster.store.transact = contended  # type: ignore[method-assign]
        writer = await client.create({})
        assert writer.ledger_id == 10 * conflicts + 1
        assert attempts == CREATE_ATTEMPTS_MAX
        attempts, conflicts = 0, 1000
        with pytest.raises(MetadataError, match=f"changed {CREATE_ATTEMPTS_MAX} times in a row"):
            await client.create({})
        assert attempts == CREATE_ATTEMPTS_MAX

    virtual(main())


def test_a_creation_that_the_store_never_answers_ends_in_the_named_time() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()
        await client.create({})
        cluster.store.trouble, cluster.store.outcome = 1.0, 0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(MetadataUnavailable):
            await client.create({})
        assert SETTINGS.metadata_timeout_s <= loop.time() - begun <= 4 * SETTINGS.metadata_timeout_s

    virtual(main())


def test_a_creation_of_which_the_answer_was_lost_is_returned_with_its_own_revision() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()
        lost = 2
        transact = cluster.store.transact

        async def answers_are_lost(operations: Sequence[Operation]) -> int:
            nonlocal lost
            revision = await transact(operations)
            if lost:
                lost -= 1
                await MemoryStore.put(cluster.store, "/other", b"")
                raise MetadataUnavailable("no answer")
            return revision

        cluster.store.transact = answers_are_lost  # type: ignore[method-assign]
        seen: list[int] = []

        def with_ledger(ledger_id: int) -> list[Operation]:
            seen.append(ledger_id)
            return [Put("/mine", b"%d" % ledger_id, ABSENT)]

        writer = await client.create({}, with_ledger=with_ledger)
        mine = await MemoryStore.get(cluster.store, "/mine")
        assert mine is not None
        assert (int(mine.value), mine.revision) == (writer.ledger_id, writer.revision)
        assert seen == [writer.ledger_id]
        assert len(await MemoryStore.list(cluster.store, "/ledgers/")) == 1
        assert (await client.create({})).ledger_id == writer.ledger_id + 1

    virtual(main())


def test_a_creation_that_lands_beside_its_repetition_is_the_one_ledger() -> None:
    """The first transaction reaches the store just before the second, which the counter refuses."""

    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()
        transact, on_its_way = cluster.store.transact, list[list[Operation]]()

        async def late(operations: Sequence[Operation]) -> int:
            if not on_its_way:
                on_its_way.append(list(operations))
                raise MetadataUnavailable("no answer")
            if on_its_way[0]:
                await transact(on_its_way[0])
                on_its_way[0] = []
            return await transact(operations)

        cluster.store.transact = late  # type: ignore[method-assign]
        writer = await client.create({}, with_ledger=lambda a: [Put("/mine", b"%d" % a, ABSENT)])
        mine = await MemoryStore.get(cluster.store, "/mine")
        assert mine is not None
        assert (int(mine.value), mine.revision) == (writer.ledger_id, writer.revision)
        assert len(await MemoryStore.list(cluster.store, "/ledgers/")) == 1

    virtual(main())


def test_many_creations_continue_while_other_processes_take_ids() -> None:
    """Several transactions in a row, and another process's ledger after each of them."""

    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, other = cluster.client()[0], cluster.client()[0]
        transact = cluster.store.transact

        async def contended(operations: Sequence[Operation]) -> int:
            revision = await transact(operations)
            current = await MemoryStore.get(cluster.store, LEDGER_ID_KEY)
            assert current is not None
            await MemoryStore.put(cluster.store, LEDGER_ID_KEY, b"%d" % (int(current.value) + 1))
            return revision

        cluster.store.transact = contended  # type: ignore[method-assign]
        count = 2 * TRANSACTION_OPS_MAX
        writers = await asyncio.gather(*(client.create({}) for _ in range(count)))
        ids = {writer.ledger_id for writer in writers}
        assert len(ids) == count
        assert (await other.create({})).ledger_id > max(ids)

    virtual(main())


def test_a_caller_that_left_is_in_nobodys_way() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()
        transact, entered = cluster.store.transact, asyncio.Event()

        async def slowly(operations: Sequence[Operation]) -> int:
            entered.set()
            await asyncio.sleep(1)
            return await transact(operations)

        cluster.store.transact = slowly  # type: ignore[method-assign]
        first = asyncio.ensure_future(client.create({}))
        await entered.wait()
        waiting = [asyncio.ensure_future(client.create({})) for _ in range(3)]
        await asyncio.sleep(0.1)
        first.cancel()
        waiting[1].cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        ids = [one.ledger_id for one in (done[0], done[2]) if isinstance(one, LedgerWriter)]
        assert len(ids) == 2
        assert (await client.create({})).ledger_id == max(ids) + 1

    virtual(main())


def test_a_process_that_stops_fails_what_waits_and_what_comes() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()

        async def never(_: Sequence[Operation]) -> int:
            await asyncio.sleep(1e6)
            raise AssertionError

        cluster.store.transact = never  # type: ignore[assignment,method-assign]
        first = asyncio.ensure_future(client.create({}))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(client.create({}))
        await asyncio.sleep(0.1)
        await client.close()
        for one in (first, second):
            with pytest.raises(MetadataUnavailable, match="not known: the process is stopping"):
                await one
        for _ in range(2):
            with pytest.raises(MetadataUnavailable, match="the process is stopping"):
                await client.create({})

    virtual(main())


async def test_a_ledger_has_the_spread_that_its_creator_asks_for() -> None:
    cluster = Cluster(5, LedgerSettings(3, 2, 2, stripe_entries=7))
    client, _ = cluster.client()
    usual = (await client.create({"a": "b"})).metadata
    special = (await client.create({}, quorums=Quorums(5, 4, 3))).metadata
    spread = [
        (one.ensemble_size, one.write_quorum, one.ack_quorum, len(one.ensembles[0].bookies))
        for one in (usual, special)
    ]
    assert spread == [(3, 2, 2, 3), (5, 4, 3, 5)]
    assert usual.properties == {"a": "b"}
    assert (usual.stripe_entries, usual.ensembles[0].first_entry) == (7, 0)
    assert usual.nonce != special.nonce
    assert isinstance(client, LedgerClient)
    await client.close()
