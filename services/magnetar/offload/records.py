"""The metadata records of offloaded ledgers: live files, attempts, jobs, requests, defaults.

- `/offloads/{managed ledger}/{ledger}`: a live file. It holds a whole closed ledger and was
  verified. Written by compare-and-swap only. The managed ledger's own record belongs to its broker
  and does not mention files.
- `/offload-attempts/{managed ledger}/{ledger}/{attempt}`: a file that a job may be writing.
  Recorded before the file's first byte, deleted in the transaction that makes the file live.
- `/offload-jobs/{job}`: exists while the job runs. An attempt whose job has no key is a leftover.
- `/offload-requests/{managed ledger}`: the last request of `pulsar-admin topics offload`.
- `/offload-defaults`: the brokers' settings, published for jobs.

File names contain the attempt's id (`object_path`): no two attempts write the same file, and no
attempt overwrites a live one.
"""

import hashlib
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.records import RecordType
from magnetar.offload.stores import StoreSpec

OFFLOADS_PREFIX: Final = "/offloads/"
ATTEMPTS_PREFIX: Final = "/offload-attempts/"
JOBS_PREFIX: Final = "/offload-jobs/"
REQUESTS_PREFIX: Final = "/offload-requests/"
DEFAULTS_KEY: Final = "/offload-defaults"

FORMAT_VERSION: Final = 1
FILE_SUFFIX: Final = ".parquet"
SEGMENT_CHARS_MAX: Final = 160
"""Characters of one part of a path; file systems allow 255 bytes."""

S = TypeVar("S", bound=msgspec.Struct)


class OffloadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live file. `released_ms` is when its ledger was released to deletion; 0 if not yet.

    `checksum` is the CRC-32C of the file, `length_bytes` the sum of the entries' sizes.
    """

    ledger_id: int
    attempt: str
    store: StoreSpec
    path: str
    file_bytes: int
    entries: int
    length_bytes: int
    checksum: int
    created_ms: int
    closed_ms: int
    offloaded_ms: int
    format_version: int = FORMAT_VERSION
    released_ms: int = 0


class AttemptRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a job is writing, or has left behind unfinished."""

    store: StoreSpec
    path: str
    started_ms: int
    job: str


class RequestState(StrEnum):
    """The state of a request to a job, in the words of Pulsar's status; PENDING is ours."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"

    @property
    def is_final(self) -> bool:
        """Whether no job works on the request any more."""
        return self in (RequestState.SUCCESS, RequestState.ERROR)


class OffloadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to offload all ledgers before that of `up_to`, regardless of thresholds.

    `first_unoffloaded` is the first position that this request does not offload.
    """

    up_to: Position
    requested_ms: int
    state: RequestState = RequestState.PENDING
    first_unoffloaded: Position = EARLIEST
    job: str = ""
    finished_ms: int = 0
    error: str = ""

    @property
    def finished(self) -> bool:
        """Whether no job works on the request any more."""
        return self.state.is_final


decode_offload = RecordType(OffloadRecord, "offloaded ledger").decode
decode_attempt = RecordType(AttemptRecord, "attempt to offload").decode
decode_request = RecordType(OffloadRequest, "request to offload").decode


def offloads_prefix(name: str) -> str:
    """The prefix of a managed ledger's live files, which sort by ledger id."""
    return f"{OFFLOADS_PREFIX}{name}/"


def offload_key(name: str, ledger_id: int) -> str:
    """The key of a ledger's live file."""
    return f"{OFFLOADS_PREFIX}{name}/{ledger_id:020d}"


def attempts_prefix(name: str) -> str:
    """The prefix of all attempts on a managed ledger."""
    return f"{ATTEMPTS_PREFIX}{name}/"


def attempt_key(name: str, ledger_id: int, attempt: str) -> str:
    """The key of one attempt."""
    return f"{ATTEMPTS_PREFIX}{name}/{ledger_id:020d}/{attempt}"


def parse_attempt_key(key: str) -> tuple[str, int, str]:
    """The managed ledger, the ledger and the attempt in an attempt's key."""
    name, ledger_id, attempt = key.removeprefix(ATTEMPTS_PREFIX).rsplit("/", 2)
    return name, int(ledger_id), attempt


def parse_offload_key(key: str) -> tuple[str, int]:
    """The managed ledger and the ledger in a live file's key."""
    name, _, ledger_id = key.removeprefix(OFFLOADS_PREFIX).rpartition("/")
    return name, int(ledger_id)


def job_key(job: str) -> str:
    """The key that exists while a job runs."""
    return JOBS_PREFIX + job


def request_key(name: str) -> str:
    """The key of a managed ledger's last request."""
    return REQUESTS_PREFIX + name


def object_path(name: str, ledger_id: int, attempt: str) -> str:
    """The path of an attempt's file below the store's prefix, in characters that all stores accept.

    The managed ledger's folders stay readable: other characters become `=` and two hex digits, and
    a part that is too long for a file system is cut and ends in a hash of the whole part.
    """
    folders = "/".join(_segment(part) for part in name.split("/"))
    return f"{folders}/{ledger_id:020d}-{attempt}{FILE_SUFFIX}"


def _segment(part: str) -> str:
    plain = quote(part, safe="").replace("~", "%7E").replace("%", "=")
    if part in (".", ".."):
        plain = part.replace(".", "=2E")
    if len(plain) <= SEGMENT_CHARS_MAX:
        return plain
    digest = hashlib.sha256(part.encode()).hexdigest()[:32]
    return f"{plain[: SEGMENT_CHARS_MAX - len(digest) - 1]}+{digest}"
