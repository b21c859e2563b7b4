"""Ledgers over one bookie: order, fencing, recovery, closing by compare-and-swap."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.unit.ledger.stage import Stage, turns, write

from magnetar.bookie.api import (
    BookieError,
    EntryCorrupt,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    StoredEntry,
)
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerClosed, NotEnoughBookies
from magnetar.ledger.metadata import LEDGER_ID_KEY, LedgerState, decode, ledger_key
from magnetar.ledger.settings import SINGLE
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.store import ABSENT, BadRevision, Operation, Put


async def state_of(stage: Stage, ledger_id: int) -> LedgerState:
    record = await stage.store.get(ledger_key(ledger_id))
    assert record is not None
    return decode(record.key, record.value).state


async def test_ids_only_grow_even_after_deletion() -> None:
    stage = Stage()
    first = await stage.client().create({})
    await stage.client().delete(first.ledger_id)
    second = await stage.client().create({})
    assert second.ledger_id > first.ledger_id


async def test_a_counter_that_went_back_is_refused() -> None:
    stage = Stage()
    await stage.client().create({})
    await stage.store.put(LEDGER_ID_KEY, b"0")
    with pytest.raises(MetadataError, match="ledger 1 exists"):
        await stage.client().create({})


async def test_concurrent_creators_get_different_ids() -> None:
    stage = Stage()
    clients = [stage.client() for _ in range(4)]
    writers = await asyncio.gather(*(client.create({}) for client in clients for _ in range(5)))
    assert len({writer.ledger_id for writer in writers}) == 20


async def test_groups_complete_in_order_with_contiguous_ids() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    seen: list[tuple[int, MagnetarError | None]] = []
    for group in ([b"a"], [b"b", b"c"], [b"d"]):
        writer.append(group, lambda first, error: seen.append((first, error)))
    assert seen == []
    await turns()
    assert seen == [(0, None), (1, None), (3, None)]
    assert writer.last_add_confirmed == 3
    assert writer.length_bytes == 4


async def test_what_was_closed_is_read_back() -> None:
    stage = Stage()
    writer = await stage.client().create({"k": "v"})
    await write(writer, b"one", b"two")
    stage.clock.advance(5)
    closed = await writer.close()
    assert (closed.last_entry, closed.length_bytes) == (1, 6)
    assert closed.closed_ms == closed.created_ms + 5
    reader = await stage.client().open(writer.ledger_id, recover=False)
    assert reader.closed
    assert reader.metadata.properties == {"k": "v"}
    entries = await reader.read(0, 99, bytes_max=100)
    assert [(entry.entry_id, entry.data) for entry in entries] == [(0, b"one"), (1, b"two")]
    with pytest.raises(NoSuchEntry):
        await reader.read(2, 2, bytes_max=100)
    with pytest.raises(LedgerClosed):
        await write(writer, b"late")


async def test_closing_waits_for_what_is_on_its_way() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    stage.bookie.hold = True
    writer.append([b"x"], lambda _first, _error: None)
    closing = asyncio.ensure_future(writer.close())
    await turns()
    assert not closing.done()
    stage.bookie.release()
    assert (await closing).last_entry == 0
    assert await writer.close() is writer.metadata


async def test_an_open_ledger_is_read_up_to_what_is_confirmed() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    for data in (b"a", b"b", b"c"):
        await write(writer, data)
    reader = await stage.client().open(writer.ledger_id, recover=False)
    assert not reader.closed
    assert reader.last_entry == 1  # the bookie learns of an add's confirmation with the next
    assert await write(writer, b"d") == 3


async def test_after_one_failure_everything_fails_and_the_ledger_ends_before_it() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"kept")
    stage.bookie.refuse = lambda _ledger, ids: 1 in ids
    seen: list[tuple[int, MagnetarError | None]] = []
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
    for data in (b"refused", b"stored all the same"):
        writer.append([data], lambda first, error: seen.append((first, error)))
    await turns()
    assert unhandled == []
    assert [first for first, _ in seen] == [-1, -1]
    assert all(isinstance(error, BookieError) for _, error in seen)
    with pytest.raises(BookieError, match="refused"):
        await write(writer, b"later")
    assert (await writer.close()).last_entry == 0


async def test_recovery_keeps_what_was_stored_and_fences_the_writer() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a", b"b")
    reader = await stage.client().open(writer.ledger_id, recover=True)
    assert (reader.last_entry, reader.length_bytes, reader.closed) == (1, 2, True)
    with pytest.raises(LedgerFenced):
        await write(writer, b"too late")


async def test_recovery_keeps_nothing_behind_a_gap() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    await write(writer, b"bb")
    stage.bookie.refuse = lambda _ledger, ids: 2 in ids
    for data in (b"ccc", b"dddd"):
        writer.append([data], lambda _first, _error: None)
    await turns()
    assert (await stage.bookie.ledger_end(writer.ledger_id)).last_entry == 3
    reader = await stage.client().open(writer.ledger_id, recover=True)
    assert (reader.last_entry, reader.length_bytes) == (1, 3)


async def test_recovery_keeps_a_damaged_entry_and_readers_get_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    writer = await stage.client().create({})
    for data in (b"a", b"b", b"c"):
        await write(writer, data)
    read = stage.bookie.read_entries

    async def harmed(
        ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        if first == 2:
            raise EntryCorrupt("CRC", "log", 7)
        return await read(ledger_id, first, last, bytes_max=bytes_max, fence=fence)

    monkeypatch.setattr(stage.bookie, "read_entries", harmed)
    reader = await stage.client().open(writer.ledger_id, recover=True)
    assert reader.last_entry == 2
    with pytest.raises(EntryCorrupt):
        await reader.read(2, 2, bytes_max=10)


async def test_recovery_of_an_empty_ledger_refuses_its_first_add() -> None:
    """apache/pulsar#26074: an empty head ledger was closed behind its owner's back."""
    stage = Stage()
    writer = await stage.client().create({})
    assert (await stage.client().open(writer.ledger_id, recover=True)).last_entry == -1
    with pytest.raises(LedgerFenced):
        await write(writer, b"would be lost")


