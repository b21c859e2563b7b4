"""The artifact that a compaction starts from, and the fallback if its files are gone.

Metadata that was restored from a backup may name an artifact that a later compaction replaced, and
whose files were deleted since. While the log still has every ledger, nothing is lost with those
files: the log is compacted again from its beginning. Once retention has deleted ledgers, only the
artifact's files have their values, so the compaction fails until the files are restored.
"""

import asyncio
from typing import Final

import msgspec
import obstore

from magnetar.compaction.records import CompactionRecord, compaction_key, files_of
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.jobs.compaction.swap import Live
from magnetar.offload.errors import ColdFileMissing
from magnetar.offload.stores import open_object_store, store_error

HEAD_TIMEOUT_S: Final = 90.0
HEADS_AT_ONCE: Final = 16


async def usable(name: str, artifact: Live, trimmed_to: Position, now_ms: int) -> Live:
    """The artifact, or an empty one in its place if its files are gone and the log is whole.

    `trimmed_to` must be that of the log that the compaction reads: an earlier one misses ledgers
    that retention has deleted since. Raises PersistenceError if the files are gone and the log was
    trimmed, and any error of the store.
    """
    record = artifact.record
    missing = None if record is None else await _missing(record)
    if record is None or missing is None:
        return artifact
    if trimmed_to > EARLIEST:
        raise PersistenceError(
            f"{missing} of the compacted topic is gone, and retention has deleted ledgers of "
            f"{name} since: restore the file, or another artifact's record under "
            f"{compaction_key(name)}. Delete that key only to abandon what was compacted"
        )
    empty = msgspec.structs.replace(
        record,
        horizon=EARLIEST,
        files=(),
        retired=files_of(record, now_ms),
        marked=EARLIEST,
        marked_ms=0,
    )
    return Live(empty, artifact.revision)


async def _missing(record: CompactionRecord) -> str | None:
    """The path of a file that the store does not have; None if it has all of them."""
    objects = open_object_store(record.store)
    gate = asyncio.Semaphore(HEADS_AT_ONCE)

    async def exists(path: str) -> bool:
        try:
            async with gate, asyncio.timeout(HEAD_TIMEOUT_S):
                await obstore.head_async(objects, path)
        except Exception as error:
            converted = store_error(error, path)
            if isinstance(converted, ColdFileMissing):
                return False
            raise converted from error
        return True

    paths = [file.path for file in record.files]
    present = await asyncio.gather(*map(exists, paths))
    return next((path for path, is_there in zip(paths, present, strict=True) if not is_there), None)
