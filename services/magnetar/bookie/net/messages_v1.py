"""Payloads of the bookie protocol's frames without a body, version 1. Pure: no IO.

A text is a u16 length and UTF-8, at most TEXT_BYTES_MAX. A payload has exactly the fields of its
kind; an addition needs a new version, a feature bit or a new kind. An error is a code, which both
sides map to an exception class, and a text.
"""

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct, unpack_from
from struct import error as StructError
from typing import Final

import msgspec

from magnetar.bookie.api import (
    ID_END,
    BookieError,
    BookieIdentity,
    BookieReadOnly,
    BookieUnavailable,
    EntryCorrupt,
    EntryProof,
    EntryProofs,
    EntryUnknown,
    LedgerEnd,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    NotPermitted,
    ProofKind,
)
from magnetar.bookie.net.protocol_v1 import (
    MAGIC,
    TEXT_BYTES_MAX,
    VERSION_MAX,
    VERSION_MIN,
    FrameError,
)

FEATURES: Final = 0
"""Bits of features beyond version 1; a connection uses those that both sides have."""

# The first eight bytes of these two are the magic.
_HELLO: Final = Struct("<8xHHQ")
_WELCOME: Final = Struct("<8xHHIQ")
_READ: Final = Struct("<qqqQ")
_LEDGER: Final = Struct("<q")
_PROVE: Final = Struct("<qqqI")
_LIST: Final = Struct("<qI")
_END: Final = Struct("<qqqB")
_PROOFS: Final = Struct("<qI")
_PROOF: Final = Struct("<qB3xII")
_LEDGERS: Final = Struct("<BI")
_STATE: Final = Struct("<QQQ")
_CONFIRM: Final = Struct("<I")
_FAILED: Final = Struct("<HHq")
_U16: Final = Struct("<H")

_PROOF_KINDS: Final = (ProofKind.PRESENT, ProofKind.CORRUPT, ProofKind.UNKNOWN)

CODE_BOOKIE_ERROR: Final = 1
CODE_FENCED: Final = 2
CODE_UNAVAILABLE: Final = 3
CODE_READ_ONLY: Final = 4
CODE_NO_SUCH_ENTRY: Final = 5
CODE_NO_SUCH_LEDGER: Final = 6
CODE_ENTRY_UNKNOWN: Final = 7
CODE_ENTRY_CORRUPT: Final = 8
CODE_OTHER_BOOKIE: Final = 9
"""The hello names another bookie, incarnation or cluster than this one."""

CODE_VERSION: Final = 10
CODE_UNKNOWN_KIND: Final = 11
CODE_NOT_PERMITTED: Final = 12

_CLASSES: Final[dict[int, type[BookieError]]] = {
    CODE_FENCED: LedgerFenced,
    CODE_UNAVAILABLE: BookieUnavailable,
    CODE_READ_ONLY: BookieReadOnly,
    CODE_NO_SUCH_ENTRY: NoSuchEntry,
    CODE_NO_SUCH_LEDGER: NoSuchLedger,
    CODE_ENTRY_UNKNOWN: EntryUnknown,
    CODE_OTHER_BOOKIE: BookieUnavailable,
    CODE_VERSION: BookieUnavailable,
    CODE_NOT_PERMITTED: NotPermitted,
}
_CODES: Final = {
    LedgerFenced: CODE_FENCED,
    BookieUnavailable: CODE_UNAVAILABLE,
    BookieReadOnly: CODE_READ_ONLY,
    NoSuchEntry: CODE_NO_SUCH_ENTRY,
    NoSuchLedger: CODE_NO_SUCH_LEDGER,
    EntryUnknown: CODE_ENTRY_UNKNOWN,
    EntryCorrupt: CODE_ENTRY_CORRUPT,
    NotPermitted: CODE_NOT_PERMITTED,
}


class Hello(msgspec.Struct, frozen=True):
    """The client's first frame: its versions, and the expected bookie. An empty cluster is any."""

    bookie: BookieIdentity
    cluster: str = ""
    client: str = ""
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX
    features: int = FEATURES


class Welcome(msgspec.Struct, frozen=True):
    """The bookie's first frame: its identity, and the version of all further frames."""

    bookie: BookieIdentity
    body_bytes_max: int
    cluster: str = ""
    version: int = VERSION_MAX
    features: int = FEATURES


class State(msgspec.Struct, frozen=True):
    """A bookie's state; an empty `read_only_reason` means that it takes adds."""

    disk_bytes_total: int = 0
    disk_bytes_free: int = 0
    pending_bytes: int = 0
    read_only_reason: str = ""


class Failure(msgspec.Struct, frozen=True):
    """Why a request failed, or why the connection ends: a code, a text, a place in a file."""

    code: int
    message: str
    path: str = ""
    offset: int = -1


