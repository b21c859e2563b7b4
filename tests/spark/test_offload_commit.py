"""Attempts of the job `offload`: conditions of a commit, and leftovers of failures."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from pathlib import Path

import msgspec
import pytest

from magnetar.bookie.api import BookieIdentity, StoredEntry
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PersistenceError
from magnetar.jobs import sweeper as sweeping
from magnetar.jobs.event_loop import run
from magnetar.jobs.offload.file_writer import LedgerOffloader
from magnetar.jobs.offload.leftovers import remove_attempts, sweep
from magnetar.jobs.offload.work import LedgerTask, Result
from magnetar.jobs.sweeper import PROPERTY_CLUSTER
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, ledger_key
from magnetar.managed_ledger.record import LedgerItem, ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.metadata.store import BadRevision, MetadataUnavailable, Operation
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    AttemptRecord,
    OffloadRecord,
    decode_attempt,
    job_key,
    offload_key,
)
from magnetar.offload.repository import Attempt, CommitResult, OffloadRepository
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar_spark.jobs.summary import State, Summary
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings

NAME = "public/default/persistent/t"
LEDGER = 7
BOOKIE = BookieIdentity("b", "1")


class Silent(MemoryStore):
    """A store that does not answer its next transactions, which take effect."""

    silent = 0

    async def transact(self, operations: Sequence[Operation]) -> int:
        revision = await super().transact(operations)
        if self.silent:
            self.silent -= 1
            raise MetadataUnavailable("no answer")
        return revision


def ledger() -> LedgerMetadata:
    return LedgerMetadata(LEDGER, (Ensemble(0, (BOOKIE,)),), 1).closed(2, 30, 9)


def task(folder: Path) -> LedgerTask:
    spec = StoreSpec("filesystem", str(folder))
    return LedgerTask(NAME, "persistent://public/default/t", -1, LEDGER, 30, 1, 9, spec)


async def begin(store: MemoryStore, ledger_task: LedgerTask, job: str, now_ms: int) -> Attempt:
    return await OffloadRepository(store).begin_attempt(
        ledger_task.name, ledger_task.ledger_id, ledger_task.store, job, now_ms
    )


async def commit(store: MemoryStore, attempt: Attempt, file: OffloadRecord) -> CommitResult:
    return await OffloadRepository(store).commit(NAME, attempt, file)


async def discard(store: MemoryStore, folder: Path, attempt: Attempt) -> None:
    files = open_object_store(task(folder).store)
    await OffloadRepository(store).discard_attempt(files, attempt)


def file_of(attempt: Attempt, folder: Path) -> OffloadRecord:
    return OffloadRecord(
        ledger_id=LEDGER,
        attempt=attempt.attempt,
        store=task(folder).store,
        path=attempt.path,
        file_bytes=1,
        entries=3,
        length_bytes=30,
        checksum=0,
        created_ms=1,
        closed_ms=9,
        offloaded_ms=10,
    )


@pytest.fixture
async def store() -> Silent:
    store = Silent(SystemClock())
    await store.put(ledger_key(LEDGER), encode(ledger()))
    return store


def written(folder: Path, path: str, cluster: str = "here") -> Path:
    """Writes a complete file."""
    whole = folder / path
    whole.parent.mkdir(parents=True, exist_ok=True)
    with whole.open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger=NAME, properties={PROPERTY_CLUSTER: cluster})
        writer.add(LEDGER, 0, b"entry")
        writer.close()
    return whole


async def test_a_commit_puts_the_record_and_takes_the_attempt(
    store: Silent, tmp_path: Path
) -> None:
    attempt = await begin(store, task(tmp_path), "job", 5)
    file = file_of(attempt, tmp_path)
    assert await commit(store, attempt, file) is CommitResult.OFFLOADED
    assert await OffloadRepository(store).file(NAME, LEDGER) == file
    assert await store.list(ATTEMPTS_PREFIX) == []


async def test_a_commit_that_is_not_answered_counts_once(store: Silent, tmp_path: Path) -> None:
    attempt = await begin(store, task(tmp_path), "job", 5)
    store.silent = 1
    assert await commit(store, attempt, file_of(attempt, tmp_path)) is CommitResult.OFFLOADED


async def test_of_two_attempts_one_is_live(store: Silent, tmp_path: Path) -> None:
    first = await begin(store, task(tmp_path), "a", 5)
    second = await begin(store, task(tmp_path), "b", 6)
    assert first.path != second.path
    assert await commit(store, second, file_of(second, tmp_path)) is CommitResult.OFFLOADED
    assert await commit(store, first, file_of(first, tmp_path)) is CommitResult.ALREADY
    loser = written(tmp_path, first.path)
    await discard(store, tmp_path, first)
    assert not loser.exists()
    assert await store.list(ATTEMPTS_PREFIX) == []
    await OffloadRepository(store).discard_attempt(
        open_object_store(task(tmp_path).store), first
    )  # again: no error


async def test_what_is_given_up_cannot_be_committed_any_more(store: Silent, tmp_path: Path) -> None:
    """A task that is interrupted in its commit does not know whether the commit was sent."""
    late, done = [await begin(store, task(tmp_path), "job", 5) for _ in range(2)]
    assert await OffloadRepository(store).reclaim_attempt(late, "job") is not None
    with pytest.raises(PersistenceError, match="was cleaned up"):
        await commit(store, late, file_of(late, tmp_path))
    assert await OffloadRepository(store).reclaim_attempt(late, "job") is None
    assert await commit(store, done, file_of(done, tmp_path)) is CommitResult.OFFLOADED
    assert await OffloadRepository(store).reclaim_attempt(done, "job") is None


async def test_a_ledger_that_was_trimmed_gets_no_file(store: Silent, tmp_path: Path) -> None:
    attempt = await begin(store, task(tmp_path), "job", 5)
    await store.delete(ledger_key(LEDGER))
    assert await commit(store, attempt, file_of(attempt, tmp_path)) is CommitResult.GONE
    assert await OffloadRepository(store).file(NAME, LEDGER) is None


async def test_a_ledger_that_got_another_bookie_is_offloaded(store: Silent, tmp_path: Path) -> None:
    """Its record changes between the commit's read and write."""
    attempt = await begin(store, task(tmp_path), "job", 5)
    transact, moved = (
        store.transact,
        ledger().with_ensembles((Ensemble(0, (BookieIdentity("c", "1"),)),)),
    )

    async def first_moved(operations: Sequence[Operation]) -> int:
        store.transact = transact  # type: ignore[method-assign]
        await store.put(ledger_key(LEDGER), encode(moved))
        return await transact(operations)

    store.transact = first_moved  # type: ignore[method-assign]
    assert await commit(store, attempt, file_of(attempt, tmp_path)) is CommitResult.OFFLOADED


