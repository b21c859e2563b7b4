"""What of a topic was moved to object storage, and what was asked for: for stats and REST.

Pure decisions over records; `offloading` reads and writes them.
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
    """A topic's ledgers that have a live file, by their size."""

    sizes: Mapping[int, int]
    last_ledger_id: int = 0
    last_success_ms: int = 0
    last_failure_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())


NOTHING_MOVED: Final = Moved({})


def moved(records: Mapping[int, OffloadRecord], request: OffloadRequest | None) -> Moved:
    """What the records say; of failures only the last request's is known."""
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
    """The first position that a request up to `up_to` leaves where it is, and whether there is
    anything to move before it. The newest ledger always stays, as Pulsar's does."""
    waiting = False
    for info in ledgers:
        if info.ledger_id >= up_to.ledger_id or info is ledgers[-1] or not info.closed_ms:
            return Position(info.ledger_id, 0), waiting
        waiting = waiting or (info.entries > 0 and info.ledger_id not in live)
    return EARLIEST, waiting


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """As Pulsar's `OffloadProcessStatus`."""

    status: str = "NOT_RUN"
    last_error: str = ""
    first_unoffloaded: Position = EARLIEST


def status_of(request: OffloadRequest | None, pending: bool, job_alive: bool) -> OffloadStatus:
    """What a request came to. `pending`: whether a ledger of it has no live file yet."""
    if request is None:
        return OffloadStatus()
    if request.state is RequestState.ERROR:
        return OffloadStatus("ERROR", request.error)
    if request.state is RequestState.SUCCESS or not pending:
        return OffloadStatus("SUCCESS", "", request.first_unoffloaded)
    if request.state is RequestState.RUNNING and not job_alive:
        return OffloadStatus("ERROR", f"job {request.job} ended before it had moved all ledgers")
    return OffloadStatus("RUNNING")
