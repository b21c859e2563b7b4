"""Opening entry files: footers of any size, versions, threads, and false indexes."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import obstore
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from tests.support.offload_files import entries_of

from magnetar.core.ids import Position
from magnetar.offload import file_format
from magnetar.offload.errors import ColdFileCorrupt, ColdStoreUnavailable
from magnetar.offload.file_format import EntryFile, EntryFileWriter, WrittenFile
from magnetar.offload.file_layout import (
    FORMAT_VERSION,
    KEY_FOOTER_CRC,
    KEY_INDEX,
    KEY_VERSION,
    NO_CRC,
    FileIndex,
    GroupIndex,
    check_footer,
    decode_index,
    encode_index,
    sealed_footer,
)
from magnetar.offload.verify import verify_file
from magnetar.wire.checksum import crc32c

PATH = "ledger.parquet"
DATA = entries_of(30, 100)


def written(
    store: MemoryStore, lie: Callable[[EntryFileWriter], None] = lambda _: None, **options: Any
) -> WrittenFile:
    """Entries of ledger 5 in several groups; `lie` changes what the footer is to say."""
    writer = EntryFileWriter(
        obstore.open_writer(store, PATH),
        managed_ledger="t/n/persistent/x",
        group_bytes=700,
        **options,
    )
    for entry_id, data in enumerate(DATA):
        writer.add(5, entry_id, data)
    lie(writer)
    return writer.close()


class Requests:
    """The ranges that were fetched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[int, int]] = []
        fetch = file_format.fetch

        async def noted(store: Any, path: str, start: int, end: int) -> bytes:
            self.made.append((start, end))
            return await fetch(store, path, start, end)

        monkeypatch.setattr(file_format, "fetch", noted)


@pytest.mark.parametrize("more", [-1, 0, 1, None])
async def test_a_footer_of_any_size_is_read_with_as_few_requests_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, more: int | None
) -> None:
    store = MemoryStore()
    size = written(store).file_bytes
    whole = obstore.get(store, PATH).bytes().to_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    tail = 8 if more is None else footer + more
    monkeypatch.setattr(file_format, "TAIL_BYTES", tail)
    requests = Requests(monkeypatch)
    file = await EntryFile.open(store, PATH, file_bytes=size)
    expected = [(size - tail, size)]
    if tail < footer:
        expected.append((size - footer, size))
    assert requests.made == expected
    assert len(await file.read_group(0)) == file.groups[0].rows
    assert file.entries == len(DATA)


@pytest.mark.parametrize("size", [0, 11, 12, 13])
async def test_a_file_that_is_too_short_for_a_footer_is_corrupt(size: int) -> None:
    store = MemoryStore()
    obstore.put(store, PATH, bytes(size))
    with pytest.raises(ColdFileCorrupt, match="cut short" if size < 12 else "does not end in"):
        await EntryFile.open(store, PATH)


async def test_a_footer_that_fills_its_file_to_the_first_byte_is_looked_at() -> None:
    store = MemoryStore()
    for said, text in ((24, "footer cannot be read"), (25, "does not end in a Parquet footer")):
        obstore.put(store, PATH, bytes(24) + said.to_bytes(4, "little") + b"PAR1")
        with pytest.raises(ColdFileCorrupt, match=text):
            await EntryFile.open(store, PATH)


async def test_a_store_that_is_away_has_no_corrupt_file() -> None:
    """Its answer about the size decides; without one, nothing is known of the file."""

    async def away(*_: object) -> int:
        raise ColdStoreUnavailable("away")

    store = MemoryStore()
    size = written(store).file_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_format, "fetch", away)
        with pytest.raises(ColdStoreUnavailable, match="away"):
            await EntryFile.open(store, PATH, file_bytes=size)
        with pytest.raises(ColdFileCorrupt, match=f"has {size} bytes, not {size + 1}"):
            await EntryFile.open(store, PATH, file_bytes=size + 1)
        with pytest.raises(ColdStoreUnavailable, match="away"):
            await EntryFile.open(store, PATH)


