"""The cache of cold files: its bounds, eviction, and read-ahead."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.offload_files import entries_of
from tests.unit.ledger.stage import turns

from magnetar.bookie.api import NoSuchEntry
from magnetar.core.ids import EARLIEST, Position
from magnetar.offload import cold_files
from magnetar.offload.cold import ColdLedger
from magnetar.offload.cold_files import ENTRY_OVERHEAD_BYTES, ColdFiles, FileRef
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.file_decode import Sparse
from magnetar.offload.file_format import EntryFile, EntryFileWriter
from magnetar.offload.records import OffloadRecord
from magnetar.offload.stores import FILESYSTEM, StoreSpec

PER_GROUP = 2
SIZE = 10
GROUP_BYTES = PER_GROUP * (SIZE + ENTRY_OVERHEAD_BYTES)


def made(folder: Path, name: str, count: int = 8, *, data: list[bytes] | None = None) -> FileRef:
    """A file of ledger 5 with two entries in a row group."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("wb") as sink:
        writer = EntryFileWriter(
            sink, managed_ledger="x", group_bytes=PER_GROUP * SIZE, properties={"k": "v"}
        )
        for number, each in enumerate(data or [b"%d" % n * SIZE for n in range(count)]):
            writer.add(5, number, each)
        file_bytes = writer.close().file_bytes
    return FileRef(StoreSpec(FILESYSTEM, str(folder)), name, file_bytes)


@pytest.fixture
async def files() -> AsyncIterator[ColdFiles]:
    found = ColdFiles(4 * GROUP_BYTES)
    yield found
    await found.close()


async def settled(files: ColdFiles) -> None:
    while files._ahead or files._flights:
        await turns(1)


def kept(files: ColdFiles) -> list[int]:
    return sorted(number for _, number in files._groups)


async def test_groups_are_kept_up_to_the_bound_and_the_one_used_longest_ago_goes(
    files: ColdFiles, tmp_path: Path
) -> None:
    ref = made(tmp_path, "a", 12)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(4):
        await files.group(ref, number, ahead=False)
    assert kept(files) == [0, 1, 2, 3]
    assert files.kept_bytes == 4 * GROUP_BYTES
    await files.group(ref, 0, ahead=False)
    assert (files.counters.group_hits, files.counters.group_reads) == (1, 4)
    await files.group(ref, 4, ahead=False)
    assert kept(files) == [0, 2, 3, 4]
    assert files.kept_bytes == 4 * GROUP_BYTES
    entries = await files.group(ref, 1, ahead=False)
    assert [entry.entry_id for entry in entries] == [2, 3]
    groups = (await files.open(ref)).groups
    read = [groups[number] for number in (0, 1, 2, 3, 4, 1)]
    assert files.counters.read_bytes == sum(group.end - group.start for group in read)
    assert 0 < files.counters.read_seconds <= loop.time() - began
    assert files.counters.files_open == 1


async def test_a_group_larger_than_the_bound_is_served_and_not_kept(tmp_path: Path) -> None:
    files = ColdFiles(GROUP_BYTES - 1)
    ref = made(tmp_path, "a")
    assert len(await files.group(ref, 0, ahead=False)) == PER_GROUP
    assert (kept(files), files.kept_bytes) == ([], 0)
    await files.close()


async def test_what_is_forgotten_is_that_files_alone(files: ColdFiles, tmp_path: Path) -> None:
    refs = [made(tmp_path, name) for name in ("a", "b")]
    for ref in refs:
        await files.group(ref, 0, ahead=False)
        await files.publish_times(ref, 1)
    files.forget(refs[0])
    assert list(files._files) == [refs[1]]
    assert list(files._groups) == [(refs[1], 0)]
    assert list(files._times) == [(refs[1], 1)]
    assert files.kept_bytes == GROUP_BYTES
    files.forget(refs[0])
    files.forget(refs[1])
    assert files.kept_bytes == 0
    assert not files._times


