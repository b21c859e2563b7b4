"""The states of a compaction request: waiting for a job, running, done."""

from msgspec.structs import replace

from magnetar.broker.cold.compaction_state import (
    CARRIED_OUT_BY,
    PENDING_MS_MAX,
    CompactionStatus,
    awaited,
    status_of,
    worst,
)
from magnetar.compaction.records import CompactionRequest
from magnetar.offload.records import RequestState

ASKED = CompactionRequest(1_000)


def status(request: CompactionRequest | None, *, alive: bool = False, now_ms: int = 1_000) -> str:
    found = status_of(request, job_alive=alive, now_ms=now_ms)
    return f"{found.status} {found.last_error}"


def test_a_request_that_no_job_takes_up_reports_so() -> None:
    assert status(ASKED) == f"RUNNING waits: {CARRIED_OUT_BY}"
    late = 1_000 + PENDING_MS_MAX
    assert status(ASKED, now_ms=late - 1).startswith("RUNNING")
    assert status(ASKED, now_ms=late) == f"ERROR not begun within an hour: {CARRIED_OUT_BY}"
    # It waits all the same, and so does retention.
    assert awaited(ASKED, job_alive=False)


def test_from_the_job_on_there_is_no_hurry() -> None:
    running = replace(ASKED, state=RequestState.RUNNING, job="j")
    assert status(running, alive=True, now_ms=1_000 + 9 * PENDING_MS_MAX) == "RUNNING "
    assert status(running).startswith("ERROR job j ended before it was done")
    assert (awaited(running, job_alive=True), awaited(running, job_alive=False)) == (True, False)
    assert status(replace(running, state=RequestState.SUCCESS)) == "SUCCESS "
    failed = replace(running, state=RequestState.ERROR, error="no room")
    assert status(failed) == "ERROR no room"
    assert not awaited(failed, job_alive=True)
    assert status(None) == "NOT_RUN "
    assert not awaited(None, job_alive=False)


def test_the_worst_status_of_the_partitions_is_reported() -> None:
    found = [CompactionStatus("SUCCESS"), CompactionStatus("ERROR", "x"), CompactionStatus()]
    assert worst(found) == CompactionStatus("ERROR", "x")
    assert worst([]) == CompactionStatus()
