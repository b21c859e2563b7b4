"""Artifacts and their deletion: entries, records, trash."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.ledger.stage import NAME

from magnetar.compaction import deletion as deleting
from magnetar.compaction.artifact import Artifact, Artifacts
from magnetar.compaction.deletion import ATTEMPTS_MAX, delete_files, delete_folder, discard
from magnetar.compaction.records import (
    CompactedFile,
    CompactionRecord,
    CompactionRequest,
    RetiredFile,
    attempt_folder,
    attempt_key,
    compaction_key,
    decode_attempt,
    decode_compaction,
    decode_request,
    files_of,
    job_key,
    request_key,
)
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, Check, Operation
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.errors import ColdStoreUnavailable
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import RequestState, object_path
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.offload.trash import TRASH_PREFIX, TrashedFile, decode_trash

MARKED = Check("/mark", ABSENT)
CREATED_MS = 7
LEFT = (Position(1, 2), Position(1, 5), Position(3, 0), Position(3, 4), Position(5, 1))
SIZE = 10


def written(folder: Path, number: int, places: Sequence[Position]) -> CompactedFile:
    """A file of the artifact, two entries in a row group."""
    path = f"{number}.parquet"
    with (folder / path).open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger=NAME, group_bytes=2 * SIZE)
        for place in places:
            writer.add(*place, bytes(SIZE))
        made = writer.close()
    return CompactedFile(
        path, made.file_bytes, made.checksum, made.first, made.last, made.entries, 1, SIZE
    )


def record(folder: Path, *files: CompactedFile, **fields: object) -> CompactionRecord:
    spec = StoreSpec(FILESYSTEM, str(folder))
    return CompactionRecord(
        Position(6, 0),
        CREATED_MS,
        "a",
        spec,
        1,
        files,
        **fields,  # type: ignore[arg-type]
    )


def in_two_files(folder: Path) -> CompactionRecord:
    return record(folder, written(folder, 1, LEFT[:3]), written(folder, 2, LEFT[3:]))


def before(place: Position) -> Position:
    return Position(place.ledger_id, place.entry_id - 1)


def behind(place: Position) -> Position:
    return Position(place.ledger_id, place.entry_id + 1)


async def test_a_read_begins_with_the_first_entry_at_or_behind_its_start(tmp_path: Path) -> None:
    files = ColdFiles()
    artifact = Artifact(in_two_files(tmp_path), files)
    for number, place in enumerate(LEFT):
        for start in (before(place), place):
            found = await artifact.read(start, 1, 1 << 20)
            assert [Position(*entry[:2]) for entry in found] == [place]
        following = LEFT[number + 1 : number + 2]
        found = await artifact.read(behind(place), 1, 1 << 20)
        assert [Position(*entry[:2]) for entry in found] == list(following)
    await files.close()


async def test_a_read_is_bounded_but_never_empty(tmp_path: Path) -> None:
    files = ColdFiles()
    artifact = Artifact(in_two_files(tmp_path), files)
    for bytes_max, count in ((0, 1), (SIZE, 1), (2 * SIZE - 1, 1), (2 * SIZE, 2), (1 << 20, 2)):
        assert len(await artifact.read(EARLIEST, 9, bytes_max)) == count
    assert len(await artifact.read(EARLIEST, 1, 1 << 20)) == 1
    last = await artifact.last_entry()
    assert last is not None
    assert Position(*last[:2]) == LEFT[-1]
    await files.close()


async def test_an_artifact_ends_with_its_last_entry(tmp_path: Path) -> None:
    files = ColdFiles()
    whole = in_two_files(tmp_path)
    artifact = Artifact(whole, files)
    assert not artifact.ends_before(LEFT[-1])
    assert artifact.ends_before(behind(LEFT[-1]))
    assert artifact.horizon == Position(6, 0)
    assert (whole.last, whole.entries, whole.length_bytes) == (LEFT[-1], 5, 2 * SIZE)
    empty = Artifact(record(tmp_path), files)
    assert empty.ends_before(EARLIEST)
    assert await empty.read(EARLIEST, 9, 9) == []
    assert await empty.last_entry() is None
    assert empty.record.last is None
    await files.close()


async def test_an_artifact_is_of_one_log_only(tmp_path: Path) -> None:
    store, files = MemoryStore(SystemClock()), ColdFiles()
    artifacts = Artifacts(store, files)
    assert await artifacts.live(NAME, CREATED_MS) is None
    whole = record(tmp_path)
    await store.put(compaction_key(NAME), encode(whole))
    live = await artifacts.live(NAME, CREATED_MS)
    assert live is not None
    assert live.record == whole
    for other_ms in (CREATED_MS - 1, CREATED_MS + 1):
        assert await artifacts.live(NAME, other_ms) is None
    await files.close()


async def trashed(store: MemoryStore) -> list[TrashedFile]:
    found = [decode_trash(each.key, each.value) for each in await store.list(TRASH_PREFIX)]
    assert all(each.name == NAME and each.trashed_ms == 99 for each in found)
    return [file for each in found for file in each.files]


async def test_with_its_log_an_artifact_and_what_it_replaced_become_trash(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    elsewhere = StoreSpec(FILESYSTEM, "/elsewhere")
    whole = record(
        tmp_path, written(tmp_path, 1, LEFT), retired=(RetiredFile(elsewhere, "old", 5),)
    )
    assert files_of(whole, 99) == (
        RetiredFile(elsewhere, "old", 5),
        RetiredFile(whole.store, "1.parquet", 99),
    )
    await store.put(compaction_key(NAME), encode(whole))
    await store.put(request_key(NAME), encode(CompactionRequest(1)))
    assert await discard(store, NAME, CREATED_MS + 1, MARKED, 99) is False
    assert await store.get(request_key(NAME)) is not None, "another log of this name asked for it"
    assert await discard(store, NAME, CREATED_MS, MARKED, 99) is True
    assert await trashed(store) == [
        TrashedFile(elsewhere, "old"),
        TrashedFile(whole.store, "1.parquet"),
    ]
    assert await store.get(compaction_key(NAME)) is None
    assert await store.get(request_key(NAME)) is None
    assert await discard(store, NAME, CREATED_MS, MARKED, 99) is False
    assert len(await trashed(store)) == 2


async def test_without_files_there_is_no_trash(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await store.put(request_key(NAME), encode(CompactionRequest(1)))
    assert await discard(store, NAME, CREATED_MS, MARKED, 99) is False
    assert await store.get(request_key(NAME)) is None
    await store.put(compaction_key(NAME), encode(record(tmp_path)))
    assert await discard(store, NAME, CREATED_MS, MARKED, 99) is False
    assert await store.list("/") == []


class Committing(MemoryStore):
    """A job commits an artifact right before each transaction, as often as `left` says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SystemClock())
        self.left = 0
        self._folder = folder

    async def transact(self, operations: Sequence[Operation]) -> int:
        if self.left:
            self.left -= 1
            one = CompactedFile(f"late{self.left}", 1, 1, LEFT[0], LEFT[0], 1, 1, 1)
            await self.put(compaction_key(NAME), encode(record(self._folder, one)))
        return await super().transact(operations)


