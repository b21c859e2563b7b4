"""What was asked for and what came of it, as REST and stats show compaction. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.compaction.records import CompactionRecord, CompactionRequest, RequestState


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """As Pulsar's `LongRunningProcessStatus`."""

    status: str = "NOT_RUN"
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """For stats: the artefact, if there is one, and when a job failed last (0: never)."""

    record: CompactionRecord | None = None
    failed_ms: int = 0


NEVER_COMPACTED: Final = CompactionFacts()
_WORST_FIRST: Final = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")


def status_of(request: CompactionRequest | None, *, job_alive: bool) -> CompactionStatus:
    """What a request came to. One that waits for a job counts as running, as pulsar-admin waits
    for it; one whose job died waits for the next."""
    if request is None:
        return CompactionStatus()
    if request.finished:
        return CompactionStatus(request.state.value, request.error)
    if request.state is RequestState.RUNNING and not job_alive:
        error = f"job {request.job} ended before it was done: the next one does it"
        return CompactionStatus("ERROR", error)
    return CompactionStatus("RUNNING")


def worst(found: Sequence[CompactionStatus]) -> CompactionStatus:
    """Of several partitions the one that is told."""
    ordered = sorted(found, key=lambda each: _WORST_FIRST.index(each.status))
    return ordered[0] if ordered else CompactionStatus()
