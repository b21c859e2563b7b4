"""How an artefact becomes live, and what is left behind is found.

    lease /compaction-jobs/{job}            lives while the job does
    attempt /compaction-attempts/…          put before the first byte
    …passes…                                files, each read back
    one transaction: the log's record is as it was read, the artefact's is as the job began with,
    the attempt is still there → the new artefact's record, without the attempt

So of two jobs on one topic one commits; a deleted topic gets no artefact; and a job whose lease was
lost, and whose attempt another has cleaned up, commits nothing. Who loses deletes their folder.
What a killed job has left is deleted by the next one, on whatever topic (`leftovers`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.compaction.deleting import delete_files, delete_folder
from magnetar.compaction.records import (
    RETIRED_GRACE_MS,
    CompactedFile,
    CompactionAttempt,
    CompactionRecord,
    RetiredFile,
    attempt_folder,
    attempt_key,
    compaction_key,
    decode_compaction,
    encode,
    files_of,
    job_key,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict, MagnetarError, TopicNotFound
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    Lease,
    LeaseLost,
    MetadataStore,
    MetadataUnavailable,
    Put,
)
from magnetar.offload.errors import COLD_ERRORS
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.compact.pieces import mark_of
from magnetar_spark.jobs.sweeping import Removed

LEASE_S: Final = 60.0
RENEWALS_PER_LEASE: Final = 4
COMMIT_ATTEMPTS_MAX: Final = 20
"""The log's record changes as ledgers are added: then it is read again."""
COMMIT_RETRY_S: Final = 0.5


class Superseded(Conflict):
    """Another job has compacted the topic meanwhile, or has cleaned this attempt up."""


@dataclass(frozen=True, slots=True)
class Live:
    """The artefact that there is, and the revision of its record; no record: ABSENT."""

    record: CompactionRecord | None
    revision: int


async def live(store: MetadataStore, name: str) -> tuple[Live, int]:
    """The topic's artefact, of the log that there is now, and when that was created.

    Raises TopicNotFound. What stands there of an older log of that name is not the topic's.
    """
    described = await store.get(managed_ledger_key(name))
    log = None if described is None else decode_managed_ledger(described.key, described.value)
    if log is None or log.deleted:
        raise TopicNotFound(f"there is no log {name}")
    key = compaction_key(name)
    stored = await store.get(key)
    if stored is None:
        return Live(None, ABSENT), log.created_ms
    record = decode_compaction(key, stored.value)
    if record.log_created_ms != log.created_ms:
        # Nothing of it is read; its files are nobody's, and to be deleted.
        record = msgspec.structs.replace(
            record,
            horizon=EARLIEST,
            log_created_ms=log.created_ms,
            files=(),
            retired=files_of(record, record.compacted_ms),
            marked=EARLIEST,
            marked_ms=0,
        )
    return Live(record, stored.revision), log.created_ms


@asynccontextmanager
async def job_lease(store: MetadataStore, job: str) -> AsyncIterator[Lease]:
    """A key that lives while the job does."""
    lease = await store.grant_lease(LEASE_S)
    await store.put(job_key(job), b"{}", lease_id=lease.id)
    renewing = asyncio.ensure_future(_renew(lease))
    try:
        yield lease
    finally:
        renewing.cancel()
        with suppress(asyncio.CancelledError):
            await renewing
        with suppress(MagnetarError):
            await lease.revoke()


