"""The topics that the job `compact` selects, the stores it uses, and its clean-up."""

import json
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
from tests.spark.job_stage import CLUSTER_ID, TOPIC, JobCluster
from tests.support.compaction import compacted, messages
from tests.support.held_store import puts

from magnetar.compaction import records
from magnetar.compaction.records import CompactionAttempt, CompactionRequest
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.metadata.records import encode
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.policy import namespace_key
from magnetar.offload.records import RequestState
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.offload.trash import TRASH_PREFIX, TrashedFile, put_in_trash
from magnetar_spark.jobs.compact import job


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    monkeypatch.setattr(job, "compact_by_spark", by_spark)
    return JobCluster(monkeypatch, tmp_path / "cold", capsys)


def of_namespace(cluster: JobCluster, *arguments: str) -> dict[str, Any]:
    store = f"file://{cluster.folder}"
    return cluster.job("compact", "--namespace", "public/default", "--store", store, *arguments)


def threshold(cluster: JobCluster, size: int, **policies: Any) -> None:
    document = {"compaction_threshold": size, **policies}
    cluster.run(cluster.store.put(namespace_key(NAME), json.dumps(document).encode()))


def ask(cluster: JobCluster, **fields: Any) -> None:
    asked = encode(CompactionRequest(1, **fields))
    cluster.run(cluster.store.put(records.request_key(NAME), asked))


