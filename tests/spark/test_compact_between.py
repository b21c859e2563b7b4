"""Events between the steps of the job `compact`, and its leftovers if a step fails."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark.compact_stage import (
    NAME,
    artifact,
    by_spark,
    compact,
    counts,
    keyed,
    readable,
    record,
    status,
)
from tests.spark.job_stage import TOPIC, JobCluster
from tests.support.compaction import compacted, messages
from tests.support.held_store import deletes, puts

from magnetar.compaction import records
from magnetar.compaction.records import CompactionRecord, CompactionRequest
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.compaction import second_pass, swap
from magnetar.jobs.compaction.here import Compacted
from magnetar.jobs.compaction.leftovers import clean_attempts
from magnetar.jobs.compaction.second_pass import Writing
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.metadata.store import MetadataUnavailable
from magnetar.offload.records import RequestState
from magnetar.offload.verify import verify_file
from magnetar_spark.jobs.compact import job


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    monkeypatch.setattr(job, "compact_by_spark", by_spark)
    return JobCluster(monkeypatch, tmp_path / "cold", capsys)


def test_every_step_is_on_record_before_the_next_begins(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    keys = {
        "log": managed_ledger_key(NAME),
        "artifact": records.compaction_key(NAME),
        "status": records.request_key(NAME),
    }
    during: list[tuple[CompactionRequest, set[str], list[str]]] = []

    async def look() -> None:
        stored = await cluster.store.get(keys["status"])
        assert stored is not None
        asked = records.decode_request(stored.key, stored.value)
        jobs = [each.key for each in await cluster.store.list(records.JOBS_PREFIX)]
        during.append((asked, cluster.files(), jobs))

    cluster.store.before(puts(records.ATTEMPTS_PREFIX), look)
    cluster.store.before(puts(keys["artifact"]), look)
    cluster.store.writes.clear()
    found = compact(cluster)
    (asked, nothing, jobs), (_, files, _) = during
    assert (asked.state, [records.job_key(asked.job)]) == (RequestState.RUNNING, jobs)
    assert (nothing, len(files)) == (set(), 1)
    attempts = [each for keys in cluster.store.writes for each in keys if "attempts" in each]
    attempt = attempts[0]
    assert cluster.store.writes[:5] == [
        jobs,
        [keys["status"]],
        [attempt],
        [f"?{keys['log']}", keys["artifact"], f"-{attempt}"],
        [keys["status"]],
    ]
    assert cluster.store.writes[5:] == []
    told = status(cluster)
    assert told is not None
    assert (told.state, told.job, told.error) == (RequestState.SUCCESS, asked.job, "")
    assert found["startedMs"] <= told.finished_ms <= found["finishedMs"]


def theirs_of(cluster: JobCluster) -> CompactionRecord:
    """Writes another job's artifact, which has a later horizon."""
    created_ms = cluster.record().created_ms
    return CompactionRecord(Position(10_000, 0), created_ms, "b" * 32, cluster.spec, 5)


