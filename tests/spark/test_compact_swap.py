"""The commit of an artifact: files that are deleted, and kept, if it fails."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from magnetar.compaction.deletion import delete_folder
from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    CompactedFile,
    CompactionAttempt,
    CompactionRecord,
    RetiredFile,
    attempt_folder,
    attempt_key,
    compaction_key,
    decode_compaction,
)
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.jobs.compaction import swap
from magnetar.jobs.compaction.folders import clean_folders
from magnetar.jobs.compaction.leftovers import clean_attempts
from magnetar.jobs.compaction.swap import Attempt, Superseded
from magnetar.managed_ledger.record import ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.metadata.store import BadRevision, MetadataUnavailable, Operation
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.compact.job import spark_error_text

NAME = "public/default/persistent/t"
HORIZON = Position(7, 9)
CLOCK = SystemClock()


class Late(MemoryStore):
    """A store whose transactions get no answer and take effect later."""

    held: Sequence[Operation] | None = None

    async def transact(self, operations: Sequence[Operation]) -> int:
        if self.held is None:
            self.held = operations
        raise MetadataUnavailable("no answer")

    async def happen(self) -> int:
        assert self.held is not None
        return await super().transact(self.held)


@pytest.fixture
async def store() -> Late:
    store = Late(CLOCK)
    await store.put(managed_ledger_key(NAME), encode_log(ManagedLedgerRecord(1, 1)))
    return store


async def begun(store: MemoryStore, folder: Path, number: str) -> Attempt:
    spec, planned = StoreSpec("filesystem", str(folder)), await swap.live(store, NAME)
    return await swap.begin(store, NAME, number, spec, "job", CLOCK, planned=planned)


def file_in(attempt: Attempt) -> CompactedFile:
    """Writes a file."""
    path = f"{attempt.folder}/00000-0.parquet"
    whole = Path(attempt.record.store.bucket) / path
    whole.parent.mkdir(parents=True)
    whole.write_bytes(b"of it")
    return CompactedFile(path, 5, 0, Position(7, 1), Position(7, 8), 2, 2, 5)


async def test_a_commit_that_comes_late_finds_its_files_or_does_not_count(
    store: Late, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that gives up cannot know whether its commit may still take effect."""
    monkeypatch.setattr(swap, "COMMIT_ATTEMPTS_MAX", 1)
    monkeypatch.setattr(swap, "COMMIT_RETRY_S", 0.0)
    attempt = await begun(store, tmp_path, "a" * 32)
    file = file_in(attempt)
    with pytest.raises(MetadataUnavailable):
        await swap.commit(store, attempt, HORIZON, (file,), removed=0, clock=CLOCK)
    arrived: list[int] = []

    async def overtaken(spec: StoreSpec, folder: str) -> int:
        with suppress(BadRevision):
            arrived.append(await store.happen())
        return await delete_folder(spec, folder)

    monkeypatch.setattr(swap, "delete_folder", overtaken)
    await swap.give_up(store, attempt)
    assert not (tmp_path / file.path).exists()
    assert arrived == []
    assert await store.get(compaction_key(NAME)) is None
    assert await store.list(ATTEMPTS_PREFIX) == []


async def test_what_was_committed_without_an_answer_is_not_given_up(
    store: Late, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap, "COMMIT_ATTEMPTS_MAX", 1)
    monkeypatch.setattr(swap, "COMMIT_RETRY_S", 0.0)
    attempt = await begun(store, tmp_path, "a" * 32)
    file = file_in(attempt)
    with pytest.raises(MetadataUnavailable):
        await swap.commit(store, attempt, HORIZON, (file,), removed=0, clock=CLOCK)
    await store.happen()
    await swap.give_up(store, attempt)
    assert (tmp_path / file.path).exists()


async def test_what_came_after_a_cleaner_goes_too(store: Late, tmp_path: Path) -> None:
    attempt = await begun(store, tmp_path, "a" * 32)
    await clean_attempts(store)  # no job has a key here
    file = file_in(attempt)
    await swap.give_up(store, attempt)
    assert not (tmp_path / file.path).exists()


async def test_what_tasks_left_beside_an_artifact_goes_and_nothing_else(
    store: Late, tmp_path: Path
) -> None:
    """They are left by a killed executor, or by two tasks that wrote the same part."""
    old, live, other = [await begun(store, tmp_path, each * 32) for each in "abc"]
    files = [file_in(attempt) for attempt in (old, live, other)]
    spec = live.record.store
    retired = (RetiredFile(spec, files[0].path, 5),)
    record = CompactionRecord(HORIZON, 1, live.number, spec, 5, (files[1],), retired)
    await store.put(compaction_key(NAME), encode(record))
    left = [tmp_path / each.folder / f"00000-{'d' * 32}.parquet" for each in (old, live, other)]
    notes = tmp_path / live.folder / "notes.txt"
    for path in (*left, notes):
        path.write_bytes(b"half of it")
    assert (await clean_folders(store, NAME)).files == 2
    assert [path.exists() for path in (*left, notes)] == [False, False, True, True]
    assert all((tmp_path / file.path).exists() for file in files)
    assert (await clean_folders(store, NAME)).files == 0


