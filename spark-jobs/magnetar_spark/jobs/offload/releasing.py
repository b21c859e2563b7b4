"""Has the bookies let go of ledgers whose files have been live for the deletion lag.

The file is asked for once more, by every run; then its record says `released_ms`, by
compare-and-swap, so that brokers read the file from now on; then the ledger is deleted, as
`LedgerClient.delete` does. A run that is killed in between leaves a released record with a ledger,
and the next run goes on there.

How long a file has been live is said by two clocks, and the shorter time counts: the hosts' (of the
task that wrote it, and of this job), and the store's (`store_clock`). So while either is right no
file is let go of too early, however wrong the other is. Where only the hosts' say that a file is
due, and are CLOCKS_APART_MS_MAX beyond the store's, that is told as an error.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.store import BadRevision
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.records import OffloadRecord, encode, offload_key
from magnetar.offload.store_clock import store_now_ms
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar_spark.jobs.offload.planning import live_records
from magnetar_spark.log.access import Log

RELEASES_AT_ONCE: Final = 8
HEAD_TIMEOUT_S: Final = 90.0
CLOCKS_APART_MS_MAX: Final = 5 * 60_000
"""The two ages of a file may differ by so much: uploads are dated by their beginning."""
MS_PER_HOUR: Final = 3_600_000


@dataclass(slots=True)
class Released:
    """What was done."""

    ledgers: int = 0
    size_bytes: int = 0
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    """Managed ledger, ledger, why not."""


class _Times:
    """What time it is: here, and by stores, each asked once."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._asked: dict[StoreSpec, asyncio.Future[int]] = {}

    async def by_store(self, spec: StoreSpec) -> int:
        """As of when it was asked first: nothing seems older by that than it is."""
        if spec not in self._asked:
            self._asked[spec] = asyncio.ensure_future(store_now_ms(spec))
        return await self._asked[spec]


async def release(log: Log, names: Sequence[tuple[str, int]], now_ms: int) -> Released:
    """Releases what is due, of managed ledgers with their lags in ms (-1: never; 0: at once)."""
    released = Released()
    times = _Times(now_ms)
    client = LedgerClient(log.store, log.bookies, log.context.clock, log.context.settings)
    gate = asyncio.Semaphore(RELEASES_AT_ONCE)

    async def one(name: str, lag_ms: int, file: OffloadRecord, revision: int) -> None:
        async with gate:
            try:
                if await _release(log, client, name, lag_ms, file, revision, times):
                    released.ledgers += 1
                    released.size_bytes += file.length_bytes
            except (MagnetarError, TimeoutError, OSError) as error:
                text = str(error) or type(error).__name__
                released.errors.append((name, file.ledger_id, text))

    try:
        for name, lag_ms in names:
            files = (await live_records(log.store, name)).values()
            await asyncio.gather(
                *(one(name, lag_ms, *each) for each in files if _is_due(each[0], lag_ms, now_ms))
            )
    finally:
        await client.close()
    return released


def _is_due(file: OffloadRecord, lag_ms: int, now_ms: int) -> bool:
    """By the hosts' clocks; also one that was released: its ledger may be there still."""
    return bool(file.released_ms) or lag_ms == 0 or 0 <= lag_ms <= now_ms - file.offloaded_ms


async def _release(
    log: Log,
    client: LedgerClient,
    name: str,
    lag_ms: int,
    file: OffloadRecord,
    revision: int,
    times: _Times,
) -> bool:
    """Whether there was something to let go of."""
    if await log.store.get(ledger_key(file.ledger_id)) is None:
        # Gone already. Released by an earlier run; or trimmed just now, with its file next.
        return False
    stored_ms = await _check_there(file)  # also where it was released: these are the last copies
    if not file.released_ms:
        if lag_ms and not _agreed(
            file, stored_ms, lag_ms, times.now_ms, await times.by_store(file.store)
        ):
            return False
        value = encode(msgspec.structs.replace(file, released_ms=times.now_ms))
        try:
            await log.store.put(offload_key(name, file.ledger_id), value, expected=revision)
        except BadRevision:
            return False  # another job, or the ledger is being trimmed: theirs to go on with
    await client.delete(file.ledger_id)
    return True


def _agreed(
    file: OffloadRecord, stored_ms: int, lag_ms: int, now_ms: int, store_now_ms: int
) -> bool:
    """Whether it is due by the store's clock as well; raises PreconditionFailed where that is far
    from the hosts'."""
    by_store, by_hosts = store_now_ms - stored_ms, now_ms - file.offloaded_ms
    if by_store >= lag_ms:
        return True
    if by_hosts - by_store <= CLOCKS_APART_MS_MAX:
        return False
    raise PreconditionFailed(
        f"not let go: the file is {by_hosts / MS_PER_HOUR:,.1f} h old by the clocks of jobs' hosts "
        f"(here it is {_shown(now_ms)}), and {by_store / MS_PER_HOUR:,.1f} h by the clock of "
        f"{file.store} ({_shown(store_now_ms)}): set the clock that is wrong. Where none is, the "
        "file was copied there, and is let go of when it has been there for the deletion lag"
    )


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")


async def _check_there(file: OffloadRecord) -> int:
    """When it was written, by the store.

    Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable.
    """
    import obstore

    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            found = await obstore.head_async(open_object_store(file.store), file.path)
    except Exception as error:
        raise store_error(error, file.path) from error
    if found["size"] != file.file_bytes:
        raise ColdFileCorrupt(f"{file.path} has {found['size']} bytes, not {file.file_bytes}")
    return int(found["last_modified"].timestamp() * 1000)
