"""Files in object stores that nobody needs any more, on record until they are deleted.

- `/cold-trash/{uuid}`: files of ledgers that were trimmed, and of topics that were deleted, of
  offloads and of compactions.

A file gets there in the transaction that takes it off the record by which it was live: it is either
live or trash, and never neither. So deletions wait for no store, and one that never answers again
blocks none. Brokers empty the trash after they have put something in, jobs as they begin. All files
have their attempt's uuid in their names: none that is written later can be meant.

Stores do not wait for each other: STORES_AT_ONCE of them are emptied at the same time, and one that
has failed STORE_FAILURES_MAX times is left to the next pass. What is gone already is as good as
deleted.
"""

import asyncio
import random
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import BadRevision, MetadataStore, Put, Record
from magnetar.offload.errors import COLD_ERRORS, ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.records import decoded
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
"""One request, with the store's own retries."""


class TrashedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that is to be deleted."""

    store: StoreSpec
    path: str


class Trash(msgspec.Struct, frozen=True, omit_defaults=True):
    """Files of one managed ledger, `name`, and when they were put here."""

    name: str
    trashed_ms: int
    files: tuple[TrashedFile, ...]


@dataclass(slots=True)
class Emptied:
    """What a pass has done: files deleted, and what is left with the reason."""

    files: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Trash)


def put_in_trash(name: str, files: Collection[TrashedFile], now_ms: int) -> Put:
    """A record of its own, for the transaction by which these files are not live any more."""
    return Put(TRASH_PREFIX + uuid.uuid4().hex, _encode(Trash(name, now_ms, tuple(files))))


def decode_trash(key: str, value: bytes) -> Trash:
    """Raises MetadataError naming the key where the value names no files."""
    return decoded(_decoder, key, value, "list of files")


async def empty_trash(metadata: MetadataStore) -> Emptied:
    """One pass. Raises what the metadata store raises; what stores raise is told as left."""
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

    async def taken_out() -> None:
        """Those of which no store is waited for any more: none waits for the others' stores."""
        nonlocal waiting
        done = [each for each in waiting if not each[2]]
        waiting = [each for each in waiting if each[2]]
        for stored, trash, _ in done:
            await _take_out(metadata, stored, trash, gone)

    async def one(spec: StoreSpec, files: list[TrashedFile]) -> None:
        async with gate:
            await _empty_store(spec, files, gone, emptied)
        for _, _, stores in waiting:
            stores.discard(spec)
        await taken_out()

    await taken_out()
    await asyncio.gather(*(one(*each) for each in by_store.items()))
    emptied.files = len(gone)
    return emptied


async def _empty_store(
    spec: StoreSpec, files: list[TrashedFile], gone: set[TrashedFile], emptied: Emptied
) -> None:
    # In no order: some that can never be deleted must not stand before all others every time.
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
    """Blocks. A folder that is not there, or empty, is one whose volume may not be mounted: what it
    has not is not gone. (We delete no folders: one that had a file of ours has its topic's.)"""
    if spec.driver == FILESYSTEM:
        folder = folder_of(spec)
        if not folder.is_dir() or next(folder.iterdir(), None) is None:
            raise ColdStoreUnavailable(f"{folder} is not there, or empty: is its volume mounted?")
    return open_object_store(spec)


async def _take_out(
    metadata: MetadataStore, stored: Record, trash: Trash, gone: set[TrashedFile]
) -> None:
    left = tuple(file for file in trash.files if file not in gone)
    if left and len(left) == len(trash.files):
        return
    try:
        if left:
            value = _encode(msgspec.structs.replace(trash, files=left))
            await metadata.put(stored.key, value, expected=stored.revision)
        else:
            await metadata.delete(stored.key, expected=stored.revision)
    except BadRevision:
        return  # another has emptied it at the same time


async def _delete(spec: StoreSpec, store: "ObjectStore", path: str) -> None:
    """Of a folder, what is not there is gone only where its own folder is: another volume, or none,
    may be mounted there by now. Raises ColdStoreUnavailable."""
    if await delete_file(store, path) or spec.driver != FILESYSTEM:
        return
    parent = (folder_of(spec) / path).parent
    async with asyncio.timeout(DELETE_TIMEOUT_S):
        there = await in_thread_of(str(spec), parent.is_dir)
    if not there:
        raise ColdStoreUnavailable(f"{parent} is not there: is its volume mounted?")


async def delete_file(store: "ObjectStore", path: str) -> bool:
    """Also where there is none; False where the store says so. Raises ColdStoreUnavailable."""
    import obstore

    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            await obstore.delete_async(store, path)
    except Exception as error:
        known = store_error(error, path)
        if not isinstance(known, ColdFileMissing):
            raise known from error
        return False
    return True
