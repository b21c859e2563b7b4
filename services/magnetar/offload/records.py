"""What metadata says of offloaded ledgers: files that are live, attempts, jobs, requests, defaults.

- `/offloads/{managed ledger}/{ledger}`: a file that holds the whole of a closed ledger, was read
  back, and is live. Written by compare-and-swap only; the managed ledger's own record is its
  broker's, and knows nothing of it.
- `/offload-attempts/{managed ledger}/{ledger}/{attempt}`: a file that may come into being. It is
  put before the file's first byte and goes in the transaction that makes the file live.
- `/offload-jobs/{job}`: lives while the job does. An attempt whose job has no key is a leftover.
- `/offload-requests/{managed ledger}`: what `pulsar-admin topics offload` asked for last.
- `/offload-defaults`: the brokers' settings, for jobs, which have none.

Files have names of their own (`object_path`), with the attempt in them: no two attempts write the
same file, and none replaces one that is live.
"""

import hashlib
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST, Position
from magnetar.offload.stores import StoreSpec

OFFLOADS_PREFIX: Final = "/offloads/"
ATTEMPTS_PREFIX: Final = "/offload-attempts/"
JOBS_PREFIX: Final = "/offload-jobs/"
REQUESTS_PREFIX: Final = "/offload-requests/"
DEFAULTS_KEY: Final = "/offload-defaults"

FORMAT_VERSION: Final = 1
FILE_SUFFIX: Final = ".parquet"
SEGMENT_CHARS_MAX: Final = 160
"""Of one part of a path: file systems take 255 bytes."""

S = TypeVar("S", bound=msgspec.Struct)


class OffloadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live file. `released_ms` is when the bookies were told to let go; 0: they have it still.

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
    """A file that a job is writing, or has left behind."""

    store: StoreSpec
    path: str
    started_ms: int
    job: str


class RequestState(StrEnum):
    """Where a request is; the words are those of Pulsar's offload status, but for PENDING."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class OffloadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asked for: all ledgers before the one of `up_to`, whatever the thresholds say.

    `first_unoffloaded` is the first position that is not to be offloaded by this request.
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
        return self.state in (RequestState.SUCCESS, RequestState.ERROR)


encode = msgspec.json.Encoder().encode
_offload_decoder = msgspec.json.Decoder(OffloadRecord)
_attempt_decoder = msgspec.json.Decoder(AttemptRecord)
_request_decoder = msgspec.json.Decoder(OffloadRequest)


def offloads_prefix(name: str) -> str:
    """Below it: the offloaded ledgers of one managed ledger, in the order of their ids."""
    return f"{OFFLOADS_PREFIX}{name}/"


def offload_key(name: str, ledger_id: int) -> str:
    return f"{OFFLOADS_PREFIX}{name}/{ledger_id:020d}"


def attempts_prefix(name: str) -> str:
    return f"{ATTEMPTS_PREFIX}{name}/"


def attempt_key(name: str, ledger_id: int, attempt: str) -> str:
    return f"{ATTEMPTS_PREFIX}{name}/{ledger_id:020d}/{attempt}"


def parse_attempt_key(key: str) -> tuple[str, int, str]:
    """The managed ledger, the ledger and the attempt."""
    name, ledger_id, attempt = key.removeprefix(ATTEMPTS_PREFIX).rsplit("/", 2)
    return name, int(ledger_id), attempt


def parse_offload_key(key: str) -> tuple[str, int]:
    """The managed ledger and the ledger."""
    name, _, ledger_id = key.removeprefix(OFFLOADS_PREFIX).rpartition("/")
    return name, int(ledger_id)


def job_key(job: str) -> str:
    return JOBS_PREFIX + job


def request_key(name: str) -> str:
    return REQUESTS_PREFIX + name


def object_path(name: str, ledger_id: int, attempt: str) -> str:
    """Where an attempt writes, below the store's prefix. Of letters that every store takes.

    The managed ledger's folders are readable; what is not plain is `=` and two hex digits, and a
    part that is too long for a file system is cut and ends in a hash of the whole.
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


def decode_offload(key: str, value: bytes) -> OffloadRecord:
    """Raises MetadataError naming the key where the value is no record of a file."""
    return decoded(_offload_decoder, key, value, "offloaded ledger")


def decode_attempt(key: str, value: bytes) -> AttemptRecord:
    """Raises MetadataError naming the key where the value is no attempt."""
    return decoded(_attempt_decoder, key, value, "attempt to offload")


def decode_request(key: str, value: bytes) -> OffloadRequest:
    """Raises MetadataError naming the key where the value is no request."""
    return decoded(_request_decoder, key, value, "request to offload")


def decoded(decoder: "msgspec.json.Decoder[S]", key: str, value: bytes, what: str) -> S:
    """Raises MetadataError naming the key where the value is not `what`."""
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no {what}: {error}") from error
