"""Failures of jobs: what is reported, what continues, and what is left alone."""

import asyncio
import json
import os
import signal
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pytest
from tests.spark.job_stage import METADATA_URL, TOPIC, JobCluster, entry
from tests.spark.offload_stage import ENTRIES, NAME, live, offload, on_this_process
from tests.spark.test_job_races import LEDGER, SPEC, begun, committing, file_of
from tests.support.held_store import HeldStore, puts

from magnetar.core.errors import MetadataError
from magnetar.jobs import sweeper as sweeping
from magnetar.jobs.offload.leftovers import remove_attempts, sweep
from magnetar.jobs.sweeper import CLUSTER_KEY
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, MetadataUnavailable
from magnetar.offload import repository
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    AttemptRecord,
    OffloadRecord,
    attempt_key,
    decode_attempt,
    object_path,
    offload_key,
)
from magnetar.offload.repository import Attempt, CommitResult, OffloadRepository
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar_spark.jobs.main import main
from magnetar_spark.jobs.offload import job

TO_FILES = ("--threshold", "0", "--deletion-lag", "-1")


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    return on_this_process(monkeypatch, JobCluster(monkeypatch, tmp_path / "cold", capsys))


class OfSpark(Exception):
    """An error of the JVM, as Py4J raises it."""

    __module__ = "py4j.protocol"


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(job, "_write_by_spark", fails)


def test_what_spark_says_is_the_jobs_failure(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, ENTRIES)
    failing(monkeypatch, OfSpark("the JVM died"))
    found = offload(cluster, *TO_FILES)
    assert (found["code"], found["state"], found["error"]) == (1, "failed", "OfSpark: the JVM died")
    assert found["startedMs"] <= found["finishedMs"]
    assert cluster.keys("/offload-jobs/") == []


@pytest.mark.parametrize(
    ("error", "said"), [(OSError("no disk"), "no disk"), (TimeoutError(), "TimeoutError")]
)
def test_what_the_machine_says_is_the_jobs_failure(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    cluster.write(TOPIC, ENTRIES)
    failing(monkeypatch, error)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], found["error"]) == (1, said)


def test_a_bug_is_reported_and_not_hidden(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write(TOPIC, ENTRIES)
    failing(monkeypatch, KeyError("x"))
    arguments = ["offload", "--topic", TOPIC, "--store", f"file://{cluster.folder}", *TO_FILES]
    with pytest.raises(KeyError):
        main([*arguments, "--metadata-url", METADATA_URL])
    out, err = capsys.readouterr()
    assert "offload: failed" in out
    assert "KeyError: 'x'" in out
    assert "offload failed unexpectedly" in err
    assert cluster.keys("/offload-jobs/") == [], "also then the lease is given up"


def test_a_signal_to_end_ends_the_job_and_its_handler(
    cluster: JobCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, ENTRIES)
    before = signal.getsignal(signal.SIGTERM)
    stopped: list[bool] = []
    monkeypatch.setattr("magnetar_spark.jobs.session.Sessions.stop", lambda _: stopped.append(True))

    async def killed() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)

    cluster.store.after(puts("/offload-jobs/"), killed)
    message = tmp_path / "message"
    found = offload(cluster, *TO_FILES, "--termination-message", str(message))
    assert (found["code"], found["error"]) == (143, "interrupted by SIGTERM")
    assert json.loads(message.read_bytes())["error"] == "interrupted by SIGTERM"
    assert (live(cluster), cluster.files(), stopped) == ({}, set(), [True])
    assert signal.getsignal(signal.SIGTERM) is before
    assert not [t for t in asyncio.all_tasks(_loop()) if not t.done()], "none is left"


def _loop() -> asyncio.AbstractEventLoop:
    from magnetar.jobs.event_loop import event_loop

    return event_loop()


@pytest.mark.parametrize("kind", ["offload", "compact"])
def test_a_store_without_a_cluster_is_no_cluster(cluster: JobCluster, kind: str) -> None:
    cluster.write(TOPIC, ENTRIES)
    cluster.run(cluster.store.delete(CLUSTER_KEY))
    found = cluster.job(kind, "--topic", TOPIC, "--store", str(cluster.folder.as_uri()))
    assert (found["code"], found["state"]) == (1, "failed")
    assert found["error"] == "the metadata store holds no cluster (/cluster is not there)"


