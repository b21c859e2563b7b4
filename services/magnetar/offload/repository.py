"""Reads and writes the metadata of cold data: live files, attempts, requests, policies.

All readers and writers of these records go through `OffloadRepository`, so that the order of its
reads and the compares of its writes are in one place. The records are described in `records`.

An attempt is recorded before its file's first byte. Then it is committed, or claimed and deleted:

- A commit is one transaction. It requires that the ledger is unchanged since it was read, that the
  ledger has no live file yet, and that the attempt still belongs to the caller. A trimmed ledger, a
  second job and a cleaner therefore each make it fail, and the loser deletes its own file.
- A cleaner claims an attempt first, by writing its own job into the record. From then on no other
  job can commit it. If the cleaner is killed, the next run claims the attempt again.
- If the outcome of a commit is unknown, file and attempt are left alone: either the file's record
  names the attempt, or the attempt is still recorded and the next run deletes it.
"""

import asyncio
import uuid
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from magnetar.core.errors import PersistenceError
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, ledger_key
from magnetar.ledger.metadata import decode as decode_ledger
from magnetar.metadata.records import encode
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    MetadataUnavailable,
    Put,
    Record,
)
from magnetar.offload.policy import (
    OffloadDefaults,
    OffloadPlan,
    decode_defaults,
    effective,
    namespace_document,
    namespace_key,
    topic_offload,
    topic_policies_key,
)
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    DEFAULTS_KEY,
    JOBS_PREFIX,
    AttemptRecord,
    OffloadRecord,
    OffloadRequest,
    attempt_key,
    attempts_prefix,
    decode_attempt,
    decode_offload,
    decode_request,
    object_path,
    offload_key,
    offloads_prefix,
    request_key,
)
from magnetar.offload.stores import StoreSpec
from magnetar.offload.trash import delete_file

if TYPE_CHECKING:
    from obstore.store import ObjectStore

COMMIT_TIMEOUT_S: Final = 60.0
COMMIT_PAUSE_S_MAX: Final = 2.0


class LiveFile(NamedTuple):
    """A live file, and the revision of its record."""

    record: OffloadRecord
    revision: int


class OpenRequest(NamedTuple):
    """A request that is not finished, and the revision of its record."""

    request: OffloadRequest
    revision: int


