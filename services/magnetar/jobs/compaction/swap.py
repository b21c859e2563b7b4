"""Commits compactions: makes an artifact live, and retires the one that it replaces.

    lease /compaction-jobs/{job}            exists while the job runs
    attempt /compaction-attempts/…          recorded before the first byte
    …passes…                                files, each verified
    one transaction: if the log's record is as read, the artifact's record is as the job began
    with, and the attempt still exists → write the artifact's record, delete the attempt

So if two jobs compact one topic, one of them commits; a deleted topic gets no artifact; and a job
whose lease was lost, and whose attempt was cleaned up, commits nothing. The loser deletes its
folder. The next job deletes what a killed job has left, on any topic (`leftovers`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.compaction.deletion import delete_files, delete_folder
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
    files_of,
    job_key,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict, MagnetarError, TopicNotFound
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.tasks import TaskScope
from magnetar.jobs.compaction.chunks import mark_of
from magnetar.jobs.sweeper import Removed
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode
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

LEASE_S: Final = 60.0
RENEWALS_PER_LEASE: Final = 4
COMMIT_ATTEMPTS_MAX: Final = 20
"""The log's record changes whenever a ledger is added; then it is read again."""
COMMIT_RETRY_S: Final = 0.5


class Superseded(Conflict):
    """Another job has compacted the topic meanwhile, or has cleaned up this attempt."""


@dataclass(frozen=True, slots=True)
class Live:
    """The live artifact and the revision of its record; ABSENT without one."""

    record: CompactionRecord | None
    revision: int


async def live(store: MetadataStore, name: str) -> tuple[Live, int]:
    """The artifact of a topic's current log, and when that log was created.

    The artifact of an older log of that name does not count. Raises TopicNotFound.
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
        # It belongs to an older log: nothing of it is read, and its files are to be deleted.
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
    """Holds the job's key until the context ends, or the process dies."""
    lease = await store.grant_lease(LEASE_S)
    await store.put(job_key(job), b"{}", lease_id=lease.id)
    try:
        async with TaskScope(f"compaction job {job}") as scope:
            scope.start(_renew(lease), "lease")
            yield lease
    finally:
        with suppress(MagnetarError):
            await lease.revoke()


async def _renew(lease: Lease) -> None:
    while True:
        await asyncio.sleep(lease.ttl_s / RENEWALS_PER_LEASE)
        try:
            await lease.keep_alive()
        except LeaseLost:
            return  # commits find out: the attempt may have been cleaned up
        except MagnetarError:
            continue


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to compact one topic."""

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
    """Records an attempt. `planned` is the result of `live` from before the log was read.

    An artifact that became live since then may reach further, and the log may be another one.
    Raises TopicNotFound, Superseded.
    """
    based_on, created_ms = await live(store, name)
    if created_ms != planned[1] or _attempt_of(based_on) != _attempt_of(planned[0]):
        raise Superseded(f"{name}: another job was faster, or the topic was created again")
    folder = attempt_folder(name, number)
    record = CompactionAttempt(target, folder, clock.now_ms(), job)
    revision = await store.put(attempt_key(name, number), encode(record), expected=ABSENT)
    return Attempt(name, number, record, revision, based_on, created_ms)


def _attempt_of(artifact: Live) -> str:
    return "" if artifact.record is None else artifact.record.attempt


async def commit(
    store: MetadataStore,
    attempt: Attempt,
    horizon: Position,
    files: tuple[CompactedFile, ...],
    *,
    removed: int,
    clock: Clock,
) -> CompactionRecord:
    """Makes the files live. Raises Superseded, TopicNotFound, MetadataUnavailable."""
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
            # Later values of keys are gone: the artifact would serve older values for ever.
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
            current = await store.get(key)
            if current is not None and current.value == value:
                return record  # an earlier commit took effect, and its answer was lost
            if error.key != stored.key:
                raise Superseded(f"{attempt.name}: another job was faster: {error}") from error
        except MetadataUnavailable:
            await asyncio.sleep(COMMIT_RETRY_S)
        else:
            return record
    raise MetadataUnavailable(f"{key} could not be written")


async def give_up(store: MetadataStore, attempt: Attempt) -> None:
    """Deletes the attempt's files, then the attempt. What fails is left to the next job.

    The attempt is rewritten first: an unanswered commit may have taken effect, or be in flight. If
    it took effect, nothing is deleted.
    """
    key = attempt_key(attempt.name, attempt.number)
    try:
        revision = await store.put(key, encode(attempt.record), expected=attempt.revision)
    except BadRevision:
        # Committed, or claimed by a cleaner, after which tasks may have written more files.
        if not await _was_live(store, attempt):
            await delete_folder(attempt.record.store, attempt.folder)
        return
    await delete_folder(attempt.record.store, attempt.folder)
    with suppress(BadRevision):
        await store.delete(key, expected=revision)


async def _was_live(store: MetadataStore, attempt: Attempt) -> bool:
    """Whether the attempt was committed, and its files are live or retired."""
    current = await store.get(compaction_key(attempt.name))
    if current is None:
        return False
    record = decode_compaction(current.key, current.value)
    inside = f"{attempt.folder}/"
    return record.attempt == attempt.number or any(
        file.path.startswith(inside) for file in record.retired
    )


async def clean_retired(store: MetadataStore, name: str, now_ms: int) -> Removed:
    """Deletes retired files after their grace period.

    Files in unavailable stores stay on record, and are reported as kept.
    """
    removed, key = Removed(), compaction_key(name)
    stored = await store.get(key)
    if stored is None:
        return removed
    record = decode_compaction(key, stored.value)
    due = [file for file in record.retired if file.retired_ms <= now_ms - RETIRED_GRACE_MS]
    gone: set[RetiredFile] = set()
    unavailable: dict[StoreSpec, str] = {}
    for file in due:
        if file.store in unavailable:
            continue
        try:
            await delete_files([file])
        except COLD_ERRORS as error:
            unavailable[file.store] = str(error)
        else:
            gone.add(file)
    removed.files = len(gone)
    removed.kept += [
        (f"{spec}, replaced files of {name}", why) for spec, why in unavailable.items()
    ]
    if gone:
        left = tuple(file for file in record.retired if file not in gone)
        changed = msgspec.structs.replace(record, retired=left)
        with suppress(BadRevision):  # they stay on record; the next run finds them deleted
            await store.put(key, encode(changed), expected=stored.revision)
    return removed
