"""Verification: every way in which a file may contradict its index and its record."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from magnetar.core.ids import EARLIEST, Position
from magnetar.offload import verify as verify_module
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.file_format import EntryFile, EntryFileWriter, WrittenFile
from magnetar.offload.verify import verify_file
from magnetar.wire.checksum import crc32c

PATH = "file.parquet"
COUNT = 9


def written(
    store: MemoryStore,
    lie: Callable[[EntryFileWriter], None] = lambda _: None,
    places: list[tuple[int, int]] | None = None,
) -> WrittenFile:
    """Nine entries in three groups; `lie` changes what the index is to say of them."""
    writer = EntryFileWriter(obstore.open_writer(store, PATH), managed_ledger="x", group_bytes=6)
    for place in places or [(5, number) for number in range(COUNT)]:
        writer._last = EARLIEST
        writer.add(*place, b"xy")
    writer._last = Position(5, COUNT - 1)
    lie(writer)
    return writer.close()


async def test_what_is_found_is_what_was_written() -> None:
    store = MemoryStore()
    made = written(store)
    found = await verify_file(
        store, PATH, ledger_id=5, last_entry=8, length_bytes=18, checksum=made.checksum
    )
    assert (found.file_bytes, found.checksum) == (made.file_bytes, made.checksum)
    assert (found.entries, found.length_bytes) == (9, 18)
    assert (found.first, found.last) == (Position(5, 0), Position(5, 8))


async def test_nothing_blocks_but_the_given_executor() -> None:
    """The default one resolves names; a verification would keep it busy for minutes."""

    class Refusing(ThreadPoolExecutor):
        def submit(self, *_: object, **__: object) -> Any:
            raise AssertionError("the default executor is used")

    store = MemoryStore()
    made = written(store)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Refusing(1))
    with ThreadPoolExecutor(1) as executor:
        found = await verify_file(store, PATH, ledger_id=5, executor=executor)
    assert found.checksum == made.checksum


async def test_every_byte_counts_in_the_checksum_whatever_the_size_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    made = written(store)
    for piece in (1, 7, made.file_bytes, made.file_bytes + 1):
        monkeypatch.setattr(verify_module, "PIECE_BYTES", piece)
        found = await verify_file(store, PATH, checksum=made.checksum)
        assert (found.checksum, found.file_bytes) == (made.checksum, made.file_bytes)


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("name", ["ledger_id", "last_entry", "length_bytes", "checksum"])
async def test_one_more_or_less_than_expected_is_no_match(name: str, wrong: int) -> None:
    store = MemoryStore()
    made = written(store)
    right: dict[str, int] = {
        "ledger_id": 5,
        "last_entry": 8,
        "length_bytes": 18,
        "checksum": made.checksum,
    }
    await verify_file(store, PATH, **right)  # type: ignore[arg-type]
    with pytest.raises(ColdFileCorrupt):
        await verify_file(store, PATH, **(right | {name: right[name] + wrong}))  # type: ignore[arg-type]
    with pytest.raises(ColdFileCorrupt):
        await verify_file(store, PATH, **{name: 0})  # type: ignore[arg-type]


def changed_group(number: int, **fields: Any) -> Callable[[EntryFileWriter], None]:
    def lie(writer: EntryFileWriter) -> None:
        group = writer._groups[number]
        values = {name: change(getattr(group, name)) for name, change in fields.items()}
        writer._groups[number] = replace(group, **values)

    return lie


def changed(name: str, by: int) -> Callable[[EntryFileWriter], None]:
    return lambda writer: setattr(writer, name, getattr(writer, name) + by)


LIES = {
    "one entry more": changed("_entries", 1),
    "one entry less": changed("_entries", -1),
    "a byte more": changed("_length_bytes", 1),
    "a byte less": changed("_length_bytes", -1),
    "another first": changed_group(1, first=lambda _: Position(5, 2)),
    "another last": changed_group(1, last=lambda _: Position(5, 6)),
    "more data": changed_group(1, data_bytes=lambda size: size + 1),
    "less data": changed_group(1, data_bytes=lambda size: size - 1),
    "an overlap": changed_group(1, start=lambda start: start - 1),
    "a later start": changed_group(1, start=lambda start: start + 1),
    "another checksum": changed_group(1, checksum=lambda checksum: checksum ^ 1),
}


@pytest.mark.parametrize("name", LIES)
async def test_an_index_that_lies_is_found_out(name: str) -> None:
    store = MemoryStore()
    written(store, LIES[name])
    with pytest.raises(ColdFileCorrupt):
        await verify_file(store, PATH)


async def test_row_groups_that_overlap_are_found_out_though_their_checksums_hold() -> None:
    store = MemoryStore()
    written(store)
    data = obstore.get(store, PATH).bytes().to_bytes()
    file = await EntryFile.open(store, PATH)
    start, end = file.groups[1].start - 1, file.groups[1].end
    written(
        store, changed_group(1, start=lambda _: start, checksum=lambda _: crc32c(data[start:end]))
    )
    with pytest.raises(ColdFileCorrupt, match="row group 1 overlaps"):
        await verify_file(store, PATH)


PLACES = {
    "twice": [(5, 0), (5, 0), (5, 1)],
    "backwards": [(5, 1), (5, 0), (5, 2)],
    "an older ledger": [(5, 0), (4, 1), (5, 2)],
}


@pytest.mark.parametrize("name", PLACES)
async def test_entries_out_of_order_are_found_out(name: str) -> None:
    store = MemoryStore()
    written(store, places=PLACES[name])
    with pytest.raises(ColdFileCorrupt, match=r"comes after|contradicts its index"):
        await verify_file(store, PATH)


async def test_a_ledger_is_whole_from_its_entry_0_on() -> None:
    store = MemoryStore()
    written(store, places=[(5, 1), (5, 2), (5, 3)])
    await verify_file(store, PATH)
    with pytest.raises(ColdFileCorrupt, match="where 5:0 should be"):
        await verify_file(store, PATH, ledger_id=5)
    written(store, places=[(5, 0), (5, 1), (6, 2)])
    await verify_file(store, PATH)
    with pytest.raises(ColdFileCorrupt, match="where 5:2 should be"):
        await verify_file(store, PATH, ledger_id=5)
    written(store, places=[(0, 0), (0, 1)])
    await verify_file(store, PATH, ledger_id=0, last_entry=1)
