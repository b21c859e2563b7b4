"""Deletes files of compacted topics that are no longer needed.

Files are deleted before the record that names them, so an interrupted deletion is repeated. Files
of deleted topics become trash (`offload.trash`). A missing file counts as deleted. A file is never
deleted because no record names it, with one exception: all files in the folder of a dead job's
attempt, which belongs to that attempt alone.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from magnetar.compaction.records import (
    RetiredFile,
    compaction_key,
    decode_compaction,
    files_of,
    request_key,
)
from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import BadRevision, Check, Delete, MetadataStore, Operation
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar.offload.trash import DELETE_TIMEOUT_S, TrashedFile, delete_file, put_in_trash

ATTEMPTS_MAX: Final = 8


async def delete_files(files: Iterable[RetiredFile]) -> None:
    """Deletes files until the first error. Raises ColdStoreUnavailable, OffloadMisconfigured."""
    for file in files:
        await delete_file(open_object_store(file.store), file.path)


async def delete_folder(spec: StoreSpec, folder: str) -> int:
    """Deletes all files in the folder of a finished attempt, and returns their number."""
    import obstore

    store = open_object_store(spec)
    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            metas = await obstore.list(store, prefix=f"{folder}/").collect_async()
    except Exception as error:
        raise store_error(error, folder) from error
    await delete_files(RetiredFile(spec, meta["path"], 0) for meta in metas)
    return len(metas)


async def discard(
    store: MetadataStore, name: str, log_created_ms: int, marked: Check, now_ms: int
) -> bool:
    """Trashes the files of a deleted log's artifact; False if it has none. Idempotent.

    Call it only when no new artifact can become live. The artifact of another log of that name,
    created since, is left alone. Raises BadRevision if `marked`, which shows that the log is being
    deleted, is not valid.
    """
    key = compaction_key(name)
    for _ in range(ATTEMPTS_MAX):
        stored = await store.get(key)
        record = None if stored is None else decode_compaction(key, stored.value)
        if record is not None and record.log_created_ms != log_created_ms:
            return False
        request: list[Operation] = [Delete(request_key(name)), marked]
        if stored is None or record is None:
            await store.transact(request)
            return False
        files = [TrashedFile(file.store, file.path) for file in files_of(record, now_ms)]
        trash = put_in_trash(name, files, now_ms)
        try:
            trashing: list[Operation] = [trash] if files else []
            await store.transact([Delete(key, stored.revision), *request, *trashing])
        except BadRevision as error:
            if error.key == marked.key:
                raise
            continue  # a job has just committed an artifact, or another process discards it
        return bool(files)
    raise MagnetarError(f"{key} changed {ATTEMPTS_MAX} times while it was deleted")
