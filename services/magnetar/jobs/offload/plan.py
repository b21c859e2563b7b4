"""Decides which ledgers of a topic are offloaded now.

As in Pulsar, closed ledgers are summed from the newest to the oldest. Ledgers beyond the size
threshold, or closed longer ago than the age threshold, are due, the oldest first. Ledgers before an
explicit position are due regardless of thresholds. A threshold on the command line replaces those
of the policies.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.jobs.log.topic_log import log_record
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload.work import LedgerTask
from magnetar.managed_ledger.record import LedgerItem
from magnetar.metadata.store import MetadataStore
from magnetar.offload.policy import OffloadDefaults, OffloadPlan
from magnetar.offload.repository import LiveFile, OffloadRepository, OpenRequest
from magnetar.offload.stores import StoreSpec

TOPICS_AT_ONCE: Final = 32
MS_PER_S: Final = 1000


@dataclass(frozen=True, slots=True)
class Override:
    """Settings of one run, as those of a command line; None leaves a setting to the policies."""

    store: StoreSpec | None = None
    threshold_bytes: int | None = None
    threshold_s: int | None = None
    deletion_lag_ms: int | None = None
    up_to: Position | None = None

    def over(self, plan: OffloadPlan) -> OffloadPlan:
        """The policies with these settings applied. Either threshold disables the other."""
        if self.store is not None:
            plan = replace(plan, store=self.store)
        if self.deletion_lag_ms is not None:
            plan = replace(plan, deletion_lag_ms=self.deletion_lag_ms)
        if self.selects_ledgers:
            plan = replace(
                plan,
                threshold_bytes=-1 if self.threshold_bytes is None else self.threshold_bytes,
                threshold_s=-1 if self.threshold_s is None else self.threshold_s,
            )
        return plan

    @property
    def selects_ledgers(self) -> bool:
        """Whether the flags demand that ledgers be offloaded: then a missing store is an error."""
        return (self.threshold_bytes, self.threshold_s, self.up_to) != (None, None, None)


def due(
    ledgers: Sequence[LedgerItem],
    offloaded: Collection[int],
    plan: OffloadPlan,
    now_ms: int,
    up_to: Iterable[Position] = (),
) -> list[LedgerItem]:
    """The ledgers to offload, oldest first. Pure."""
    before = max((position.ledger_id for position in up_to), default=-1)
    selected: list[LedgerItem] = []
    summed = 0
    for item in reversed(ledgers):
        if not item.closed_ms:
            continue
        summed += item.size_bytes
        too_much = 0 <= plan.threshold_bytes < summed
        too_old = 0 <= plan.threshold_s * MS_PER_S <= now_ms - item.closed_ms
        requested = item.ledger_id < before
        if item.entries and item.ledger_id not in offloaded and (too_much or too_old or requested):
            selected.append(item)
    return selected[::-1]


def why_none(
    ledgers: Sequence[LedgerItem], offloaded: Collection[int], plan: OffloadPlan, now_ms: int
) -> str:
    """Why `due` selects no ledger, and the next step. Pure."""
    closed = [item for item in ledgers if item.closed_ms and item.entries]
    waiting = [item for item in closed if item.ledger_id not in offloaded]
    has_open = any(not item.closed_ms for item in ledgers)
    if not ledgers:
        return "the topic has no message"
    if not waiting:
        done = f"{len(closed)} closed ledgers, all offloaded" if closed else "no ledger is closed"
        return f"{done}; --roll closes the open one" if has_open else done
    if plan.store is None:
        return (
            f"{len(waiting)} closed ledgers, and no store: set --store, or the topic's or "
            "namespace's offload policies, or managedLedgerOffloadDriver"
        )
    size = sum(item.size_bytes for item in closed)
    if plan.threshold_bytes < 0 and plan.threshold_s < 0:
        return (
            f"{len(waiting)} closed ledgers, and no threshold: set one by policy, or --threshold 0 "
            "for all of them, or --up-to"
        )
    limits = []
    if plan.threshold_bytes >= 0:
        limits.append(f"{size:,} bytes in closed ledgers, threshold {plan.threshold_bytes:,}")
    if plan.threshold_s >= 0:
        age_s = (now_ms - min(item.closed_ms for item in waiting)) // MS_PER_S
        limits.append(f"the oldest was closed {age_s:,} s ago, threshold {plan.threshold_s:,}")
    return f"{len(waiting)} closed ledgers are below the thresholds: {'; '.join(limits)}"


@dataclass(frozen=True, slots=True)
class TopicWork:
    """One topic: its effective policies, its records, and the ledgers to offload."""

    topic: TopicName
    name: str
    plan: OffloadPlan
    ledgers: tuple[LedgerItem, ...]
    files: dict[int, LiveFile]
    """The live files by ledger."""
    request: OpenRequest | None
    tasks: tuple[LedgerTask, ...]

    @property
    def store_missing(self) -> bool:
        """Whether a request cannot be carried out because no store is configured."""
        return self.plan.store is None and self.request is not None


async def topic_works(
    store: MetadataStore, topics: Sequence[TopicName], override: Override, now_ms: int
) -> list[TopicWork]:
    """Plans all topics that exist."""
    defaults = await OffloadRepository(store).defaults()
    works: list[TopicWork] = []
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        batch = topics[start : start + TOPICS_AT_ONCE]
        planned = await asyncio.gather(
            *(_work(store, topic, override, defaults, now_ms) for topic in batch)
        )
        works += [work for work in planned if work is not None]
    return works


async def _work(
    store: MetadataStore,
    topic: TopicName,
    override: Override,
    defaults: OffloadDefaults,
    now_ms: int,
) -> TopicWork | None:
    record = await log_record(store, topic)
    if record is None:
        return None
    repository, name = OffloadRepository(store), log_name(topic)
    policies = await repository.policies(name)
    plan = override.over(policies.plan(defaults))
    files = await repository.files(name)
    request = await repository.open_request(name)
    up_to = [] if request is None else [request.request.up_to]
    if override.up_to is not None:
        up_to.append(override.up_to)
    items = due(record.ledgers, files, plan, now_ms, up_to)
    target = plan.store
    tasks = () if target is None else tuple(_task(topic, name, item, target) for item in items)
    return TopicWork(topic, name, plan, record.ledgers, files, request, tasks)


def _task(topic: TopicName, name: str, item: LedgerItem, store: StoreSpec) -> LedgerTask:
    return LedgerTask(
        name,
        str(topic),
        topic.partition_index,
        item.ledger_id,
        item.size_bytes,
        item.created_ms,
        item.closed_ms,
        store,
    )
