"""The frames between a broker and its worker process: a length of four bytes, then msgpack.

The broker first sends a task, pickled: both are of one installation, and the pipe is private. Then
the worker sends READ frames, each of which is answered by ENTRIES or REFUSED, and at last DONE or
FAILED. One READ is in flight at a time: the broker reads while the worker handles what it got.
ALIVE is not answered: it tells a worker that reads files from one that hangs.
"""

from typing import Final

import msgspec

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1 << 30
"""More is no frame: something else was written to the pipe."""
READ_BYTES: Final = 1 << 20
"""Entries of one answer; a larger entry is answered alone."""


class Read(msgspec.Struct, tag="read", frozen=True):
    """Requests entries of a ledger: `first`, and successors up to `last` that fit READ_BYTES."""

    ledger_id: int
    first: int
    last: int


class Entries(msgspec.Struct, tag="entries", frozen=True):
    """The answer: consecutive entries from `first` on."""

    first: int
    data: list[bytes]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The answer if the entries cannot be read."""

    error: str


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """The worker begins another part of its task."""


class Done(msgspec.Struct, tag="done", frozen=True):
    """The task's result, pickled."""

    result: bytes


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """Why the task ended without a result."""

    error: str


Request = Read | Alive | Done | Failed
Answer = Entries | Refused

encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def framed(payload: bytes) -> bytes:
    """The payload with its length."""
    return len(payload).to_bytes(LENGTH_BYTES) + payload


def length_of(head: bytes) -> int:
    """The length in a frame's head. Raises ValueError."""
    length = int.from_bytes(head)
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes")
    return length
