"""The topics of this broker that wait for a job. Computed on request: nothing is stored.

A broker that restarts finds them again: what it leaves to a job stays on record as an open request,
and ledgers beyond a threshold stay in the topic's list.
"""

import asyncio
from collections.abc import Iterable, Sequence

from magnetar.broker.catalog.topic_names import topic_of_ledger
from magnetar.broker.cold.compactor import Compactor
from magnetar.broker.cold.offload import Offloading
from magnetar.core.clock import Clock
from magnetar.documents.due_jobs import TOPICS_NAMED_MAX, DueJobs, DueTopic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import LedgerItem

TOPICS_PER_TURN = 256
"""Topics whose ledgers are compared with thresholds before the event loop does other work."""


async def due_jobs(
    compactor: Compactor,
    offloading: Offloading,
    ledgers: Iterable[ManagedLedger],
    clock: Clock,
) -> DueJobs:
    """Returns the topics that wait for jobs. `ledgers`: the open logs. Raises MetadataError."""
    await compactor.forget_compacted()
    compact = list(compactor.left.values())
    offload = await _offload(offloading, list(ledgers), clock)
    return DueJobs(
        tuple(compact[:TOPICS_NAMED_MAX]),
        max(0, len(compact) - TOPICS_NAMED_MAX),
        tuple(offload[:TOPICS_NAMED_MAX]),
        max(0, len(offload) - TOPICS_NAMED_MAX),
    )


async def _offload(
    offloading: Offloading, ledgers: Sequence[ManagedLedger], clock: Clock
) -> list[DueTopic]:
    # Imported here: a broker that is never asked does not need it.
    from magnetar.jobs.offload.plan import due

    requested = await offloading.requested()
    topics, now_ms = list[DueTopic](), clock.now_ms()
    for number, ledger in enumerate(ledgers, 1):
        if number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
        up_to = requested.get(ledger.name)
        if not any(info.closed_ms for info in ledger.ledgers):
            continue
        topic = topic_of_ledger(ledger.name)
        plan = offloading.plan(topic)
        if plan.store is None or not (plan.automatic or up_to is not None):
            continue
        items = [
            LedgerItem(
                *(info.ledger_id, info.created_ms, info.closed_ms),
                *(info.entries, info.size_bytes),
            )
            for info in ledger.ledgers
        ]
        positions = () if up_to is None else (up_to,)
        if due(items, offloading.moved(ledger).sizes, plan, now_ms, positions):
            # What is cached may be a minute old: a job may have moved them.
            moved = (await offloading.refresh(ledger, always=True)).sizes
            waiting = due(items, moved, plan, now_ms, positions)
        else:
            waiting = []
        if waiting:
            size = sum(item.size_bytes for item in waiting)
            reason = "requested" if up_to is not None else "beyond a threshold"
            topics.append(DueTopic(str(topic), f"{len(waiting)} closed ledgers: {reason}", size))
    return topics
