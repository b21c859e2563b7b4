"""Finds how far retention may trim a compacted topic, by the rule that brokers follow.

Entries that are not compacted yet are kept. Compaction is on if there is an artifact, if one was
requested, or if the threshold policy is above 0.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.compaction.records import (
    CompactionRecord,
    compaction_key,
    decode_compaction,
    decode_request,
    job_key,
    request_key,
)
from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import RequestState


@dataclass(frozen=True, slots=True)
class Compacted:
    """The limit of trimming (None: compaction is off), and the size of the artifact's files."""

    limit: Position | None = None
    size_bytes: int = 0


NOT_COMPACTED: Final = Compacted()


async def compacted(
    store: MetadataStore, name: str, log_created_ms: int, threshold_bytes: int
) -> Compacted:
    """The compaction state of one managed ledger. Raises MetadataError."""
    key = compaction_key(name)
    stored = await store.get(key)
    if stored is not None:
        record = decode_compaction(key, stored.value)
        if record.log_created_ms == log_created_ms:
            return Compacted(record.horizon, _size(record))
    if threshold_bytes or await _is_wanted(store, name):
        return Compacted(EARLIEST)
    return NOT_COMPACTED


def _size(record: CompactionRecord) -> int:
    return sum(file.file_bytes for file in record.files)


async def _is_wanted(store: MetadataStore, name: str) -> bool:
    """Whether a first artifact was requested, and no job has failed or died on it."""
    key = request_key(name)
    stored = await store.get(key)
    if stored is None:
        return False
    request = decode_request(key, stored.value)
    if request.finished:
        return False
    if request.state is RequestState.RUNNING:
        return await store.get(job_key(request.job)) is not None
    return True