async def test_files_stores_and_times_are_bounded_too(
    files: ColdFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FILES_OPEN_MAX", "STORES_OPEN_MAX", "TIMES_KEPT_MAX"):
        monkeypatch.setattr(cold_files, name, 2)
    refs = [made(tmp_path / name, "a") for name in "xyz"]
    for ref in (refs[0], refs[1], refs[0], refs[2]):
        await files.open(ref)
        await files.store(ref.store)
        await files.publish_times(ref, 0)
    assert list(files._files) == [refs[0], refs[2]]
    assert list(files._stores) == [refs[0].store, refs[2].store]
    assert list(files._times) == [(refs[0], 0), (refs[2], 0)]
    assert files.counters.files_open == 2


async def test_a_group_that_several_want_is_fetched_once(files: ColdFiles, tmp_path: Path) -> None:
    ref = made(tmp_path, "a")
    wanted = [asyncio.ensure_future(files.group(ref, 1, ahead=False)) for _ in range(3)]
    await turns(1)
    wanted[0].cancel()
    found = await asyncio.gather(*wanted[1:])
    assert found[0] == found[1]
    assert files.counters.group_reads == 1
    assert not files._flights


async def test_the_next_group_is_fetched_meanwhile(files: ColdFiles, tmp_path: Path) -> None:
    ref = made(tmp_path, "a")
    await files.group(ref, 0)
    await settled(files)
    assert kept(files) == [0, 1]
    await files.group(ref, 3)
    await settled(files)
    assert kept(files) == [0, 1, 3], "behind the last there is none"
    await files.group(ref, 0)
    assert not files._ahead, "it is here"


@pytest.mark.parametrize(("bound", "fetched"), [(2 * PER_GROUP * SIZE, True), (39, False)])
async def test_what_is_fetched_ahead_takes_half_of_the_memory(
    tmp_path: Path, bound: int, fetched: bool
) -> None:
    files = ColdFiles(bound)
    ref = made(tmp_path, "a")
    await files.group(ref, 0)
    assert bool(files._ahead) == fetched
    await settled(files)
    await files.close()


async def test_so_many_groups_are_fetched_ahead_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_files, "FETCHES_AT_ONCE_MAX", 4)
    files = ColdFiles(1 << 20)
    refs = [made(tmp_path, name) for name in "abc"]
    for ref in refs:
        await files.group(ref, 0, ahead=False)
    opened = [await files.open(ref) for ref in refs]
    for ref, file in zip(refs, opened, strict=True):
        files._read_ahead(file, ref, 1)
    assert files._ahead == {(refs[0], 1), (refs[1], 1)}
    await settled(files)
    files.cache_bytes_max = 2 * 2 * PER_GROUP * SIZE
    for ref, file in zip(refs, opened, strict=True):
        files._read_ahead(file, ref, 2)
    assert files._ahead == {(refs[0], 2), (refs[1], 2)}
    await settled(files)
    files.cache_bytes_max -= 1
    for ref, file in zip(refs, opened, strict=True):
        files._read_ahead(file, ref, 3)
    assert files._ahead == {(refs[0], 3)}, "those under way count"
    await settled(files)
    await files.close()


async def test_what_a_reader_is_fetching_already_is_not_fetched_ahead(tmp_path: Path) -> None:
    files = ColdFiles(1 << 20)
    ref = made(tmp_path, "a")
    file = await files.open(ref)
    reading = asyncio.ensure_future(files.group(ref, 1, ahead=False))
    await turns(1)
    files._read_ahead(file, ref, 1)
    assert not files._ahead
    files._read_ahead(file, ref, 2)
    assert files._ahead == {(ref, 2)}
    await reading
    files._read_ahead(file, ref, 1)
    assert files._ahead <= {(ref, 2)}, "it is here"
    await settled(files)
    assert files.counters.group_reads == 2
    await files.close()