async def test_a_file_of_another_length_is_no_file_of_the_ledger(
    store: Silent, tmp_path: Path
) -> None:
    attempt = await begin(store, task(tmp_path), "job", 5)
    short = msgspec.structs.replace(file_of(attempt, tmp_path), entries=2)
    with pytest.raises(PersistenceError, match="3 entries of 30 bytes, its file 2"):
        await commit(store, attempt, short)


async def test_what_a_cleaner_has_claimed_cannot_be_committed(
    store: Silent, tmp_path: Path
) -> None:
    attempt = await begin(store, task(tmp_path), "dead", 5)
    record = decode_attempt(attempt.key, (await store.list(ATTEMPTS_PREFIX))[0].value)
    claimed = await OffloadRepository(store).claim_attempt(attempt, record, "cleaner")
    with pytest.raises(PersistenceError, match="was cleaned up"):
        await commit(store, attempt, file_of(attempt, tmp_path))
    with pytest.raises(BadRevision):
        await OffloadRepository(store).claim_attempt(attempt, record, "another cleaner")
    assert claimed.revision > attempt.revision


async def test_attempts_of_dead_jobs_go_with_their_files(store: Silent, tmp_path: Path) -> None:
    await store.put(job_key("alive"), b"{}")
    dead = await begin(store, task(tmp_path), "dead", 5)
    alive = await begin(store, task(tmp_path), "alive", 5)
    mine = await begin(store, task(tmp_path), "mine", 5)
    await store.put(job_key("mine"), b"{}")
    half = tmp_path / dead.path
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half a file")
    removed = await remove_attempts(store, "mine", all_tasks_over=False)
    assert (removed.files, removed.errors) == (1, [])
    assert not half.exists()
    left = {record.key for record in await store.list(ATTEMPTS_PREFIX)}
    assert left == {alive.key, mine.key}
    assert (await remove_attempts(store, "mine", all_tasks_over=True)).files == 1
    # One of its tasks may still write its file; the next run knows it.
    late = tmp_path / mine.path
    late.write_bytes(b"half a file")
    await store.delete(job_key("mine"))
    assert (await remove_attempts(store, "next", all_tasks_over=False)).files == 1
    assert not late.exists()
    assert {record.key for record in await store.list(ATTEMPTS_PREFIX)} == {alive.key}


