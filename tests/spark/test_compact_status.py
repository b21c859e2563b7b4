"""The status of a compaction while other processes request, delete or compact the topic."""

import pytest

from magnetar.compaction.records import CompactionRequest, decode_request, request_key
from magnetar.core.clock import SystemClock
from magnetar.jobs.compaction.status import CompactionStatus
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT
from magnetar.offload.records import RequestState

NAME = "public/default/persistent/t"
KEY = request_key(NAME)
RUNNING, SUCCESS = RequestState.RUNNING, RequestState.SUCCESS


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


def told(store: MemoryStore, job: str, revision: int) -> CompactionStatus:
    status = CompactionStatus(store, NAME, job, SystemClock())
    status.read(revision)
    return status


async def found(store: MemoryStore) -> CompactionRequest | None:
    stored = await store.get(KEY)
    return None if stored is None else decode_request(KEY, stored.value)


async def ask(store: MemoryStore) -> int:
    return await store.put(KEY, encode(CompactionRequest(7)))


async def test_from_requested_to_done(store: MemoryStore) -> None:
    status = told(store, "one", await ask(store))
    await status.update(RUNNING)
    running = await found(store)
    assert running is not None
    assert (running.state, running.job, running.requested_ms) == (RUNNING, "one", 7)
    await status.update(RequestState.ERROR, "x" * 9_000)
    failed = await found(store)
    assert failed is not None
    assert (failed.failed_ms > 0, len(failed.error)) == (True, 500)
    await status.update(SUCCESS)
    done = await found(store)
    assert done is not None
    assert (done.state, done.error, done.failed_ms) == (SUCCESS, "", failed.failed_ms)


@pytest.mark.parametrize("asked_before", [True, False])
async def test_what_is_requested_after_the_job_has_looked_waits(
    store: MemoryStore, asked_before: bool
) -> None:
    """The running job may not have read the newest messages."""
    status = told(store, "one", await ask(store) if asked_before else ABSENT)
    await ask(store)
    for state in (RUNNING, SUCCESS):
        await status.update(state)
        waiting = await found(store)
        assert waiting is not None
        assert (waiting.state, waiting.job) == (RequestState.PENDING, "")


async def test_of_two_jobs_the_later_one_tells(store: MemoryStore) -> None:
    one = told(store, "one", await ask(store))
    await one.update(RUNNING)
    stored = await store.get(KEY)
    assert stored is not None
    two = told(store, "two", stored.revision)
    await two.update(RUNNING)
    await one.update(SUCCESS)
    running = await found(store)
    assert running is not None
    assert (running.state, running.job) == (RUNNING, "two")
    # That job finds that it is superseded; the next job reads the state again.
    await two.update(RequestState.PENDING)
    left = await found(store)
    assert left is not None
    assert (left.state, left.job, left.requested_ms) == (RequestState.PENDING, "", 7)


async def test_a_deleted_topic_has_no_status(store: MemoryStore) -> None:
    status = told(store, "one", await ask(store))
    await status.update(RUNNING)
    await store.delete(KEY)
    await status.update(SUCCESS)
    assert await found(store) is None


async def test_a_first_run_that_nobody_asked_for(store: MemoryStore) -> None:
    status = told(store, "one", ABSENT)
    await status.update(RUNNING)
    await status.update(SUCCESS)
    done = await found(store)
    assert done is not None
    assert (done.state, done.job) == (SUCCESS, "one")
