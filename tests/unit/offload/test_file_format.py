"""Entry files: entries survive a round trip, and changed bytes are never served."""

import asyncio
import io
from functools import partial
from pathlib import Path
from random import Random

import obstore
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore
from tests.support.offload_files import entries_of

from magnetar.core.ids import Position
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import ColdEntry, EntryFile, EntryFileWriter, WrittenFile
from magnetar.offload.verify import verify_file

PATH = "tenant/file.parquet"


def written(
    store: MemoryStore,
    entries: list[ColdEntry],
    *,
    group_bytes: int = 4096,
    compression: str = "none",
) -> WrittenFile:
    sink = obstore.open_writer(store, PATH)
    writer = EntryFileWriter(
        sink, managed_ledger="t/n/persistent/x", group_bytes=group_bytes, compression=compression
    )
    for entry in entries:
        writer.add(*entry)
    return writer.close()


async def read_all(store: MemoryStore) -> list[ColdEntry]:
    file = await EntryFile.open(store, PATH)
    found: list[ColdEntry] = []
    for group in file.groups:
        entries = await file.read_group(group.number)
        assert (entries[0][:2], entries[-1][:2]) == (group.first, group.last)
        found += entries
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    entries=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 2**62)), st.binary(max_size=300), max_size=40
    ),
    group_bytes=st.integers(1, 2000),
    compression=st.sampled_from(["none", "zstd"]),
)
def test_whatever_goes_in_comes_out(
    entries: dict[tuple[int, int], bytes], group_bytes: int, compression: str
) -> None:
    ordered = [ColdEntry(*place, data) for place, data in sorted(entries.items())]
    store = MemoryStore()
    file = written(store, ordered, group_bytes=group_bytes, compression=compression)
    assert file.entries == len(ordered)
    assert file.length_bytes == sum(len(entry.data) for entry in ordered)
    assert asyncio.run(read_all(store)) == ordered
    found = asyncio.run(verify_file(store, PATH, checksum=file.checksum))
    assert (found.file_bytes, found.entries) == (file.file_bytes, file.entries)


def a_file() -> tuple[bytes, list[ColdEntry]]:
    store = MemoryStore()
    entries = [ColdEntry(5, number, data) for number, data in enumerate(entries_of(60, 150))]
    written(store, entries)
    return obstore.get(store, PATH).bytes().to_bytes(), entries


async def test_no_changed_byte_is_served() -> None:
    """Every byte of the footer and many others: a read returns correct data or an error."""
    good, entries = a_file()
    footer = int.from_bytes(good[-8:-4], "little") + 8
    rng = Random(1)
    # Each case parses Parquet's footer; a sample keeps the test quick.
    places = [
        *rng.sample(range(len(good) - footer), 60),
        *rng.sample(range(len(good) - footer, len(good)), 120),
    ]
    served = detected = 0
    for place in places:
        store = MemoryStore()
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        obstore.put(store, PATH, bytes(bad))
        try:
            assert await read_all(store) == entries
            served += 1
        except ColdFileCorrupt:
            detected += 1
        with pytest.raises(ColdFileCorrupt):
            await verify_file(store, PATH, ledger_id=5, last_entry=59, checksum=checksum_of(good))
    assert detected > 170
    assert served < 10  # the first bytes, PAR1, are of no interest to who reads entries


def checksum_of(data: bytes) -> int:
    from magnetar.wire.checksum import crc32c

    return crc32c(data)


async def test_a_truncated_file_is_corrupt() -> None:
    good, _ = a_file()
    for size in (0, 3, 11, 100, len(good) // 2, len(good) - 1):
        store = MemoryStore()
        obstore.put(store, PATH, good[:size])
        with pytest.raises(ColdFileCorrupt):
            await read_all(store)
        with pytest.raises(ColdFileCorrupt):
            await EntryFile.open(store, PATH, file_bytes=len(good))


async def test_what_is_not_there_is_missing() -> None:
    with pytest.raises(ColdFileMissing, match="nothing"):
        await EntryFile.open(MemoryStore(), "nothing.parquet")


async def test_verification_compares_with_what_is_expected() -> None:
    store = MemoryStore()
    entries = [ColdEntry(5, number, b"x") for number in range(10)]
    written(store, entries, group_bytes=3)
    found = await verify_file(store, PATH, ledger_id=5, last_entry=9, length_bytes=10)
    assert (found.first, found.last) == (Position(5, 0), Position(5, 9))
    wrong = (
        partial(verify_file, ledger_id=4),
        partial(verify_file, ledger_id=5, last_entry=10),
        partial(verify_file, length_bytes=11),
        partial(verify_file, checksum=found.checksum ^ 1),
    )
    for verify in wrong:
        with pytest.raises(ColdFileCorrupt):
            await verify(store, PATH)
    written(store, [*entries[:4], *entries[5:]])
    with pytest.raises(ColdFileCorrupt, match="where 5:4 should be"):
        await verify_file(store, PATH, ledger_id=5)


def test_entries_come_in_order() -> None:
    writer = EntryFileWriter(io.BytesIO(), managed_ledger="x")
    writer.add(5, 1, b"")
    for place in ((5, 1), (5, 0), (4, 9)):
        with pytest.raises(ValueError, match="comes after 5:1"):
            writer.add(*place, b"")
    writer.abandon()


def test_groups_are_bounded_by_bytes_and_positions_are_found(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    with path.open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger="x", group_bytes=1000)
        writer.add_entries(7, enumerate(entries_of(100, 80)))  # type: ignore[arg-type]
        writer.close()
    footer = pq.read_metadata(path)
    assert footer.num_rows == 100
    assert footer.num_row_groups > 5
    assert all(footer.row_group(i).num_rows <= 10 for i in range(footer.num_row_groups))


async def test_other_engines_can_read_it(tmp_path: Path) -> None:
    """The columns beside the entries' bytes, by plain Parquet."""
    path = tmp_path / "file.parquet"
    data = entries_of(20, 10)
    with path.open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger="x")
        writer.add_entries(7, [*enumerate(data), (20, b"no entry at all")])  # type: ignore[list-item]
        writer.close()
    rows = pq.read_table(path).to_pylist()
    assert [row["data"] for row in rows[:-1]] == data
    third = rows[3]
    assert (third["ledger_id"], third["entry_id"], third["sequence_id"]) == (7, 3, 3)
    assert (third["partition_key"], third["producer"], third["messages"]) == (
        "key-3",
        "producer",
        1,
    )
    assert third["publish_time"].timestamp() == 1_700_000_000.003
    assert third["compression"] == "NONE"
    assert (rows[-1]["publish_time"], rows[-1]["messages"]) == (None, 0)