async def test_a_store_that_answers_at_the_last_attempt_is_no_failure(
    files: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_files, "RETRY_FIRST_DELAY_S", 0.0)
    left = [cold_files.FETCH_ATTEMPTS_MAX - 1]

    async def work() -> str:
        if left[0]:
            left[0] -= 1
            raise ColdStoreUnavailable("away")
        return "here"

    assert await files._once("key", work) == "here"
    left[0] = cold_files.FETCH_ATTEMPTS_MAX
    with pytest.raises(ColdStoreUnavailable, match="away"):
        await files._once("key", work)
    assert left[0] == 0
    assert files.counters.errors == 1


async def test_so_many_fetches_are_under_way_at_once(
    files: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_files, "FETCHES_AT_ONCE_MAX", 3)
    running, most, go = 0, 0, asyncio.Event()

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    asked = [asyncio.ensure_future(files._once(number, work)) for number in range(7)]
    await turns(5)
    assert running == 3
    go.set()
    await asyncio.gather(*asked)
    assert (running, most) == (0, 3)


async def test_groups_are_decoded_on_threads_of_their_own_that_end_with_the_cache(
    tmp_path: Path,
) -> None:
    """The loop's own threads resolve names, among others."""
    files = ColdFiles()
    ref = made(tmp_path, "a")
    before = {each.name for each in threading.enumerate()}
    assert files._decoders is None, "they start with the first group"
    await files.group(ref, 0)
    await settled(files)
    started = {each.name for each in threading.enumerate()} - before
    assert "cold_0" in started
    assert not [name for name in started if name.startswith("asyncio")]
    assert files._decoding() is files._decoding()
    await files.close()
    assert not [each.name for each in threading.enumerate() if each.name in {"cold_0", "cold_1"}]
    assert files.kept_bytes == 0
    assert not files._groups


async def test_a_file_that_is_missing_is_requested_once(files: ColdFiles, tmp_path: Path) -> None:
    ref = made(tmp_path, "a")
    (tmp_path / "a").unlink()
    with pytest.raises(ColdFileMissing):
        await files.open(ref)
    assert files.counters.errors == 1
    await files.close()
    await files.close()
    with pytest.raises(ColdStoreUnavailable, match="stopping"):
        await files.open(ref)


async def test_an_answer_that_is_late_is_a_passing_error(
    files: ColdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_files, "FETCH_DEADLINE_S", 0.0)
    with pytest.raises(ColdStoreUnavailable, match="has not answered in 0 s"):
        await files._once("key", asyncio.Event().wait)
    assert files.counters.errors == 1


def ledger(files: ColdFiles, ref: FileRef, count: int) -> ColdLedger:
    record = OffloadRecord(5, "a", ref.store, ref.path, ref.file_bytes or 0, count, 1, 1, 1, 1, 1)
    return ColdLedger(files, record)


async def test_a_read_is_bounded_by_its_last_entry_its_bytes_and_its_group(
    files: ColdFiles, tmp_path: Path
) -> None:
    cold = ledger(files, made(tmp_path, "a"), 8)
    assert cold.last_entry == 7

    async def ids(first: int, last: int, bytes_max: int = 1000) -> list[int]:
        found = await cold.read(first, last, bytes_max=bytes_max)
        assert all(item.data == b"%d" % item.entry_id * SIZE for item in found)
        return [item.entry_id for item in found]

    assert await ids(0, 0) == [0]
    assert await ids(0, 7) == [0, 1]
    assert await ids(1, 7) == [1]
    assert await ids(2, 7, 2 * SIZE) == [2, 3]
    assert await ids(2, 7, 2 * SIZE - 1) == [2]
    assert await ids(2, 7, 0) == [2]
    assert await ids(7, 99) == [7]
    for outside in (-1, 8):
        with pytest.raises(NoSuchEntry):
            await cold.read(outside, 99, bytes_max=1)
        with pytest.raises(NoSuchEntry):
            await cold.published_before(outside, 1)