def test_of_a_namespace_nothing_is_due_that_nobody_asked_for(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    found = of_namespace(cluster)
    assert (found["code"], counts(found, "topicsCompacted", "topicsUpToDate")) == (0, [0, 0])
    assert (record(cluster), status(cluster), cluster.files()) == (None, None, set())


@pytest.mark.parametrize(("more", "due"), [(0, True), (1, False)])
def test_a_topic_is_due_once_its_threshold_is_behind_the_horizon(
    cluster: JobCluster, more: int, due: bool
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    size = sum(len(each.data) for each in readable(cluster))
    threshold(cluster, size + more)
    found = of_namespace(cluster)
    expected = [1, None] if due else [0, 1]
    assert counts(found, "topicsCompacted", "topicsBelowThreshold") == expected
    assert (record(cluster) is not None) is due
    assert (status(cluster) is not None) is due, "nothing is said of what is not begun"


def test_what_is_requested_is_done_whatever_the_threshold_says(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    threshold(cluster, 1 << 30)
    ask(cluster)
    assert counts(of_namespace(cluster), "topicsCompacted") == [1]
    told = status(cluster)
    assert told is not None
    assert (told.state, told.requested_ms) == (RequestState.SUCCESS, 1)
    # Requested again, without new entries: the request is completed, too.
    ask(cluster)
    assert counts(of_namespace(cluster), "topicsCompacted", "topicsUpToDate") == [0, 1]
    told = status(cluster)
    assert told is not None
    assert told.state is RequestState.SUCCESS


def test_a_request_that_a_living_job_works_on_is_left_to_it(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    cluster.run(cluster.store.put(records.job_key("other"), b"{}"))
    ask(cluster, state=RequestState.RUNNING, job="other")
    assert counts(of_namespace(cluster), "topicsCompacted") == [0]
    assert record(cluster) is None


def test_a_partition_is_compacted_where_its_topic_is_named(cluster: JobCluster) -> None:
    topic = parse_topic(TOPIC)
    partitions = b'{"partitions": 2}'
    key = "/partitioned-topics/public/default/persistent/t"
    cluster.run(cluster.store.put(key, partitions))
    for index in range(2):
        cluster.write(str(topic.partition(index)), keyed(0, 6))
    assert counts(compact(cluster), "topicsCompacted") == [2]
    cluster.write(str(topic.partition(1)), keyed(6, 3))
    found = compact(cluster, topic=str(topic.partition(1)))
    assert counts(found, "topicsCompacted") == [1]
    assert [each["topic"] for each in found["details"]] == [str(topic.partition(1))]


def test_artifacts_go_where_the_policies_say_and_flags_are_over_them(
    cluster: JobCluster, tmp_path: Path
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    elsewhere = tmp_path / "elsewhere"
    policy = {
        "managedLedgerOffloadDriver": "filesystem",
        "managedLedgerOffloadBucket": str(elsewhere),
    }
    threshold(cluster, 0, offload_policies=policy)
    found = cluster.job("compact", "--topic", TOPIC)
    assert found["state"] == "succeeded"
    made = record(cluster)
    assert made is not None
    assert made.store == StoreSpec(FILESYSTEM, str(elsewhere))
    assert cluster.files() == set()
    cluster.write(TOPIC, keyed(6, 6))
    compact(cluster)
    made = record(cluster)
    assert made is not None
    assert made.store == cluster.spec
    assert {each.store for each in made.retired} == {StoreSpec(FILESYSTEM, str(elsewhere))}


def test_where_nothing_says_where_to_nothing_is_begun(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    found = cluster.job("compact", "--topic", TOPIC)
    assert (found["code"], counts(found, "failed")) == (3, [1])
    assert f"{TOPIC}: no store for artifacts" in found["error"]
    told = status(cluster)
    assert told is not None
    assert (told.state, told.error) == (RequestState.ERROR, found["error"])
    assert cluster.keys(records.ATTEMPTS_PREFIX) == []


def test_a_missing_store_is_reported_for_every_topic(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    found = cluster.job("compact", "--topic", TOPIC, "--store", "ftp://x/y")
    assert found["code"] == 3
    assert "write s3://BUCKET/PREFIX" in found["error"]


def test_an_empty_topic_is_up_to_date(cluster: JobCluster) -> None:
    cluster.write(TOPIC, [])
    assert counts(compact(cluster), "topicsUpToDate", "topicsCompacted") == [1, 0]


def whole(cluster: JobCluster, path: str, horizon: Position, cluster_id: str = CLUSTER_ID) -> Path:
    file = cluster.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as sink:
        properties = {"cluster": cluster_id, "horizon": str(horizon)}
        writer = EntryFileWriter(sink, managed_ledger=NAME, properties=properties)
        writer.add(1, 0, b"entry")
        writer.close()
    return file


def attempted(cluster: JobCluster, letter: str, job_id: str) -> str:
    """Returns the path of a file in the folder of a recorded attempt."""
    folder = records.attempt_folder(NAME, letter * 32)
    attempt = CompactionAttempt(cluster.spec, folder, 5, job_id)
    key = records.attempt_key(NAME, letter * 32)
    cluster.run(cluster.store.put(key, encode(attempt)))
    return f"{folder}/00000-{letter * 32}.parquet"


def test_what_dead_jobs_left_goes_before_anything_is_written(cluster: JobCluster) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    cluster.run(cluster.store.put(records.job_key("lives"), b"{}"))
    half, theirs = (
        cluster.folder / attempted(cluster, *each) for each in (("d", "dead"), ("e", "lives"))
    )
    for path in (half, theirs):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"PAR1 half")
    trashed = cluster.folder / "trashed.parquet"
    trashed.touch()
    trash = put_in_trash(NAME, [TrashedFile(cluster.spec, "trashed.parquet")], 5)
    cluster.run(cluster.store.put(trash.key, trash.value))
    there: list[list[bool]] = []

    async def look() -> None:
        there.append([half.exists(), trashed.exists()])

    cluster.store.before(puts(records.request_key(NAME)), look)
    found = compact(cluster)
    assert there == [[False, False]]
    assert counts(found, "leftoversDeleted", "topicsCompacted", "failed") == [2, 1, None]
    assert theirs.exists()
    assert cluster.keys(TRASH_PREFIX) == []
    assert cluster.keys(records.ATTEMPTS_PREFIX) == [records.attempt_key(NAME, "e" * 32)]


def test_a_whole_artifact_of_a_dead_job_goes_once_the_topic_is_compacted_as_far(
    cluster: JobCluster,
) -> None:
    """Restored metadata may name it."""
    cluster.write(TOPIC, keyed(0, 6))
    path = attempted(cluster, "d", "dead")
    file = whole(cluster, path, Position(1, 3))
    found = of_namespace(cluster)
    assert (counts(found, "leftoversDeleted", "leftoversKept"), file.exists()) == ([0, 1], True)
    assert found["details"][0]["leftover"] == f"{cluster.spec}/{path.rpartition('/')[0]}"
    assert "no artifact of its topic reaches as far" in found["details"][0]["note"]
    found = compact(cluster)
    assert counts(found, "topicsCompacted", "leftoversDeleted", "leftoversKept") == [1, 1, None]
    assert not file.exists()


def test_old_files_of_nobody_go_from_wherever_the_topic_has_files(
    cluster: JobCluster, tmp_path: Path
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    compact(cluster)
    before = record(cluster)
    assert before is not None
    here = cluster.folder
    nobodys = [
        f"{records.attempt_folder(NAME, letter * 32)}/00000-{letter * 32}.parquet"
        for letter in "abc"
    ]
    whole(cluster, nobodys[0], Position(1, 0))
    cluster.age(nobodys[0], 25)
    whole(cluster, nobodys[1], Position(1, 0))
    cluster.age(nobodys[1], 23)
    whole(cluster, nobodys[2], Position(1, 0), "another cluster")
    cluster.age(nobodys[2], 25)
    cluster.folder = tmp_path / "elsewhere"
    cluster.write(TOPIC, keyed(6, 6))
    whole(cluster, nobodys[0], Position(1, 0))
    cluster.age(nobodys[0], 25)
    found = compact(cluster)
    assert counts(found, "leftoversDeleted", "failed") == [2, None]
    made = record(cluster)
    assert made is not None
    assert cluster.files() == {each.path for each in made.files}
    cluster.folder = here
    assert cluster.files() == {each.path for each in before.files} | {nobodys[1], nobodys[2]}
    assert messages(compactions := artifact_in(cluster, tmp_path / "elsewhere")) == compacted(
        [each for each in cluster.log() if each.position <= made.horizon]
    )
    assert compactions


def artifact_in(cluster: JobCluster, folder: Path) -> Any:
    cluster.folder = folder
    return artifact(cluster)


def test_a_store_that_holds_replaced_files_alone_may_be_gone(
    cluster: JobCluster, tmp_path: Path
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    compact(cluster)
    made = record(cluster)
    assert made is not None
    gone = StoreSpec("no driver", "bucket")
    retired = records.RetiredFile(gone, "x/y.parquet", cluster.clock.now_ms())
    changed = msgspec.structs.replace(made, retired=(retired,))
    cluster.run(cluster.store.put(records.compaction_key(NAME), encode(changed)))
    found = compact(cluster)
    assert (found["code"], found["state"]) == (0, "succeeded")
    assert counts(found, "topicsUpToDate", "leftoversKept", "failed")[::2] == [1, None]
    assert any(str(gone) in each["leftover"] for each in found["details"])


def test_a_topic_whose_own_record_is_torn_fails_alone(cluster: JobCluster) -> None:
    other = f"{TOPIC}-other"
    cluster.write(TOPIC, keyed(0, 6))
    cluster.write(other, keyed(0, 6))
    cluster.run(cluster.store.put(records.compaction_key(NAME), b"{"))
    found = compact(cluster, "--topic", other)
    assert (found["code"], counts(found, "topicsCompacted", "failed")) == (3, [1, 1])
    assert record(cluster, log_name(parse_topic(other))) is not None
