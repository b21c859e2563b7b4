"""The results of offload requests, and the statistics of moved ledgers."""

from magnetar.broker.cold.offload_state import Moved, first_unmoved, moved, status_of
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed_ledger.index import LedgerInfo
from magnetar.offload.records import OffloadRecord, OffloadRequest, RequestState
from magnetar.offload.stores import StoreSpec

LEDGERS = [
    LedgerInfo(3, 1, entries=10, size_bytes=100, closed_ms=2),
    LedgerInfo(5, 1, entries=0, closed_ms=2),
    LedgerInfo(8, 1, entries=10, size_bytes=100, closed_ms=2),
    LedgerInfo(9, 1, entries=4, size_bytes=40),
]


def test_all_before_the_position_but_never_the_newest() -> None:
    assert first_unmoved(LEDGERS, (), Position(8, 3)) == (Position(8, 0), True)
    assert first_unmoved(LEDGERS, {3}, Position(8, 3)) == (Position(8, 0), False)
    assert first_unmoved(LEDGERS, {3}, LATEST) == (Position(9, 0), True)
    assert first_unmoved(LEDGERS, {3, 8}, LATEST) == (Position(9, 0), False)
    assert first_unmoved(LEDGERS, (), EARLIEST) == (Position(3, 0), False)
    assert first_unmoved(LEDGERS[:3], (), LATEST) == (Position(8, 0), True)
    assert first_unmoved([], (), LATEST) == (EARLIEST, False)


def test_the_status_of_a_request() -> None:
    first = Position(8, 0)

    def status(state: RequestState, *, pending: bool = True, alive: bool = True) -> str:
        request = OffloadRequest(first, 1, state, first, job="job-1", error="no room")
        found = status_of(request, pending, alive)
        return f"{found.status} {found.last_error} {found.first_unoffloaded}"

    assert status_of(None, False, False).status == "NOT_RUN"
    assert status(RequestState.PENDING) == "RUNNING  -1:-1"
    # No job has taken it up yet, so none that died is to blame.
    assert status(RequestState.PENDING, alive=False) == "RUNNING  -1:-1"
    assert status(RequestState.PENDING, pending=False) == "SUCCESS  8:0"
    assert status(RequestState.RUNNING) == "RUNNING  -1:-1"
    assert status(RequestState.RUNNING, alive=False).startswith("ERROR job job-1 ended before")
    assert status(RequestState.RUNNING, pending=False, alive=False) == "SUCCESS  8:0"
    assert status(RequestState.SUCCESS) == "SUCCESS  8:0"
    assert status(RequestState.ERROR) == "ERROR no room -1:-1"


def test_what_was_moved() -> None:
    def record(ledger_id: int, at_ms: int) -> OffloadRecord:
        return OffloadRecord(ledger_id, "a", StoreSpec("S3", "b"), "p", 1, 1, 50, 1, 1, 1, at_ms)

    failed = OffloadRequest(LATEST, 1, RequestState.ERROR, finished_ms=77)
    found = moved({3: record(3, 20), 8: record(8, 10)}, failed)
    assert found == Moved({3: 50, 8: 50}, 3, 20, 77)
    assert found.size_bytes == 100
    assert moved({}, None) == Moved({})
    for state in (RequestState.SUCCESS, RequestState.PENDING, RequestState.RUNNING):
        ended = OffloadRequest(LATEST, 1, state, finished_ms=77)
        assert moved({3: record(3, 20)}, ended).last_failure_ms == 0