async def test_a_plan_from_before_a_newer_artifact_or_log_is_not_gone_on_with(
    store: Late, tmp_path: Path
) -> None:
    spec, planned = StoreSpec("filesystem", str(tmp_path)), await swap.live(store, NAME)
    newer = CompactionRecord(HORIZON, 1, "b" * 32, spec, 5)
    await store.put(compaction_key(NAME), encode(newer))
    with pytest.raises(Superseded):
        await swap.begin(store, NAME, "a" * 32, spec, "job", CLOCK, planned=planned)
    planned = await swap.live(store, NAME)
    await store.put(managed_ledger_key(NAME), encode_log(ManagedLedgerRecord(2, 2)))
    with pytest.raises(Superseded):
        await swap.begin(store, NAME, "a" * 32, spec, "job", CLOCK, planned=planned)
    assert await store.list(ATTEMPTS_PREFIX) == []


async def test_a_log_that_was_trimmed_beyond_the_horizon_gets_no_artifact(
    store: Late, tmp_path: Path
) -> None:
    """Retention has no limit in a topic without an artifact."""
    attempt = await begun(store, tmp_path, "a" * 32)
    trimmed = ManagedLedgerRecord(1, 2, last_position=Position(8, 3))
    await store.put(managed_ledger_key(NAME), encode_log(trimmed))
    with pytest.raises(Superseded, match="trimmed beyond"):
        await swap.commit(store, attempt, HORIZON, (), removed=0, clock=CLOCK)


async def test_of_an_older_log_of_that_name_nothing_is_read(store: Late, tmp_path: Path) -> None:
    older = await begun(store, tmp_path, "b" * 32)
    file = file_in(older)
    record = CompactionRecord(HORIZON, 1, older.number, older.record.store, 5, (file,))
    await store.put(compaction_key(NAME), encode(record))
    await store.put(managed_ledger_key(NAME), encode_log(ManagedLedgerRecord(2, 2)))
    found, created_ms = await swap.live(store, NAME)
    assert created_ms == 2
    assert found.record is not None
    assert (found.record.horizon, found.record.files) == (EARLIEST, ())
    assert [each.path for each in found.record.retired] == [file.path]


async def test_stores_that_are_gone_for_good_keep_nothing_else(store: Late, tmp_path: Path) -> None:
    """The job keeps and reports the records of files there; it deletes the others."""
    away = StoreSpec("filesystem", "nohost://gone")
    attempt = await begun(store, tmp_path, "b" * 32)
    file = file_in(attempt)
    spec = attempt.record.store
    lost = RetiredFile(away, f"{attempt_folder(NAME, 'c' * 32)}/00000-0.parquet", 5)
    record = CompactionRecord(
        HORIZON, 1, "d" * 32, spec, 5, retired=(lost, RetiredFile(spec, file.path, 5))
    )
    await store.put(compaction_key(NAME), encode(record))
    stuck = CompactionAttempt(away, attempt_folder(NAME, "0" * 32), 5, "dead")
    await store.put(attempt_key(NAME, "0" * 32), encode(stuck))
    retired = await swap.clean_retired(store, NAME, CLOCK.now_ms())
    assert (retired.files, len(retired.kept), retired.errors) == (1, 1, [])
    assert not (tmp_path / file.path).exists()
    left = decode_compaction("", (await store.get(compaction_key(NAME))).value).retired  # type: ignore[union-attr]
    assert left == (lost,)
    folders = await clean_folders(store, NAME)
    assert ([what for what, _ in folders.kept], folders.errors) == (
        [f"{away}/{attempt_folder(NAME, 'c' * 32)}"],
        [],
    )
    attempts = await clean_attempts(store)
    assert [what for what, _ in attempts.kept] == [attempt_key(NAME, "0" * 32)]
    assert attempts.errors == []
    assert [each.key for each in await store.list(ATTEMPTS_PREFIX)] == [attempt_key(NAME, "0" * 32)]


def test_what_spark_says_names_the_error_of_the_task() -> None:
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job "
        'aborted\nTraceback (most recent call last):\n  File "x.py"\n'
        "magnetar.core.errors.PersistenceError: entry 7:1 cannot be decoded: no metadata\n\tat x\n"
    )
    said = spark_error_text(RuntimeError(text))
    assert said == "magnetar.core.errors.PersistenceError: entry 7:1 cannot be decoded: no metadata"
    assert spark_error_text(RuntimeError("\nno JVM\nat x")) == "no JVM"
    assert spark_error_text(KeyError()) == "KeyError"
