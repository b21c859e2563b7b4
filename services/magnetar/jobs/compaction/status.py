"""The compaction status of a topic: its request record, which brokers show to clients.

A run overwrites only what it has read or written itself. A request that arrived after the run
started waits for the next run, which may have more to read; if another job has taken over, that job
writes the status; if the topic was deleted, no record is created.
"""

from typing import Final

from msgspec.structs import replace

from magnetar.compaction.records import CompactionRequest, decode_request, request_key
from magnetar.core.clock import Clock
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore
from magnetar.offload.records import RequestState

ERROR_CHARS_MAX: Final = 500


class CompactionStatus:
    """Writes the status of one topic during one run."""

    def __init__(self, store: MetadataStore, name: str, job_id: str, clock: Clock) -> None:
        self._store = store
        self._key = request_key(name)
        self._job_id = job_id
        self._clock = clock
        self._revision: int | None = None

    def read(self, revision: int) -> None:
        """Notes the revision at which the record was read (ABSENT: none), before the log was."""
        self._revision = revision

    async def update(self, state: RequestState, error: str = "") -> None:
        """Writes the status, unless another process has changed it. Raises MetadataError.

        PENDING leaves the request to the next run.
        """
        stored = await self._store.get(self._key)
        current = ABSENT if stored is None else stored.revision
        if self._revision not in (None, current):
            return
        now_ms = self._clock.now_ms()
        before = CompactionRequest(now_ms)
        if stored is not None:
            before = decode_request(self._key, stored.value)
        done = state in (RequestState.SUCCESS, RequestState.ERROR)
        after = replace(
            before,
            state=state,
            job="" if state is RequestState.PENDING else self._job_id,
            finished_ms=now_ms if done else before.finished_ms,
            failed_ms=now_ms if state is RequestState.ERROR else before.failed_ms,
            error=error[:ERROR_CHARS_MAX],
        )
        try:
            self._revision = await self._store.put(self._key, encode(after), expected=current)
        except BadRevision:
            return
