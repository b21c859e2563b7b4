"""A broker's compaction: the same result as Spark's, from any point at which it may die."""

import asyncio
import os
import pickle
import signal
import uuid
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.compact_stage import NAME, artifact, by_spark, keyed, readable, record, status
from tests.spark.job_stage import METADATA_URL, TOPIC, JobCluster, batch, entry
from tests.spark.test_compact_due import threshold
from tests.support.compaction import LogEntry, compacted, messages

from magnetar.bookie.api import StoredEntry
from magnetar.broker.cold.compactor import Result
from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    COMPACTIONS_PREFIX,
    CompactedFile,
    CompactionRequest,
    attempt_folder,
    decode_compaction,
    job_key,
    request_key,
)
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import parse_topic
from magnetar.jobs.compaction import in_worker as compacting
from magnetar.jobs.compaction import swap
from magnetar.jobs.compaction.here import Compacted, compact_here
from magnetar.jobs.compaction.in_worker import compact_topic
from magnetar.jobs.compaction.plan import Part
from magnetar.jobs.compaction.second_pass import Writing
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.worker import child
from magnetar.jobs.worker import process as worker_process
from magnetar.jobs.worker.frames import LENGTH_BYTES, Alive, Done, decode_request, framed, length_of
from magnetar.jobs.worker.process import in_worker
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.metadata.records import encode
from magnetar.offload.errors import ColdStoreUnavailable
from magnetar.offload.file_format import EntryFile
from magnetar.offload.records import RequestState
from magnetar.offload.stores import FILESYSTEM, StoreSpec, open_object_store
from magnetar_spark.jobs.progress import Silence
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LEDGER_SETTINGS, LogSettings

INDEX_BYTES = 1 << 20
DISK_BYTES = 8 << 20
LEDGER = 7
CALLS_MAX = 200
"""More than a compaction makes of the metadata store."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the tasks of this module."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    return JobCluster(monkeypatch, tmp_path / "cold", capsys)


def log_of(cluster: JobCluster, store: Any = None) -> Log:
    store = store or cluster.store
    clock = SystemClock()
    context = LedgerContext(store, cluster.bookies, clock, LEDGER_SETTINGS, Random(3))
    return Log(store, cluster.bookies, context, None)


async def compact(
    cluster: JobCluster,
    log: Log,
    topic: str = TOPIC,
    *,
    bytes_max: int = -1,
    leaves_topics: bool = False,
    store: bool = True,
) -> Result:
    """Compacts as a broker does, after a request of pulsar-admin."""
    result = Result()
    await compact_topic(
        log,
        parse_topic(topic),
        result,
        job_id=uuid.uuid4().hex,
        clock=cluster.clock,
        index_bytes=INDEX_BYTES,
        disk_bytes=DISK_BYTES,
        bytes_max=bytes_max,
        leaves_topics=leaves_topics,
        store_otherwise=cluster.spec if store else None,
    )
    return result


def request(cluster: JobCluster, name: str = NAME, **fields: Any) -> None:
    cluster.run(cluster.store.put(request_key(name), encode(CompactionRequest(5, **fields))))


def test_a_worker_process_compacts_what_a_broker_reads_for_it(cluster: JobCluster) -> None:
    cluster.write(TOPIC, [*keyed(0, 9), batch(9, ["k0", "b1", "b1"])])
    request(cluster)
    result = cluster.run(compact(cluster, log_of(cluster)))
    assert (result.errors, result.counts["topicsCompacted"]) == ([], 1)
    assert messages(artifact(cluster)) == compacted(readable(cluster))
    cluster.write(TOPIC, keyed(20, 6))
    request(cluster)
    cluster.run(compact(cluster, log_of(cluster)))
    assert messages(artifact(cluster)) == compacted(
        [each for each in cluster.log() if each.position <= record(cluster).horizon]  # type: ignore[union-attr]
    )
    told = status(cluster)
    assert told is not None
    assert told.state is RequestState.SUCCESS


@pytest.mark.parametrize(("bytes_max", "store"), [(100, True), (1 << 20, False), (-1, False)])
def test_what_is_too_large_or_has_no_store_is_left_to_jobs(
    cluster: JobCluster, bytes_max: int, store: bool
) -> None:
    cluster.write(TOPIC, keyed(0, 9))
    request(cluster)
    before = status(cluster)
    log = log_of(cluster)
    result = cluster.run(
        compact(cluster, log, bytes_max=bytes_max, leaves_topics=True, store=store)
    )
    assert (result.errors, result.counts["topicsLeftToJobs"]) == ([], 1)
    assert (record(cluster), status(cluster)) == (None, before)


def test_a_broker_that_leaves_a_topic_does_not_take_the_status_of_a_running_job(
    cluster: JobCluster,
) -> None:
    cluster.write(TOPIC, keyed(0, 9))
    threshold(cluster, 1)
    cluster.run(cluster.store.put(job_key("other"), b"{}"))
    request(cluster, state=RequestState.RUNNING, job="other")
    before = status(cluster)
    result = cluster.run(compact(cluster, log_of(cluster), bytes_max=100, leaves_topics=True))
    assert (result.counts["topicsLeftToJobs"], status(cluster)) == (1, before)
    cluster.run(cluster.store.delete(job_key("other")))
    cluster.run(compact(cluster, log_of(cluster), bytes_max=100, leaves_topics=True))
    told = status(cluster)
    assert told is not None
    assert told.state is RequestState.RUNNING, "it waits for a job already: `other` has died"


class Dies(BaseException):
    """The broker's process ends."""


