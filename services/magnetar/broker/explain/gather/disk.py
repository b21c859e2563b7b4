"""Gathers the ledgers of a topic with their bytes, copies and reasons.

The copies are those of each ledger's record, so one answer reads a record per ledger,
READ_AT_ONCE_MAX at a time, and of at most DESCRIBED_MAX ledgers; older ones count with the copies
of the oldest of these, and the answer is not `exact`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.broker.explain.disk import LedgerState
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.topic.deduplication.snapshots import CURSOR as DEDUPLICATION_CURSOR
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.metadata import LedgerState as RecordState
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.index import LedgerInfo
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.trim_plan import trimmable

READ_AT_ONCE_MAX: Final = 16
DESCRIBED_MAX: Final = 2_000


@dataclass(slots=True)
class _Described:
    """The records of ledgers; `exact` is false if one could not be read."""

    records: dict[int, LedgerMetadata]
    gone: set[int]
    exact: bool = True

    def copies(self, ledger_id: int) -> int:
        """The copies of each entry, by the last ensemble."""
        record = self.records.get(ledger_id)
        if record is None:
            record = next(iter(self.records.values()), None)
            self.exact = False
        if record is None:
            return 1
        return min(record.write_quorum, len(record.ensembles[-1].bookies))


async def ledger_states(parts: Parts, topic: PersistentTopic) -> tuple[list[LedgerState], bool]:
    """Returns the ledgers, and whether their bytes are exact."""
    ledger = topic.managed_ledger
    offloaded = await parts.offloading.cold.records(ledger.name)
    limit = await ledger.trim_limit()
    logs = _logs(ledger)
    own = [(kind, ledger_id) for kind, log in logs for ledger_id in log.ledger_ids]
    deleting = (await parts.ledgers.info(ledger.name)).record.deleting
    wanted = [info.ledger_id for info in ledger.ledgers] + [ledger_id for _, ledger_id in own]
    described = await _describe(parts, [*wanted, *deleting])
    sizes = {writer.ledger_id: writer.length_bytes for writer in parts.ledgers.client.writers}
    slowest, rank = _slowest(ledger)
    retention = ledger.retention
    due: set[int] = set()
    if retention is not None:
        now_ms = parts.clock.judged_ms()
        due = {info.ledger_id for info in trimmable(ledger.index, rank, retention, now_ms)}
    states = []
    for info in ledger.ledgers:
        record = offloaded.get(info.ledger_id)
        if record is not None and record.released_ms:
            continue  # the bookies have deleted it, or are about to
        states.append(
            LedgerState(
                ledger_id=info.ledger_id,
                size_bytes=info.size_bytes,
                copies=described.copies(info.ledger_id),
                closed=bool(info.closed_ms),
                offloaded=record is not None,
                consumed=info.base_rank + info.entries <= rank,
                pinned_by=slowest,
                trimmable=info.ledger_id in due,
                compaction_keeps=limit is not None and _after(ledger, info, limit),
                detail=f"{info.entries} entries",
            )
        )
    states += [
        _own(described, sizes, kind, ledger_id)
        for kind, ledger_id in (*own, *(("deleting", ledger_id) for ledger_id in deleting))
        if ledger_id not in described.gone
    ]
    return states, described.exact


def _after(ledger: ManagedLedger, info: LedgerInfo, limit: tuple[int, int]) -> bool:
    return info.base_rank + info.entries > ledger.index.rank(*limit)


def _own(described: _Described, sizes: dict[int, int], kind: str, ledger_id: int) -> LedgerState:
    record = described.records.get(ledger_id)
    size = sizes.get(ledger_id)
    if size is None:
        size = 0 if record is None else record.length_bytes or record.counted_bytes
        if record is None or record.state is not RecordState.CLOSED:
            described.exact = False
    return LedgerState(
        ledger_id=ledger_id, kind=kind, size_bytes=size, copies=described.copies(ledger_id)
    )


def _logs(ledger: ManagedLedger) -> list[tuple[str, CursorLog]]:
    """Returns the logs of all cursors, with the reason for their bytes."""
    logs = []
    for name, cursor in ledger.cursors.items():
        if cursor.log is not None:
            kind = "deduplication" if name == DEDUPLICATION_CURSOR else "cursors"
            logs.append((kind, cursor.log))
    logs += [("cursors", log) for log, _ in ledger.broken_cursors.values()]
    if ledger.aborted is not None and ledger.aborted.log is not None:
        logs.append(("aborted_transactions", ledger.aborted.log))
    return logs


def _slowest(ledger: ManagedLedger) -> tuple[str, int]:
    """Returns the slowest durable subscription, and the rank that all have passed."""
    index = ledger.index
    marks = {
        name: index.rank(*cursor.mark_delete)
        for name, cursor in ledger.cursors.items()
        if cursor.durable
    }
    for name, (log, _) in ledger.broken_cursors.items():
        marks[name] = index.rank(*log.record.mark_delete)
    if not marks:
        return "", index.rank_end
    name = min(marks, key=lambda cursor: marks[cursor])
    return name, marks[name]


async def _describe(parts: Parts, ledger_ids: Sequence[int]) -> _Described:
    """Reads the records of ledgers; DESCRIBED_MAX of them, the newest first."""
    described = _Described({}, set())
    chosen = sorted(set(ledger_ids), reverse=True)[:DESCRIBED_MAX]
    for start in range(0, len(chosen), READ_AT_ONCE_MAX):
        batch = chosen[start : start + READ_AT_ONCE_MAX]
        answers = await asyncio.gather(
            *(parts.ledgers.client.describe(ledger_id) for ledger_id in batch),
            return_exceptions=True,
        )
        for ledger_id, answer in zip(batch, answers, strict=True):
            if isinstance(answer, LedgerMetadata):
                described.records[ledger_id] = answer
            elif isinstance(answer, NoSuchLedger):
                described.gone.add(ledger_id)
            elif isinstance(answer, MagnetarError | TimeoutError):
                described.exact = False
            else:
                raise answer
    return described