GROUP = GroupIndex(Position(5, 0), Position(5, 9), 10, 100, 4, 104, 7, 1, 2)
INDEX = FileIndex((GROUP,), 10, 100)


def test_an_index_is_read_only_in_the_version_that_is_known() -> None:
    good = {KEY_VERSION: b"%d" % FORMAT_VERSION, **encode_index(INDEX)}
    assert decode_index(good) == INDEX
    for metadata, text in (
        ({}, "not an entry file"),
        ({**good, KEY_VERSION: b"%d" % (FORMAT_VERSION + 1)}, "format version b'2' is unsupported"),
        ({**good, KEY_VERSION: b""}, "format version"),
        ({KEY_VERSION: good[KEY_VERSION]}, "its index cannot be read"),
        ({**good, KEY_INDEX: b'{"groups":[]}'}, "its index cannot be read"),
    ):
        with pytest.raises(ValueError, match=text):
            decode_index(metadata)


def test_a_footers_checksum_is_of_all_its_bytes_and_in_its_place() -> None:
    footer = b"before " + KEY_FOOTER_CRC + b"\x18\x08" + NO_CRC + b" behind"
    sealed = sealed_footer(footer)
    assert len(sealed) == len(footer)
    assert sealed.partition(KEY_FOOTER_CRC)[0] == b"before "
    assert sealed.endswith(b" behind")
    check_footer(sealed)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(ValueError, match=r"checksum of its footer|has no checksum"):
            check_footer(bytes(changed))
    behind_no_key = bytes(len(KEY_FOOTER_CRC) - 1) + b"\x18\x08" + NO_CRC
    for none in (
        b"nothing",
        behind_no_key,
        KEY_FOOTER_CRC + b"\x18\x09" + NO_CRC,
        KEY_FOOTER_CRC + b"\x19\x08",
    ):
        with pytest.raises(ValueError, match="has no checksum"):
            sealed_footer(none)
        with pytest.raises(ValueError, match="has no checksum"):
            check_footer(none)
    check_footer(sealed_footer(KEY_FOOTER_CRC + b" as text, " + footer))


async def test_a_file_of_another_version_is_not_opened() -> None:
    store = MemoryStore()
    written(store, lambda writer: writer._head.update({KEY_VERSION: b"2"}))
    with pytest.raises(ColdFileCorrupt, match="format version b'2' is unsupported"):
        await EntryFile.open(store, PATH)


@pytest.mark.parametrize("change", ["one more", "one less"])
async def test_an_index_of_other_row_groups_than_the_files_is_found_out(change: str) -> None:
    def lie(writer: EntryFileWriter) -> None:
        if change == "one more":
            writer._groups.append(writer._groups[-1])
        else:
            writer._groups.pop()

    store = MemoryStore()
    written(store, lie)
    with pytest.raises(ColdFileCorrupt, match=r"ledger.parquet: \d+ row groups, \d+ in its index"):
        await EntryFile.open(store, PATH)


async def test_a_file_keeps_what_its_writer_said() -> None:
    store = MemoryStore()
    made = written(store, properties={"first": "1", "second": ""})
    file = await EntryFile.open(store, PATH)
    assert file.properties == {"first": "1", "second": ""}
    assert file.managed_ledger == "t/n/persistent/x"
    assert (file.entries, file.length_bytes) == (made.entries, made.length_bytes)
    assert (made.first, made.last) == (Position(5, 0), Position(5, len(DATA) - 1))
    assert [group.number for group in file.groups] == list(range(len(file.groups)))
    assert sum(group.rows for group in file.groups) == len(DATA)
    assert sum(group.data_bytes for group in file.groups) == sum(map(len, DATA))
    for before, after in zip(file.groups, file.groups[1:], strict=False):
        assert before.end <= after.start
        assert before.publish_ms_max < after.publish_ms_min


