"""Has the bookies let go of ledgers whose files have been live for the deletion lag.

The file is asked for once more, by every run; then its record says `released_ms`, by
compare-and-swap, so that brokers read the file from now on; then the ledger is deleted, as
`LedgerClient.delete` does. A run that is killed in between leaves a released record with a ledger,
and the next run goes on there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from magnetar.core.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.store import BadRevision
from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.records import OffloadRecord, encode, offload_key
from magnetar.offload.stores import open_object_store, store_error
from magnetar_spark.jobs.offload.planning import live_records
from magnetar_spark.log.access import Log

RELEASES_AT_ONCE: Final = 8
HEAD_TIMEOUT_S: Final = 90.0


@dataclass(slots=True)
class Released:
    """What was done."""

    ledgers: int = 0
    size_bytes: int = 0
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    """Managed ledger, ledger, why not."""


async def release(log: Log, names: Sequence[tuple[str, int]], now_ms: int) -> Released:
    """Releases what is due, of managed ledgers with their lags in ms (-1: never)."""
    released = Released()
    client = LedgerClient(log.store, log.bookies, log.context.clock, log.context.settings)
    gate = asyncio.Semaphore(RELEASES_AT_ONCE)

    async def one(name: str, file: OffloadRecord, revision: int) -> None:
        async with gate:
            try:
                if await _release(log, client, name, file, revision, now_ms):
                    released.ledgers += 1
                    released.size_bytes += file.length_bytes
            except (MagnetarError, TimeoutError, OSError) as error:
                text = str(error) or type(error).__name__
                released.errors.append((name, file.ledger_id, text))

    try:
        for name, lag_ms in names:
            files = (await live_records(log.store, name)).values()
            await asyncio.gather(
                *(one(name, *each) for each in files if _is_due(each[0], lag_ms, now_ms))
            )
    finally:
        await client.close()
    return released


def _is_due(file: OffloadRecord, lag_ms: int, now_ms: int) -> bool:
    """Also one that was released: its ledger may be there still."""
    return bool(file.released_ms) or 0 <= lag_ms <= now_ms - file.offloaded_ms


async def _release(
    log: Log, client: LedgerClient, name: str, file: OffloadRecord, revision: int, now_ms: int
) -> bool:
    """Whether there was something to let go of."""
    if await log.store.get(ledger_key(file.ledger_id)) is None:
        # Gone already. Released by an earlier run; or trimmed just now, with its file next.
        return False
    await _check_there(file)  # of one that was released before, too: these are the last copies
    if not file.released_ms:
        value = encode(msgspec.structs.replace(file, released_ms=now_ms))
        try:
            await log.store.put(offload_key(name, file.ledger_id), value, expected=revision)
        except BadRevision:
            return False  # another job, or the ledger is being trimmed: theirs to go on with
    await client.delete(file.ledger_id)
    return True


async def _check_there(file: OffloadRecord) -> None:
    """Raises ColdFileMissing, ColdFileCorrupt, ColdStoreUnavailable."""
    import obstore

    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            size = (await obstore.head_async(open_object_store(file.store), file.path))["size"]
    except Exception as error:
        raise store_error(error, file.path) from error
    if size != file.file_bytes:
        raise ColdFileCorrupt(f"{file.path} has {size} bytes, not {file.file_bytes}")
