"""Deletes what killed compactions have left behind, and files that no record names.

For an attempt whose job has no key any more, the files are deleted, then the attempt. Files that
neither an artifact's record nor an attempt names are the sweeper's (`jobs.sweeper`).

If metadata was restored from a backup, an artifact that became live after the backup looks like
that of an attempt, or like an unnamed one, and the files that it had replaced are deleted half an
hour later. So an attempt with a whole file, and a whole unnamed file, are deleted only if the
topic's artifact reaches as far, by the horizon in the file's footer, or if there is no topic.
Otherwise they are kept; the run that compacts the topic deletes what a killed run has written, at
its end.
"""

import re
from contextlib import suppress
from typing import Final

import msgspec

from magnetar.compaction.deletion import delete_folder
from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    CompactionAttempt,
    attempt_folder,
    compaction_key,
    decode_attempt,
    decode_compaction,
    files_of,
    job_key,
)
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.jobs.compaction.folders import listed
from magnetar.jobs.sweeper import PROPERTY_HORIZON, Named, Removed, sweep_folder
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, MetadataStore, Record
from magnetar.offload.errors import COLD_ERRORS, ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import StoreSpec, open_object_store

_NAME: Final = re.compile(r"compacted-[0-9a-f]{32}/\d{5}-[0-9a-f]{32}\.parquet")
_WHY_NEEDED: Final = (
    "no record names it, and no artifact of its topic reaches as far: it may be the artifact from "
    "before metadata was restored. It is deleted once the topic is compacted as far, or deleted"
)


async def clean_attempts(store: MetadataStore, *, report_kept: bool = True) -> Removed:
    """Deletes the attempts of dead jobs. An error with one attempt does not stop the others.

    Kept attempts need to be reported only at a run's end: until then it may compact their topics.
    """
    removed = Removed()
    for stored in await store.list(ATTEMPTS_PREFIX):
        try:
            attempt = decode_attempt(stored.key, stored.value)
            if await store.get(job_key(attempt.job)) is not None:
                continue
            name = stored.key.removeprefix(ATTEMPTS_PREFIX).rpartition("/")[0]
            if await _may_be_last_copy(store, name, attempt):
                if report_kept:
                    removed.kept.append((f"{attempt.store}/{attempt.folder}", _WHY_NEEDED))
                continue
            removed.files += await _remove_attempt(store, stored, attempt)
        except COLD_ERRORS as error:
            if report_kept:
                removed.kept.append((stored.key, str(error)))
        except (MagnetarError, TimeoutError, OSError) as error:
            removed.errors.append((stored.key, str(error) or type(error).__name__))
    return removed


async def _remove_attempt(store: MetadataStore, stored: Record, attempt: CompactionAttempt) -> int:
    # The attempt's key is deleted last. If its job is only slow, rewriting the record makes its
    # commit fail; if the job has just committed, the record is gone and the rewrite fails.
    orphan = msgspec.structs.replace(attempt, job="")
    try:
        revision = await store.put(stored.key, encode(orphan), expected=stored.revision)
    except BadRevision:
        return 0  # committed just now, or another process cleans up
    count = await delete_folder(attempt.store, attempt.folder)
    with suppress(BadRevision):
        await store.delete(stored.key, expected=revision)
    return count


async def _may_be_last_copy(store: MetadataStore, name: str, attempt: CompactionAttempt) -> bool:
    """Whether the folder has a whole file that is needed; all its files have the same horizon."""
    files = open_object_store(attempt.store)
    for path in await listed(attempt.store, attempt.folder):
        try:
            opened = await EntryFile.open(files, path)
        except (ColdFileMissing, ColdFileCorrupt):
            continue
        return await _needed(store, name, opened)
    return False


async def _needed(store: MetadataStore, name: str, file: EntryFile) -> bool:
    """Whether the topic exists, and no artifact on record reaches as far as the file's."""
    key = managed_ledger_key(name)
    log = await store.get(key)
    if log is None or decode_managed_ledger(key, log.value).deleted:
        return False
    key = compaction_key(name)
    stored = await store.get(key)
    if stored is None or (horizon := file.properties.get(PROPERTY_HORIZON)) is None:
        return True
    ledger_id, _, entry_id = horizon.partition(":")
    return decode_compaction(key, stored.value).horizon < Position(int(ledger_id), int(entry_id))


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Deletes unnamed files of a topic's compactions (see `jobs.sweeper`)."""

    async def named_now() -> Named:
        attempts = await metadata.list(f"{ATTEMPTS_PREFIX}{name}/")
        folders = {decode_attempt(record.key, record.value).folder for record in attempts}
        key = compaction_key(name)
        stored = await metadata.get(key)
        record = None if stored is None else decode_compaction(key, stored.value)
        paths = set() if record is None else {file.path for file in files_of(record, 0)}
        return lambda path: path in paths or path.rpartition("/")[0] in folders

    async def needed(file: EntryFile) -> str | None:
        return _WHY_NEEDED if await _needed(metadata, name, file) else None

    folder = attempt_folder(name, "").rpartition("/")[0]
    return await sweep_folder(spec, folder, _NAME, named_now, needed, cluster_id, age_s=age_s)
