"""What metadata says of compacted topics: artefacts that are live, attempts, jobs, requests.

- `/compactions/{managed ledger}`: the files that together hold the latest value of each key up to
  the horizon. Written by compare-and-swap only, in one transaction with a check of the log's own
  record, so that no artefact becomes live of a log that is being deleted. `log_created_ms` says of
  which log of that name it is: a topic that was deleted and made again never sees an older one's.
- `/compaction-attempts/{managed ledger}/{attempt}`: a folder in which files may come into being.
  It is put before the first byte, and goes in the transaction that makes the files live.
- `/compaction-jobs/{job}`: lives while the job does. An attempt whose job has no key is a leftover.
- `/compaction-requests/{managed ledger}`: what `pulsar-admin topics compact` asked for last.

What topics that were deleted leave behind is in the trash of all cold files (`offload.trash`).

Files that another artefact has replaced stand in its record as `retired`, and are deleted after
RETIRED_GRACE_MS: who has them open can finish.
"""

from enum import StrEnum
from typing import Final

import msgspec

from magnetar.core.ids import EARLIEST, Position
from magnetar.offload.records import decoded, object_path
from magnetar.offload.stores import StoreSpec

COMPACTIONS_PREFIX: Final = "/compactions/"
ATTEMPTS_PREFIX: Final = "/compaction-attempts/"
JOBS_PREFIX: Final = "/compaction-jobs/"
REQUESTS_PREFIX: Final = "/compaction-requests/"

RETIRED_GRACE_MS: Final = 30 * 60_000
FILES_MAX: Final = 1_000
"""Of one artefact: with those that it replaced they fit the record of a metadata store."""
FOLDER_LEDGER_ID: Final = 0
"""Artefacts lie beside a topic's offloaded ledgers, of which none has this id."""


class CompactedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of an artefact: entries of ascending positions, from `first` to `last`."""

    path: str
    file_bytes: int
    checksum: int
    first: Position
    last: Position
    entries: int
    messages: int
    length_bytes: int


class RetiredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that is to be deleted once it was retired long enough ago."""

    store: StoreSpec
    path: str
    retired_ms: int


class CompactionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live artefact. `messages_removed` and `duration_ms` are of the job that made it.

    All up to `marked` was in the log at `marked_ms`, which may have been long before this artefact.
    """

    horizon: Position
    log_created_ms: int
    attempt: str
    store: StoreSpec
    compacted_ms: int
    files: tuple[CompactedFile, ...] = ()
    retired: tuple[RetiredFile, ...] = ()
    messages_removed: int = 0
    duration_ms: int = 0
    marked: Position = EARLIEST
    marked_ms: int = 0

    @property
    def last(self) -> Position | None:
        """The last entry that is left; None where none is."""
        return self.files[-1].last if self.files else None

    @property
    def entries(self) -> int:
        return sum(file.entries for file in self.files)

    @property
    def length_bytes(self) -> int:
        return sum(file.length_bytes for file in self.files)


class CompactionAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that a job is writing to, or has left behind."""

    store: StoreSpec
    folder: str
    started_ms: int
    job: str


class RequestState(StrEnum):
    """Where a request is; the words are those of Pulsar's status, but for PENDING."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class CompactionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asked for, or done without being asked: then `requested_ms` is when the job began."""

    requested_ms: int
    state: RequestState = RequestState.PENDING
    job: str = ""
    finished_ms: int = 0
    failed_ms: int = 0
    """When it failed last, kept when it succeeds again."""
    error: str = ""

    @property
    def finished(self) -> bool:
        return self.state in (RequestState.SUCCESS, RequestState.ERROR)


encode = msgspec.json.Encoder().encode
_record_decoder = msgspec.json.Decoder(CompactionRecord)
_attempt_decoder = msgspec.json.Decoder(CompactionAttempt)
_request_decoder = msgspec.json.Decoder(CompactionRequest)


def compaction_key(name: str) -> str:
    return COMPACTIONS_PREFIX + name


def request_key(name: str) -> str:
    return REQUESTS_PREFIX + name


def attempt_key(name: str, attempt: str) -> str:
    return f"{ATTEMPTS_PREFIX}{name}/{attempt}"


def job_key(job: str) -> str:
    return JOBS_PREFIX + job


def attempt_folder(name: str, attempt: str) -> str:
    """Where an attempt's files are, below the store's prefix."""
    folder, _, _ = object_path(name, FOLDER_LEDGER_ID, attempt).rpartition("/")
    return f"{folder}/compacted-{attempt}"


def files_of(record: CompactionRecord, now_ms: int) -> tuple[RetiredFile, ...]:
    """All that the record names, as files that nobody needs any more."""
    live = tuple(RetiredFile(record.store, file.path, now_ms) for file in record.files)
    return (*record.retired, *live)


def decode_compaction(key: str, value: bytes) -> CompactionRecord:
    """Raises MetadataError naming the key where the value is no record of an artefact."""
    return decoded(_record_decoder, key, value, "compacted topic")


def decode_attempt(key: str, value: bytes) -> CompactionAttempt:
    """Raises MetadataError naming the key where the value is no attempt."""
    return decoded(_attempt_decoder, key, value, "attempt to compact")


def decode_request(key: str, value: bytes) -> CompactionRequest:
    """Raises MetadataError naming the key where the value is no request."""
    return decoded(_request_decoder, key, value, "request to compact")
