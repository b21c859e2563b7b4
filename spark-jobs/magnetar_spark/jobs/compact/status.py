"""What a job tells of a topic: its request record, which brokers show as the compaction's status.

Only what this run has read, or has written itself, is written over: a request that came after the
run had looked waits for the next run, which may have more to read; where another job has taken over
it tells; and where the topic was deleted nothing comes into being.
"""

from typing import Final

from msgspec.structs import replace

from magnetar.compaction.records import (
    CompactionRequest,
    RequestState,
    decode_request,
    encode,
    request_key,
)
from magnetar.core.clock import Clock
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore

ERROR_CHARS_MAX: Final = 500


class ToldStatus:
    """One run's word on one topic."""

    def __init__(self, store: MetadataStore, name: str, job_id: str, clock: Clock) -> None:
        self._store = store
        self._key = request_key(name)
        self._job_id = job_id
        self._clock = clock
        self._revision: int | None = None

    def read(self, revision: int) -> None:
        """The record was read, at this revision (ABSENT: there is none), before the log was."""
        self._revision = revision

    async def tell(self, state: RequestState, error: str = "") -> None:
        """Raises MetadataError; says nothing where somebody else has meanwhile.

        PENDING: what this run was at is left to the next.
        """
        stored = await self._store.get(self._key)
        found = ABSENT if stored is None else stored.revision
        if self._revision not in (None, found):
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
            self._revision = await self._store.put(self._key, encode(after), expected=found)
        except BadRevision:
            return
