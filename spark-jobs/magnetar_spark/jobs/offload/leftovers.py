"""Finds and removes what runs that were killed have left behind.

Attempts whose job has no key any more: each is claimed (`attempts.claim`), then its file deleted,
then the attempt. That is all that a run which is killed at any point leaves.

Files that neither a record nor an attempt names (a writer that was cut off from metadata for long,
and died right behind the end of its upload): those in the folders of the topics, by names that we
give, older than SWEEP_AGE_S, are opened, and deleted only where they say that this cluster wrote
them. Files are listed before attempts, and attempts before records: no file is missed on its way
from one to the next.
"""

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import BadRevision, MetadataStore, Record
from magnetar.offload.file_format import EntryFile
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    JOBS_PREFIX,
    attempts_prefix,
    decode_attempt,
    object_path,
    parse_attempt_key,
)
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar_spark.jobs.offload.attempts import Attempt, claim, give_up, remove_file
from magnetar_spark.jobs.offload.planning import live_records
from magnetar_spark.jobs.offload.writing import PROPERTY_CLUSTER

SWEEP_AGE_S: Final = 24 * 3600
LIST_TIMEOUT_S: Final = 300.0
_NAME: Final = re.compile(r"\d{20}-[0-9a-f]{32}\.parquet")


@dataclass(slots=True)
class Removed:
    """What was done."""

    files: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    """What, and why not."""


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
    await give_up(store, open_object_store(found.store), claimed)
    return True


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Removes files of a managed ledger that nobody names; see the module's text."""
    removed = Removed()
    try:
        paths = await _old_files(spec, name, age_s)
        if not paths:
            return removed
        named = {
            decode_attempt(record.key, record.value).path
            for record in await metadata.list(attempts_prefix(name))
        }
        named |= {file.path for file, _ in (await live_records(metadata, name)).values()}
        files = open_object_store(spec)
        for path in paths - named:
            opened = await EntryFile.open(files, path)
            if opened.properties.get(PROPERTY_CLUSTER) == cluster_id:
                await remove_file(files, path)
                removed.files += 1
    except (MagnetarError, TimeoutError, OSError) as error:
        removed.errors.append((f"{spec}/{name}", str(error) or type(error).__name__))
    return removed


async def _old_files(spec: StoreSpec, name: str, age_s: float) -> set[str]:
    """Files by our names, in the folder of the managed ledger."""
    folder = object_path(name, 0, "").rpartition("/")[0]
    before = datetime.now(UTC) - timedelta(seconds=age_s)
    async with asyncio.timeout(LIST_TIMEOUT_S):
        return await asyncio.to_thread(_listed, spec, folder, before)


def _listed(spec: StoreSpec, folder: str, before: datetime) -> set[str]:
    import obstore

    found: set[str] = set()
    try:
        for some in obstore.list(open_object_store(spec), prefix=folder):
            for each in some:
                parent, _, name = each["path"].rpartition("/")
                if parent == folder and _NAME.fullmatch(name) and each["last_modified"] <= before:
                    found.add(each["path"])
    except Exception as error:
        raise store_error(error, f"{spec}/{folder}") from error
    return found