def encode_hello(hello: Hello) -> bytes:
    fixed = _HELLO.pack(hello.version_min, hello.version_max, hello.features)
    return MAGIC + fixed[8:] + _texts(hello.cluster, *hello.bookie, hello.client)


def decode_hello(payload: bytes) -> Hello:
    version_min, version_max, features = _unpack(_HELLO, payload)
    if payload[:8] != MAGIC or not 0 < version_min <= version_max:
        raise FrameError("no hello of a bookie's client")
    cluster, bookie_id, incarnation, client = _take_texts(payload, _HELLO.size, 4)
    identity = BookieIdentity(bookie_id, incarnation)
    return Hello(identity, cluster, client, version_min, version_max, features)


def version_for(hello: Hello) -> int | None:
    """Returns the highest version in common, or None."""
    version = min(hello.version_max, VERSION_MAX)
    return version if version >= max(hello.version_min, VERSION_MIN) else None


def encode_welcome(welcome: Welcome) -> bytes:
    fixed = _WELCOME.pack(welcome.version, 0, welcome.body_bytes_max, welcome.features)
    return MAGIC + fixed[8:] + _texts(welcome.cluster, *welcome.bookie)


def decode_welcome(payload: bytes) -> Welcome:
    version, zero, body_bytes_max, features = _unpack(_WELCOME, payload)
    if payload[:8] != MAGIC or zero:
        raise FrameError("no welcome of a bookie")
    cluster, bookie_id, incarnation = _take_texts(payload, _WELCOME.size, 3)
    identity = BookieIdentity(bookie_id, incarnation)
    return Welcome(identity, body_bytes_max, cluster, version, features)


def encode_read(ledger_id: int, first: int, last: int, bytes_max: int) -> bytes:
    return _READ.pack(ledger_id, first, last, bytes_max)


def decode_read(payload: bytes) -> tuple[int, int, int, int]:
    ledger_id, first, last, bytes_max = _unpack(_READ, payload)
    return ledger_id, first, last, bytes_max


def encode_ledger(ledger_id: int) -> bytes:
    """Encodes the payload of LEDGER_END and DELETE."""
    return _LEDGER.pack(ledger_id)


def decode_ledger(payload: bytes) -> int:
    return int(_unpack(_LEDGER, payload)[0])


def encode_prove(ledger_id: int, first: int, last: int, count_max: int) -> bytes:
    return _PROVE.pack(ledger_id, first, last, count_max)


def decode_prove(payload: bytes) -> tuple[int, int, int, int]:
    ledger_id, first, last, count_max = _unpack(_PROVE, payload)
    return ledger_id, first, last, count_max


def encode_list(after: int, count_max: int) -> bytes:
    return _LIST.pack(after, count_max)


def decode_list(payload: bytes) -> tuple[int, int]:
    after, count_max = _unpack(_LIST, payload)
    return after, count_max


def encode_end(end: LedgerEnd) -> bytes:
    return _END.pack(end.last_add_confirmed, end.last_entry, end.length_bytes, end.fenced)


def decode_end(payload: bytes) -> LedgerEnd:
    last_add_confirmed, last_entry, length_bytes, fenced = _unpack(_END, payload)
    if fenced > 1:
        raise FrameError(f"a ledger that is fenced {fenced} times")
    if not all(-1 <= number < ID_END for number in (last_add_confirmed, last_entry, length_bytes)):
        raise FrameError(
            f"a ledger that ends at entry {last_entry}, confirmed {last_add_confirmed}, with "
            f"{length_bytes} bytes"
        )
    return LedgerEnd(last_add_confirmed, last_entry, bool(fenced), length_bytes)


def encode_proofs(proofs: EntryProofs) -> bytes:
    parts = [_PROOFS.pack(proofs.next_entry, len(proofs.proofs))]
    parts += [
        _PROOF.pack(proof.entry_id, _PROOF_KINDS.index(proof.kind), proof.length_bytes, proof.crc)
        for proof in proofs.proofs
    ]
    return b"".join(parts)


def decode_proofs(payload: bytes) -> EntryProofs:
    next_entry, count = _unpack(_PROOFS, payload)
    if len(payload) != _PROOFS.size + count * _PROOF.size:
        raise FrameError(f"{len(payload)} bytes are not {count} proofs")
    proofs: list[EntryProof] = []
    for entry_id, kind, length_bytes, crc in _PROOF.iter_unpack(payload[_PROOFS.size :]):
        if not 0 <= entry_id < ID_END:
            raise FrameError(f"a proof of entry {entry_id}")
        if kind >= len(_PROOF_KINDS):
            raise FrameError(f"a proof of unknown kind {kind}")
        proofs.append(EntryProof(entry_id, _PROOF_KINDS[kind], length_bytes, crc))
    return EntryProofs(proofs, next_entry)