async def _renew(lease: Lease) -> None:
    while True:
        await asyncio.sleep(lease.ttl_s / RENEWALS_PER_LEASE)
        try:
            await lease.keep_alive()
        except LeaseLost:
            return  # commits will tell: the attempt may be cleaned up
        except MagnetarError:
            continue


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at compacting one topic."""

    name: str
    number: str
    """A hex uuid."""
    record: CompactionAttempt
    revision: int
    based_on: Live
    log_created_ms: int

    @property
    def folder(self) -> str:
        return self.record.folder


async def begin(
    store: MetadataStore,
    name: str,
    number: str,
    target: StoreSpec,
    job: str,
    clock: Clock,
    *,
    planned: tuple[Live, int],
) -> Attempt:
    """Puts the attempt on record. `planned` is what `live` said before the log was looked at: an
    artefact that became live since then may reach further, and a log may be another one.

    Raises TopicNotFound, Superseded.
    """
    based_on, created_ms = await live(store, name)
    if created_ms != planned[1] or _attempt_of(based_on) != _attempt_of(planned[0]):
        raise Superseded(f"{name}: another job was faster, or the topic was made anew")
    folder = attempt_folder(name, number)
    record = CompactionAttempt(target, folder, clock.now_ms(), job)
    revision = await store.put(attempt_key(name, number), encode(record), expected=ABSENT)
    return Attempt(name, number, record, revision, based_on, created_ms)


def _attempt_of(known: Live) -> str:
    return "" if known.record is None else known.record.attempt


async def commit(
    store: MetadataStore,
    attempt: Attempt,
    horizon: Position,
    files: tuple[CompactedFile, ...],
    *,
    removed: int,
    clock: Clock,
) -> CompactionRecord:
    """Makes the files live; raises Superseded, TopicNotFound, MetadataUnavailable."""
    now_ms = clock.now_ms()
    before = attempt.based_on.record
    retired: tuple[RetiredFile, ...] = ()
    if before is not None:
        old = tuple(RetiredFile(before.store, file.path, now_ms) for file in before.files)
        retired = (*before.retired, *old)
    marked, marked_ms = mark_of(before, horizon, now_ms)
    record = CompactionRecord(
        horizon=horizon,
        log_created_ms=attempt.log_created_ms,
        attempt=attempt.number,
        store=attempt.record.store,
        compacted_ms=now_ms,
        files=files,
        retired=retired,
        messages_removed=removed,
        duration_ms=now_ms - attempt.record.started_ms,
        marked=marked,
        marked_ms=marked_ms,
    )
    value, key = encode(record), compaction_key(attempt.name)
    for _ in range(COMMIT_ATTEMPTS_MAX):
        stored = await store.get(managed_ledger_key(attempt.name))
        log = None if stored is None else decode_managed_ledger(stored.key, stored.value)
        if stored is None or log is None or log.deleted or log.created_ms != attempt.log_created_ms:
            raise TopicNotFound(f"{attempt.name} was deleted while it was compacted")
        if log.last_position > horizon:
            # Later values of keys are gone, and it would tell elder ones for ever.
            raise Superseded(f"{attempt.name} was trimmed beyond {horizon} while it was compacted")
        try:
            await store.transact(
                [
                    Check(stored.key, stored.revision),
                    Put(key, value, attempt.based_on.revision),
                    Delete(attempt_key(attempt.name, attempt.number), attempt.revision),
                ]
            )
        except BadRevision as error:
            found = await store.get(key)
            if found is not None and found.value == value:
                return record  # an answer was lost, and this was done
            if error.key != stored.key:
                raise Superseded(f"{attempt.name}: another job was faster: {error}") from error
        except MetadataUnavailable:
            await asyncio.sleep(COMMIT_RETRY_S)
        else:
            return record
    raise MetadataUnavailable(f"{key} could not be written")


async def give_up(store: MetadataStore, attempt: Attempt) -> None:
    """Deletes what the attempt wrote, then the attempt. What fails is left for the next job.

    The attempt is taken back first: a commit that was not answered may have been done, or be still
    on its way. Where it was done, nothing is deleted.
    """
    key = attempt_key(attempt.name, attempt.number)
    try:
        revision = await store.put(key, encode(attempt.record), expected=attempt.revision)
    except BadRevision:
        # Committed, or claimed by a cleaner, after which tasks may have written more.
        if not await _was_live(store, attempt):
            await delete_folder(attempt.record.store, attempt.folder)
        return
    await delete_folder(attempt.record.store, attempt.folder)
    with suppress(BadRevision):
        await store.delete(key, expected=revision)


async def _was_live(store: MetadataStore, attempt: Attempt) -> bool:
    """Whether it was committed, and is in use or in the grace of what was."""
    current = await store.get(compaction_key(attempt.name))
    if current is None:
        return False
    record = decode_compaction(current.key, current.value)
    inside = f"{attempt.folder}/"
    return record.attempt == attempt.number or any(
        each.path.startswith(inside) for each in record.retired
    )


async def clean_retired(store: MetadataStore, name: str, now_ms: int) -> Removed:
    """Deletes files that were replaced long enough ago.

    Those whose store is away stay named, and are told as kept.
    """
    removed, key = Removed(), compaction_key(name)
    stored = await store.get(key)
    if stored is None:
        return removed
    record = decode_compaction(key, stored.value)
    due = [each for each in record.retired if each.retired_ms <= now_ms - RETIRED_GRACE_MS]
    gone: set[RetiredFile] = set()
    away: dict[StoreSpec, str] = {}
    for file in due:
        if file.store in away:
            continue
        try:
            await delete_files([file])
        except COLD_ERRORS as error:
            away[file.store] = str(error)
        else:
            gone.add(file)
    removed.files = len(gone)
    removed.kept += [(f"{spec}, replaced files of {name}", why) for spec, why in away.items()]
    if gone:
        left = tuple(each for each in record.retired if each not in gone)
        changed = msgspec.structs.replace(record, retired=left)
        with suppress(BadRevision):  # they are named still, and found to be gone the next time
            await store.put(key, encode(changed), expected=stored.revision)
    return removed
