"""Finds and removes what runs that were killed have left behind.

Attempts whose job has no key any more: each is claimed (`attempts.claim`), then its file deleted,
then the attempt. That is all that a run which is killed at any point leaves. Of this run's own
attempts, once its tasks are over, the files are deleted and the claims stay: a task that Spark has
given up may go on until its executor ends, and the next run looks once more for what it wrote.
Files that neither a record nor an attempt names: see `sweeping`.

Where metadata was restored from a backup, a file that became live after that backup looks like one
of an attempt, or of nobody; and the bookies may have let go of its ledger. So a whole file is only
deleted where its ledger is on record no more, neither by itself nor in the topic's list, or where
another file of the ledger is live. Until then it is kept, and its attempt with it: that of a run
that was killed goes at the end of the run that offloads the ledger.
"""

import re
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store import BadRevision, MetadataStore, Record
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import EntryFile
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    JOBS_PREFIX,
    AttemptRecord,
    attempts_prefix,
    decode_attempt,
    object_path,
    parse_attempt_key,
)
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar.offload.trash import delete_file
from magnetar_spark.jobs.offload.attempts import Attempt, claim, give_up
from magnetar_spark.jobs.offload.planning import live_records
from magnetar_spark.jobs.sweeping import Named, Removed, sweep_folder
from magnetar_spark.log.ledgers import live_file

_NAME: Final = re.compile(r"\d{20}-[0-9a-f]{32}\.parquet")
_LEDGER_DIGITS: Final = 20
_WHY_NEEDED: Final = (
    "no record names this file, its ledger is on record, and no other file of it is live: it may "
    "be the only copy, from before metadata was restored. It goes once the ledger is offloaded "
    "again, or trimmed"
)


async def remove_attempts(store: MetadataStore, job: str, *, all_tasks_over: bool) -> Removed:
    """Removes the attempts of jobs that are dead; of this one too once its tasks are over.

    What is kept is told at the end only: till then its ledger may be offloaded again.
    """
    removed = Removed()
    attempts = await store.list(ATTEMPTS_PREFIX)
    jobs = {record.key.removeprefix(JOBS_PREFIX) for record in await store.list(JOBS_PREFIX)}
    if all_tasks_over:
        jobs.discard(job)
    for record in attempts:
        try:
            found = decode_attempt(record.key, record.value)
            if found.job in jobs:
                continue
            if await _may_be_last_copy(store, record.key, found):
                if all_tasks_over:
                    removed.kept.append((f"{found.store}/{found.path}", _WHY_NEEDED))
                continue
            removed.files += await _remove_attempt(store, record, found, job)
        except (MagnetarError, TimeoutError, OSError) as error:
            removed.errors.append((record.key, str(error) or type(error).__name__))
    return removed


async def _remove_attempt(
    store: MetadataStore, record: Record, found: AttemptRecord, job: str
) -> bool:
    attempt = Attempt(record.key, parse_attempt_key(record.key)[2], found.path, record.revision)
    try:
        claimed = await claim(store, attempt, found, job)
    except BadRevision:
        return False  # committed, or claimed by another, in this moment
    files = open_object_store(found.store)
    if found.job == job:
        await delete_file(files, claimed.path)
    else:
        await give_up(store, files, claimed)
    return True


async def _may_be_last_copy(store: MetadataStore, key: str, found: AttemptRecord) -> bool:
    """Whether the attempt's file is whole, and its ledger needed. Raises ColdStoreUnavailable.

    One that is not whole now and is committed in this moment is not claimed after that.
    """
    name, ledger_id, _ = parse_attempt_key(key)
    if not await _ledger_needed(store, name, ledger_id, found.path):
        return False
    try:
        await EntryFile.open(open_object_store(found.store), found.path)
    except (ColdFileMissing, ColdFileCorrupt):
        return False
    return True


async def _ledger_needed(store: MetadataStore, name: str, ledger_id: int, path: str) -> bool:
    """Whether the ledger is on record, and no other file than `path` is live that has it."""
    live = await live_file(store, name, ledger_id)
    if live is not None:
        return live.path == path
    if await store.get(ledger_key(ledger_id)) is not None:
        return True
    key = managed_ledger_key(name)
    stored = await store.get(key)
    if stored is None:
        return False
    described = decode_managed_ledger(key, stored.value)
    return any(item.ledger_id == ledger_id for item in described.ledgers)


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Removes files of a managed ledger's offloads that nobody names; see `sweeping`."""

    async def named_now() -> Named:
        attempts = await metadata.list(attempts_prefix(name))
        paths = {decode_attempt(record.key, record.value).path for record in attempts}
        paths |= {file.path for file, _ in (await live_records(metadata, name)).values()}
        return paths.__contains__

    async def needed(file: EntryFile) -> str | None:
        ledger_id = int(file.path.rpartition("/")[2][:_LEDGER_DIGITS])
        return _WHY_NEEDED if await _ledger_needed(metadata, name, ledger_id, file.path) else None

    folder = object_path(name, 0, "").rpartition("/")[0]
    return await sweep_folder(spec, folder, _NAME, named_now, needed, cluster_id, age_s=age_s)