async def test_a_row_group_that_is_not_what_its_index_says_is_not_served() -> None:
    """Its bytes are those that were written: the writer's word on them is wrong."""
    store = MemoryStore()

    def lie(writer: EntryFileWriter) -> None:
        writer._groups[1] = msgspec.structs.replace(
            writer._groups[1], rows=writer._groups[1].rows + 1
        )

    written(store, lie)
    file = await EntryFile.open(store, PATH)
    await file.read_group(0)
    with pytest.raises(ColdFileCorrupt, match=r"row group 1 has \d+ entries, not \d+"):
        await file.read_group(1)
    with pytest.raises(ColdFileCorrupt, match=r"its publish times are \d+, not \d+"):
        await file.publish_times(1)


async def test_an_entry_that_does_not_match_its_checksum_fails_a_verification() -> None:
    store = MemoryStore()
    writer = EntryFileWriter(obstore.open_writer(store, PATH), managed_ledger="x")
    writer.add(5, 0, b"good")
    writer.add(5, 1, b"good too")
    writer._rows._crcs[1] ^= 1
    writer.close()
    file = await EntryFile.open(store, PATH)
    group = file.groups[0]
    data = await file_format.fetch(store, PATH, group.start, group.end)
    assert [entry.data for entry in file.decode_group(0, data)] == [b"good", b"good too"]
    with pytest.raises(ColdFileCorrupt, match="row group 0: entry 5:1 does not match its checksum"):
        file.decode_group(0, data, verify=True)
    with pytest.raises(ColdFileCorrupt, match="entry 5:1 does not match its checksum"):
        await verify_file(store, PATH)
    with pytest.raises(ColdFileCorrupt, match="row group 0: its bytes do not match"):
        file.decode_group(0, data[:-1] + bytes([data[-1] ^ 1]))


async def test_a_column_that_is_not_what_was_written_fails_a_verification() -> None:
    """Pages have checksums of their own, for the columns beside the entries."""
    store = MemoryStore()
    written(store)
    file = await EntryFile.open(store, PATH)
    group, index = file.groups[0], file._index
    data = bytearray(await file_format.fetch(store, PATH, group.start, group.end))
    data[data.index(b"producer")] ^= 1
    first = msgspec.structs.replace(index.groups[0], checksum=crc32c(bytes(data)))
    file._index = msgspec.structs.replace(index, groups=(first, *index.groups[1:]))
    assert [entry.data for entry in file.decode_group(0, bytes(data))] == DATA[: group.rows]
    with pytest.raises(ColdFileCorrupt, match=r"row group 0 cannot be read: .*CRC"):
        file.decode_group(0, bytes(data), verify=True)


async def test_bytes_that_arrow_cannot_decode_are_a_corrupt_file() -> None:
    """Their checksum holds: they were written so."""
    store = MemoryStore()
    written(store)
    file = await EntryFile.open(store, PATH)
    group = file.groups[0]
    index = file._index
    bad = bytes(group.end - group.start)
    first = msgspec.structs.replace(index.groups[0], checksum=crc32c(bad))
    file._index = msgspec.structs.replace(index, groups=(first, *index.groups[1:]))
    with pytest.raises(ColdFileCorrupt, match="row group 0 cannot be read"):
        file.decode_group(0, bad)


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_the_data_is_compressed_as_was_asked(compression: str) -> None:
    store = MemoryStore()
    written(store, compression=compression)
    footer = pq.read_metadata(io.BytesIO(obstore.get(store, PATH).bytes().to_bytes()))
    names = [footer.row_group(0).column(at).path_in_schema for at in range(footer.num_columns)]
    data = footer.row_group(0).column(names.index("data"))
    assert data.compression == ("UNCOMPRESSED" if compression == "none" else "ZSTD")
    file = await EntryFile.open(store, PATH)
    found = [entry.data for group in file.groups for entry in await file.read_group(group.number)]
    assert found == DATA


