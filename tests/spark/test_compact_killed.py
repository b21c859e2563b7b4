"""Jobs that are killed at any moment: the artifact stays whole, and nothing is left behind.

Each job is a separate process that gets SIGKILL. Its lease is ended at once, instead of a minute
later; the next job finds its leftovers. The long form kills 50 jobs.
"""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pulsar
import pytest
from tests.spark.conftest import Log
from tests.support.compact_rig import CompactRig, write
from tests.support.compaction import compacted, messages

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.compaction.records import ATTEMPTS_PREFIX, JOBS_PREFIX
from magnetar.metadata.store import MetadataStore

ENDS_S = 60.0
POLL_S = 0.002


@pytest.fixture
def rig(log: Log, cluster: LocalCluster, tmp_path: Path) -> CompactRig:
    return CompactRig(log, cluster, tmp_path / "store")


def started(rig: CompactRig, topic: str) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-m", "magnetar.cli.main", "job", "compact", "--topic", topic),
        *("--metadata-url", rig.cluster.metadata_url, "--store", rig.folder.as_uri()),
        *("--no-progress", "--admin-url", rig.log.options("")["admin.url"]),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def kill_when(job: "subprocess.Popen[bytes]", ripe: Callable[[], bool]) -> bool:
    """Kills the job at this moment; returns whether it was still running."""
    with job:
        until = time.monotonic() + ENDS_S
        while job.poll() is None and not ripe() and time.monotonic() < until:
            time.sleep(POLL_S)
        job.send_signal(signal.SIGKILL)
        output, _ = job.communicate()
    assert job.returncode in (0, -signal.SIGKILL), output.decode()
    return job.returncode != 0


def past(moment: float) -> bool:
    return time.monotonic() >= moment


def end_leases(rig: CompactRig) -> None:
    async def end(store: MetadataStore) -> None:
        for stored in await store.list(JOBS_PREFIX):
            await store.delete(stored.key)

    rig.in_store(end)


def attempts(rig: CompactRig) -> int:
    async def count(store: MetadataStore) -> int:
        return len(await store.list(ATTEMPTS_PREFIX))

    return rig.in_store(count)


def check(rig: CompactRig, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Asserts that the next run completes the work and deletes the leftovers."""
    end_leases(rig)
    done = rig.compact("--topic", topic, capsys=capsys)
    assert done["state"] == "succeeded", done
    assert messages(rig.artifact(topic)) == compacted(rig.raw(topic))
    record = rig.record(topic)
    assert record is not None
    live, retired = {one.path for one in record.files}, {one.path for one in record.retired}
    assert rig.files() == live | retired
    assert attempts(rig) == 0


def batches(number: int) -> list[list[tuple[str | None, bytes]]]:
    return [
        [(f"k{key}", b"" if (key + number) % 7 == 0 else f"{number}-{key}".encode())]
        for key in range(12)
    ]


def test_killed_when_the_attempt_is_on_record_and_when_a_file_is_there(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(client, topic, batches(0))
    kill_when(started(rig, topic), lambda: attempts(rig) > 0)
    check(rig, topic, capsys)
    write(client, topic, batches(1))
    known = rig.files()
    kill_when(started(rig, topic), lambda: rig.folder.exists() and rig.files() != known)
    check(rig, topic, capsys)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_fifty_moments(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, killed = random.Random(5), 0
    began = time.monotonic()
    write(client, topic, batches(0))
    with started(rig, topic) as whole:
        whole.communicate(timeout=ENDS_S)
    takes_s = time.monotonic() - began
    for number in range(1, 51):
        write(client, topic, batches(number))
        at = time.monotonic() + rng.uniform(0.2, 1.0) * takes_s
        killed += kill_when(started(rig, topic), partial(past, at))
        check(rig, topic, capsys)
    assert killed > 0


def test_a_job_whose_lease_is_lost_commits_nothing(
    rig: CompactRig,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is stopped for long, another job cleans up its attempt, and then it continues."""
    from magnetar.jobs.compaction import swap
    from magnetar.jobs.compaction.leftovers import clean_attempts

    write(client, topic, batches(0))
    commit = swap.commit

    async def late(store: MetadataStore, *args: object, **kwargs: object) -> object:
        for stored in await store.list(JOBS_PREFIX):
            await store.delete(stored.key)
        for path in rig.files():  # a complete artifact would be kept
            (rig.folder / path).write_bytes(b"")
        assert (await clean_attempts(store)).files == 1
        await asyncio.sleep(0)
        return await commit(store, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(swap, "commit", late)
    done = rig.compact("--topic", topic, capsys=capsys)
    assert done["metrics"]["topicsCompactedByOthers"] == 1
    assert rig.record(topic) is None
    assert rig.files() == set()
    monkeypatch.undo()
    check(rig, topic, capsys)
