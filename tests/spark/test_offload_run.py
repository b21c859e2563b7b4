"""Runs of the job `offload` from its plan to its end, on a cluster in memory."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark.job_stage import CLUSTER_ID, TOPIC, JobCluster, entry
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

from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload.work import LedgerTask
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.records import encode
from magnetar.offload.file_format import EntryFile
from magnetar.offload.policy import namespace_key
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    JOBS_PREFIX,
    AttemptRecord,
    OffloadRequest,
    RequestState,
    attempt_key,
    decode_request,
    object_path,
    offload_key,
    request_key,
)
from magnetar.offload.repository import OffloadRepository
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar_spark.jobs.offload.job import (
    METRICS,
    TASK_BYTES,
    TASKS_MAX,
    TASKS_PER_CORE,
    slices_of,
)
from magnetar_spark.log.admin import Admin


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    return on_this_process(monkeypatch, JobCluster(monkeypatch, tmp_path / "cold", capsys))


def test_closed_ledgers_become_files_that_hold_every_entry(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], found["state"], found["details"]) == (0, "succeeded", [])
    closed, files = cluster.closed(), live(cluster)
    assert list(files) == closed
    assert len(closed) == 3
    assert {file.path for file in files.values()} == cluster.files()
    items = {item.ledger_id: item for item in cluster.record().ledgers}
    read: list[bytes] = []
    for ledger_id, file in files.items():
        content, item = cluster.content(file.path), items[ledger_id]
        assert [each[:2] for each in content] == [(ledger_id, n) for n in range(item.entries)]
        read += [each[2] for each in content]
        size = sum(len(each[2]) for each in content)
        assert (file.entries, file.length_bytes) == (item.entries, size)
        assert (file.created_ms, file.closed_ms) == (item.created_ms, item.closed_ms)
        assert file.file_bytes == (cluster.folder / file.path).stat().st_size
        assert (file.store, file.released_ms) == (cluster.spec, 0)
        assert file.path == object_path(NAME, ledger_id, file.attempt)
        assert found["startedMs"] <= file.offloaded_ms <= found["finishedMs"]
        opened = cluster.run(EntryFile.open(open_object_store(cluster.spec), file.path))
        assert opened.properties["cluster"] == CLUSTER_ID
        assert opened.properties["attempt"] == file.attempt
    assert read == ENTRIES
    metrics = found["metrics"]
    assert list(metrics) == list(METRICS)
    assert metrics.pop("executorCpuSeconds") > 0
    assert {name: value for name, value in metrics.items() if value} == {
        "topics": 1,
        "ledgersOffloaded": 3,
        "entriesOffloaded": len(ENTRIES),
        "bytesOffloaded": sum(map(len, ENTRIES)),
        "fileBytes": sum(file.file_bytes for file in files.values()),
    }
    assert cluster.on_bookies()[:-1] == closed
    assert cluster.keys(ATTEMPTS_PREFIX) == cluster.keys(JOBS_PREFIX) == []


def test_a_second_run_finds_nothing_to_do_and_starts_no_spark(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    offload(cluster, *TO_FILES)
    before, started, files = live(cluster), cluster.sessions, cluster.files()
    cluster.store.writes.clear()
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "topics", "ledgersOffloaded")) == (0, [1, 0])
    assert (live(cluster), cluster.sessions, cluster.files()) == (before, started, files)
    assert [key for keys in cluster.store.writes for key in keys if "jobs" not in key] == []


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--threshold-age", "0"), 3),
        (("--threshold-age", "3600"), 0),
        (("--threshold", str(2 * len(ENTRIES[0]))), 2),
        (("--threshold", str(2 * len(ENTRIES[0]) - 1)), 3),
        (("--threshold", "-1"), 0),
        (("--up-to", "3:0"), 2),
        ((), 0),
    ],
)
def test_what_the_command_line_asks_for_is_offloaded(
    cluster: JobCluster, arguments: tuple[str, ...], count: int
) -> None:
    cluster.write(TOPIC, ENTRIES)
    assert cluster.closed() == [1, 2, 3]
    found = offload(cluster, *arguments, "--deletion-lag", "-1")
    assert counts(found, "ledgersOffloaded", "failed") == [count, 0]
    assert list(live(cluster)) == cluster.closed()[:count], "the oldest"


def test_the_newest_ledger_stays_while_its_topic_is_written(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES, newest=None)
    assert counts(offload(cluster, *TO_FILES), "ledgersOffloaded") == [2]
    assert list(live(cluster)) == cluster.closed()
    assert len(cluster.record().ledgers) == 3
    newest = cluster.record().ledgers[-1].ledger_id
    assert not any(disk.ledger(newest).fenced for disk in cluster.bookies.disks)


def test_an_attempt_is_on_record_before_its_first_byte_and_goes_with_the_commit(
    cluster: JobCluster,
) -> None:
    cluster.write(TOPIC, [*ENTRIES[:4], entry(4) * 50])
    small, large = cluster.closed()
    alive: list[list[str]] = []

    async def look() -> None:
        assert cluster.files() == set()
        alive.append([each.key for each in await cluster.store.list(JOBS_PREFIX)])

    cluster.store.before(puts(ATTEMPTS_PREFIX), look)
    cluster.store.writes.clear()
    offload(cluster, *TO_FILES)
    steps = [keys for keys in cluster.store.writes if any("offload" in key for key in keys)]
    assert alive == [steps[0]]
    (begun, committed), (then, last) = steps[1:3], steps[3:5]
    for ledger_id, begin, commit in ((large, begun, committed), (small, then, last)):
        (attempt,) = begin
        assert attempt.startswith(f"{ATTEMPTS_PREFIX}{NAME}/{ledger_id:020d}")
        assert commit == [f"?{ledger_key(ledger_id)}", offload_key(NAME, ledger_id), f"-{attempt}"]
    assert steps[5:] == []


def ask(cluster: JobCluster, up_to: Position) -> None:
    request = encode(OffloadRequest(up_to, 5))
    cluster.run(cluster.store.put(request_key(NAME), request))


def request(cluster: JobCluster) -> OffloadRequest:
    stored = cluster.run(cluster.store.get(request_key(NAME)))
    assert stored is not None
    return decode_request(stored.key, stored.value)


def test_a_request_is_running_while_a_job_is_at_it_and_done_afterwards(
    cluster: JobCluster,
) -> None:
    cluster.write(TOPIC, ENTRIES)
    first, second, third = cluster.closed()
    ask(cluster, Position(third, 1))
    during: list[OffloadRequest] = []

    async def look() -> None:
        stored = await cluster.store.get(request_key(NAME))
        assert stored is not None
        during.append(decode_request(stored.key, stored.value))

    cluster.store.before(puts(offload_key(NAME, first)), look)
    found = offload(cluster, "--deletion-lag", "-1")
    assert (found["code"], counts(found, "requestsFinished", "failed")) == (0, [1, 0])
    assert list(live(cluster)) == [first, second]
    (running,) = during
    assert (running.state, len(running.job)) == (RequestState.RUNNING, 32)
    ended = request(cluster)
    assert (ended.state, ended.first_unoffloaded) == (RequestState.SUCCESS, Position(third, 0))
    assert found["startedMs"] <= ended.finished_ms <= found["finishedMs"]
    assert counts(offload(cluster), "requestsFinished") == [0]


def test_a_request_of_one_topic_fails_for_its_own_ledgers_alone(cluster: JobCluster) -> None:
    other = f"{TOPIC}-other"
    cluster.write(TOPIC, ENTRIES)
    cluster.write(other, ENTRIES[:5])
    lost, kept = cluster.closed(other)
    for disk in cluster.bookies.disks:
        disk.ledger(lost).entries.pop(2, None)
    ask(cluster, Position(cluster.closed()[1], 0))
    theirs = log_name(parse_topic(other))
    asked = encode(OffloadRequest(Position(kept, 0), 5))
    cluster.run(cluster.store.put(request_key(theirs), asked))
    found = cluster.job(
        "offload", "--namespace", "public/default", "--store", f"file://{cluster.folder}"
    )
    assert (found["code"], counts(found, "topics", "requestsFinished", "failed")) == (3, [2, 2, 1])
    assert request(cluster).state is RequestState.SUCCESS
    stored = cluster.run(cluster.store.get(request_key(theirs)))
    assert stored is not None
    failed = decode_request(stored.key, stored.value)
    assert (failed.state, failed.first_unoffloaded) == (RequestState.ERROR, Position(lost, 0))
    assert failed.error == found["details"][0]["error"]


@pytest.mark.parametrize(
    ("arguments", "asked", "told"),
    [(("--threshold", "0"), False, 1), ((), True, 1), ((), False, 0)],
)
def test_a_request_without_a_store_is_reported(
    cluster: JobCluster, arguments: tuple[str, ...], asked: bool, told: int
) -> None:
    cluster.write(TOPIC, ENTRIES)
    if asked:
        ask(cluster, Position(cluster.closed()[1], 0))
    found = cluster.job("offload", "--topic", TOPIC, *arguments)
    assert (found["code"], counts(found, "failed")) == (3 * told, [told])
    errors = [each for each in found["details"] if "error" in each]
    assert ["no store to offload to" in each["error"] for each in errors] == [True] * told
    assert [each["topic"] for each in errors] == [TOPIC] * told
    assert (live(cluster), cluster.sessions) == ({}, 0)


def test_topics_that_are_not_there_are_an_error_by_name_alone(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    found = offload(cluster, *TO_FILES, topic=f"{TOPIC}-none")
    assert (found["code"], found["state"]) == (1, "failed")
    assert "does not exist" in found["error"]
    found = cluster.job("offload", "--namespace", "public/none")
    assert (found["code"], counts(found, "topics")) == (0, [0])


def test_bookies_delete_ledgers_live_for_the_deletion_lag(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    closed = cluster.closed()
    size = sum(map(len, ENTRIES))
    assert counts(offload(cluster, "--threshold", "0"), "ledgersReleased") == [0], "4 h by default"
    found = offload(cluster, "--threshold", "0", "--deletion-lag", "0")
    assert counts(found, "ledgersReleased", "bytesReleased", "failed") == [3, size, 0]
    assert not set(closed) & set(cluster.on_bookies())
    for disk in cluster.bookies.disks:
        assert not set(closed) & set(cluster.run(disk.list_ledgers()))
    for file in live(cluster).values():
        assert found["startedMs"] <= file.released_ms <= found["finishedMs"]
    again = offload(cluster, "--threshold", "0", "--deletion-lag", "0")
    assert counts(again, "ledgersReleased", "bytesReleased", "failed") == [0, 0, 0]


def test_a_policy_that_changes_while_ledgers_are_written_holds_for_the_release(
    cluster: JobCluster,
) -> None:
    def lag(lag_ms: int) -> Any:
        policy = {"offload_policies": {"managedLedgerOffloadDeletionLagInMillis": lag_ms}}
        return cluster.store.put(namespace_key(NAME), msgspec.json.encode(policy))

    cluster.write(TOPIC, ENTRIES)
    cluster.run(lag(0))
    cluster.store.before(puts(offload_key(NAME, cluster.closed()[-1])), lambda: lag(-1))
    found = offload(cluster, "--threshold", "0")
    assert counts(found, "ledgersOffloaded", "ledgersReleased") == [3, 0]
    cluster.run(lag(0))
    assert counts(offload(cluster, "--threshold", "0"), "ledgersReleased") == [3]


def test_a_file_that_is_deleted_keeps_its_ledger_and_is_reported(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES)
    offload(cluster, *TO_FILES)
    first = cluster.closed()[0]
    (cluster.folder / live(cluster)[first].path).unlink()
    found = offload(cluster, "--threshold", "0", "--deletion-lag", "0")
    assert (found["code"], counts(found, "ledgersReleased", "failed")) == (3, [2, 1])
    errors = [each for each in found["details"] if "error" in each]
    assert [(each["log"], each["ledger"]) for each in errors] == [(NAME, first)]
    assert cluster.on_bookies()[:-1] == [first]


def test_a_dead_jobs_half_file_goes_before_new_ones_are_written(cluster: JobCluster) -> None:
    ledger_id = only_the_first(cluster)
    task = LedgerTask(NAME, TOPIC, -1, ledger_id, 9, 1, 2, cluster.spec)
    dead = cluster.run(
        OffloadRepository(cluster.store).begin_attempt(
            task.name, task.ledger_id, task.store, "dead", 5
        )
    )
    half = cluster.folder / dead.path
    half.parent.mkdir(parents=True)
    half.write_bytes(b"PAR1 half")
    gone: list[bool] = []

    async def look() -> None:
        gone.append(not half.exists())

    cluster.store.before(puts(ATTEMPTS_PREFIX + NAME), look)
    cluster.store.before(puts(offload_key(NAME, ledger_id)), look)
    found = offload(cluster, *TO_FILES)
    assert gone == [False, True]
    assert counts(found, "leftoversRemoved", "leftoversKept", "failed") == [1, 0, 0]
    assert cluster.keys(ATTEMPTS_PREFIX) == []


def test_a_dead_jobs_whole_file_stays_until_its_ledger_is_offloaded(cluster: JobCluster) -> None:
    ledger_id = only_the_first(cluster)
    offload(cluster, *TO_FILES)
    whole = live(cluster)[ledger_id]
    # Metadata is restored from a backup: the file belongs to its attempt again.
    record = encode(AttemptRecord(cluster.spec, whole.path, 5, "dead"))
    key = attempt_key(NAME, ledger_id, whole.attempt)
    cluster.run(cluster.store.put(key, record))
    cluster.run(cluster.store.delete(offload_key(NAME, ledger_id)))
    found = offload(cluster, "--deletion-lag", "-1")
    assert (found["code"], counts(found, "leftoversRemoved", "leftoversKept")) == (0, [0, 1])
    (told,) = (each for each in found["details"] if "leftover" in each)
    assert told["leftover"] == f"{cluster.spec}/{whole.path}"
    assert "may be the only copy" in told["note"]
    assert cluster.files() == {whole.path}
    found = offload(cluster, *TO_FILES)
    assert counts(found, "ledgersOffloaded", "leftoversRemoved", "leftoversKept") == [1, 1, 0]
    assert cluster.files() == {live(cluster)[ledger_id].path} != {whole.path}


def test_old_files_of_nobody_go_from_wherever_the_topic_has_files(
    cluster: JobCluster, tmp_path: Path
) -> None:
    cluster.write(TOPIC, ENTRIES[:4])
    offload(cluster, *TO_FILES)
    (first,) = live(cluster).values()
    cluster.run(cluster.store.delete(ledger_key(1_000)))
    lost = [object_path(NAME, 1_000, letter * 32) for letter in "ab"]
    for path in lost:
        (cluster.folder / path).write_bytes((cluster.folder / first.path).read_bytes())
    cluster.age(lost[0], 25)
    cluster.age(lost[1], 23)
    elsewhere = cluster.folder
    cluster.folder = tmp_path / "elsewhere"
    (cluster.folder / lost[0]).parent.mkdir(parents=True)
    (cluster.folder / lost[0]).write_bytes((elsewhere / first.path).read_bytes())
    cluster.age(lost[0], 25)
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "leftoversRemoved", "failed")) == (0, [2, 0])
    assert cluster.files() == set()
    cluster.folder = elsewhere
    assert cluster.files() == {first.path, lost[1]}


@pytest.mark.parametrize(
    ("sizes", "cores", "count"),
    [
        ([1] * 3, 2, 3),
        ([1] * 100, 2, 2 * TASKS_PER_CORE),
        ([TASK_BYTES] * 20, 2, 20),
        ([TASK_BYTES] * 9 + [1], 2, 10),
        ([TASK_BYTES // 2] * 18, 2, 9),
        ([1] * (TASKS_MAX + 5), TASKS_MAX, TASKS_MAX),
    ],
)
def test_ledgers_are_dealt_out_to_tasks_the_largest_first(
    sizes: list[int], cores: int, count: int
) -> None:
    spec = StoreSpec("filesystem", "/cold")
    tasks = [LedgerTask(NAME, TOPIC, -1, n, size, 1, 2, spec) for n, size in enumerate(sizes)]
    slices = slices_of(tasks, cores)
    assert len(slices) == count
    assert [some[0] for some in slices] == tasks[:count]
    assert sorted(task.ledger_id for some in slices for task in some) == list(range(len(sizes)))
    lengths = [len(some) for some in slices]
    assert max(lengths) - min(lengths) <= 1


def test_a_topic_with_nothing_to_offload_says_why_and_roll_closes_its_ledger(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, [], newest=ENTRIES[0])
    found = offload(cluster, *TO_FILES)
    assert (found["code"], counts(found, "ledgersOffloaded")) == (0, [0])
    why = "no ledger is closed; --roll closes the open one"
    assert found["details"] == [{"topic": TOPIC, "note": why}]
    refused = offload(cluster, *TO_FILES, "--roll")
    assert (refused["code"], "--admin-url" in refused["error"]) == (1, True)

    async def closed(_: Admin, topic: TopicName) -> None:
        async with cluster.broker() as factory:
            ledger = await factory.open(log_name(topic))
            await ledger.roll_over()
            await ledger.set_properties({})

    monkeypatch.setattr(Admin, "close_ledger", closed)
    found = offload(cluster, *TO_FILES, "--roll", "--admin-url", "http://broker:1")
    assert (found["code"], counts(found, "ledgersOffloaded")) == (0, [1])
    assert found["details"] == []
