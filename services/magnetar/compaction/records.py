"""The metadata records of compacted topics: live artifacts, attempts, jobs, requests.

- `/compactions/{managed ledger}`: the files that together hold the latest value of each key up to
  the horizon. Written by compare-and-swap only, in one transaction with a check of the log's own
  record, so that no artifact becomes live for a log that is being deleted. `log_created_ms`
  identifies the log: a topic that was deleted and created again never sees the older artifact.
- `/compaction-attempts/{managed ledger}/{attempt}`: a folder in which a job may be writing files.
  Recorded before the first byte, deleted in the transaction that makes the files live.
- `/compaction-jobs/{job}`: exists while the job runs. An attempt whose job has no key is a
  leftover.
- `/compaction-requests/{managed ledger}`: the last request of `pulsar-admin topics compact`.

Files of deleted topics go into the trash of all cold files (`offload.trash`). Files that a newer
artifact has replaced are `retired` in its record, and are deleted after RETIRED_GRACE_MS, so that
readers that have them open can finish.
"""

from typing import Final

import msgspec

from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.records import RecordType
from magnetar.offload.records import RequestState, object_path
from magnetar.offload.stores import StoreSpec

COMPACTIONS_PREFIX: Final = "/compactions/"
ATTEMPTS_PREFIX: Final = "/compaction-attempts/"
JOBS_PREFIX: Final = "/compaction-jobs/"
REQUESTS_PREFIX: Final = "/compaction-requests/"

RETIRED_GRACE_MS: Final = 30 * 60_000
FILES_MAX: Final = 1_000
"""Files of one artifact; with those that they replaced, they fit one record of a metadata store."""
FOLDER_LEDGER_ID: Final = 0
"""Artifacts are stored beside a topic's offloaded ledgers, none of which has this id."""


class CompactedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of an artifact, with entries of ascending positions from `first` to `last`."""

    path: str
    file_bytes: int
    checksum: int
    first: Position
    last: Position
    entries: int
    messages: int
    length_bytes: int


class RetiredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replaced file, to be deleted RETIRED_GRACE_MS after `retired_ms`."""

    store: StoreSpec
    path: str
    retired_ms: int


class CompactionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live artifact. `messages_removed` and `duration_ms` describe the job that wrote it.

    The log contained everything up to `marked` at `marked_ms`, possibly long before this artifact.
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
        """The position of the last entry; None if the artifact is empty."""
        return self.files[-1].last if self.files else None

    @property
    def entries(self) -> int:
        """The number of entries in all files."""
        return sum(file.entries for file in self.files)

    @property
    def length_bytes(self) -> int:
        """The sum of the sizes of all entries."""
        return sum(file.length_bytes for file in self.files)


class CompactionAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that a job is writing to, or has left behind unfinished."""

    store: StoreSpec
    folder: str
    started_ms: int
    job: str


class CompactionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request, or an automatic compaction: then `requested_ms` is the start of the job."""

    requested_ms: int
    state: RequestState = RequestState.PENDING
    job: str = ""
    finished_ms: int = 0
    failed_ms: int = 0
    """The last failure; kept after later successes."""
    error: str = ""

    @property
    def finished(self) -> bool:
        """Whether no job works on the request any more."""
        return self.state.is_final


decode_compaction = RecordType(CompactionRecord, "compacted topic").decode
decode_attempt = RecordType(CompactionAttempt, "attempt to compact").decode
decode_request = RecordType(CompactionRequest, "request to compact").decode


def compaction_key(name: str) -> str:
    """The key of a managed ledger's live artifact."""
    return COMPACTIONS_PREFIX + name


def request_key(name: str) -> str:
    """The key of a managed ledger's last request."""
    return REQUESTS_PREFIX + name


def attempt_key(name: str, attempt: str) -> str:
    """The key of one attempt."""
    return f"{ATTEMPTS_PREFIX}{name}/{attempt}"


def job_key(job: str) -> str:
    """The key that exists while a job runs."""
    return JOBS_PREFIX + job


def attempt_folder(name: str, attempt: str) -> str:
    """The folder of an attempt's files, below the store's prefix."""
    folder, _, _ = object_path(name, FOLDER_LEDGER_ID, attempt).rpartition("/")
    return f"{folder}/compacted-{attempt}"


def files_of(record: CompactionRecord, now_ms: int) -> tuple[RetiredFile, ...]:
    """All files that the record names, as files to delete."""
    live = tuple(RetiredFile(record.store, file.path, now_ms) for file in record.files)
    return (*record.retired, *live)