@pytest.mark.parametrize("times", [1, ATTEMPTS_MAX - 1, ATTEMPTS_MAX])
async def test_an_artifact_that_is_committed_meanwhile_goes_too(times: int, tmp_path: Path) -> None:
    store = Committing(tmp_path)
    await store.put(compaction_key(NAME), encode(in_two_files(tmp_path)))
    store.left = times
    if times == ATTEMPTS_MAX:
        with pytest.raises(MagnetarError, match="changed 8 times"):
            await discard(store, NAME, CREATED_MS, MARKED, 99)
        return
    assert await discard(store, NAME, CREATED_MS, MARKED, 99) is True
    assert [file.path for file in await trashed(store)] == ["late0"]
    assert await store.get(compaction_key(NAME)) is None


def there(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


async def test_the_folder_of_a_dead_attempt_goes_and_no_other(tmp_path: Path) -> None:
    for path in ("a/compacted-1/x", "a/compacted-1/y/z", "a/compacted-12/x", "a/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    assert await delete_folder(spec, "a/compacted-1") == 2
    assert await delete_folder(spec, "a/compacted-1") == 0
    assert there(tmp_path) == ["a/compacted-12/x", "a/x"]


async def test_a_store_that_is_late_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "DELETE_TIMEOUT_S", 0.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").touch()
    with pytest.raises(ColdStoreUnavailable, match=r"^a cannot be read now"):
        await delete_folder(StoreSpec(FILESYSTEM, str(tmp_path)), "a")
    assert (tmp_path / "a" / "x").exists()


async def test_files_that_are_gone_are_as_good_as_deleted(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    await delete_files([RetiredFile(spec, "gone", 1), RetiredFile(spec, "here", 1)])
    assert there(tmp_path) == []


def test_keys_and_folders() -> None:
    assert compaction_key(NAME) == f"/compactions/{NAME}"
    assert request_key(NAME) == f"/compaction-requests/{NAME}"
    assert attempt_key(NAME, "a") == f"/compaction-attempts/{NAME}/a"
    assert job_key("j") == "/compaction-jobs/j"
    folder = object_path(NAME, 0, "a").rpartition("/")[0]
    assert attempt_folder(NAME, "a") == f"{folder}/compacted-a"


@pytest.mark.parametrize("decode", [decode_compaction, decode_attempt, decode_request])
def test_what_is_no_record_names_its_key(decode: object) -> None:
    with pytest.raises(MetadataError, match="/the/key"):
        decode("/the/key", b"{}")  # type: ignore[operator]


@pytest.mark.parametrize("state", RequestState)
def test_a_request_is_finished_with_its_job(state: RequestState) -> None:
    finished = state in (RequestState.SUCCESS, RequestState.ERROR)
    assert CompactionRequest(1, state).finished == finished