def test_what_a_compaction_cannot_clean_up_keeps_no_topic_from_its_turn(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from magnetar_spark.jobs.compact import job as compact_job

    async def fails(*_: Any, **__: Any) -> Any:
        raise MetadataError("not now")

    monkeypatch.setattr(compact_job, "empty_trash", fails)
    monkeypatch.setattr(compact_job, "clean_attempts", fails)
    cluster.write(TOPIC, [entry(1, key="a")])
    found = cluster.job("compact", "--topic", TOPIC, "--store", cluster.folder.as_uri())
    assert (found["code"], found["metrics"]["topicsCompacted"]) == (3, 1)
    errors = [each["error"] for each in found["details"] if "error" in each]
    assert errors == ["leftovers: not now"] * 3


async def test_a_commit_that_never_succeeds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HeldStore()
    attempt = await begun(store)
    monkeypatch.setattr(repository, "COMMIT_TIMEOUT_S", 0.2)
    tried = 0

    async def refused(_: Any) -> int:
        nonlocal tried
        tried += 1
        raise BadRevision(ledger_key(LEDGER), 1, 2)

    store.transact = refused  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataUnavailable, match="could not be committed in time"):
        await committing(store, attempt)
    assert tried >= 2
    store.away = True
    with pytest.raises(MetadataUnavailable, match="away"):
        await committing(store, attempt)


@pytest.mark.parametrize("whose", ["mine", "theirs"])
async def test_a_claimed_attempt_that_was_committed_before_counts(whose: str) -> None:
    """The commit happened between the two reads."""
    store = HeldStore()
    attempt = await begun(store)
    file = file_of(attempt)
    if whose == "theirs":
        file = msgspec.structs.replace(file, attempt="another")
    get = store.get

    async def committed_meanwhile(key: str) -> Any:
        found = await get(key)
        if key == attempt.key:
            await store.put(offload_key(NAME_OF_RACES, LEDGER), encode(file))
            return None
        return found

    store.get = committed_meanwhile  # type: ignore[method-assign]
    expected = CommitResult.OFFLOADED if whose == "mine" else CommitResult.ALREADY
    assert await committing(store, attempt) is expected


NAME_OF_RACES = "public/default/persistent/t"


async def test_an_attempt_of_another_revision_is_not_given_up(tmp_path: Path) -> None:
    store = HeldStore()
    attempt = await begun(store)
    files = open_object_store(StoreSpec("filesystem", str(tmp_path)))
    other = Attempt(attempt.key, attempt.attempt, attempt.path, attempt.revision + 5)
    with pytest.raises(BadRevision):
        await OffloadRepository(store).discard_attempt(files, other)
    assert await store.get(attempt.key) is not None
    await OffloadRepository(store).discard_attempt(files, attempt)
    await OffloadRepository(store).discard_attempt(files, attempt)
    assert await store.get(attempt.key) is None


async def test_an_attempt_says_where_whose_and_since_when() -> None:
    store = HeldStore()
    await store.put(ledger_key(LEDGER), b"x")
    made = await OffloadRepository(store).begin_attempt(NAME_OF_RACES, LEDGER, SPEC, "job", 77)
    stored = await store.get(made.key)
    assert stored is not None
    record = decode_attempt(made.key, stored.value)
    assert record == AttemptRecord(SPEC, made.path, 77, "job")
    assert made.key == attempt_key(NAME_OF_RACES, LEDGER, made.attempt)
    assert made.path == object_path(NAME_OF_RACES, LEDGER, made.attempt)
    assert made.revision == stored.revision
    again = await OffloadRepository(store).reclaim_attempt(made, "next")
    assert again is not None
    assert again.revision > made.revision


async def test_a_leftover_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    store, here = HeldStore(), StoreSpec("filesystem", str(tmp_path))
    half = tmp_path / object_path(NAME, LEDGER, "b" * 32)
    half.parent.mkdir(parents=True)
    half.touch()
    torn = attempt_key(NAME, LEDGER, "a" * 32)
    await store.put(torn, b"{")
    dead = AttemptRecord(here, str(half.relative_to(tmp_path)), 5, "dead")
    key = attempt_key(NAME, LEDGER, "b" * 32)
    await store.put(key, encode(dead))
    removed = await remove_attempts(store, "mine", all_tasks_over=False)
    assert (removed.files, [what for what, _ in removed.errors]) == (1, [torn])
    assert [each.key for each in await store.list(ATTEMPTS_PREFIX)] == [torn]
    assert not half.exists()