class Mortal:
    """A metadata store whose process dies at one of its calls: before it, or before its answer."""

    def __init__(self, store: Any, call: int, *, answered: bool) -> None:
        self._store, self._left, self._answered = store, call, answered
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def called(*arguments: Any, **options: Any) -> Any:
            if self.dead:
                raise Dies
            self._left -= 1
            self.dead = self._left < 0
            if self.dead and not self._answered:
                raise Dies
            result = await method(*arguments, **options)
            if self.dead:
                raise Dies
            return result

        return called


@pytest.mark.parametrize("answered", [False, True])
def test_a_broker_that_dies_at_any_call_leaves_a_whole_view_and_what_the_next_run_deletes(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    async def in_thread(_log: Log, task: partial[Compacted], _ranges: Any) -> Compacted:
        return await asyncio.to_thread(task)

    monkeypatch.setattr(compacting, "in_worker", in_thread)
    reader = partial(EntryReader, LogSettings(METADATA_URL), ())
    monkeypatch.setattr(compacting, "open_reader", reader)
    monkeypatch.setattr(
        "magnetar_spark.log.entry_reader.PlannedBookies", lambda *_: Direct(cluster)
    )
    committed = 0
    for call in range(CALLS_MAX):
        topic = f"{TOPIC}-{call}"
        name = log_name(parse_topic(topic))
        cluster.write(topic, keyed(0, 3))
        request(cluster, name)
        cluster.run(compact(cluster, log_of(cluster), topic))
        old = record(cluster, name)
        assert old is not None
        left = cluster.files()
        cluster.write(topic, keyed(3, 3))
        request(cluster, name)
        mortal = Mortal(cluster.store, call, answered=answered)
        try:
            cluster.run(compact(cluster, log_of(cluster, mortal), topic))
        except Dies:
            for lease in cluster.store.leases:
                cluster.run(cluster.store.revoke_lease(lease.id))
        else:
            break
        found = record(cluster, name)
        assert found is not None
        if found.attempt == old.attempt:
            assert found == old
        else:
            committed += 1
        assert {each.path for each in found.files} <= cluster.files()
        assert messages(artifact(cluster, name)) == _compacted_up_to(cluster, topic, found.horizon)
        assert left <= cluster.files()
        cluster.run(compact(cluster, log_of(cluster), topic))
        assert messages(artifact(cluster, name)) == compacted(readable(cluster, topic))
        assert cluster.files() == _named(cluster), "the leftovers are gone"
        assert cluster.keys(ATTEMPTS_PREFIX) == []
    assert (call > committed > 0, call < CALLS_MAX - 1) == (True, True)


def _named(cluster: JobCluster) -> set[str]:
    named: set[str] = set()
    for stored in cluster.run(cluster.store.list(COMPACTIONS_PREFIX)):
        live = decode_compaction(stored.key, stored.value)
        named |= {each.path for each in live.files} | {each.path for each in live.retired}
    return named


def _compacted_up_to(cluster: JobCluster, topic: str, horizon: Position) -> list[Any]:
    return compacted([each for each in cluster.log(topic) if each.position <= horizon])


class Direct:
    """The cluster's bookies, as a reader's."""

    def __init__(self, cluster: JobCluster) -> None:
        self._of = cluster.bookies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    async def close(self) -> None:
        """Nothing to close."""


def babbles(data: bytes) -> None:
    """A task that writes to its pipe what is no frame."""
    child._pipe[0]._outgoing.write(data)
    child._pipe[0]._outgoing.flush()


def test_a_broker_that_stops_leaves_the_request_open_though_the_store_is_away(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(TOPIC, keyed(0, 6))
    request(cluster)
    begun = asyncio.Event()

    async def works(*_: Any) -> object:
        begun.set()
        return await asyncio.Event().wait()

    async def away(*_: Any) -> int:
        raise ColdStoreUnavailable("the store is away")

    monkeypatch.setattr(compacting, "in_worker", works)
    monkeypatch.setattr(swap, "delete_folder", away)

    async def stopped() -> None:
        task = asyncio.ensure_future(compact(cluster, log_of(cluster)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    cluster.run(stopped())
    told = status(cluster)
    assert told is not None
    assert told.state is RequestState.RUNNING, "its job is over, so another takes it"
    assert len(cluster.keys(ATTEMPTS_PREFIX)) == 1, "the next run deletes its files"


def test_a_worker_tells_that_it_began_a_part_that_it_reads_from_files() -> None:
    outgoing = BytesIO()
    child.run(BytesIO(framed(pickle.dumps(opens_two_readers))), outgoing)
    sent, frames = outgoing.getvalue(), []
    while sent:
        end = LENGTH_BYTES + length_of(sent[:LENGTH_BYTES])
        frames.append(decode_request(sent[LENGTH_BYTES:end]))
        sent = sent[end:]
    assert frames == [Alive(), Alive(), Done(pickle.dumps(None))]


def opens_two_readers() -> None:
    for _ in range(2):
        with child.open_reader():
            pass


def test_a_worker_that_reads_files_only_is_served(cluster: JobCluster) -> None:
    assert cluster.run(in_worker(log_of(cluster), opens_two_readers, ())) is None


def test_a_worker_that_dies_or_fails_is_an_error_and_a_cancelled_one_is_killed(
    cluster: JobCluster,
) -> None:
    log = log_of(cluster)
    with pytest.raises(PersistenceError, match="ended with 3 before it was done"):
        cluster.run(in_worker(log, partial(os._exit, 3), ()))

    async def cancelled() -> None:
        started: list[Process] = []

        async def start(*program: str, **options: Any) -> Process:
            started.append(process := await asyncio.create_subprocess_exec(*program, **options))
            task.cancel()
            return process

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker_process, "create_subprocess_exec", start)
            task = asyncio.ensure_future(in_worker(log, partial(os.read, 0, 1 << 20), ()))
            with pytest.raises(asyncio.CancelledError):
                await task
        (process,) = started
        assert process.returncode == -signal.SIGKILL

    cluster.run(cancelled())
    with pytest.raises(PersistenceError, match="sent no frame"):
        cluster.run(in_worker(log, partial(babbles, b"\xff" * 64), ()))
    with pytest.raises(PersistenceError, match="sent no frame"):
        cluster.run(in_worker(log, partial(babbles, b"\0\0\0\1\xc1"), ()))
    cluster.write(TOPIC, keyed(0, 6))
    request(cluster)
    for disk in cluster.bookies.disks:
        disk.ledger(cluster.closed()[0]).entries.pop(1, None)
    result = cluster.run(compact(cluster, log))
    assert any("entry 1" in error for error in result.errors)
    assert (record(cluster), cluster.files()) == (None, set())
    told = status(cluster)
    assert told is not None
    assert (told.state, told.error) == (RequestState.ERROR, result.errors[0][:500])


KEYS = st.sampled_from(["a", "b", "c", "d"])
VALUES = st.sampled_from([b"", b"v" * 40])


def chunk(key: str, number: int, index: int, count: int) -> bytes:
    return entry(
        number,
        key=key,
        value=b"part",
        uuid=f"{key}-big",
        chunk_id=index,
        num_chunks_from_msg=count,
        total_chunk_msg_size=count * 4,
    )


ENTRIES = st.one_of(
    st.builds(lambda key, value: entry(1, key=key, value=value), KEYS, VALUES),
    st.builds(lambda value: entry(2, value=value), VALUES),
    st.builds(lambda keys: batch(3, keys), st.lists(KEYS, min_size=1, max_size=4)),
    st.builds(lambda key, index: chunk(key, 4, index, 2), KEYS, st.integers(0, 1)),
    st.builds(lambda key: entry(5, key=key, null_value=True, value=b""), KEYS),
)


class Listed:
    """Reads ranges of entries that a test holds."""

    def __init__(self, entries: list[bytes]) -> None:
        self._entries = entries

    def read(self, ranged: Range) -> Iterator[list[StoredEntry]]:
        for number in range(ranged.first, ranged.last + 1):
            yield [StoredEntry(number, self._entries[number])]


def writing(entries: list[bytes], parts: list[int], folder: Path, name: str) -> Writing:
    @contextmanager
    def reader() -> Iterator[Listed]:
        yield Listed(entries)

    cuts = sorted({0, len(entries), *(part for part in parts if part < len(entries))})
    ranges = [
        Range(TOPIC, -1, LedgerMetadata(LEDGER, (), 1), first, last - 1, 100)
        for first, last in pairwise(cuts)
    ]
    return Writing(
        reader=reader,
        parts=tuple(Part(number, (each,)) for number, each in enumerate(ranges)),
        store=StoreSpec(FILESYSTEM, str(folder)),
        folder=attempt_folder(NAME, name * 32),
        managed_ledger=NAME,
        cluster_id="here",
        horizon=Position(LEDGER, len(entries) - 1),
    )


async def content(store: StoreSpec, files: tuple[CompactedFile, ...]) -> list[LogEntry]:
    objects, found = open_object_store(store), []
    for each in files:
        file = await EntryFile.open(objects, each.path)
        for group in file.groups:
            for ledger_id, entry_id, data in await file.read_group(group.number):
                found.append(LogEntry(Position(ledger_id, entry_id), data))
    return found


def test_what_survives_is_what_survives_by_spark(
    cluster: JobCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(ENTRIES, min_size=1, max_size=12), st.lists(st.integers(1, 11), max_size=2))
    def compared(entries: list[bytes], parts: list[int]) -> None:
        one = writing(entries, parts, tmp_path, "a")
        two = writing(entries, parts, tmp_path, "b")
        # Every entry's keys go into the index by themselves, as those of a large topic would.
        monkeypatch.setattr("magnetar.jobs.compaction.first_pass.KEYS_MAX", 1)
        ours = compact_here(one, EARLIEST, 1)
        monkeypatch.undo()
        theirs = by_spark(cluster, two, EARLIEST, Silence())
        assert cluster.run(content(one.store, ours.files)) == cluster.run(
            content(two.store, theirs.files)
        )
        assert ours.messages_read == theirs.messages_read
        assert [each.messages for each in ours.files] == [each.messages for each in theirs.files]

    compared()


def test_an_index_that_does_not_fit_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    entries = [entry(number, key=f"key {number}" * 9, value=b"v") for number in range(900)]
    one = writing(entries, [], tmp_path, "a")
    with pytest.raises(PersistenceError, match="compaction_index_disk_mb"):
        compact_here(one, EARLIEST, 1, 1)
    assert len(compact_here(one, EARLIEST, 1, DISK_BYTES).files) == 1