def test_of_two_jobs_the_slower_one_takes_its_files_along(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    theirs = theirs_of(cluster)
    put = lambda: cluster.store.put(records.compaction_key(NAME), encode(theirs))  # noqa: E731
    cluster.store.before(puts(records.compaction_key(NAME)), put)
    found = compact(cluster)
    assert (found["code"], counts(found, "topicsCompactedByOthers", "topicsCompacted")) == (
        0,
        [1, 0],
    )
    (told,) = found["details"]
    assert (told["topic"], told["state"]) == (TOPIC, "superseded")
    assert "another job was faster" in told["reason"]
    assert (record(cluster), cluster.files()) == (theirs, set())
    asked = status(cluster)
    assert asked is not None
    assert (asked.state, asked.job) == (RequestState.PENDING, ""), "what it was at is the next's"
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []


@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_that_is_not_answered_is_found_out_by_asking(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    monkeypatch.setattr(swap, "COMMIT_RETRY_S", 0.0)
    cluster.write(TOPIC, keyed(0, 6))

    async def lost() -> None:
        raise MetadataUnavailable("no answer")

    when = cluster.store.after if lands else cluster.store.before
    when(puts(records.compaction_key(NAME)), lost)
    found = compact(cluster)
    assert (found["code"], counts(found, "topicsCompacted", "failed")) == (0, [1, None])
    assert messages(artifact(cluster)) == compacted(readable(cluster))
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []


def test_an_attempt_that_another_cleaner_has_claimed_stays_with_it(cluster: JobCluster) -> None:
    attempt = records.CompactionAttempt(
        cluster.spec, records.attempt_folder(NAME, "a" * 32), 5, "dead"
    )
    key = records.attempt_key(NAME, "a" * 32)
    cluster.run(cluster.store.put(key, encode(attempt)))
    claimed = lambda: cluster.store.put(key, encode(attempt))  # noqa: E731
    cluster.store.before(deletes(key), claimed)
    assert cluster.run(clean_attempts(cluster.store)).errors == []
    assert cluster.keys(records.ATTEMPTS_PREFIX) == [key]
    assert cluster.run(clean_attempts(cluster.store)).errors == []
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []


def test_an_artifact_that_came_live_since_the_plan_is_not_compacted_over(
    cluster: JobCluster,
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    theirs = theirs_of(cluster)
    put = lambda: cluster.store.put(records.compaction_key(NAME), encode(theirs))  # noqa: E731
    cluster.store.before(puts(records.request_key(NAME)), put)
    found = compact(cluster)
    assert counts(found, "topicsCompactedByOthers", "topicsCompacted") == [1, 0]
    assert (record(cluster), cluster.files()) == (theirs, set())
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []


def test_a_topic_that_is_deleted_meanwhile_gets_no_artifact(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    log = msgspec.structs.replace(cluster.record(), deleted=True)
    deleted = lambda: cluster.store.put(managed_ledger_key(NAME), encode_log(log))  # noqa: E731
    cluster.store.before(puts(records.compaction_key(NAME)), deleted)
    found = compact(cluster)
    assert (found["code"], counts(found, "failed", "topicsCompacted")) == (3, [1, 0])
    assert "was deleted while it was compacted" in found["error"]
    assert (record(cluster), cluster.files()) == (None, set())


def test_a_job_whose_lease_is_lost_and_whose_attempt_is_cleaned_up_commits_nothing(
    cluster: JobCluster,
) -> None:
    cluster.write(TOPIC, keyed(0, 6))

    async def clean_up() -> None:
        (lease,) = cluster.store.leases
        await lease.revoke()
        (stored,) = await cluster.store.list(records.ATTEMPTS_PREFIX)
        attempt = records.decode_attempt(stored.key, stored.value)
        nobodys = msgspec.structs.replace(attempt, job="")
        await cluster.store.put(stored.key, encode(nobodys), expected=stored.revision)

    cluster.store.before(puts(records.compaction_key(NAME)), clean_up)
    found = compact(cluster)
    assert counts(found, "topicsCompactedByOthers", "topicsCompacted") == [1, 0]
    assert (record(cluster), cluster.files()) == (None, set())
    assert compact(cluster)["metrics"]["topicsCompacted"] == 1
    assert messages(artifact(cluster)) == compacted(readable(cluster))


@pytest.mark.parametrize("fails", ["here", "in Spark"])
def test_a_topic_that_fails_keeps_no_other_from_its_turn(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    other = f"{TOPIC}-other"
    cluster.write(TOPIC, keyed(0, 6))
    cluster.write(other, keyed(0, 6))
    lost = cluster.closed()[0]
    arguments = ["--topic", other]
    if fails == "here":
        for disk in cluster.bookies.disks:
            disk.ledger(lost).entries.pop(1, None)
    else:
        arguments.append("--always-spark")
        asked: list[Writing] = []

        def first_fails(spark: Any, writing: Writing, *rest: Any) -> Compacted:
            asked.append(writing)
            if len(asked) == 1:
                raise RuntimeError("Py4J\nmagnetar.core.errors.PersistenceError: entry 7:1\n at x")
            return by_spark(spark, writing, *rest)

        monkeypatch.setattr(job, "compact_by_spark", first_fails)
    found = compact(cluster, *arguments)
    assert (found["code"], found["state"]) == (3, "partial")
    assert counts(found, "topicsCompacted", "failed") == [1, 1]
    (failed,) = (each for each in found["details"] if "error" in each)
    assert failed["topic"] == TOPIC
    if fails != "here":
        said = "magnetar.core.errors.PersistenceError: entry 7:1"
        assert failed["error"] == f"Spark could not compact {NAME}: {said}"
    told = status(cluster)
    assert told is not None
    assert (told.state, told.error) == (RequestState.ERROR, failed["error"])
    assert told.failed_ms == told.finished_ms >= found["startedMs"]
    name = log_name(parse_topic(other))
    assert record(cluster) is None
    assert {each.path for each in record(cluster, name).files} == cluster.files()  # type: ignore[union-attr]
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []


def test_a_bug_in_this_process_is_reported_as_it_is(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, keyed(0, 6))

    def fails(*_: Any) -> Compacted:
        raise PersistenceError("entry 7:1 cannot be decoded")

    monkeypatch.setattr(job, "compact_by_spark", fails)
    assert compact(cluster, "--always-spark")["error"] == "entry 7:1 cannot be decoded"


def test_a_file_that_reads_back_as_another_does_not_count(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    seen: list[dict[str, Any]] = []

    async def torn(files: Any, path: str, **expected: Any) -> Any:
        seen.append(expected)
        whole = cluster.folder / path
        whole.write_bytes(whole.read_bytes()[:-9])
        return await verify_file(files, path, **expected)

    with monkeypatch.context() as during:
        during.setattr(second_pass, "verify_file", torn)
        found = compact(cluster)
    assert (found["code"], counts(found, "failed")) == (3, [1])
    assert (record(cluster), cluster.files()) == (None, set())
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []
    compact(cluster)
    (file,) = record(cluster).files  # type: ignore[union-attr]
    assert seen == [{"length_bytes": file.length_bytes, "checksum": file.checksum}]


def test_a_ledger_that_cannot_be_found_is_not_left_out(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 9))
    first, *_ = cluster.closed()
    cluster.run(cluster.store.delete(ledger_key(first)))
    found = compact(cluster)
    assert found["state"] == "partial"
    assert f"ledgers [{first}]" in found["error"]
    assert (record(cluster), cluster.files()) == (None, set())


@pytest.mark.parametrize("trimmed", [False, True])
def test_an_artifact_whose_files_are_deleted_is_written_again_from_a_whole_log(
    cluster: JobCluster, trimmed: bool
) -> None:
    cluster.write(TOPIC, keyed(0, 9))
    compact(cluster)
    first = record(cluster)
    assert first is not None
    for path in cluster.files():
        (cluster.folder / path).unlink()
    cluster.write(TOPIC, keyed(9, 5))
    log = cluster.record()
    if trimmed:
        oldest = log.ledgers[0]
        last = Position(oldest.ledger_id, oldest.entries - 1)
        log = msgspec.structs.replace(log, ledgers=log.ledgers[1:], last_position=last)
        cluster.run(cluster.store.put(managed_ledger_key(NAME), encode_log(log)))
    found = compact(cluster)
    if trimmed:
        assert (found["code"], counts(found, "failed")) == (3, [1])
        assert f"{first.files[0].path} of the compacted topic is gone" in found["error"]
        assert "restore the file" in found["error"]
        assert record(cluster) == first
        return
    assert found["state"] == "succeeded"
    assert messages(artifact(cluster)) == compacted(
        [each for each in cluster.log() if each.position <= record(cluster).horizon]  # type: ignore[union-attr]
    )
    again = record(cluster)
    assert again is not None
    assert {each.path for each in again.retired} == {each.path for each in first.files}
    assert again.marked == again.horizon, "chunks are waited for anew"
