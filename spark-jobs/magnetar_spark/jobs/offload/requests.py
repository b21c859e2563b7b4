"""What `pulsar-admin topics offload` asked for, and how it ended.

A request is marked RUNNING when a job takes it up, and SUCCESS or ERROR at the job's end, by
compare-and-swap: where another job was first, or another request came, theirs stands. One that a
job has left RUNNING is taken up by the next.
"""

from collections.abc import Container, Sequence

import msgspec

from magnetar.core.ids import Position
from magnetar.managed_ledger.record import LedgerItem
from magnetar.metadata.store import BadRevision, MetadataStore
from magnetar.offload.records import OffloadRequest, RequestState, encode, request_key
from magnetar_spark.jobs.offload.planning import TopicWork, live_records, open_request


async def take_up(store: MetadataStore, work: TopicWork, job: str) -> None:
    """Says that this job works on it."""
    if work.request is None:
        return
    request, revision = work.request
    running = msgspec.structs.replace(request, state=RequestState.RUNNING, job=job)
    await _put(store, work.name, running, revision)


async def finish(
    store: MetadataStore, work: TopicWork, now_ms: int, errors: Sequence[str]
) -> OffloadRequest | None:
    """Says how it ended: done where all ledgers before the position have live files."""
    if work.request is None:
        return None
    asked = work.request[0]
    found = await open_request(store, work.name)
    if found is None or found[0].requested_ms != asked.requested_ms:
        return None
    first = first_unoffloaded(work.ledgers, await live_records(store, work.name), asked.up_to)
    done = first.ledger_id >= asked.up_to.ledger_id or (not errors and not work.store_missing)
    error = "" if done else next(iter(errors), "no offload driver is configured for this topic")
    ended = msgspec.structs.replace(
        found[0],
        state=RequestState.SUCCESS if done else RequestState.ERROR,
        first_unoffloaded=first,
        finished_ms=now_ms,
        error=error,
    )
    await _put(store, work.name, ended, found[1])
    return ended


def first_unoffloaded(
    ledgers: Sequence[LedgerItem], offloaded: Container[int], up_to: Position
) -> Position:
    """The first position, in order, that is in no file: of a ledger with entries, or `up_to`'s."""
    for item in ledgers:
        if item.ledger_id >= up_to.ledger_id:
            break
        if item.entries and item.ledger_id not in offloaded:
            return Position(item.ledger_id, 0)
    return Position(up_to.ledger_id, 0)


async def _put(store: MetadataStore, name: str, request: OffloadRequest, revision: int) -> None:
    try:
        await store.put(request_key(name), encode(request), expected=revision)
    except BadRevision:
        return  # see the module's text
