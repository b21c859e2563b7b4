"""Finds and removes what runs that were killed have left behind.

Attempts whose job has no key any more: each is claimed (`attempts.claim`), then its file deleted,
then the attempt. That is all that a run which is killed at any point leaves. Of this run's own
attempts, once its tasks are over, the files are deleted and the claims stay: a task that Spark has
given up may go on until its executor ends, and the next run looks once more for what it wrote.
Files that neither a record nor an attempt names: see `sweeping`.
"""

import re
from collections.abc import Collection
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import BadRevision, MetadataStore, Record
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    JOBS_PREFIX,
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

_NAME: Final = re.compile(r"\d{20}-[0-9a-f]{32}\.parquet")


async def remove_attempts(store: MetadataStore, job: str, *, all_tasks_over: bool) -> Removed:
    """Removes the attempts of jobs that are dead; of this one too once its tasks are over."""
    removed = Removed()
    attempts = await store.list(ATTEMPTS_PREFIX)
    jobs = {record.key.removeprefix(JOBS_PREFIX) for record in await store.list(JOBS_PREFIX)}
    if all_tasks_over:
        jobs.discard(job)
    for record in attempts:
        try:
            removed.files += await _remove_attempt(store, record, jobs, job)
        except (MagnetarError, TimeoutError, OSError) as error:
            removed.errors.append((record.key, str(error) or type(error).__name__))
    return removed


async def _remove_attempt(
    store: MetadataStore, record: Record, living: Collection[str], job: str
) -> bool:
    found = decode_attempt(record.key, record.value)
    if found.job in living:
        return False
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


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Removes files of a managed ledger's offloads that nobody names; see `sweeping`."""

    async def named_now() -> Named:
        attempts = await metadata.list(attempts_prefix(name))
        paths = {decode_attempt(record.key, record.value).path for record in attempts}
        paths |= {file.path for file, _ in (await live_records(metadata, name)).values()}
        return paths.__contains__

    folder = object_path(name, 0, "").rpartition("/")[0]
    return await sweep_folder(spec, folder, _NAME, named_now, cluster_id, age_s=age_s)