class TopicPolicies(NamedTuple):
    """The policy records of a topic: its namespace's document, and its own."""

    namespace: dict[str, Any]
    topic: dict[str, Any]
    offload: dict[str, Any] | None
    """The topic's own offload policies; None if it sets none."""

    def plan(self, defaults: OffloadDefaults) -> OffloadPlan:
        """The effective offload policies."""
        return effective(defaults, self.namespace, self.offload)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that is recorded at `revision`."""

    key: str
    attempt: str
    path: str
    revision: int


class CommitResult(StrEnum):
    """How a commit ended, if its outcome is known."""

    OFFLOADED = "offloaded"
    ALREADY = "already"
    """Another attempt was first: its file is live."""
    GONE = "gone"
    """The ledger was trimmed, or its topic deleted."""


class OffloadRepository:
    """The records of offloaded ledgers in one metadata store. Holds no state of its own."""

    __slots__ = ("_store",)

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def file(self, name: str, ledger_id: int) -> OffloadRecord | None:
        """The live file of a ledger."""
        key = offload_key(name, ledger_id)
        stored = await self._store.get(key)
        return None if stored is None else decode_offload(key, stored.value)

    async def files(self, name: str) -> dict[int, LiveFile]:
        """The live files of a managed ledger by ledger, in the order of ledger ids."""
        files: dict[int, LiveFile] = {}
        for stored in await self._store.list(offloads_prefix(name)):
            record = decode_offload(stored.key, stored.value)
            files[record.ledger_id] = LiveFile(record, stored.revision)
        return files

    async def mark_released(self, name: str, file: LiveFile, now_ms: int) -> bool:
        """Records that bookies may delete the ledger; False if the record has changed."""
        value = encode(msgspec.structs.replace(file.record, released_ms=now_ms))
        key = offload_key(name, file.record.ledger_id)
        try:
            await self._store.put(key, value, expected=file.revision)
        except BadRevision:
            return False
        return True

    async def closed_ledger(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """A ledger and the revision of its record, None if it was deleted.

        Raises PersistenceError if it is not closed.
        """
        key = ledger_key(ledger_id)
        stored = await self._store.get(key)
        if stored is None:
            return None
        metadata = decode_ledger(key, stored.value)
        if metadata.state is not LedgerState.CLOSED:
            raise PersistenceError(f"ledger {ledger_id} is {metadata.state}, not closed")
        return metadata, stored.revision

    async def defaults(self) -> OffloadDefaults:
        """The settings that brokers publish for jobs."""
        return decode_defaults(DEFAULTS_KEY, await self._value(DEFAULTS_KEY))

    async def policies(self, name: str) -> TopicPolicies:
        """The policy records that apply to a managed ledger's topic."""
        keys = namespace_key(name), topic_policies_key(name)
        namespace, topic = await asyncio.gather(*map(self._value, keys))
        return TopicPolicies(
            namespace_document(keys[0], namespace),
            namespace_document(keys[1], topic),
            topic_offload(keys[1], topic),
        )

    async def open_request(self, name: str) -> OpenRequest | None:
        """The request of a managed ledger, unless it is finished."""
        key = request_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None
        request = decode_request(key, stored.value)
        return None if request.finished else OpenRequest(request, stored.revision)

    async def replace_request(self, name: str, request: OffloadRequest, revision: int) -> bool:
        """Writes a request over the one at `revision`; False if that has changed."""
        try:
            await self._store.put(request_key(name), encode(request), expected=revision)
        except BadRevision:
            return False
        return True

    async def delete_request(self, name: str, under: Check) -> None:
        """Deletes the request of a managed ledger, finished or not. Raises BadRevision."""
        await self._store.transact([Delete(request_key(name)), under])

    async def jobs(self) -> set[str]:
        """The ids of all running jobs."""
        return {
            stored.key.removeprefix(JOBS_PREFIX) for stored in await self._store.list(JOBS_PREFIX)
        }

    async def attempts(self) -> list[Record]:
        """The records of all attempts, not decoded: a bad record must not hide the others."""
        return await self._store.list(ATTEMPTS_PREFIX)

    async def attempt_paths(self, name: str) -> set[str]:
        """The paths of all files that attempts on a managed ledger may write."""
        stored = await self._store.list(attempts_prefix(name))
        return {decode_attempt(record.key, record.value).path for record in stored}

    async def begin_attempt(
        self, name: str, ledger_id: int, store: StoreSpec, job: str, now_ms: int
    ) -> Attempt:
        """Records a new attempt of `job`."""
        attempt = uuid.uuid4().hex
        key = attempt_key(name, ledger_id, attempt)
        path = object_path(name, ledger_id, attempt)
        record = AttemptRecord(store, path, now_ms, job)
        revision = await self._store.put(key, encode(record), expected=ABSENT)
        return Attempt(key, attempt, path, revision)

    async def claim_attempt(self, attempt: Attempt, record: AttemptRecord, job: str) -> Attempt:
        """Takes an attempt over from a dead job. Raises BadRevision if the attempt has changed."""
        claimed = encode(msgspec.structs.replace(record, job=job))
        revision = await self._store.put(attempt.key, claimed, expected=attempt.revision)
        return Attempt(attempt.key, attempt.attempt, attempt.path, revision)

    async def reclaim_attempt(self, attempt: Attempt, job: str) -> Attempt | None:
        """Claims an own attempt again, so that a commit in flight cannot take effect any more.

        None if a commit did take effect, or another job has claimed the attempt.
        """
        stored = await self._store.get(attempt.key)
        if stored is None or stored.revision != attempt.revision:
            return None
        try:
            record = decode_attempt(stored.key, stored.value)
            return await self.claim_attempt(attempt, record, job)
        except BadRevision:
            return None

    async def discard_attempt(self, files: "ObjectStore", attempt: Attempt) -> None:
        """Deletes the file, then the attempt, which the caller must have claimed. Idempotent."""
        await delete_file(files, attempt.path)
        try:
            await self._store.delete(attempt.key, expected=attempt.revision)
        except BadRevision as changed:
            if changed.actual != ABSENT:
                raise

    async def commit(self, name: str, attempt: Attempt, file: OffloadRecord) -> CommitResult:
        """Makes the file live. Raises MetadataUnavailable if the outcome is unknown."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMMIT_TIMEOUT_S
        pause_s, rng = 0.05, Random()
        while True:
            try:
                return await self._commit_once(name, attempt, file)
            except BadRevision:
                pass  # a record has changed since it was read: the next round reads it again
            except MetadataUnavailable:
                if loop.time() >= deadline:
                    raise
            if loop.time() >= deadline:
                raise MetadataUnavailable(f"{attempt.key} could not be committed in time")
            await asyncio.sleep(pause_s * (0.5 + rng.random()))
            pause_s = min(COMMIT_PAUSE_S_MAX, pause_s * 2)

    async def _commit_once(self, name: str, attempt: Attempt, file: OffloadRecord) -> CommitResult:
        live = await self.file(name, file.ledger_id)
        if live is not None:
            return _result_of(live, attempt)
        ledger = await self.closed_ledger(file.ledger_id)
        if ledger is None:
            return CommitResult.GONE
        metadata, revision = ledger
        if (metadata.last_entry + 1, metadata.length_bytes) != (file.entries, file.length_bytes):
            raise PersistenceError(
                f"ledger {file.ledger_id} has {metadata.last_entry + 1} entries of "
                f"{metadata.length_bytes} bytes, its file {file.entries} of {file.length_bytes}"
            )
        mine = await self._store.get(attempt.key)
        if mine is None or mine.revision != attempt.revision:
            # A cleaner has claimed it, or an unanswered commit of ours took effect after the
            # first read of the live file. Only a second read tells them apart.
            live = await self.file(name, file.ledger_id)
            if live is None:
                raise PersistenceError(
                    f"attempt {attempt.attempt} was cleaned up: the job seemed dead"
                )
            return _result_of(live, attempt)
        await self._store.transact(
            [
                Check(ledger_key(file.ledger_id), revision),
                Put(offload_key(name, file.ledger_id), encode(file), expected=ABSENT),
                Delete(attempt.key, expected=attempt.revision),
            ]
        )
        return CommitResult.OFFLOADED

    async def _value(self, key: str) -> bytes | None:
        stored = await self._store.get(key)
        return None if stored is None else stored.value


def _result_of(live: OffloadRecord, attempt: Attempt) -> CommitResult:
    """The result of a commit that found the ledger offloaded already."""
    mine = live.attempt == attempt.attempt
    return CommitResult.OFFLOADED if mine else CommitResult.ALREADY
