"""The state of requests made by `pulsar-admin topics offload`.

A job marks a request RUNNING when it starts, and SUCCESS or ERROR at its end, by compare-and-swap:
if another job was first, or a newer request has replaced this one, the newer record stays. A
request that a killed job left RUNNING is picked up by the next job.
"""

from collections.abc import Container, Sequence

import msgspec

from magnetar.core.ids import Position
from magnetar.jobs.offload.plan import TopicWork
from magnetar.managed_ledger.record import LedgerItem
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import OffloadRequest, RequestState
from magnetar.offload.repository import OffloadRepository


async def mark_running(store: MetadataStore, work: TopicWork, job: str) -> None:
    """Marks the topic's request as running in this job."""
    if work.request is None:
        return
    request, revision = work.request
    running = msgspec.structs.replace(request, state=RequestState.RUNNING, job=job)
    await OffloadRepository(store).replace_request(work.name, running, revision)


async def finish(
    store: MetadataStore, work: TopicWork, now_ms: int, errors: Sequence[str]
) -> OffloadRequest | None:
    """Finishes the topic's request: with SUCCESS if all ledgers before its position have files."""
    if work.request is None:
        return None
    repository = OffloadRepository(store)
    planned = work.request.request
    current = await repository.open_request(work.name)
    if current is None or current.request.requested_ms != planned.requested_ms:
        return None
    files = await repository.files(work.name)
    first = first_unoffloaded(work.ledgers, files, planned.up_to)
    done = first.ledger_id >= planned.up_to.ledger_id or (not errors and not work.store_missing)
    error = "" if done else next(iter(errors), "no offload driver is configured for this topic")
    finished = msgspec.structs.replace(
        current.request,
        state=RequestState.SUCCESS if done else RequestState.ERROR,
        first_unoffloaded=first,
        finished_ms=now_ms,
        error=error,
    )
    await repository.replace_request(work.name, finished, current.revision)
    return finished


def first_unoffloaded(
    ledgers: Sequence[LedgerItem], offloaded: Container[int], up_to: Position
) -> Position:
    """The first position that is in no file, skipping empty ledgers; at most the ledger of `up_to`.

    Pure.
    """
    for item in ledgers:
        if item.ledger_id >= up_to.ledger_id:
            break
        if item.entries and item.ledger_id not in offloaded:
            return Position(item.ledger_id, 0)
    return Position(up_to.ledger_id, 0)
