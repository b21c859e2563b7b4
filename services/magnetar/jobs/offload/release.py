"""Has the bookies delete ledgers whose files have been live for the deletion lag.

Per ledger and in this order: check that the store has the file; write `released_ms` into its
record by compare-and-swap, so that brokers read the file from now on; delete the ledger with
`LedgerClient.delete`. A run that is killed in between leaves a released record with a ledger, and
the next run continues there.

Two clocks measure how long a file has been live, and the shorter time counts: that of the hosts (of
the task that wrote the file, and of this job), and that of the store (`store_clock`). If either
clock is right, no ledger is deleted too early. If only the hosts' clocks call a file due, and
exceed the store's by more than CLOCKS_APART_MS_MAX, the run reports an error.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.tasks import TaskScope
from magnetar.jobs.log.log import Log
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import ledger_key
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.records import OffloadRecord
from magnetar.offload.repository import LiveFile, OffloadRepository
from magnetar.offload.store_clock import store_now_ms
from magnetar.offload.stores import StoreSpec, open_object_store, store_error

RELEASES_AT_ONCE: Final = 8
HEAD_TIMEOUT_S: Final = 90.0
CLOCKS_APART_MS_MAX: Final = 5 * 60_000
"""Tolerated difference of a file's two ages: stores date an upload by its beginning."""
MS_PER_HOUR: Final = 3_600_000


@dataclass(slots=True)
class Released:
    """The ledgers that were deleted, and the errors as (managed ledger, ledger, error)."""

    ledgers: int = 0
    size_bytes: int = 0
    errors: list[tuple[str, int, str]] = field(default_factory=list)


class _Clocks:
    """The current time by this host, and by each store, which is queried once."""

    def __init__(self, now_ms: int, scope: TaskScope) -> None:
        self.now_ms = now_ms
        self._scope = scope
        self._by_store: dict[StoreSpec, asyncio.Task[int]] = {}

    async def store_now_ms(self, spec: StoreSpec) -> int:
        """The store's time at the first call. If stale, files seem younger."""
        if spec not in self._by_store:
            self._by_store[spec] = self._scope.start(store_now_ms(spec), "store's clock")
        return await self._by_store[spec]


async def release(log: Log, names: Sequence[tuple[str, int]], now_ms: int) -> Released:
    """Releases the due ledgers of managed ledgers, each with its lag in ms (-1: never; 0: now)."""
    client = LedgerClient(log.store, log.bookies, log.context.clock, log.context.settings)
    try:
        async with TaskScope("offload release") as scope:
            run = _Release(log, client, _Clocks(now_ms, scope))
            for name, lag_ms in names:
                files = (await run.repository.files(name)).values()
                await asyncio.gather(
                    *(
                        run.release(name, lag_ms, file)
                        for file in files
                        if is_due(file.record, lag_ms, now_ms)
                    )
                )
    finally:
        await client.close()
    return run.released


def is_due(file: OffloadRecord, lag_ms: int, now_ms: int) -> bool:
    """Whether a file is due by the hosts' clocks. A released one is: its ledger may exist."""
    return bool(file.released_ms) or lag_ms == 0 or 0 <= lag_ms <= now_ms - file.offloaded_ms


class _Release:
    """One run over all managed ledgers."""

    def __init__(self, log: Log, client: LedgerClient, clocks: _Clocks) -> None:
        self.repository = OffloadRepository(log.store)
        self.released = Released()
        self._log = log
        self._client = client
        self._clocks = clocks
        self._gate = asyncio.Semaphore(RELEASES_AT_ONCE)

    async def release(self, name: str, lag_ms: int, file: LiveFile) -> None:
        """Releases one ledger and records the outcome."""
        record = file.record
        async with self._gate:
            try:
                if await self._release(name, lag_ms, file):
                    self.released.ledgers += 1
                    self.released.size_bytes += record.length_bytes
            except (MagnetarError, TimeoutError, OSError) as error:
                text = str(error) or type(error).__name__
                self.released.errors.append((name, record.ledger_id, text))

    async def _release(self, name: str, lag_ms: int, file: LiveFile) -> bool:
        """Whether a ledger was deleted."""
        record = file.record
        if await self._log.store.get(ledger_key(record.ledger_id)) is None:
            return False  # released by an earlier run, or trimmed just now with its file to follow
        # Also checked if released before: the bookies' copies may be the last ones.
        written_ms = await _written_ms(record)
        if not record.released_ms:
            now_ms = self._clocks.now_ms
            if lag_ms:
                by_store_ms = await self._clocks.store_now_ms(record.store)
                if not _store_agrees(record, written_ms, lag_ms, now_ms, by_store_ms):
                    return False
            if not await self.repository.mark_released(name, file, now_ms):
                return False  # another job releases the ledger, or a broker trims it
        await self._client.delete(record.ledger_id)
        return True


def _store_agrees(
    file: OffloadRecord, written_ms: int, lag_ms: int, now_ms: int, store_now_ms: int
) -> bool:
    """Whether the file is due by the store's clock too. Pure.

    Raises PreconditionFailed if that clock is too far from the hosts'.
    """
    by_store, by_hosts = store_now_ms - written_ms, now_ms - file.offloaded_ms
    if by_store >= lag_ms:
        return True
    if by_hosts - by_store <= CLOCKS_APART_MS_MAX:
        return False
    raise PreconditionFailed(
        f"not released: the file is {by_hosts / MS_PER_HOUR:,.1f} h old by the clocks of the jobs' "
        f"hosts (now {_shown(now_ms)}), and {by_store / MS_PER_HOUR:,.1f} h old by the clock of "
        f"{file.store} (now {_shown(store_now_ms)}): set the clock that is wrong. If both are "
        "right, the file was copied to that store, and its ledger is released once the copy is as "
        "old as the deletion lag"
    )


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")


async def _written_ms(file: OffloadRecord) -> int:
    """When the file was written, by the store's clock.

    Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable.
    """
    import obstore

    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            meta = await obstore.head_async(open_object_store(file.store), file.path)
    except Exception as error:
        raise store_error(error, file.path) from error
    if meta["size"] != file.file_bytes:
        raise ColdFileCorrupt(f"{file.path} has {meta['size']} bytes, not {file.file_bytes}")
    return int(meta["last_modified"].timestamp() * 1000)
