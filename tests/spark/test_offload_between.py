"""Events while the job `offload` writes a ledger, and its leftovers if it fails."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark.job_stage import TOPIC, JobCluster
from tests.spark.offload_stage import (
    ENTRIES,
    NAME,
    TO_FILES,
    counts,
    live,
    offload,
    on_this_process,
    only_the_first,
)
from tests.support.held_store import puts

from magnetar.jobs.offload import file_writer as writing
from magnetar.ledger.metadata import decode as decode_ledger
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import MetadataUnavailable
from magnetar.offload import repository
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    JOBS_PREFIX,
    OffloadRecord,
    decode_attempt,
    offload_key,
)
from magnetar.offload.verify import verify_file
from magnetar_spark.jobs.main import Terminated


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    return on_this_process(monkeypatch, JobCluster(monkeypatch, tmp_path / "cold", capsys))


def test_a_ledger_that_is_trimmed_meanwhile_leaves_no_file(cluster: JobCluster) -> None:
    ledger_id = only_the_first(cluster)
    trimmed = lambda: cluster.store.delete(ledger_key(ledger_id))  # noqa: E731
    cluster.store.before(puts(offload_key(NAME, ledger_id)), trimmed)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersGone", "ledgersOffloaded")) == (0, [1, 0])
    assert (cluster.files(), live(cluster), cluster.keys(ATTEMPTS_PREFIX)) == (set(), {}, [])


def test_a_ledger_that_was_trimmed_since_the_plan_is_not_begun(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES[:5])
    first, second = cluster.closed()
    trimmed = lambda: cluster.store.delete(ledger_key(second))  # noqa: E731
    cluster.store.before(puts(offload_key(NAME, first)), trimmed)
    found = offload(cluster, *TO_FILES)
    assert counts(found, "ledgersGone", "ledgersOffloaded", "failed") == [1, 1, 0]
    begun = [keys[0] for keys in cluster.store.writes if keys[0].startswith(ATTEMPTS_PREFIX)]
    assert [f"{second:020d}" in key for key in begun] == [False]


def test_a_file_of_another_job_that_was_faster_stays_alone(cluster: JobCluster) -> None:
    ledger_id = only_the_first(cluster)
    theirs: list[OffloadRecord] = []

    async def commit_another() -> None:
        record = OffloadRecord(ledger_id, "b" * 32, cluster.spec, "theirs", 1, 4, 9, 0, 1, 2, 3)
        theirs.append(record)
        await cluster.store.put(offload_key(NAME, ledger_id), encode(record))

    cluster.store.before(puts(offload_key(NAME, ledger_id)), commit_another)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersByOthers", "ledgersOffloaded")) == (0, [1, 0])
    assert (list(live(cluster).values()), cluster.files()) == (theirs, set())
    assert counts(offload(cluster, *TO_FILES), "ledgersByOthers") == [0], "it is planned no more"


def test_a_file_that_became_live_since_the_plan_is_not_written_again(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES[:5])
    first, second = cluster.closed()

    async def commit_another() -> None:
        record = OffloadRecord(second, "b" * 32, cluster.spec, "theirs", 1, 1, 9, 0, 1, 2, 3)
        await cluster.store.put(offload_key(NAME, second), encode(record))

    cluster.store.before(puts(offload_key(NAME, first)), commit_another)
    found = offload(cluster, *TO_FILES)
    assert counts(found, "ledgersByOthers", "ledgersOffloaded") == [1, 1]
    assert live(cluster)[second].attempt == "b" * 32
    assert cluster.files() == {live(cluster)[first].path}


def test_a_job_that_seemed_dead_and_was_cleaned_up_after_commits_nothing(
    cluster: JobCluster,
) -> None:
    ledger_id = only_the_first(cluster)

    async def clean_up() -> None:
        (lease,) = cluster.store.leases
        await lease.revoke()
        (stored,) = await cluster.store.list(ATTEMPTS_PREFIX)
        record = msgspec.structs.replace(decode_attempt(stored.key, stored.value), job="cleaner")
        await cluster.store.put(stored.key, encode(record), expected=stored.revision)

    cluster.store.before(puts(offload_key(NAME, ledger_id)), clean_up)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], found["state"]) == (3, "partial")
    (told,) = found["details"]
    assert (told["log"], told["ledger"]) == (NAME, ledger_id)
    assert "was cleaned up: the job seemed dead" in told["error"]
    assert counts(found, "ledgersOffloaded", "failed") == [0, 1]
    assert (live(cluster), cluster.files()) == ({}, set())
    assert counts(offload(cluster, *TO_FILES), "ledgersOffloaded", "failed") == [1, 0]


@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_that_is_not_answered_is_found_out_by_asking(
    cluster: JobCluster, lands: bool
) -> None:
    ledger_id = only_the_first(cluster)

    async def lost() -> None:
        raise MetadataUnavailable("no answer")

    when = cluster.store.after if lands else cluster.store.before
    when(puts(offload_key(NAME, ledger_id)), lost)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersOffloaded", "failed")) == (0, [1, 0])
    assert cluster.files() == {live(cluster)[ledger_id].path}


def test_where_nobody_knows_whether_a_commit_happened_its_file_stays(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "COMMIT_TIMEOUT_S", 0.0)
    ledger_id = only_the_first(cluster)

    async def lost() -> None:
        raise MetadataUnavailable("no answer")

    cluster.store.after(puts(offload_key(NAME, ledger_id)), lost)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersOffloaded", "failed")) == (3, [0, 1])
    assert found["details"][0]["error"] == "no answer"
    assert cluster.files() == {live(cluster)[ledger_id].path}, "it is live"


@pytest.mark.parametrize("number", [2, 15])
def test_a_process_that_is_interrupted_takes_its_file_along(
    cluster: JobCluster, number: int
) -> None:
    ledger_id = only_the_first(cluster)

    async def interrupted() -> None:
        raise KeyboardInterrupt if number == 2 else Terminated

    cluster.store.before(puts(offload_key(NAME, ledger_id)), interrupted)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], found["state"]) == (128 + number, "failed")
    assert found["error"] == f"interrupted by {'SIGINT' if number == 2 else 'SIGTERM'}"
    assert (live(cluster), cluster.files()) == ({}, set())
    assert cluster.keys(ATTEMPTS_PREFIX) == cluster.keys(JOBS_PREFIX) == []


def test_a_file_that_reads_back_as_another_does_not_become_live(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, ENTRIES)
    seen: list[dict[str, Any]] = []

    async def torn(files: Any, path: str, **expected: Any) -> Any:
        seen.append(expected)
        if len(seen) == 2:
            whole = cluster.folder / path
            whole.write_bytes(whole.read_bytes()[:-9])
        return await verify_file(files, path, **expected)

    monkeypatch.setattr(writing, "verify_file", torn)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersOffloaded", "failed")) == (3, [2, 1])
    files = live(cluster)
    assert (len(files), cluster.files()) == (2, {file.path for file in files.values()})
    assert cluster.keys(ATTEMPTS_PREFIX) == []
    # The other fields are compared with the ledger's own record.
    for expected in seen:
        stored = cluster.run(cluster.store.get(ledger_key(expected["ledger_id"])))
        assert stored is not None
        metadata = decode_ledger(stored.key, stored.value)
        assert expected["last_entry"] == metadata.last_entry
        assert expected["length_bytes"] == metadata.length_bytes
        if (file := files.get(metadata.ledger_id)) is not None:
            assert expected["checksum"] == file.checksum


def test_a_ledger_that_cannot_be_read_keeps_no_other_from_its_file(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    lost = cluster.closed()[0]
    for disk in cluster.bookies.disks:
        disk.ledger(lost).entries.pop(2, None)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersOffloaded", "failed")) == (3, [2, 1])
    assert [(each["log"], each["ledger"]) for each in found["details"]] == [(NAME, lost)]
    assert list(live(cluster)) == cluster.closed()[1:]
    assert cluster.files() == {file.path for file in live(cluster).values()}
    assert cluster.keys(ATTEMPTS_PREFIX) == []


def test_a_ledger_that_bookies_deleted_without_a_file_is_reported_as_such(
    cluster: JobCluster,
) -> None:
    ledger_id = only_the_first(cluster)
    for disk in cluster.bookies.disks:
        cluster.run(disk.delete_ledger(ledger_id))
    found = offload(cluster, *TO_FILES)
    assert counts(found, "ledgersOffloaded", "failed") == [0, 1]
    assert f"ledger {ledger_id}" in found["details"][0]["error"]
    assert "Error: " not in found["details"][0]["error"]


def test_one_bookie_that_is_away_is_made_up_for_by_the_others(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    cluster.bookies.away = {"b1"}
    assert counts(offload(cluster, *TO_FILES), "ledgersOffloaded", "failed") == [3, 0]