async def test_the_owner_cannot_close_what_another_is_recovering() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    stage.bookie.hold = True
    writer.append([b"stored, not confirmed"], lambda _first, _error: None)
    await turns()
    recovered = await stage.client().open(writer.ledger_id, recover=True)
    writer.fail(BookieError("the writer gives up"))
    with pytest.raises(LedgerFenced):
        await writer.close()
    assert recovered.last_entry == 0


async def test_a_recovery_that_finds_the_same_end_does_not_disturb_closing() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    await stage.client().open(writer.ledger_id, recover=True)
    assert (await writer.close()).last_entry == 0


async def test_concurrent_recoverers_agree() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a", b"b", b"c")
    readers = await asyncio.gather(
        *(stage.client().open(writer.ledger_id, recover=True) for _ in range(8))
    )
    assert {(reader.last_entry, reader.length_bytes) for reader in readers} == {(2, 3)}
    assert await state_of(stage, writer.ledger_id) is LedgerState.CLOSED


async def test_deletion_is_idempotent() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    for _ in range(2):
        await stage.client().delete(writer.ledger_id)
    assert await stage.bookie.list_ledgers() == []
    with pytest.raises(NoSuchLedger):
        await stage.client().open(writer.ledger_id, recover=True)


async def test_the_callers_record_is_written_with_the_ledger_or_neither() -> None:
    stage = Stage()
    client = stage.client()
    writer = await client.create(
        {}, with_ledger=lambda ledger_id: [Put("/mine", str(ledger_id).encode(), ABSENT)]
    )
    mine = await stage.store.get("/mine")
    assert mine is not None
    assert mine.value == str(writer.ledger_id).encode()
    assert mine.revision == writer.revision
    with pytest.raises(BadRevision, match="/mine"):
        await client.create({}, with_ledger=lambda _: [Put("/mine", b"", ABSENT)])
    assert len(await stage.store.list("/ledgers/")) == 1


async def test_a_disk_in_another_life_is_a_stranger() -> None:
    stage = Stage()
    writer = await stage.client().create({})
    await write(writer, b"a")
    wiped = MemoryBookie(incarnation="1")
    client = LedgerClient(stage.store, LocalBookies([wiped]), stage.clock, SINGLE)
    with pytest.raises(BookieError, match="incarnation"):
        await client.open(writer.ledger_id, recover=True)
    assert await state_of(stage, writer.ledger_id) is LedgerState.OPEN


async def test_no_ledger_without_a_writable_bookie() -> None:
    stage = Stage()
    stage.bookie.read_only = True
    with pytest.raises(NotEnoughBookies, match="memory \\(read-only\\)"):
        await stage.client().create({})
    assert await stage.store.get(LEDGER_ID_KEY) is None


async def test_broken_records_are_named() -> None:
    stage = Stage()
    await stage.store.put(LEDGER_ID_KEY, b"x7")
    with pytest.raises(MetadataError, match=LEDGER_ID_KEY):
        await stage.client().create({})
    await stage.store.put(ledger_key(3), b"{}")
    with pytest.raises(MetadataError, match=ledger_key(3)):
        await stage.client().open(3, recover=False)


async def test_ledgers_that_are_wanted_at_once_share_transactions() -> None:
    stage = Stage()
    transact, count = stage.store.transact, 0

    async def counted(operations: Sequence[Operation]) -> int:
        nonlocal count
        count += 1
        return await transact(operations)

    stage.store.transact = counted  # type: ignore[method-assign]
    client = stage.client()
    await stage.store.put("/taken", b"")

    def with_ledger(key: str) -> Callable[[int], list[Operation]]:
        return lambda ledger_id: [Put(key, str(ledger_id).encode(), ABSENT)]

    keys = [f"/owner/{n}" for n in range(200)]
    keys[100] = "/taken"
    made = await asyncio.gather(
        *(client.create({}, with_ledger=with_ledger(key)) for key in keys), return_exceptions=True
    )
    refused = made.pop(100)
    assert isinstance(refused, BadRevision)
    assert refused.key == "/taken"
    del keys[100]
    for key, writer in zip(keys, made, strict=True):
        assert isinstance(writer, LedgerWriter)
        record = await stage.store.get(key)
        assert record is not None
        assert (int(record.value), record.revision) == (writer.ledger_id, writer.revision)
        assert await state_of(stage, writer.ledger_id) is LedgerState.OPEN
    assert count < 10
