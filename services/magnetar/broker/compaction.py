"""The broker's part in compaction: it serves what jobs have made, and keeps what they need.

A topic on which compaction is on (its threshold is above 0, it has an artefact, or somebody asked
for one) is not trimmed beyond the horizon: what was not compacted yet is never let go by retention.
Pulsar has a durable cursor for that, `__compaction`; here metadata is asked before a ledger goes.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from magnetar.broker.compaction_state import (
    NEVER_COMPACTED,
    NO_JOBS,
    CompactionFacts,
    CompactionStatus,
    awaited,
    status_of,
)
from magnetar.broker.dispatch.compacted import CompactedLog
from magnetar.broker.offloading import topic_of
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.artefact import Artefacts
from magnetar.compaction.records import (
    CompactionRequest,
    RequestState,
    decode_request,
    encode,
    job_key,
    request_key,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore
from magnetar.offload.cold_files import ColdFiles
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

ATTEMPTS_MAX: Final = 8


class Compaction:
    """See the module's text. One per broker."""

    def __init__(
        self, store: MetadataStore, files: ColdFiles, policies: BrokerPolicies, clock: Clock
    ) -> None:
        self.artefacts = Artefacts(store, files)
        self._store = store
        self._policies = policies
        self._clock = clock

    async def log_of(self, topic: PersistentTopic) -> CompactedLog:
        """The topic as a consumer with `read_compacted` sees it; raises MetadataError."""
        return await CompactedLog.open(topic.managed_ledger, self.artefacts, self._clock)

    async def trim_limit(self, name: str, log_created_ms: int) -> Position | None:
        """Up to where the log may be trimmed; None: compaction is off. Raises MetadataError."""
        artefact = await self.artefacts.live(name, log_created_ms)
        if artefact is not None:
            return artefact.horizon
        request, _ = await self._asked(name)
        if awaited(request, job_alive=await self._job_alive(request)):
            return EARLIEST  # a job reads it for the first time, or is to
        return EARLIEST if self._policies.value(topic_of(name), COMPACTION_THRESHOLD) else None

    # -- what is asked for, and what came of it

    async def request(self, names: Sequence[str], *, by_jobs: bool = True) -> None:
        """Has the next job compact these logs. Raises Conflict where all are at it.

        Where there can be no jobs (`by_jobs`) that is what comes of it, at once.
        """
        asked = [await self._request(name, by_jobs) for name in names]
        if names and not any(asked):
            raise Conflict("Compaction already in progress")

    async def _request(self, name: str, by_jobs: bool) -> bool:
        """Whether it was not asked for already."""
        key = request_key(name)
        for _ in range(ATTEMPTS_MAX):
            before, revision = await self._asked(name)
            if (await self._status(before)).status == "RUNNING":
                return False
            now_ms = self._clock.now_ms()
            asked = CompactionRequest(now_ms, failed_ms=0 if before is None else before.failed_ms)
            if not by_jobs:
                asked = replace(
                    asked,
                    state=RequestState.ERROR,
                    finished_ms=now_ms,
                    failed_ms=now_ms,
                    error=NO_JOBS,
                )
            try:
                await self._store.put(key, encode(asked), expected=revision)
            except BadRevision:
                continue  # a job ended, or another asked
            return True
        return False

    async def status(self, name: str) -> CompactionStatus:
        """What the last compaction of the log came to."""
        return await self._status((await self._asked(name))[0])

    async def _status(self, request: CompactionRequest | None) -> CompactionStatus:
        alive = await self._job_alive(request)
        return status_of(request, job_alive=alive, now_ms=self._clock.now_ms())

    async def _job_alive(self, request: CompactionRequest | None) -> bool:
        if request is None or not request.job or request.finished:
            return False
        return await self._store.get(job_key(request.job)) is not None

    async def facts(self, ledger: ManagedLedger) -> CompactionFacts:
        """For stats. One look at metadata where the log was never compacted."""
        request, _ = await self._asked(ledger.name)
        if request is None:
            return NEVER_COMPACTED
        artefact = await self.artefacts.live(ledger.name, ledger.created_ms)
        record = None if artefact is None else artefact.record
        return CompactionFacts(record, request.failed_ms)

    async def _asked(self, name: str) -> tuple[CompactionRequest | None, int]:
        key = request_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None, ABSENT
        return decode_request(key, stored.value), stored.revision