def encode_ledgers(ledger_ids: Sequence[int], *, more: bool) -> bytes:
    count = len(ledger_ids)
    return _LEDGERS.pack(more, count) + Struct(f"<{count}q").pack(*ledger_ids)


def decode_ledgers(payload: bytes) -> tuple[Sequence[int], bool]:
    """Returns the ids of a page, and whether more follow."""
    more, count = _unpack(_LEDGERS, payload)
    if len(payload) != _LEDGERS.size + 8 * count or more > 1 or (more and not count):
        raise FrameError(f"{len(payload)} bytes are no page of {count} ledgers")
    ids: tuple[int, ...] = unpack_from(f"<{count}q", payload, _LEDGERS.size)
    if any(after <= before for before, after in pairwise(ids)):
        raise FrameError("a page of ledgers whose ids do not ascend")
    return ids, bool(more)


def encode_confirm(confirmed: Sequence[tuple[int, int]]) -> bytes:
    """Encodes the payload of CONFIRM: ledgers, each with its last confirmed entry."""
    numbers = [number for pair in confirmed for number in pair]
    return _CONFIRM.pack(len(confirmed)) + Struct(f"<{len(numbers)}q").pack(*numbers)


def decode_confirm(payload: bytes) -> list[tuple[int, int]]:
    (count,) = _unpack(_CONFIRM, payload)
    if len(payload) != _CONFIRM.size + 16 * count:
        raise FrameError(f"{len(payload)} bytes are not {count} ledgers with an entry each")
    numbers = unpack_from(f"<{2 * count}q", payload, _CONFIRM.size)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def encode_state(state: State) -> bytes:
    fixed = _STATE.pack(state.disk_bytes_total, state.disk_bytes_free, state.pending_bytes)
    return fixed + _texts(state.read_only_reason)


def decode_state(payload: bytes) -> State:
    total, free, pending = _unpack(_STATE, payload)
    return State(total, free, pending, *_take_texts(payload, _STATE.size, 1))


def encode_failure(failure: Failure) -> bytes:
    """Encodes the payload of FAILED, ADD_FAILED and CLOSING."""
    fixed = _FAILED.pack(failure.code, 0, failure.offset)
    return fixed + _texts(failure.message, failure.path)


def decode_failure(payload: bytes) -> Failure:
    code, zero, offset = _unpack(_FAILED, payload)
    if zero:
        raise FrameError("no failure of a bookie")
    message, path = _take_texts(payload, _FAILED.size, 2)
    return Failure(code, message, path, offset)


def failure_of(error: BookieError) -> Failure:
    """Returns a bookie's error as it goes over the wire."""
    if isinstance(error, EntryCorrupt):
        return Failure(CODE_ENTRY_CORRUPT, error.message, error.path, error.offset)
    for kind in type(error).__mro__:
        if kind in _CODES:
            return Failure(_CODES[kind], error.message)
    return Failure(CODE_BOOKIE_ERROR, error.message)


def error_of(failure: Failure) -> BookieError:
    """Returns the error of the failure's class; an unknown code is a plain BookieError."""
    if failure.code == CODE_ENTRY_CORRUPT:
        return EntryCorrupt(failure.message, failure.path, failure.offset)
    return _CLASSES.get(failure.code, BookieError)(failure.message)


def _unpack(struct: Struct, payload: bytes) -> tuple[int, ...]:
    try:
        return struct.unpack_from(payload)
    except StructError as error:
        raise FrameError(f"a payload of {len(payload)} bytes: {error}") from None


def _texts(*texts: str) -> bytes:
    parts: list[bytes] = []
    for text in texts:
        data = text.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
        # Cut at a character boundary.
        data = data.decode("utf-8", "ignore").encode()
        parts += (_U16.pack(len(data)), data)
    return b"".join(parts)


def _take_texts(payload: bytes, at: int, count: int) -> list[str]:
    """Returns the texts that fill the payload from `at` to its end."""
    texts: list[str] = []
    for _ in range(count):
        end = at + 2
        if end > len(payload):
            raise FrameError("a payload that ends within its texts")
        start, end = end, end + _U16.unpack_from(payload, at)[0]
        if end > len(payload) or end - start > TEXT_BYTES_MAX:
            raise FrameError("a payload that ends within its texts")
        try:
            texts.append(payload[start:end].decode())
        except UnicodeDecodeError:
            raise FrameError("a text that is not UTF-8") from None
        at = end
    if at != len(payload):
        raise FrameError(f"{len(payload) - at} bytes behind the last text")
    return texts