async def test_a_leftover_that_another_job_claims_first_is_theirs(tmp_path: Path) -> None:
    store, here = HeldStore(), StoreSpec("filesystem", str(tmp_path))
    path = object_path(NAME, LEDGER, "b" * 32)
    dead = AttemptRecord(here, path, 5, "dead")
    key = attempt_key(NAME, LEDGER, "b" * 32)
    await store.put(key, encode(dead))
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    held = store.hold(puts(key))
    cleaning = asyncio.ensure_future(remove_attempts(store, "mine", all_tasks_over=False))
    await held.reached.wait()
    await store.put(key, encode(msgspec.structs.replace(dead, job="other")))
    held.go.set()
    removed = await cleaning
    assert (removed.files, removed.errors, removed.kept) == (0, [], [])
    assert (tmp_path / path).exists()


def written(folder: Path, path: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    with (folder / path).open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger=NAME, properties={"cluster": "here"})
        writer.add(LEDGER, 0, b"entry")
        writer.close()


async def test_the_failed_sweep_of_an_unavailable_store_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, here = HeldStore(), StoreSpec("filesystem", str(tmp_path))
    written(tmp_path, object_path(NAME, LEDGER, "b" * 32))
    folder = f"{here}/{object_path(NAME, 0, '').rpartition('/')[0]}"

    def away(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no route")

    with monkeypatch.context() as during:
        during.setattr(obstore, "list", away)
        swept = await sweep(store, here, NAME, "here", age_s=-60)
    assert (swept.files, [what for what, _ in swept.errors]) == (0, [folder])
    assert "no route" in swept.errors[0][1]
    assert (await sweep(store, here, NAME, "here", age_s=-60)).files == 1


async def test_the_sweep_asks_for_records_after_it_has_listed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a file that becomes live meanwhile is found in the record that names it."""
    store, here = HeldStore(), StoreSpec("filesystem", str(tmp_path))
    path = object_path(NAME, LEDGER, "b" * 32)
    written(tmp_path, path)
    listed = sweeping._listed

    def committed_behind(*arguments: Any) -> Any:
        found = listed(*arguments)
        file = OffloadRecord(LEDGER, "b" * 32, here, path, 1, 1, 5, 0, 1, 2, 3)
        asyncio.run(store.put(offload_key(NAME, LEDGER), encode(file)))
        return found

    monkeypatch.setattr(sweeping, "_listed", committed_behind)
    swept = await sweep(store, here, NAME, "here", age_s=-60)
    assert (swept.files, swept.kept, swept.errors) == (0, [], [])
    assert (tmp_path / path).exists()


async def test_by_a_host_whose_clock_is_ahead_no_file_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's clock must agree."""
    store, here = HeldStore(), StoreSpec("filesystem", str(tmp_path))
    path = object_path(NAME, LEDGER, "b" * 32)
    written(tmp_path, path)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Ahead":
            return cls.fromtimestamp(time.time() + 25 * 3600, tz)

    monkeypatch.setattr(sweeping, "datetime", Ahead)
    swept = await sweep(store, here, NAME, "here", age_s=24 * 3600)
    assert (swept.files, swept.kept, swept.errors) == (0, [], [])
    assert (tmp_path / path).exists()
    os.utime(tmp_path / path, (1, 1))
    assert (await sweep(store, here, NAME, "here", age_s=24 * 3600)).files == 1


async def test_a_file_that_goes_while_it_is_swept_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, here = HeldStore(), StoreSpec("filesystem", str(tmp_path))
    path = object_path(NAME, LEDGER, "b" * 32)
    written(tmp_path, path)
    listed = sweeping._listed

    def gone_behind(*arguments: Any) -> Any:
        found = listed(*arguments)
        (tmp_path / path).unlink()
        return found

    monkeypatch.setattr(sweeping, "_listed", gone_behind)
    swept = await sweep(store, here, NAME, "here", age_s=-60)
    assert (swept.files, swept.kept, swept.errors) == (0, [], [])
