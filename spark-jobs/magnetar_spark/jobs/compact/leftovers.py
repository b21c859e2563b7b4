"""What compactions have left: of jobs that were killed, and what nobody names any more.

What an attempt has written whose job has no key any more is deleted, then the attempt. Files that
neither an artefact's record nor an attempt names: see `sweeping`.

Where metadata was restored from a backup, an artefact that became live after that backup looks like
that of an attempt, or of nobody; and what it had replaced is deleted half an hour later. So what
has a whole file in it is only deleted where the topic's record reaches as far, by the horizon in
the file's footer, or where there is no topic. Until then it is kept: what a killed run has written
goes at the end of the run that compacts the topic.
"""

import re
from contextlib import suppress
from typing import Final

import msgspec

from magnetar.compaction.deleting import delete_folder
from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    CompactionAttempt,
    attempt_folder,
    compaction_key,
    decode_attempt,
    decode_compaction,
    encode,
    files_of,
    job_key,
)
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store import BadRevision, MetadataStore, Record
from magnetar.offload.errors import COLD_ERRORS, ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar_spark.jobs.compact.folders import listed
from magnetar_spark.jobs.sweeping import PROPERTY_HORIZON, Named, Removed, sweep_folder

_NAME: Final = re.compile(r"compacted-[0-9a-f]{32}/\d{5}-[0-9a-f]{32}\.parquet")
_WHY_NEEDED: Final = (
    "no record names this, and none of its topic reaches as far: it may be the artefact from "
    "before metadata was restored. It goes once the topic is compacted as far again, or deleted"
)


async def clean_attempts(store: MetadataStore, *, tell_kept: bool = True) -> Removed:
    """Deletes what dead jobs have left. What goes wrong with one is told, and the others go on.

    What is kept for its topic needs telling at a run's end only: till then that may be compacted.
    """
    removed = Removed()
    for stored in await store.list(ATTEMPTS_PREFIX):
        try:
            attempt = decode_attempt(stored.key, stored.value)
            if await store.get(job_key(attempt.job)) is not None:
                continue
            name = stored.key.removeprefix(ATTEMPTS_PREFIX).rpartition("/")[0]
            if await _may_be_last_copy(store, name, attempt):
                if tell_kept:
                    removed.kept.append((f"{attempt.store}/{attempt.folder}", _WHY_NEEDED))
                continue
            removed.files += await _remove_attempt(store, stored, attempt)
        except COLD_ERRORS as error:
            if tell_kept:
                removed.kept.append((stored.key, str(error)))
        except (MagnetarError, TimeoutError, OSError) as error:
            removed.errors.append((stored.key, str(error) or type(error).__name__))
    return removed


async def _remove_attempt(store: MetadataStore, stored: Record, attempt: CompactionAttempt) -> int:
    # The attempt's key goes last. Its job can not commit any more: had it been about to, the
    # key would be gone. One that is only slow loses here, and its commit fails.
    nobodys = msgspec.structs.replace(attempt, job="")
    try:
        revision = await store.put(stored.key, encode(nobodys), expected=stored.revision)
    except BadRevision:
        return 0  # committed at this moment, or another cleans up
    count = await delete_folder(attempt.store, attempt.folder)
    with suppress(BadRevision):
        await store.delete(stored.key, expected=revision)
    return count


async def _may_be_last_copy(store: MetadataStore, name: str, attempt: CompactionAttempt) -> bool:
    """Whether a whole file is in the folder, and needed; all of them have the same horizon."""
    files = open_object_store(attempt.store)
    for path in await listed(attempt.store, attempt.folder):
        try:
            opened = await EntryFile.open(files, path)
        except (ColdFileMissing, ColdFileCorrupt):
            continue
        return await _needed(store, name, opened)
    return False


async def _needed(store: MetadataStore, name: str, file: EntryFile) -> bool:
    """Whether there is the topic, and no artefact on record that reaches as far as the file's."""
    key = managed_ledger_key(name)
    log = await store.get(key)
    if log is None or decode_managed_ledger(key, log.value).deleted:
        return False
    key = compaction_key(name)
    stored = await store.get(key)
    if stored is None or (told := file.properties.get(PROPERTY_HORIZON)) is None:
        return True
    ledger_id, _, entry_id = told.partition(":")
    return decode_compaction(key, stored.value).horizon < Position(int(ledger_id), int(entry_id))


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Removes files of a topic's compactions that nobody names."""

    async def named_now() -> Named:
        attempts = await metadata.list(f"{ATTEMPTS_PREFIX}{name}/")
        folders = {decode_attempt(each.key, each.value).folder for each in attempts}
        key = compaction_key(name)
        stored = await metadata.get(key)
        record = None if stored is None else decode_compaction(key, stored.value)
        paths = set() if record is None else {file.path for file in files_of(record, 0)}
        return lambda path: path in paths or path.rpartition("/")[0] in folders

    async def needed(file: EntryFile) -> str | None:
        return _WHY_NEEDED if await _needed(metadata, name, file) else None

    folder = attempt_folder(name, "").rpartition("/")[0]
    return await sweep_folder(spec, folder, _NAME, named_now, needed, cluster_id, age_s=age_s)