async def test_a_cleaner_that_died_is_cleaned_up_after(store: Silent, tmp_path: Path) -> None:
    attempt = await begin(store, task(tmp_path), "dead", 5)
    record = AttemptRecord(task(tmp_path).store, attempt.path, 5, "dead")
    await OffloadRepository(store).claim_attempt(attempt, record, "dead cleaner")
    assert (await remove_attempts(store, "mine", all_tasks_over=False)).files == 1
    assert await store.list(ATTEMPTS_PREFIX) == []


async def test_the_sweep_takes_what_nobody_names_and_this_cluster_wrote(
    store: Silent, tmp_path: Path
) -> None:
    spec = task(tmp_path).store
    live, begun, lost, foreign = [await begin(store, task(tmp_path), "job", 5) for _ in range(4)]
    assert await commit(store, live, file_of(live, tmp_path)) is CommitResult.OFFLOADED
    for nameless in (lost, foreign):
        await store.delete(nameless.key)
    paths: dict[str, Path] = {}
    for each in (live, begun, lost):
        paths[each.key] = written(tmp_path, each.path)
    paths[foreign.key] = written(tmp_path, foreign.path, cluster="elsewhere")
    other = paths[lost.key].with_name("notes.txt")
    other.write_text("not ours")
    young = await sweep(store, spec, NAME, "here", age_s=3600)
    assert (young.files, young.errors) == (0, [])
    old = await sweep(store, spec, NAME, "here", age_s=-60)
    assert (old.files, old.errors) == (1, [])
    gone: Callable[[Attempt], bool] = lambda each: not paths[each.key].exists()  # noqa: E731
    assert [gone(each) for each in (live, begun, lost, foreign)] == [False, False, True, False]
    assert other.exists()


async def test_a_torn_unnamed_file_is_kept_and_reported_and_the_sweep_continues(
    store: Silent, tmp_path: Path
) -> None:
    """It may be the only copy of another cluster's data."""
    spec = task(tmp_path).store
    paths: list[Path] = []
    await store.delete(ledger_key(LEDGER))
    for _ in range(5):
        lost = await begin(store, task(tmp_path), "job", 5)
        await store.delete(lost.key)
        paths.append(written(tmp_path, lost.path))
    torn = sorted(paths)[:2]
    torn[0].write_bytes(torn[0].read_bytes()[:-9])
    torn[1].write_bytes(b"")
    swept = await sweep(store, spec, NAME, "here", age_s=-60)
    assert (swept.files, swept.errors) == (3, [])
    assert [path for path in paths if path.exists()] == sorted(torn, key=paths.index)
    summary = Summary("offload")
    swept.report(summary, "leftoversRemoved")
    assert (summary.state, summary.exit_code) == (State.SUCCEEDED, 0)
    assert summary.metrics == {"leftoversRemoved": 3, "leftoversKept": 2}
    told = "\n".join(summary.lines())
    assert all(path.name in told for path in torn)


