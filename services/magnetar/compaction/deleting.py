"""Deletes files of compacted topics that a record says nobody needs any more.

Files go before the record that names them, so what is cut short is taken up again. What is not
there any more is as good as deleted. Nothing is deleted for being unknown, but for one case: what
lies in the folder of an attempt whose job is dead, which is that attempt's alone.
"""

import asyncio
import uuid
from collections.abc import Iterable
from typing import Final

from magnetar.compaction.records import (
    RetiredFile,
    Trash,
    compaction_key,
    decode_compaction,
    decode_trash,
    encode,
    files_of,
    request_key,
    trash_key,
)
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.metadata.store import BadRevision, Delete, MetadataStore, Put
from magnetar.offload.stores import StoreSpec, open_object_store, store_error

ATTEMPTS_MAX: Final = 8
DELETE_TIMEOUT_S: Final = 90.0
"""One request, with the store's own retries."""

log = get_logger("magnetar.compaction")


async def delete_files(files: Iterable[RetiredFile]) -> None:
    """Raises ColdStoreUnavailable, OffloadMisconfigured; what was deleted by then stays so."""
    import obstore
    from obstore.exceptions import NotFoundError

    for file in files:
        store = open_object_store(file.store)
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await obstore.delete_async(store, file.path)
        except (NotFoundError, FileNotFoundError):
            continue
        except Exception as error:
            raise store_error(error, file.path) from error


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
        files = files_of(record, now_ms)
        trash = Put(trash_key(uuid.uuid4().hex), encode(Trash(files)))
        try:
            await store.transact([Delete(key, stored.revision), *([trash] if files else [])])
        except BadRevision:
            continue  # an artefact that was committed just before, or another who discards
        return bool(files)
    raise MagnetarError(f"{key} changed {ATTEMPTS_MAX} times while it was deleted")


async def empty_trash(store: MetadataStore) -> int:
    """Deletes what deleted topics have left; how many files. Errors leave the rest for later."""
    count = 0
    for stored in await store.list(trash_key("")):
        files = decode_trash(stored.key, stored.value).files
        await delete_files(files)
        await store.delete(stored.key)
        count += len(files)
    return count
