"""The artefact that a compaction starts from, and what replaces one whose files are gone.

Metadata that was restored from a backup may name an artefact that a later compaction replaced, and
whose files were deleted since. While the log still has every ledger that it ever had, nothing is
lost with those files: the log is compacted anew, from its beginning. Once retention has deleted
ledgers, what they held is in the artefact's files only, so the compaction fails until these are
restored.
"""

import asyncio
from typing import Final

import msgspec
import obstore

from magnetar.compaction.records import CompactionRecord, compaction_key, files_of
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.offload.errors import ColdFileMissing
from magnetar.offload.stores import open_object_store, store_error
from magnetar_spark.jobs.compact.swap import Live

HEAD_TIMEOUT_S: Final = 90.0
HEADS_AT_ONCE: Final = 16


async def usable(name: str, known: Live, trimmed_to: Position, now_ms: int) -> Live:
    """The artefact, or an empty one in its place where its files are gone and the log is whole.

    `trimmed_to` is of the log that the compaction reads: an earlier state says nothing of ledgers
    that retention has deleted since. Raises PersistenceError where the files are gone and the log
    was trimmed, and what asking for them does.
    """
    record = known.record
    missing = None if record is None else await _missing(record)
    if record is None or missing is None:
        return known
    if trimmed_to > EARLIEST:
        raise PersistenceError(
            f"{missing} of the compacted topic is gone, and retention has deleted ledgers of "
            f"{name} since: restore the file, or another artefact's record under "
            f"{compaction_key(name)}. Only to give up what was compacted, delete that key"
        )
    empty = msgspec.structs.replace(
        record,
        horizon=EARLIEST,
        files=(),
        retired=files_of(record, now_ms),
        marked=EARLIEST,
        marked_ms=0,
    )
    return Live(empty, known.revision)


async def _missing(record: CompactionRecord) -> str | None:
    """The path of a file that is not there."""
    objects = open_object_store(record.store)
    gate = asyncio.Semaphore(HEADS_AT_ONCE)

    async def is_there(path: str) -> bool:
        try:
            async with gate, asyncio.timeout(HEAD_TIMEOUT_S):
                await obstore.head_async(objects, path)
        except Exception as error:
            found = store_error(error, path)
            if isinstance(found, ColdFileMissing):
                return False
            raise found from error
        return True

    paths = [file.path for file in record.files]
    there = await asyncio.gather(*map(is_there, paths))
    return next((path for path, found in zip(paths, there, strict=True) if not found), None)
