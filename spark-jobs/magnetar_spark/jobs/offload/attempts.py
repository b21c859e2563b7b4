"""Attempts to offload a ledger: begun before a file's first byte, committed, or given up.

A commit is one transaction: the ledger is as it was when it was read, it has no file yet, and the
attempt is still ours. So a ledger that was trimmed, a second job, and a cleaner each make it fail,
and who fails removes the own file. A cleaner claims an attempt first, by putting its own job into
the record: from then on nobody can commit it, and a cleaner that is killed leaves it to the next.

Where nobody knows whether a commit happened, file and attempt are left as they are: the record of
the file is there with ours in it, or else the attempt is, which the next run removes.
"""

import asyncio
import uuid
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.core.errors import PersistenceError
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, ledger_key
from magnetar.ledger.metadata import decode as decode_ledger
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    MetadataUnavailable,
    Put,
)
from magnetar.offload.records import (
    AttemptRecord,
    OffloadRecord,
    attempt_key,
    decode_attempt,
    encode,
    object_path,
    offload_key,
)
from magnetar.offload.trash import delete_file
from magnetar_spark.jobs.offload.work import LedgerTask, Result
from magnetar_spark.log.ledgers import live_file

if TYPE_CHECKING:
    from obstore.store import ObjectStore

COMMIT_TIMEOUT_S: Final = 60.0
COMMIT_PAUSE_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that is in metadata, at `revision`."""

    key: str
    attempt: str
    path: str
    revision: int


async def begin(store: MetadataStore, task: LedgerTask, job: str, now_ms: int) -> Attempt:
    """A new attempt of this job."""
    attempt = uuid.uuid4().hex
    key = attempt_key(task.name, task.ledger_id, attempt)
    path = object_path(task.name, task.ledger_id, attempt)
    record = AttemptRecord(task.store, path, now_ms, job)
    revision = await store.put(key, encode(record), expected=ABSENT)
    return Attempt(key, attempt, path, revision)


async def closed_ledger(store: MetadataStore, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
    """The ledger and its record's revision; None where it is gone. It must be closed."""
    key = ledger_key(ledger_id)
    record = await store.get(key)
    if record is None:
        return None
    metadata = decode_ledger(key, record.value)
    if metadata.state is not LedgerState.CLOSED:
        raise PersistenceError(f"ledger {ledger_id} is {metadata.state}, not closed")
    return metadata, record.revision


async def commit(store: MetadataStore, attempt: Attempt, name: str, file: OffloadRecord) -> Result:
    """Makes the file live, or says why it is not; raises MetadataUnavailable: nobody knows."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + COMMIT_TIMEOUT_S
    pause_s, rng = 0.05, Random()
    while True:
        try:
            result = await _commit_once(store, attempt, name, file)
            if result is not None:
                return result
        except BadRevision:
            pass  # something has changed since it was read: the next round sees what
        except MetadataUnavailable:
            if loop.time() >= deadline:
                raise
        if loop.time() >= deadline:
            raise MetadataUnavailable(f"{attempt.key} could not be committed in time")
        await asyncio.sleep(pause_s * (0.5 + rng.random()))
        pause_s = min(COMMIT_PAUSE_S_MAX, pause_s * 2)


async def _commit_once(
    store: MetadataStore, attempt: Attempt, name: str, file: OffloadRecord
) -> Result | None:
    live = await live_file(store, name, file.ledger_id)
    if live is not None:
        return Result.OFFLOADED if live.attempt == attempt.attempt else Result.ALREADY
    found = await closed_ledger(store, file.ledger_id)
    if found is None:
        return Result.GONE
    metadata, revision = found
    if (metadata.last_entry + 1, metadata.length_bytes) != (file.entries, file.length_bytes):
        raise PersistenceError(
            f"ledger {file.ledger_id} has {metadata.last_entry + 1} entries of "
            f"{metadata.length_bytes} bytes, its file {file.entries} of {file.length_bytes}"
        )
    mine = await store.get(attempt.key)
    if mine is None or mine.revision != attempt.revision:
        # Claimed by a cleaner; a commit of ours that was not answered has not happened then,
        # unless it did between the first question and this one.
        live = await live_file(store, name, file.ledger_id)
        if live is None:
            raise PersistenceError(f"attempt {attempt.attempt} was cleaned up: the job seemed dead")
        return Result.OFFLOADED if live.attempt == attempt.attempt else Result.ALREADY
    await store.transact(
        [
            Check(ledger_key(file.ledger_id), revision),
            Put(offload_key(name, file.ledger_id), encode(file), expected=ABSENT),
            Delete(attempt.key, expected=attempt.revision),
        ]
    )
    return Result.OFFLOADED


async def claim(store: MetadataStore, attempt: Attempt, record: AttemptRecord, job: str) -> Attempt:
    """Takes an attempt from a job that is dead; raises BadRevision where it is another's now."""
    taken = encode(msgspec.structs.replace(record, job=job))
    revision = await store.put(attempt.key, taken, expected=attempt.revision)
    return Attempt(attempt.key, attempt.attempt, attempt.path, revision)


async def take_back(store: MetadataStore, attempt: Attempt, job: str) -> Attempt | None:
    """An own attempt, such that a commit that is still on its way cannot happen any more; None
    where one did happen, or another has claimed it."""
    stored = await store.get(attempt.key)
    if stored is None or stored.revision != attempt.revision:
        return None
    try:
        return await claim(store, attempt, decode_attempt(stored.key, stored.value), job)
    except BadRevision:
        return None


async def give_up(store: MetadataStore, files: "ObjectStore", attempt: Attempt) -> None:
    """Removes the file, then the attempt, which must be ours by `claim`. Idempotent."""
    await delete_file(files, attempt.path)
    try:
        await store.delete(attempt.key, expected=attempt.revision)
    except BadRevision as changed:
        if changed.actual != ABSENT:
            raise
