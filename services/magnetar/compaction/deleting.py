"""Deletes files of compacted topics that a record says nobody needs any more.

Files go before the record that names them, so what is cut short is taken up again; those of deleted
topics become trash (`offload.trash`). What is not there any more is as good as deleted. Nothing is
deleted for being unknown, but for one case: what lies in the folder of an attempt whose job is
dead, which is that attempt's alone.
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
from magnetar.metadata.store import BadRevision, Delete, MetadataStore
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar.offload.trash import DELETE_TIMEOUT_S, TrashedFile, delete_file, put_in_trash

ATTEMPTS_MAX: Final = 8


async def delete_files(files: Iterable[RetiredFile]) -> None:
    """Raises ColdStoreUnavailable, OffloadMisconfigured; what was deleted by then stays so."""
    for file in files:
        await delete_file(open_object_store(file.store), file.path)


async def delete_folder(spec: StoreSpec, folder: str) -> int:
    """Everything in the folder of an attempt that is over; how many files that were."""
    import obstore

    store = open_object_store(spec)
    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            found = await obstore.list(store, prefix=f"{folder}/").collect_async()
    except Exception as error:
        raise store_error(error, folder) from error
    await delete_files(RetiredFile(spec, each["path"], 0) for each in found)
    return len(found)


async def discard(store: MetadataStore, name: str, log_created_ms: int, now_ms: int) -> bool:
    """Lets go of a deleted log's artefact: its files become trash. Idempotent.

    Whether there was one. To be called where no new artefact can become live any more; what stands
    there of another log of that name, made since, is not touched.
    """
    key = compaction_key(name)
    for _ in range(ATTEMPTS_MAX):
        stored = await store.get(key)
        record = None if stored is None else decode_compaction(key, stored.value)
        if record is not None and record.log_created_ms != log_created_ms:
            return False
        await store.delete(request_key(name))
        if stored is None or record is None:
            return False
        files = [TrashedFile(file.store, file.path) for file in files_of(record, now_ms)]
        trash = put_in_trash(name, files, now_ms)
        try:
            await store.transact([Delete(key, stored.revision), *([trash] if files else [])])
        except BadRevision:
            continue  # an artefact that was committed just before, or another who discards
        return bool(files)
    raise MagnetarError(f"{key} changed {ATTEMPTS_MAX} times while it was deleted")
