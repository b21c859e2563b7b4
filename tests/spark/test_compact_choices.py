"""The choices of a compaction: parts, places, policies, marks, folders."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from magnetar.compaction.records import (
    FILES_MAX,
    CompactedFile,
    CompactionRecord,
    CompactionRequest,
    RetiredFile,
    attempt_folder,
    compaction_key,
    job_key,
    request_key,
)
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.jobs.compaction import plan
from magnetar.jobs.compaction.chunks import (
    OPEN_MS_MAX,
    ChunkRow,
    mark_of,
    settled,
    staying,
)
from magnetar.jobs.compaction.folders import clean_folders
from magnetar.jobs.compaction.plan import (
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    PARTS_PER_CORE,
    OldFile,
    Part,
    behind,
    part_bytes,
    parts_of,
    place_of,
)
from magnetar.jobs.compaction.selection import threshold_of, topic_settings
from magnetar.jobs.log.ranges import Range
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.offload.policy import OffloadDefaults, namespace_key, topic_policies_key
from magnetar.offload.records import DEFAULTS_KEY, RequestState
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar_spark.jobs.compact import batches as batching
from magnetar_spark.jobs.compact.batches import chunk_batches

NAME = "public/default/persistent/t"
METADATA = LedgerMetadata(7, (), 1)
HERE = StoreSpec(FILESYSTEM, "/here")
NOW_MS = 10 * OPEN_MS_MAX


def ranged(size: int, first: int = 0, last: int = 0) -> Range:
    return Range("t", -1, METADATA, first, last, size)


def old(path: str, size: int, entries: int = 1) -> CompactedFile:
    return CompactedFile(path, 1, 1, Position(1, 0), Position(1, 5), entries, 1, size)


def record(*files: CompactedFile, **fields: Any) -> CompactionRecord:
    return CompactionRecord(Position(1, 9), 1, "a" * 32, HERE, 1, files, **fields)


def test_later_messages_have_greater_places() -> None:
    index_max, entry_max = plan.INDEX_MASK, plan.ENTRY_MASK
    places = [
        place_of(0, 0, 0, alive=False),
        place_of(0, 0, 0, alive=True),
        place_of(0, 0, 1, alive=False),
        place_of(0, 0, index_max, alive=True),
        place_of(0, 1, 0, alive=False),
        place_of(0, entry_max, index_max, alive=True),
        place_of(1, 0, 0, alive=False),
    ]
    assert places == sorted(set(places))
    assert places[-1].bit_length() <= 63
    assert place_of(3, 2, 1, alive=True) == 3 << 50 | 2 << 25 | 1 << 1 | 1


def test_parts_are_enough_for_all_cores_and_few_enough_for_one_record() -> None:
    gib = 1 << 30
    assert part_bytes(0, 4) == PART_BYTES_MIN
    assert part_bytes(gib, 4) == gib // (4 * PARTS_PER_CORE)
    assert part_bytes(gib, 0) == PART_BYTES_MAX
    assert part_bytes(100 * gib, 1) == PART_BYTES_MAX
    assert part_bytes(1000 * gib, 1) == 2000 * gib // FILES_MAX


def counts(parts: list[Part]) -> list[int]:
    assert [part.number for part in parts] == list(range(len(parts)))
    return [len(part.pieces) for part in parts]


def test_pieces_are_gathered_up_to_a_parts_size() -> None:
    assert parts_of(None, [], 10) == []
    assert counts(parts_of(None, [ranged(4), ranged(6), ranged(1)], 10)) == [2, 1]
    assert counts(parts_of(None, [ranged(4), ranged(7), ranged(3)], 10)) == [1, 2]
    assert counts(parts_of(None, [ranged(11), ranged(11)], 10)) == [1, 1]
    (part,) = parts_of(None, [ranged(4), ranged(6)], 10)
    assert part.size_bytes == 10


def test_files_of_the_old_artifact_come_first_and_share_no_part_with_the_log() -> None:
    files = (old("1", 4), old("2", 4))
    parts = parts_of(record(*files), [ranged(1)], 100)
    assert [part.pieces for part in parts] == [
        (OldFile(HERE, files[0]), OldFile(HERE, files[1])),
        (ranged(1),),
    ]


def test_a_parts_entries_can_be_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "PART_ENTRIES_MAX", 10)
    whole = [ranged(1, 0, 5), ranged(1, 6, 9), ranged(1, 10, 10)]
    assert counts(parts_of(None, whole, 100)) == [2, 1]
    files = record(old("1", 1, 6), old("2", 1, 4), old("3", 1, 1))
    assert counts(parts_of(files, [], 100)) == [2, 1]


def test_the_log_is_read_from_behind_the_horizon() -> None:
    assert behind(None) == Position(-1, -1)
    assert behind(Position(3, 7)) == Position(3, 8)


def test_the_threshold_of_the_topic_is_over_that_of_its_namespace() -> None:
    namespace = {"compaction_threshold": 30}
    local, shared = (
        {"local": {"compaction_threshold": 10}},
        {"global": {"compaction_threshold": 20}},
    )
    assert threshold_of({}, {}) == 0
    assert threshold_of(namespace, {}) == 30
    assert threshold_of(namespace, shared) == 20
    assert threshold_of(namespace, local | shared) == 10
    assert threshold_of(namespace, {"local": {"compaction_threshold": 0}}) == 0
    assert threshold_of({"compaction_threshold": -5}, {}) == 0
    assert threshold_of({"compaction_threshold": "7"}, {"local": None, "global": None}) == 7


async def test_what_metadata_says_of_a_topic() -> None:
    store = MemoryStore(SystemClock())
    nothing = await topic_settings(store, NAME)
    assert (nothing.store, nothing.threshold_bytes) == (None, 0)
    assert (nothing.requested, nothing.revision) == (None, 0)
    defaults = OffloadDefaults(driver=FILESYSTEM, folder="/default")
    await store.put(DEFAULTS_KEY, msgspec.json.encode(defaults))
    said = await topic_settings(store, NAME)
    assert said.store == StoreSpec(FILESYSTEM, "/default")
    await store.put(namespace_key(NAME), b'{"compaction_threshold":5}')
    own = b'{"local":{"offload":{"managedLedgerOffloadBucket":"/own"},"compaction_threshold":6}}'
    assert (await topic_settings(store, NAME)).threshold_bytes == 5
    await store.put(topic_policies_key(NAME), own)
    said = await topic_settings(store, NAME)
    assert said.store == StoreSpec(FILESYSTEM, "/own")
    assert said.threshold_bytes == 6


async def test_a_request_is_taken_up_unless_it_is_done_or_a_job_is_at_it() -> None:
    store = MemoryStore(SystemClock())
    await store.put(job_key("lives"), b"{}")
    for request, taken in (
        (CompactionRequest(1), True),
        (CompactionRequest(1, RequestState.RUNNING, "dead"), True),
        (CompactionRequest(1, RequestState.RUNNING, "lives"), False),
        (CompactionRequest(1, RequestState.SUCCESS, "dead"), False),
        (CompactionRequest(1, RequestState.ERROR), False),
    ):
        revision = await store.put(request_key(NAME), encode(request))
        said = await topic_settings(store, NAME)
        assert said.requested == (request if taken else None)
        assert said.revision == revision


def marked(marked_ms: int) -> CompactionRecord:
    return record(marked=Position(1, 4), marked_ms=marked_ms)


def test_chunks_are_waited_for_so_long_after_the_mark() -> None:
    due = NOW_MS - OPEN_MS_MAX
    assert settled(None, NOW_MS) == EARLIEST
    assert settled(marked(0), NOW_MS) == EARLIEST
    assert settled(marked(due), NOW_MS) == Position(1, 4)
    assert settled(marked(due + 1), NOW_MS) == EARLIEST


def test_a_mark_stays_until_it_has_settled() -> None:
    horizon = Position(9, 9)
    due = NOW_MS - OPEN_MS_MAX
    anew = (horizon, NOW_MS)
    assert mark_of(None, horizon, NOW_MS) == anew
    assert mark_of(marked(due), horizon, NOW_MS) == anew
    assert mark_of(marked(due + 1), horizon, NOW_MS) == (Position(1, 4), due + 1)
    assert mark_of(marked(NOW_MS), horizon, NOW_MS) == (Position(1, 4), NOW_MS)
    assert mark_of(marked(NOW_MS + 1), horizon, NOW_MS) == anew, "a clock was wrong"


def row(message: str, place: int, *, last: bool = False, is_open: bool = False) -> ChunkRow:
    return ChunkRow(message.encode(), place, last, is_open)


def test_a_chunk_stays_with_the_last_chunk_behind_it() -> None:
    rows = [row("a", 1), row("a", 2, last=True), row("a", 3), row("a", 4, last=True)]
    assert staying(rows, {2}) == {1}
    assert staying(rows, {4}) == {3}
    assert staying(rows, {2, 4}) == {1, 3}
    assert staying(rows, set()) == set()


def test_a_chunk_without_a_last_one_stays_while_it_is_open() -> None:
    rows = [row("a", 1, is_open=True), row("a", 2), row("b", 3, last=True)]
    assert staying(rows, {3}) == {1}
    decided = [row("a", 1, is_open=True), row("a", 2, last=True)]
    assert staying(decided, set()) == set(), "its message is complete, and went"


def test_rows_go_to_spark_in_batches_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "ROWS_MAX", 2)
    rows = [row("a", place, last=place == 1, is_open=place == 2) for place in range(5)]
    batches = list(chunk_batches(rows))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    found = [ChunkRow(**each) for batch in batches for each in batch.to_pylist()]
    assert found == rows
    assert [batch.num_rows for batch in chunk_batches(rows[:4])] == [2, 2]
    assert list(chunk_batches([])) == []


def there(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


async def test_of_an_attempts_folder_only_what_the_record_names_stays(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    assert (await clean_folders(store, NAME)).files == 0
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    now, before = (attempt_folder(NAME, letter * 32) for letter in "ab")
    names = [
        f"{now}/00000-1f.parquet",
        f"{now}/00000-2f.parquet",
        f"{now}/notes.txt",
        f"{before}/00001-1f.parquet",
        f"{before}/00001-2f.parquet",
        f"{attempt_folder(NAME, 'c' * 32)}/00000-1f.parquet",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    one = msgspec.structs.replace(
        record(old(names[0], 1)), store=spec, retired=(RetiredFile(spec, names[3], 5),)
    )
    await store.put(compaction_key(NAME), encode(one))
    removed = await clean_folders(store, NAME)
    assert removed.files == 2
    assert not removed.kept
    assert there(tmp_path) == sorted([names[0], names[2], names[3], names[5]])


async def test_a_store_that_is_away_keeps_no_other_from_being_cleaned(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    away = StoreSpec("no driver", "b")
    left = f"{attempt_folder(NAME, 'a' * 32)}/00000-1f.parquet"
    (tmp_path / left).parent.mkdir(parents=True)
    (tmp_path / left).touch()
    one = msgspec.structs.replace(
        record(), store=spec, retired=(RetiredFile(away, "x/compacted/y.parquet", 5),)
    )
    await store.put(compaction_key(NAME), encode(one))
    removed = await clean_folders(store, NAME)
    assert removed.files == 1
    assert [what for what, _ in removed.kept] == [f"{away}/x/compacted"]