async def test_a_file_that_has_less_than_its_record_says_is_corrupt(
    files: ColdFiles, tmp_path: Path
) -> None:
    cold = ledger(files, made(tmp_path, "a"), 9)
    with pytest.raises(ColdFileCorrupt, match="has no entry 5:8"):
        await cold.read(8, 8, bytes_max=1)
    with pytest.raises(ColdFileCorrupt, match="has no entry 5:8"):
        await cold.published_before(8, 1)


async def test_ages_of_entries_are_exact_to_the_millisecond(
    files: ColdFiles, tmp_path: Path
) -> None:
    data = entries_of(6, 20)
    cold = ledger(files, made(tmp_path, "a", data=data), 6)
    for number in range(6):
        published = 1_700_000_000_000 + number
        assert not await cold.published_before(number, published)
        assert await cold.published_before(number, published + 1)


async def test_a_file_tells_of_itself(files: ColdFiles, tmp_path: Path) -> None:
    ref = made(tmp_path, "a", 5)
    file = await files.open(ref)
    assert (file.managed_ledger, file.properties) == ("x", {"k": "v"})
    assert (file.entries, file.length_bytes, file.file_bytes) == (5, 50, ref.file_bytes)
    assert [(group.first.entry_id, group.last.entry_id, group.rows) for group in file.groups] == [
        (0, 1, 2),
        (2, 3, 2),
        (4, 4, 1),
    ]
    assert [file.group_of(Position(5, entry_id)) for entry_id in range(6)] == [0, 0, 1, 1, 2, 3]
    assert file.group_of(EARLIEST) == 0
    assert file.group_of(Position(6, 0)) == 3


async def test_a_file_of_another_size_than_its_record_says_is_corrupt(
    files: ColdFiles, tmp_path: Path
) -> None:
    ref = made(tmp_path, "a")
    assert ref.file_bytes is not None
    for wrong in (ref.file_bytes + 1, ref.file_bytes - 1, 11):
        with pytest.raises(ColdFileCorrupt):
            await files.open(FileRef(ref.store, ref.path, wrong))
    file = await files.open(FileRef(ref.store, ref.path))
    assert isinstance(file, EntryFile)
    assert file.file_bytes == ref.file_bytes


READS: list[tuple[Callable[[Sparse], object], bytes | None]] = [
    (lambda some: (some.seek(10), some.read(3))[1], b"abc"),
    (lambda some: (some.seek(10), some.read(2), some.read(4))[2], b"cdef"),
    (lambda some: (some.seek(-8, io.SEEK_END), some.read(2))[1], b"cd"),
    (lambda some: (some.seek(14), some.seek(1, io.SEEK_CUR), some.read())[2], b"f"),
    (lambda some: (some.seek(12), some.read(-1))[1], b"cdef"),
    (lambda some: (some.seek(12), some.read(None))[1], b"cdef"),
    (lambda some: (some.seek(12), some.read(0), some.read(2))[2], b"cd"),
    (lambda some: (some.seek(9), some.read(1))[1], None),
    (lambda some: (some.seek(15), some.read(2))[1], None),
    (lambda some: (some.seek(0), some.read(3))[1], None),
]


def test_a_read_of_other_bytes_than_a_groups_says_which() -> None:
    some = Sparse(b"abcdef", 10, 20)
    some.seek(15)
    with pytest.raises(OSError, match="bytes 15 to 17 are outside this row group"):
        some.read(2)


@pytest.mark.parametrize("number", range(len(READS)))
def test_only_the_bytes_of_a_group_are_read_at_their_place(number: int) -> None:
    read, expected = READS[number]
    some = Sparse(b"abcdef", 10, 20)
    if expected is None:
        with pytest.raises(OSError, match="are outside this row group"):
            read(some)
        return
    assert read(some) == expected
    assert some.readable()
    assert some.seekable()
    assert some.tell() == 10 + b"abcdef".index(expected) + len(expected)
