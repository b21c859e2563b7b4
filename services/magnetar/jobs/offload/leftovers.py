"""Deletes files and attempts that killed runs have left behind.

Attempts of dead jobs are claimed, then their file is deleted, then the attempt. That covers all
that a run leaves behind if it is killed at any point. For this run's own attempts, once its tasks
are over, the file is deleted and the claim stays: a task that Spark has abandoned may go on until
its executor ends, and the next run checks once more for its file. Files that neither a record nor
an attempt names are the sweeper's (`jobs.sweeper`).

If metadata was restored from a backup, a file that became live after the backup looks like an
attempt's file, or like an unnamed one, and the bookies may have deleted its ledger. So a whole file
is deleted only if its ledger is in no record (neither its own nor its topic's), or another file of
the ledger is live. Otherwise file and attempt are kept; the run that offloads the ledger again
deletes them at its end.
"""

import re
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.jobs.sweeper import Named, Removed, sweep_folder
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store import BadRevision, MetadataStore, Record
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import EntryFile
from magnetar.offload.records import (
    AttemptRecord,
    decode_attempt,
    object_path,
    parse_attempt_key,
)
from magnetar.offload.repository import Attempt, OffloadRepository
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar.offload.trash import delete_file

_NAME: Final = re.compile(r"\d{20}-[0-9a-f]{32}\.parquet")
_LEDGER_DIGITS: Final = 20
_WHY_NEEDED: Final = (
    "no record names this file, its ledger is on record, and no other file of it is live: it may "
    "be the only copy, from before metadata was restored. It is deleted once the ledger is "
    "offloaded again, or trimmed"
)


async def remove_attempts(store: MetadataStore, job: str, *, all_tasks_over: bool) -> Removed:
    """Removes the attempts of dead jobs, and with `all_tasks_over` those of this job.

    Kept files are reported only with `all_tasks_over`: until then this run may offload their
    ledgers again.
    """
    removed = Removed()
    repository = OffloadRepository(store)
    records = await repository.attempts()  # before the jobs: a job's key precedes its attempts
    jobs = await repository.jobs()
    if all_tasks_over:
        jobs.discard(job)
    for record in records:
        try:
            attempt = decode_attempt(record.key, record.value)
            if attempt.job in jobs:
                continue
            if await _may_be_last_copy(store, record.key, attempt):
                if all_tasks_over:
                    removed.kept.append((f"{attempt.store}/{attempt.path}", _WHY_NEEDED))
                continue
            removed.files += await _remove_attempt(repository, record, attempt, job)
        except (MagnetarError, TimeoutError, OSError) as error:
            removed.errors.append((record.key, str(error) or type(error).__name__))
    return removed


async def _remove_attempt(
    repository: OffloadRepository, stored: Record, record: AttemptRecord, job: str
) -> bool:
    attempt = Attempt(stored.key, parse_attempt_key(stored.key)[2], record.path, stored.revision)
    try:
        claimed = await repository.claim_attempt(attempt, record, job)
    except BadRevision:
        return False  # committed, or claimed by another job, since it was listed
    files = open_object_store(record.store)
    if record.job == job:
        await delete_file(files, claimed.path)
    else:
        await repository.discard_attempt(files, claimed)
    return True


async def _may_be_last_copy(store: MetadataStore, key: str, attempt: AttemptRecord) -> bool:
    """Whether the attempt's file is whole, and its ledger needed. Raises ColdStoreUnavailable.

    If a file that is incomplete now is completed and committed later, claiming its attempt fails.
    """
    name, ledger_id, _ = parse_attempt_key(key)
    if not await _ledger_needed(store, name, ledger_id, attempt.path):
        return False
    try:
        await EntryFile.open(open_object_store(attempt.store), attempt.path)
    except (ColdFileMissing, ColdFileCorrupt):
        return False
    return True


async def _ledger_needed(store: MetadataStore, name: str, ledger_id: int, path: str) -> bool:
    """Whether the ledger is on record, and no other file than `path` is live for it."""
    live = await OffloadRepository(store).file(name, ledger_id)
    if live is not None:
        return live.path == path
    if await store.get(ledger_key(ledger_id)) is not None:
        return True
    key = managed_ledger_key(name)
    stored = await store.get(key)
    if stored is None:
        return False
    record = decode_managed_ledger(key, stored.value)
    return any(item.ledger_id == ledger_id for item in record.ledgers)


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Deletes unnamed files of a managed ledger's offloads (see `jobs.sweeper`)."""
    repository = OffloadRepository(metadata)

    async def named_now() -> Named:
        paths = await repository.attempt_paths(name)
        paths |= {file.record.path for file in (await repository.files(name)).values()}
        return paths.__contains__

    async def needed(file: EntryFile) -> str | None:
        ledger_id = int(file.path.rpartition("/")[2][:_LEDGER_DIGITS])
        return _WHY_NEEDED if await _ledger_needed(metadata, name, ledger_id, file.path) else None

    folder = object_path(name, 0, "").rpartition("/")[0]
    return await sweep_folder(spec, folder, _NAME, named_now, needed, cluster_id, age_s=age_s)
