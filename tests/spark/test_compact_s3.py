"""Artifacts on an S3 server: written and read again by jobs, served by brokers, and deleted."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import obstore
import pulsar
import pytest
from tests.spark.conftest import Log
from tests.support.cluster_processes import brokers
from tests.support.compact_rig import Batch, CompactRig, write
from tests.support.compaction import compacted, messages
from tests.support.s3 import BUCKET, running_s3

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.jobs.compaction import swap
from magnetar.offload.stores import StoreSpec, open_object_store

PREFIX = "some/where"
RECEIVE_MS = 30_000


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[StoreSpec]:
    with running_s3(tmp_path) as spec:
        yield spec


def objects(s3: StoreSpec) -> set[str]:
    """Returns all objects of the bucket."""
    return {each["path"] for some in obstore.list(open_object_store(s3)) for each in some}


def batches(number: int) -> list[Batch]:
    """Returns batches; each round writes all keys except one, which it deletes."""
    return [
        [(f"k{key}", b"" if key == number else f"{number}-{key}".encode()) for key in range(9)]
        for _ in range(8)
    ]


@pytest.mark.usefixtures("spark")
def test_written_served_replaced_and_deleted(
    log: Log,
    cluster: LocalCluster,
    client: pulsar.Client,
    topic: str,
    s3: StoreSpec,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = CompactRig(log, cluster, tmp_path / "unused")
    url = f"s3://{BUCKET}/{PREFIX}?endpoint={s3.endpoint}&region={s3.region}"
    compact = ("--topic", topic, "--always-spark", "--store", url)
    write(client, topic, batches(1))
    assert rig.compact(*compact, capsys=capsys)["state"] == "succeeded"
    first = rig.record(topic)
    assert first is not None
    assert (first.store.driver, first.store.prefix) == ("aws-s3", PREFIX)
    assert objects(s3) == {f"{PREFIX}/{each.path}" for each in first.files}
    # The next run reads that artifact, and replaces it.
    write(client, topic, batches(2))
    assert rig.compact(*compact, capsys=capsys)["state"] == "succeeded"
    expected = compacted(rig.raw(topic))
    assert messages(rig.artifact(topic)) == expected
    # Once the log is empty, the broker serves only the artifact.
    rest = f"{brokers(cluster)[0].http_url}/admin/v2/{topic.replace('://', '/')}"
    httpx.delete(f"{rest}/truncate", timeout=30).raise_for_status()
    assert httpx.get(f"{rest}/internalStats", timeout=30).json()["numberOfEntries"] == 0
    with closing(
        client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    ) as reader:
        found = []
        while reader.has_message_available():
            message = reader.read_next(RECEIVE_MS)
            if message.partition_key():  # the client's way with what was compacted out
                found.append((message.partition_key(), message.data()))
    assert found == [each[2:] for each in expected]
    # Replaced files are deleted when no reader can have them open, the others with the topic.
    monkeypatch.setattr(swap, "RETIRED_GRACE_MS", -1)
    rig.compact(*compact, capsys=capsys)
    second = rig.record(topic)
    assert second is not None
    assert objects(s3) == {f"{PREFIX}/{each.path}" for each in second.files}
    httpx.delete(rest, params={"force": "true"}, timeout=30).raise_for_status()
    rig.compact(
        "--namespace", "public/default", "--store", url, capsys=capsys
    )  # files that are not deleted yet
    assert objects(s3) == set()
    assert not rig.folder.exists()
