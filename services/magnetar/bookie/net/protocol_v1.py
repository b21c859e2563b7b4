"""Frames of the bookie protocol, version 1: encodes and decodes. Pure: no IO.

Specification: docs/formats/bookie-protocol.md.

A frame is a head of 24 bytes, a payload of fields and tables, and a body of entries:

    u32 CRC-32C of the rest of head and payload, u8 kind, u8 flags, u16 zero,
    u32 payload bytes, u32 body bytes, u64 id

All numbers are little-endian. A body has its own CRC-32C, in the payload. It is the CRC that the
bookie's journal writes beside the entries, so that the sender of the entries computes it and each
hop verifies it. Only the size fields are trusted before the CRC is verified; they are bounded per
frame kind. Every malformed frame raises `FrameError`. The connection must then be closed, since the
start of the next frame is unknown.

Bounds: PAYLOAD_BYTES_MAX and BODY_BYTES_MAX; memory as in `wire.receive_buffer`.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, unpack_from
from typing import Final

import msgspec
from google_crc32c import value

from magnetar.bookie.api import ID_END
from magnetar.bookie.journal.codec_v1 import (
    JOIN_ENTRY_BYTES_MAX,
    body_of,
    entries_crc,
    pack_lengths,
)
from magnetar.bookie.packed import PackedEntries
from magnetar.bookie.settings import ENTRIES_PER_GROUP_MAX
from magnetar.wire.receive_buffer import BUFFER_BYTES_DEFAULT, ReceiveBuffer

MAGIC: Final = b"MGNTBKIE"
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1

# Requests.
HELLO: Final = 1
ADD: Final = 2
READ: Final = 3
LEDGER_END: Final = 4
PROVE: Final = 5
DELETE: Final = 6
LIST: Final = 7
PING: Final = 8
INFO: Final = 9
CONFIRM: Final = 10
# Answers: a request's kind with this bit, or one of the last three.
ANSWER: Final = 0x40
WELCOME: Final = HELLO | ANSWER
ADDED: Final = ADD | ANSWER
ENTRIES: Final = READ | ANSWER
END: Final = LEDGER_END | ANSWER
PROOFS: Final = PROVE | ANSWER
DELETED: Final = DELETE | ANSWER
LEDGERS: Final = LIST | ANSWER
PONG: Final = PING | ANSWER
STATE: Final = INFO | ANSWER
CONFIRMED: Final = CONFIRM | ANSWER
FAILED: Final = 0x60
ADD_FAILED: Final = 0x61
CLOSING: Final = 0x62

FLAG_RECOVERY: Final = 1
FLAG_IDS: Final = 2
FLAG_FENCE: Final = 4
FLAG_READ_ONLY: Final = 0x80
"""A flag of all answers: the bookie accepts no adds at present."""

LEDGERS_PER_PAGE_MAX: Final = 65_536
PROOFS_MAX: Final = 65_536
CONFIRMED_PER_REQUEST_MAX: Final = 1024
"""Ledgers of one CONFIRM. Older bookies do not know the kind, and refuse larger frames of it."""

TEXT_BYTES_MAX: Final = 4096
TEXTS_BYTES_MAX: Final = 4 * (TEXT_BYTES_MAX + 2)
TABLE_BYTES_MAX: Final = 12 * ENTRIES_PER_GROUP_MAX

BODY_BYTES_MAX: Final = 64 << 20
PAYLOAD_BYTES_MAX: Final = 32 + TABLE_BYTES_MAX

# CRC, kind, flags, zero, payload bytes, body bytes, id.
_HEAD: Final = Struct("<IBBHIIQ")
_HEAD_REST: Final = Struct("<BBHIIQ")
HEAD_BYTES: Final = _HEAD.size
# Ledger, last add confirmed, first entry, count, CRC of the body.
_ADD: Final = Struct("<qqqII")
_ADD_REST: Final = Struct("<BBHIIQqqqII")
_ADD_BYTES: Final = _ADD.size
# First entry, count, CRC of the body.
_ENTRIES: Final = Struct("<qII")
_ADDED: Final = Struct("<I")
_U32: Final = Struct("<I")

_SIZES: Final[dict[int, tuple[int, int, int]]] = {
    # kind: smallest payload, largest payload, largest body.
    HELLO: (28, 20 + TEXTS_BYTES_MAX, 0),
    ADD: (_ADD_BYTES, PAYLOAD_BYTES_MAX, BODY_BYTES_MAX),
    READ: (32, 32, 0),
    LEDGER_END: (8, 8, 0),
    PROVE: (28, 28, 0),
    DELETE: (8, 8, 0),
    LIST: (12, 12, 0),
    PING: (0, 0, 0),
    INFO: (0, 0, 0),
    CONFIRM: (20, 4 + 16 * CONFIRMED_PER_REQUEST_MAX, 0),
    WELCOME: (30, 24 + TEXTS_BYTES_MAX, 0),
    ADDED: (4, 4, 0),
    ENTRIES: (16, PAYLOAD_BYTES_MAX, BODY_BYTES_MAX),
    END: (25, 25, 0),
    PROOFS: (12, 12 + 20 * PROOFS_MAX, 0),
    DELETED: (0, 0, 0),
    LEDGERS: (5, 5 + 8 * LEDGERS_PER_PAGE_MAX, 0),
    PONG: (0, 0, 0),
    STATE: (26, 24 + TEXTS_BYTES_MAX, 0),
    CONFIRMED: (0, 0, 0),
    FAILED: (16, 12 + TEXTS_BYTES_MAX, 0),
    ADD_FAILED: (16, 12 + TEXTS_BYTES_MAX, 0),
    CLOSING: (16, 12 + TEXTS_BYTES_MAX, 0),
}
_UNKNOWN_SIZES: Final = (0, 1 << 16, 0)
"""The sizes of newer, unknown kinds: they are answered as unknown; the connection stays open."""

_FLAGS: Final = {
    ADD: FLAG_RECOVERY | FLAG_IDS,
    READ: FLAG_FENCE,
    LEDGER_END: FLAG_FENCE,
    ENTRIES: FLAG_IDS,
}
_FLAGS_FORBIDDEN: Final = {
    kind: 0xFF & ~(_FLAGS.get(kind, 0) | (FLAG_READ_ONLY if kind & ANSWER else 0))
    for kind in _SIZES
}


class FrameError(ValueError):
    """The peer sent a malformed frame: the connection must be closed."""


class Frame(msgspec.Struct, gc=False):
    """A frame without a body; `messages_v1` encodes and decodes its payload."""

    kind: int
    flags: int
    id: int
    payload: bytes


class Add(msgspec.Struct, gc=False):
    """A request to store a group; the CRC of its body is verified."""

    flags: int
    id: int
    ledger_id: int
    last_add_confirmed: int
    entry_ids: Sequence[int]
    entries: PackedEntries


class Added(msgspec.Struct, gc=False):
    """An answer: `count` adds from number `first` on are durable."""

    flags: int
    first: int
    count: int


class Entries(msgspec.Struct, gc=False):
    """The answer to a read; the CRC of its body is verified."""

    flags: int
    id: int
    entry_ids: Sequence[int]
    entries: list[bytes]


AnyFrame = Frame | Add | Added | Entries


def encode_frame(
    kind: int, flags: int, id_: int, payload: bytes = b"", body_bytes: int = 0
) -> bytes:
    """Returns head and payload; the body follows."""
    rest = _HEAD_REST.pack(kind, flags, 0, len(payload), body_bytes, id_) + payload
    return _U32.pack(value(rest)) + rest


def encode_add(
    number: int,
    ledger_id: int,
    last_add_confirmed: int,
    entry_ids: Sequence[int],
    group: PackedEntries,
    *,
    recovery: bool,
) -> bytes:
    """Returns head and payload of an ADD; `group.body` follows."""
    count = len(entry_ids)
    first = entry_ids[0]
    flags = FLAG_RECOVERY if recovery else 0
    tables = b""
    if count > 1:
        tables = group.lengths
        if type(entry_ids) is not range:
            flags |= FLAG_IDS
            tables += Struct(f"<{count}q").pack(*entry_ids)
    rest = _ADD_REST.pack(
        ADD,
        flags,
        0,
        _ADD_BYTES + len(tables),
        group.body_bytes,
        number,
        ledger_id,
        last_add_confirmed,
        first,
        count,
        group.crc,
    )
    if tables:
        rest += tables
    return _U32.pack(value(rest)) + rest


def encode_added(flags: int, first: int, count: int) -> bytes:
    """Returns one answer to `count` adds."""
    return encode_frame(ADDED, flags, first, _ADDED.pack(count))


def encode_entries(
    flags: int, id_: int, entry_ids: Sequence[int], entries: Sequence[bytes]
) -> list[bytes]:
    """Returns the whole frame in parts. The ids ascend, and there is at least one."""
    count = len(entries)
    body, size, crc = body_of(entries)
    tables = b""
    if count > 1:
        tables = pack_lengths(entries)
        if entry_ids[-1] - entry_ids[0] != count - 1:
            flags |= FLAG_IDS
            tables += Struct(f"<{count}q").pack(*entry_ids)
    payload = _ENTRIES.pack(entry_ids[0], count, crc) + tables
    return [encode_frame(ENTRIES, flags, id_, payload, size), *body]


class FrameDecoder:
    """Decodes one connection's frames, for an `asyncio.BufferedProtocol`.

    After a FrameError it must not be used again.
    """

    __slots__ = ("_buffer", "_checked", "_received_bytes")

    def __init__(self, buffer_bytes: int = BUFFER_BYTES_DEFAULT) -> None:
        frame_bytes_max = HEAD_BYTES + PAYLOAD_BYTES_MAX + BODY_BYTES_MAX
        self._buffer = ReceiveBuffer(frame_bytes_max, buffer_bytes)
        self._received_bytes = 0
        self._checked = False
        """Whether the head of the frame under way is verified."""

    @property
    def held_bytes(self) -> int:
        """The memory held for a frame under way; 0 for an idle connection."""
        return self._buffer.held_bytes

    @property
    def unfinished_bytes(self) -> int:
        """The bytes received of a frame under way."""
        return self._buffer.end - self._buffer.start

    def get_buffer(self) -> memoryview:
        """Returns the buffer for the next bytes; valid until `received` is called."""
        return self._buffer.writable()

    def received(self, byte_count: int) -> None:
        """Counts bytes put into the buffer. The caller then calls `take` until it returns None."""
        self._buffer.end += byte_count
        self._received_bytes += byte_count

    def take(self) -> AnyFrame | None:
        """Returns the next complete frame, or None; raises FrameError."""
        buffer = self._buffer
        at = buffer.start
        available = buffer.end - at
        if available < HEAD_BYTES:
            self._settle()
            return None
        crc, kind, flags, zero, payload_bytes, body_bytes, id_ = _HEAD.unpack_from(buffer.data, at)
        payload_min, payload_max, body_max = _SIZES.get(kind, _UNKNOWN_SIZES)
        if zero or not payload_min <= payload_bytes <= payload_max or body_bytes > body_max:
            raise FrameError(
                f"a frame of kind {kind} with {payload_bytes} bytes of payload and {body_bytes} "
                "of body, which no such frame has"
            )
        body_at = HEAD_BYTES + payload_bytes
        whole = available >= body_at + body_bytes
        if not whole and (self._checked or available < body_at):
            self._settle()
            return None
        rest = buffer.view[at + 4 : at + body_at].tobytes()
        if not self._checked and value(rest) != crc:
            raise FrameError(f"a frame of kind {kind} whose head fails its CRC")
        if not whole:
            self._checked = True
            self._settle()
            return None
        frame = self._decode(kind, flags, id_, rest, at + body_at, body_bytes)
        # Not before: after a FrameError, the frame behind the bad one is never returned.
        buffer.start = at + body_at + body_bytes
        self._checked = False
        return frame

    def _settle(self) -> None:
        self._buffer.settle(self._received_bytes)
        self._received_bytes = 0

    def _decode(
        self, kind: int, flags: int, id_: int, rest: bytes, body_at: int, body_bytes: int
    ) -> AnyFrame:
        if flags & _FLAGS_FORBIDDEN.get(kind, 0):
            raise FrameError(f"a frame of kind {kind} with unknown flags {flags:#x}")
        if kind == ADD:
            ledger_id, last_add_confirmed, first, count, crc = _ADD.unpack_from(rest, _REST_BYTES)
            lengths, entry_ids = _tables(
                rest, _REST_BYTES + _ADD_BYTES, flags, first, count, body_bytes
            )
            group = self._group(body_at, body_bytes, crc, count, lengths)
            return Add(flags, id_, ledger_id, last_add_confirmed, entry_ids, group)
        if kind == ADDED:
            return Added(flags, id_, _ADDED.unpack_from(rest, _REST_BYTES)[0])
        if kind == ENTRIES:
            first, count, crc = _ENTRIES.unpack_from(rest, _REST_BYTES)
            lengths, entry_ids = _tables(
                rest, _REST_BYTES + _ENTRIES.size, flags, first, count, body_bytes
            )
            return Entries(flags, id_, entry_ids, self._entries(body_at, crc, lengths))
        return Frame(kind, flags, id_, rest[_REST_BYTES:])

    def _group(
        self, at: int, body_bytes: int, crc: int, count: int, lengths: bytes
    ) -> PackedEntries:
        """Returns the body as the journal writes it: in one piece if the entries are small."""
        if count > 1 and body_bytes > JOIN_ENTRY_BYTES_MAX * count:
            entries = self._entries(at, crc, lengths)
            return PackedEntries(entries, entries, body_bytes, crc, lengths)
        body = self._buffer.view[at : at + body_bytes].tobytes()
        if value(body) != crc:
            raise FrameError("entries that fail their CRC")
        if count == 1:
            return PackedEntries((body,), (body,), body_bytes, crc, lengths)
        bounds = accumulate(unpack_from(f"<{count}I", lengths), initial=0)
        cut = [body[start:stop] for start, stop in pairwise(bounds)]
        return PackedEntries(cut, (body,), body_bytes, crc, lengths)

    def _entries(self, at: int, crc: int, lengths: bytes) -> list[bytes]:
        """Returns the entries of a body, each copied once."""
        view = self._buffer.view
        bounds = accumulate(unpack_from(f"<{len(lengths) // 4}I", lengths), initial=at)
        entries = [view[start:stop].tobytes() for start, stop in pairwise(bounds)]
        if entries_crc(entries) != crc:
            raise FrameError("entries that fail their CRC")
        return entries


_REST_BYTES: Final = _HEAD_REST.size


def _tables(
    rest: bytes, at: int, flags: int, first: int, count: int, body_bytes: int
) -> tuple[bytes, Sequence[int]]:
    """Returns the lengths and ids of a body's entries; raises FrameError if they do not fit it."""
    lengths_bytes = 4 * count if count > 1 else 0
    ids_at = at + lengths_bytes
    ids_bytes = 8 * count if flags & FLAG_IDS else 0
    if not 0 < count <= ENTRIES_PER_GROUP_MAX or len(rest) != ids_at + ids_bytes:
        raise FrameError(f"tables that do not fit {count} entries from {first} on")
    if not 0 <= first <= ID_END - count:
        raise FrameError(f"{count} entries from {first} on, not all from 0 to {ID_END - 1}")
    if count == 1:
        if ids_bytes:
            raise FrameError("a table of ids for one entry")
        return _U32.pack(body_bytes), range(first, first + 1)
    lengths = rest[at:ids_at]
    if sum(unpack_from(f"<{count}I", lengths)) != body_bytes:
        raise FrameError(f"lengths that do not fit a body of {body_bytes} bytes")
    if not ids_bytes:
        return lengths, range(first, first + count)
    ids: tuple[int, ...] = unpack_from(f"<{count}q", rest, ids_at)
    if ids[0] != first or any(after <= before for before, after in pairwise(ids)):
        raise FrameError("entry ids that do not ascend")
    if ids[-1] >= ID_END:
        raise FrameError(f"entry id {ids[-1]}, which is above {ID_END - 1}")
    return lengths, ids
