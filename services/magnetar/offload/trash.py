"""The trash: files in object stores that are no longer needed, on record until they are deleted.

- `/cold-trash/{uuid}`: files of trimmed ledgers and of deleted topics, from offloads and from
  compactions.

A file enters the trash in the transaction that deletes the record by which it was live, so that it
is always either live or trash. Deleting a ledger therefore never waits for a store, not even for
one that never answers again. Brokers empty the trash after adding to it, jobs when they start. File
names contain their attempt's uuid, so a trash record can never mean a file written later.

Stores are independent: STORES_AT_ONCE of them are emptied concurrently, and a store that has failed
STORE_FAILURES_MAX times is left to the next pass. A missing file counts as deleted.
"""

import asyncio
import random
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.core.errors import MagnetarError
from magnetar.metadata.records import RecordType, encode
from magnetar.metadata.store import BadRevision, MetadataStore, Put, Record
from magnetar.offload.errors import COLD_ERRORS, ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.store_threads import in_thread_of
from magnetar.offload.stores import (
    FILESYSTEM,
    StoreSpec,
    folder_of,
    open_object_store,
    store_error,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

TRASH_PREFIX: Final = "/cold-trash/"
STORES_AT_ONCE: Final = 8
STORE_FAILURES_MAX: Final = 3
DELETE_TIMEOUT_S: Final = 90.0
"""Deadline of one request, including the store's retries."""


class TrashedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file to delete."""

    store: StoreSpec
    path: str


class Trash(msgspec.Struct, frozen=True, omit_defaults=True):
    """Trashed files of the managed ledger `name`."""

    name: str
    trashed_ms: int
    files: tuple[TrashedFile, ...]


@dataclass(slots=True)
class Emptied:
    """The result of a pass: the number of deleted files, and what is left, with the reason."""

    files: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)


decode_trash = RecordType(Trash, "list of files").decode


def put_in_trash(name: str, files: Collection[TrashedFile], now_ms: int) -> Put:
    """The write that trashes files, for the transaction that deletes their live records."""
    return Put(TRASH_PREFIX + uuid.uuid4().hex, encode(Trash(name, now_ms, tuple(files))))


async def empty_trash(metadata: MetadataStore) -> Emptied:
    """Runs one pass. Raises errors of the metadata store; errors of object stores are reported as
    left."""
    emptied = Emptied()
    records: list[tuple[Record, Trash]] = []
    for stored in await metadata.list(TRASH_PREFIX):
        try:
            records.append((stored, decode_trash(stored.key, stored.value)))
        except MagnetarError as error:
            emptied.left.append((stored.key, str(error)))
    by_store: dict[StoreSpec, list[TrashedFile]] = {}
    waiting = [(stored, trash, {file.store for file in trash.files}) for stored, trash in records]
    for _, trash in records:
        for file in trash.files:
            by_store.setdefault(file.store, []).append(file)
    gone: set[TrashedFile] = set()
    gate = asyncio.Semaphore(STORES_AT_ONCE)

    async def update_records() -> None:
        """Updates the records whose stores are all done; none waits for stores of the others."""
        nonlocal waiting
        done = [item for item in waiting if not item[2]]
        waiting = [item for item in waiting if item[2]]
        for stored, trash, _ in done:
            await _take_out(metadata, stored, trash, gone)

    async def empty_store(spec: StoreSpec, files: list[TrashedFile]) -> None:
        async with gate:
            await _empty_store(spec, files, gone, emptied)
        for _, _, stores in waiting:
            stores.discard(spec)
        await update_records()

    await update_records()
    await asyncio.gather(*(empty_store(*item) for item in by_store.items()))
    emptied.files = len(gone)
    return emptied


async def _empty_store(
    spec: StoreSpec, files: list[TrashedFile], gone: set[TrashedFile], emptied: Emptied
) -> None:
    # In random order: files that can never be deleted must not block the others in every pass.
    random.shuffle(files)
    failures = 0
    reason = ""
    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            store = await in_thread_of(str(spec), lambda: _opened(spec))
    except (*COLD_ERRORS, TimeoutError, OSError) as error:
        failures, reason = STORE_FAILURES_MAX, str(error) or "it cannot be opened in time"
    for file in files:
        if failures < STORE_FAILURES_MAX:
            try:
                await _delete(spec, store, file.path)
            except (*COLD_ERRORS, OSError) as error:
                failures, reason = failures + 1, str(error)
            else:
                gone.add(file)
    if left := [file for file in files if file not in gone]:
        emptied.left.append((f"{spec}, {len(left)} files such as {left[0].path}", reason))


def _opened(spec: StoreSpec) -> "ObjectStore":
    """Opens a store. Blocks.

    The volume of a missing or empty folder may not be mounted, so its files may still exist. (We
    delete no folders: a store that had a file of ours still has the folder of its topic.)
    """
    if spec.driver == FILESYSTEM:
        folder = folder_of(spec)
        if not folder.is_dir() or next(folder.iterdir(), None) is None:
            raise ColdStoreUnavailable(f"{folder} is missing or empty: is its volume mounted?")
    return open_object_store(spec)


async def _take_out(
    metadata: MetadataStore, stored: Record, trash: Trash, gone: set[TrashedFile]
) -> None:
    left = tuple(file for file in trash.files if file not in gone)
    if left and len(left) == len(trash.files):
        return
    try:
        if left:
            value = encode(msgspec.structs.replace(trash, files=left))
            await metadata.put(stored.key, value, expected=stored.revision)
        else:
            await metadata.delete(stored.key, expected=stored.revision)
    except BadRevision:
        return  # another process has updated it


async def _delete(spec: StoreSpec, store: "ObjectStore", path: str) -> None:
    """Deletes a file. Raises ColdStoreUnavailable.

    In a folder store, a missing file counts as deleted only if its parent folder exists: otherwise
    another volume, or none, may be mounted by now.
    """
    if await delete_file(store, path) or spec.driver != FILESYSTEM:
        return
    parent = (folder_of(spec) / path).parent
    async with asyncio.timeout(DELETE_TIMEOUT_S):
        exists = await in_thread_of(str(spec), parent.is_dir)
    if not exists:
        raise ColdStoreUnavailable(f"{parent} is missing: is its volume mounted?")


async def delete_file(store: "ObjectStore", path: str) -> bool:
    """Deletes a file; False if the store reports it missing. Raises ColdStoreUnavailable."""
    import obstore

    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            await obstore.delete_async(store, path)
    except Exception as error:
        converted = store_error(error, path)
        if not isinstance(converted, ColdFileMissing):
            raise converted from error
        return False
    return True
