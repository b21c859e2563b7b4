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
    assert awaited(ASKED)


def test_a_request_that_its_broker_cannot_carry_out_says_so_at_once() -> None:
    told = replace(ASKED, error="No module named 'obstore': install magnetar[offload]")
    assert status(told).startswith("ERROR waits: No module named 'obstore': install magnetar[off")
    assert awaited(told), "a job may take it"


def test_from_the_job_on_there_is_no_hurry() -> None:
    running = replace(ASKED, state=RequestState.RUNNING, job="j")
    assert status(running, alive=True, now_ms=1_000 + 9 * PENDING_MS_MAX) == "RUNNING "
    assert status(running).startswith("ERROR job j ended before it was done")
    assert awaited(running), "a broker or a job takes it up: until then nothing may be trimmed"
    assert status(replace(running, state=RequestState.SUCCESS)) == "SUCCESS "
    failed = replace(running, state=RequestState.ERROR, error="no room")
    assert status(failed) == "ERROR no room"
    assert not awaited(failed)
    assert status(None) == "NOT_RUN "
    assert not awaited(None)


def test_the_worst_status_of_the_partitions_is_reported() -> None:
    found = [CompactionStatus("SUCCESS"), CompactionStatus("ERROR", "x"), CompactionStatus()]
    assert worst(found) == CompactionStatus("ERROR", "x")
    assert worst([]) == CompactionStatus()
