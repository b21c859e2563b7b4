"""Deletes files that interrupted or duplicate tasks have left beside an artifact's files.

An executor that is killed in the second pass leaves a file or a part of one, and Spark has the part
written again under another name. Until the attempt is committed, its record covers all of them;
then the artifact's record names the files that count. The folder belongs to that attempt alone, and
nothing in it can become live any more, so files that the record does not name may be deleted.
"""

import asyncio
import re
from typing import Final

from magnetar.compaction.deletion import delete_files
from magnetar.compaction.records import (
    RetiredFile,
    attempt_folder,
    compaction_key,
    decode_compaction,
    files_of,
)
from magnetar.jobs.sweeper import Removed
from magnetar.metadata.store import MetadataStore
from magnetar.offload.errors import COLD_ERRORS
from magnetar.offload.stores import StoreSpec, open_object_store, store_error

LIST_TIMEOUT_S: Final = 90.0
_OURS: Final = re.compile(r".*/compacted-[0-9a-f]{32}/\d{5}-[0-9a-f]+\.parquet")


async def clean_folders(store: MetadataStore, name: str) -> Removed:
    """Cleans the folders of the topic's artifact and of those that it has replaced."""
    removed = Removed()
    stored = await store.get(compaction_key(name))
    if stored is None:
        return removed
    record = decode_compaction(stored.key, stored.value)
    files = files_of(record, 0)
    named = {(file.store, file.path) for file in files}
    folders = {(file.store, file.path.rpartition("/")[0]) for file in files}
    folders.add((record.store, attempt_folder(name, record.attempt)))
    for spec, folder in sorted(folders, key=str):
        try:
            present = {(spec, path) for path in await listed(spec, folder)}
            for _, path in present - named:
                await delete_files([RetiredFile(spec, path, 0)])
                removed.files += 1
        except COLD_ERRORS as error:
            removed.kept.append((f"{spec}/{folder}", str(error)))
    return removed


async def listed(spec: StoreSpec, folder: str) -> list[str]:
    """The files in an attempt's folder whose names are ours. Raises ColdStoreUnavailable."""
    import obstore

    try:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            metas = await obstore.list(open_object_store(spec), prefix=f"{folder}/").collect_async()
    except Exception as error:
        raise store_error(error, f"{spec}/{folder}") from error
    return [meta["path"] for meta in metas if _OURS.fullmatch(meta["path"])]