@pytest.fixture
def decoders() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="decoder") as pool:
        yield pool


async def test_all_of_arrows_work_is_done_on_the_threads_that_were_given(
    monkeypatch: pytest.MonkeyPatch, decoders: ThreadPoolExecutor
) -> None:
    """A row group takes tens of milliseconds: on the loop, all of a broker's clients would wait."""
    threads: dict[str, str] = {}

    def noting(name: str) -> None:
        work = getattr(file_format, name)

        def noted(*arguments: Any) -> Any:
            threads[name] = threading.current_thread().name
            return work(*arguments)

        monkeypatch.setattr(file_format, name, noted)

    for name in ("read_footer", "decode", "publish_times"):
        noting(name)
    store = MemoryStore()
    written(store)
    file = await EntryFile.open(store, PATH, executor=decoders)
    await file.read_group(0)
    await file.publish_times(0)
    assert threads == dict.fromkeys(("read_footer", "decode", "publish_times"), "decoder_0")


async def test_a_request_that_is_not_answered_in_time_is_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(file_format, "FETCH_TIMEOUT_S", 0.0)
    monkeypatch.setattr(obstore, "get_range_async", never)
    monkeypatch.setattr(obstore, "head_async", never)
    for asked in (
        file_format.fetch(MemoryStore(), PATH, 0, 1),
        file_format.size_of(MemoryStore(), PATH),
    ):
        with pytest.raises(
            ColdStoreUnavailable, match=f"{PATH} cannot be read now: no answer in 0 s"
        ):
            await asked


@pytest.mark.parametrize("answered", [0, 9, 11])
async def test_an_answer_of_another_length_than_was_requested_is_a_corrupt_file(
    monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    class Answer:
        def to_bytes(self) -> bytes:
            return bytes(answered)

    async def short(*_: object, **__: object) -> Answer:
        return Answer()

    monkeypatch.setattr(obstore, "get_range_async", short)
    with pytest.raises(ColdFileCorrupt, match=f"cut short: no bytes {30 + answered} to 40"):
        await file_format.fetch(MemoryStore(), PATH, 30, 40)


async def test_the_writer_passes_on_all_bytes_and_counts_them() -> None:
    store = MemoryStore()
    made = written(store)
    whole = obstore.get(store, PATH).bytes().to_bytes()
    assert made.file_bytes == len(whole)
    assert made.checksum == crc32c(whole)
    assert (made.entries, made.length_bytes) == (len(DATA), sum(map(len, DATA)))
    file = await EntryFile.open(store, PATH)
    for group, index in zip(file.groups, file._index.groups, strict=True):
        assert index.checksum == crc32c(whole[group.start : group.end])


@pytest.mark.parametrize("rows_max", [1, 3, 30, 31])
async def test_a_group_ends_with_its_last_row(
    monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(file_format, "ROW_GROUP_ROWS_MAX", rows_max)
    store = MemoryStore()
    writer = EntryFileWriter(obstore.open_writer(store, PATH), managed_ledger="x")
    for entry_id, data in enumerate(DATA):
        writer.add(5, entry_id, data)
    writer.close()
    file = await EntryFile.open(store, PATH)
    assert [group.rows for group in file.groups] == [
        min(rows_max, len(DATA) - start) for start in range(0, len(DATA), rows_max)
    ]


def test_what_is_abandoned_writes_nothing_more() -> None:
    class Sink:
        def __init__(self) -> None:
            self.data = b""
            self.closed = False

        def write(self, data: bytes, /) -> None:
            self.data += data

        def close(self) -> None:
            self.closed = True

    sink = Sink()
    writer = EntryFileWriter(sink, managed_ledger="x", group_bytes=10)
    writer.add(5, 0, b"x" * 10)
    writer.add(5, 1, b"y")
    there = sink.data
    writer.abandon()
    assert (sink.data, sink.closed) == (there, False)
    assert not len(writer._rows)
