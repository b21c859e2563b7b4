"""Compacted topics of a broker: compacted reads, requests, and what must be retained for them.

Compaction is on for a topic if its threshold is above 0, it has an artifact, or a compaction was
requested. Such a topic is not trimmed beyond the horizon: retention never deletes what is not
compacted yet. Pulsar has a durable cursor for that, `__compaction`; Magnetar reads the metadata
before it deletes a ledger, and deletes none if a first artifact became live meanwhile.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from magnetar.broker.catalog.topic_names import topic_of_ledger
from magnetar.broker.cold.compaction_state import (
    NEVER_COMPACTED,
    CompactionFacts,
    CompactionStatus,
    awaited,
    status_of,
)
from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.artifact import Artifacts
from magnetar.compaction.records import (
    CompactionRequest,
    decode_request,
    job_key,
    request_key,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore, Record
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.records import RequestState
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

ATTEMPTS_MAX: Final = 8


class Compaction:
    """Compacted reads, trim limits, requests and their status, for all topics of a broker."""

    def __init__(
        self, store: MetadataStore, files: ColdFiles, policies: BrokerPolicies, clock: Clock
    ) -> None:
        self.artifacts = Artifacts(store, files)
        self._store = store
        self._policies = policies
        self._clock = clock

    async def log_of(self, topic: PersistentTopic) -> CompactedLog:
        """Opens the topic for a consumer with `read_compacted`; raises MetadataError."""
        return await CompactedLog.open(topic.managed_ledger, self.artifacts, self._clock)

    async def trim_limit(self, name: str, log_created_ms: int) -> Position | None:
        """Returns how far the log may be trimmed; None: compaction is off. Raises MetadataError."""
        artifact = await self.artifacts.live(name, log_created_ms)
        if artifact is not None:
            return artifact.horizon
        request, _ = await self._read_request(name)
        if awaited(request):
            return EARLIEST  # the log will be or is being read for the first time
        return (
            EARLIEST if self._policies.value(topic_of_ledger(name), COMPACTION_THRESHOLD) else None
        )

    async def request(self, names: Sequence[str]) -> None:
        """Requests that these logs are compacted. Raises Conflict if all are requested already."""
        requested = [await self._request(name) for name in names]
        if names and not any(requested):
            raise Conflict("Compaction already in progress")

    async def _request(self, name: str) -> bool:
        """Writes a request; returns whether there was none already."""
        key = request_key(name)
        for _ in range(ATTEMPTS_MAX):
            before, revision = await self._read_request(name)
            if (await self._status(before)).status == "RUNNING":
                return False
            now_ms = self._clock.now_ms()
            wanted = CompactionRequest(now_ms, failed_ms=0 if before is None else before.failed_ms)
            try:
                await self._store.put(key, encode(wanted), expected=revision)
            except BadRevision:
                continue  # a job has finished, or another request was written
            return True
        return False

    async def waits(self, name: str, why: str) -> None:
        """Tells in the log's status why this broker cannot compact it; its request stays open."""
        request, revision = await self._read_request(name)
        if request is None or request.state is not RequestState.PENDING or request.error == why:
            return
        with suppress(BadRevision):  # a job has taken it, or it was requested again
            changed = encode(replace(request, error=why))
            await self._store.put(request_key(name), changed, expected=revision)

    async def is_open(self, stored: Record) -> bool:
        """Whether nothing works on the request in this record."""
        request = decode_request(stored.key, stored.value)
        return not request.finished and not await self._job_alive(request)

    async def waits_for_job(self, name: str) -> bool:
        """Whether the log has an unfinished request that nothing works on."""
        request, _ = await self._read_request(name)
        return awaited(request) and not await self._job_alive(request)

    async def status(self, name: str) -> CompactionStatus:
        """Returns the status of the last compaction of the log."""
        request, _ = await self._read_request(name)
        return await self._status(request)

    async def _status(self, request: CompactionRequest | None) -> CompactionStatus:
        alive = await self._job_alive(request)
        return status_of(request, job_alive=alive, now_ms=self._clock.now_ms())

    async def _job_alive(self, request: CompactionRequest | None) -> bool:
        if request is None or not request.job or request.finished:
            return False
        return await self._store.get(job_key(request.job)) is not None

    async def facts(self, ledger: ManagedLedger) -> CompactionFacts:
        """Returns the figures for stats; one read of metadata if there never was a request."""
        request, _ = await self._read_request(ledger.name)
        if request is None:
            return NEVER_COMPACTED
        artifact = await self.artifacts.live(ledger.name, ledger.created_ms)
        record = None if artifact is None else artifact.record
        return CompactionFacts(record, request.failed_ms)

    async def _read_request(self, name: str) -> tuple[CompactionRequest | None, int]:
        """Returns the last request and the revision of its record."""
        key = request_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None, ABSENT
        return decode_request(key, stored.value), stored.revision
