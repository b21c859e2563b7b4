"""A topic's offloaded ledgers and the state of offload requests, for stats and REST.

Pure; `offload` reads and writes the records.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.index import LedgerInfo
from magnetar.offload.records import OffloadRecord, OffloadRequest, RequestState

NO_DRIVER: Final = (
    "No offload driver is configured for this topic: set managedLedgerOffloadDriver for the "
    "brokers, or the offload policies of its namespace"
)


@dataclass(frozen=True, slots=True)
class Moved:
    """The ledgers of a topic that have a live file, with their sizes."""

    sizes: Mapping[int, int]
    last_ledger_id: int = 0
    last_success_ms: int = 0
    last_failure_ms: int = 0

    @property
    def size_bytes(self) -> int:
        """The total size of the live files."""
        return sum(self.sizes.values())


NOTHING_MOVED: Final = Moved({})


def moved(records: Mapping[int, OffloadRecord], request: OffloadRequest | None) -> Moved:
    """Summarizes the records; the only failure that is recorded is the last request's."""
    last = max(records.values(), key=lambda record: record.offloaded_ms, default=None)
    failed = request is not None and request.state is RequestState.ERROR
    return Moved(
        {record.ledger_id: record.length_bytes for record in records.values()},
        0 if last is None else last.ledger_id,
        0 if last is None else last.offloaded_ms,
        request.finished_ms if failed and request is not None else 0,
    )


def first_unmoved(
    ledgers: Sequence[LedgerInfo], live: Container[int], up_to: Position
) -> tuple[Position, bool]:
    """Returns the first position that stays, and whether any ledger before it must be moved.

    `up_to` is the position of a request. The newest ledger always stays, as in Pulsar.
    """
    waiting = False
    for info in ledgers:
        if info.ledger_id >= up_to.ledger_id or info is ledgers[-1] or not info.closed_ms:
            return Position(info.ledger_id, 0), waiting
        waiting = waiting or (info.entries > 0 and info.ledger_id not in live)
    return EARLIEST, waiting


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """The status of an offload, like Pulsar's `OffloadProcessStatus`."""

    status: str = "NOT_RUN"
    last_error: str = ""
    first_unoffloaded: Position = EARLIEST


def status_of(request: OffloadRequest | None, pending: bool, job_alive: bool) -> OffloadStatus:
    """Returns the status of a request. `pending`: one of its ledgers has no live file yet."""
    if request is None:
        return OffloadStatus()
    if request.state is RequestState.ERROR:
        return OffloadStatus("ERROR", request.error)
    if request.state is RequestState.SUCCESS or not pending:
        return OffloadStatus("SUCCESS", "", request.first_unoffloaded)
    if request.state is RequestState.RUNNING and not job_alive:
        return OffloadStatus("ERROR", f"job {request.job} ended before it had moved all ledgers")
    return OffloadStatus("RUNNING")