async def test_by_a_clock_that_is_ahead_nothing_is_a_leftover_early(
    store: Silent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = await begin(store, task(tmp_path), "job", 5)
    await store.delete(lost.key)
    whole = written(tmp_path, lost.path)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Ahead":
            return cls.fromtimestamp(time.time() + 365 * 24 * 3600, tz)

    monkeypatch.setattr(sweeping, "datetime", Ahead)
    swept = await sweep(store, task(tmp_path).store, NAME, "here", age_s=24 * 3600)
    assert (swept.files, swept.errors) == (0, [])
    assert whole.exists()


async def restored(store: Silent, *, listed: bool) -> None:
    """Restores the ledger, by its own record or by the topic's list."""
    if listed:
        item = LedgerItem(LEDGER, 1, 9, 3, 30)
        log = ManagedLedgerRecord(1, 1, (item,))
        await store.put(managed_ledger_key(NAME), encode_log(log))
        await store.delete(ledger_key(LEDGER))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("ends", ["offloaded", "trimmed"])
async def test_a_file_from_before_metadata_was_restored_is_kept_while_it_may_be_the_last_copy(
    store: Silent, tmp_path: Path, listed: bool, ends: str
) -> None:
    """The file was live and bookies deleted the ledger; the backup has the ledger again."""
    spec = task(tmp_path).store
    dead, unnamed = [await begin(store, task(tmp_path), "dead", 5) for _ in range(2)]
    paths = [written(tmp_path, each.path) for each in (dead, unnamed)]
    await store.delete(unnamed.key)
    await restored(store, listed=listed)
    first = await remove_attempts(store, "mine", all_tasks_over=False)
    assert (first.files, first.errors, first.kept) == (0, [], [])
    last = await remove_attempts(store, "mine", all_tasks_over=True)
    assert (last.files, last.errors) == (0, [])
    assert [what for what, _ in last.kept] == [f"{spec}/{dead.path}"]
    swept = await sweep(store, spec, NAME, "here", age_s=-60)
    assert (swept.files, swept.errors) == (0, [])
    assert [what for what, _ in swept.kept] == [f"{spec}/{unnamed.path}"]
    assert all(path.exists() for path in paths)
    summary = Summary("offload")
    last.report(summary, "leftoversRemoved")
    assert (summary.state, summary.exit_code) == (State.SUCCEEDED, 0)
    if ends == "offloaded":
        again = await begin(store, task(tmp_path), "again", 5)
        await store.delete(again.key)
        await store.put(offload_key(NAME, LEDGER), encode(file_of(again, tmp_path)))
    else:
        await store.delete(ledger_key(LEDGER))
        await store.delete(managed_ledger_key(NAME))
    assert (await remove_attempts(store, "mine", all_tasks_over=True)).files == 1
    assert (await sweep(store, spec, NAME, "here", age_s=-60)).files == 1
    assert not any(path.exists() for path in paths)
    assert await store.list(ATTEMPTS_PREFIX) == []


def test_whatever_goes_wrong_with_a_ledger_is_its_failure_alone(tmp_path: Path) -> None:
    """Even after an unexpected error, the task continues with the next ledger."""
    store, settings = MemoryStore(SystemClock()), LogSettings("memory:")
    run(store.put(ledger_key(LEDGER), encode(ledger())))

    class Broken(EntryReader):
        def read(self, _ranged: object) -> Iterator[list[StoredEntry]]:
            raise OverflowError("beyond what an entry takes")

    with Broken(settings, ()) as reader:
        writer = LedgerOffloader("job", "here", store, reader)
        outcome = writer.offload(task(tmp_path))
    assert outcome.result is Result.FAILED
    assert outcome.error == "OverflowError: beyond what an entry takes"
    assert run(store.list(ATTEMPTS_PREFIX)) == []
