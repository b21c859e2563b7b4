"""The state of compaction requests, as REST and stats show it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.compaction.records import CompactionRecord, CompactionRequest
from magnetar.offload.records import RequestState

PENDING_MS_MAX: Final = 3_600_000
"""A request that nothing works on for this long is shown as an error, but stays valid."""
CARRIED_OUT_BY: Final = (
    "its broker compacts it unless it is larger than compaction_topic_size_mb_max, or has no store "
    "(managedLedgerOffloadDriver, or offload policies); then `magnetar job compact` does, or on "
    "Kubernetes a SparkJob of that kind"
)


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The status of a compaction, like Pulsar's `LongRunningProcessStatus`."""

    status: str = "NOT_RUN"
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """The compaction in stats: the artifact's record, if any, and the last failure (0: never)."""

    record: CompactionRecord | None = None
    failed_ms: int = 0


NEVER_COMPACTED: Final = CompactionFacts()
_WORST_FIRST: Final = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")


def awaited(request: CompactionRequest | None) -> bool:
    """Whether the compaction is to run, or runs. If what ran it died, its next one takes it."""
    return request is not None and not request.finished


def status_of(
    request: CompactionRequest | None, *, job_alive: bool, now_ms: int
) -> CompactionStatus:
    """Returns the status of a request.

    A request that waits for a job counts as running, because pulsar-admin waits for it; but only
    for PENDING_MS_MAX, because a cluster may have no jobs, and until a broker writes why it cannot
    compact. If its job dies, the next job takes it.
    """
    if request is None:
        return CompactionStatus()
    if request.finished:
        return CompactionStatus(request.state.value, request.error)
    if request.state is RequestState.PENDING:
        if request.error:
            return CompactionStatus("ERROR", f"waits: {request.error}; or {CARRIED_OUT_BY}")
        if now_ms - request.requested_ms < PENDING_MS_MAX:
            return CompactionStatus("RUNNING", f"waits: {CARRIED_OUT_BY}")
        return CompactionStatus("ERROR", f"not begun within an hour: {CARRIED_OUT_BY}")
    if not job_alive:
        error = f"job {request.job} ended before it was done: the next one does it"
        return CompactionStatus("ERROR", error)
    return CompactionStatus("RUNNING")


def worst(statuses: Sequence[CompactionStatus]) -> CompactionStatus:
    """Returns the status that represents several partitions."""
    ordered = sorted(statuses, key=lambda status: _WORST_FIRST.index(status.status))
    return ordered[0] if ordered else CompactionStatus()
