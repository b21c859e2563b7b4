"""Payloads of the bookie protocol: round trips, and refusal of invalid payloads."""

from collections.abc import Callable
from struct import pack
from typing import Any

import pytest

from magnetar.bookie.api import (
    ID_END,
    BookieError,
    BookieIdentity,
    BookieLate,
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
    ProofKind,
)
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net.protocol_v1 import TEXT_BYTES_MAX, VERSION_MAX, FrameError

IDENTITY = BookieIdentity("b1", "one")
HELLO = messages.Hello(IDENTITY, "cluster", "client", 1, 3, 5)
WELCOME = messages.Welcome(IDENTITY, 1 << 20, "cluster", 1, 5)
STATE = messages.State(1, 2, 3, "full")
FAILURE = messages.Failure(messages.CODE_ENTRY_CORRUPT, "bad", "/path", 77)
PROOFS = EntryProofs(
    [
        EntryProof(4, ProofKind.PRESENT, 10, 20),
        EntryProof(5, ProofKind.CORRUPT),
        EntryProof(ID_END - 1, ProofKind.UNKNOWN),
    ],
    9,
)
END = LedgerEnd(3, 4, True, 5)

MADE: dict[str, tuple[bytes, Callable[[bytes], Any], Any]] = {
    "hello": (messages.encode_hello(HELLO), messages.decode_hello, HELLO),
    "welcome": (messages.encode_welcome(WELCOME), messages.decode_welcome, WELCOME),
    "read": (messages.encode_read(1, 2, 3, 4), messages.decode_read, (1, 2, 3, 4)),
    "ledger": (messages.encode_ledger(7), messages.decode_ledger, 7),
    "prove": (messages.encode_prove(1, 2, 3, 4), messages.decode_prove, (1, 2, 3, 4)),
    "list": (messages.encode_list(-1, 9), messages.decode_list, (-1, 9)),
    "end": (messages.encode_end(END), messages.decode_end, END),
    "proofs": (messages.encode_proofs(PROOFS), messages.decode_proofs, PROOFS),
    "ledgers": (
        messages.encode_ledgers([1, 2, 9], more=True),
        messages.decode_ledgers,
        ((1, 2, 9), True),
    ),
    "no ledgers": (messages.encode_ledgers([], more=False), messages.decode_ledgers, ((), False)),
    "confirm": (
        messages.encode_confirm([(1, 2), (3, -1)]),
        messages.decode_confirm,
        [(1, 2), (3, -1)],
    ),
    "state": (messages.encode_state(STATE), messages.decode_state, STATE),
    "failure": (messages.encode_failure(FAILURE), messages.decode_failure, FAILURE),
}
FIXED = ("read", "ledger", "prove", "list", "end")
"""Of one size only, which the frame's decoder has checked."""


@pytest.mark.parametrize("name", MADE)
def test_payload_round_trip(name: str) -> None:
    payload, decode, value = MADE[name]
    assert decode(payload) == value


@pytest.mark.parametrize("name", MADE)
def test_truncated_payload_is_refused(name: str) -> None:
    payload, decode, _ = MADE[name]
    for size in range(len(payload)):
        with pytest.raises(FrameError):
            decode(payload[:size])
    if name not in FIXED:
        with pytest.raises(FrameError):
            decode(payload + b"\0")


def changed(payload: bytes, at: int, data: bytes) -> bytes:
    return payload[:at] + data + payload[at + len(data) :]


@pytest.mark.parametrize(
    ("name", "at", "data"),
    [
        ("hello", 0, b"X"),
        ("hello", 8, pack("<HH", 0, 3)),
        ("hello", 8, pack("<HH", 2, 1)),
        ("welcome", 0, b"X"),
        ("welcome", 10, b"\1"),
        ("end", 24, b"\2"),
        ("end", 0, pack("<q", -2)),
        ("end", 8, pack("<q", ID_END)),
        ("end", 16, pack("<q", -2)),
        ("proofs", 12, pack("<q", -1)),
        ("proofs", 12, pack("<q", ID_END)),
        ("proofs", 20, b"\3"),
        ("ledgers", 0, b"\2"),
        ("no ledgers", 0, b"\1"),
        ("ledgers", 5, pack("<q", 2)),
        ("ledgers", 13, pack("<q", 9)),
        ("failure", 2, b"\1"),
        ("failure", 14, b"\xff"),
        ("state", 26, b"\xff"),
    ],
)
def test_invalid_payload_is_refused(name: str, at: int, data: bytes) -> None:
    payload, decode, _ = MADE[name]
    with pytest.raises(FrameError):
        decode(changed(payload, at, data))


def test_numbers_at_their_bounds_are_accepted() -> None:
    for number in (-1, 0, ID_END - 1):
        end = LedgerEnd(number, number, False, number)
        assert messages.decode_end(messages.encode_end(end)) == end
    for number in (0, ID_END - 1):
        proofs = EntryProofs([EntryProof(number, ProofKind.PRESENT, 1, 1)], 1)
        assert messages.decode_proofs(messages.encode_proofs(proofs)) == proofs
    for versions in ((1, 1), (1, 2)):
        hello = messages.Hello(IDENTITY, version_min=versions[0], version_max=versions[1])
        assert messages.decode_hello(messages.encode_hello(hello)) == hello


@pytest.mark.parametrize(
    ("low", "high", "spoken"),
    [
        (1, VERSION_MAX, VERSION_MAX),
        (1, VERSION_MAX + 5, VERSION_MAX),
        (VERSION_MAX, VERSION_MAX, VERSION_MAX),
        (VERSION_MAX + 1, VERSION_MAX + 5, None),
        (0, 0, None),
    ],
)
def test_highest_common_version_is_chosen(low: int, high: int, spoken: int | None) -> None:
    hello = messages.Hello(IDENTITY, version_min=low, version_max=high)
    assert messages.version_for(hello) == spoken


def test_long_texts_are_truncated_between_characters() -> None:
    for text, kept in (
        ("x" * TEXT_BYTES_MAX, TEXT_BYTES_MAX),
        ("x" * (TEXT_BYTES_MAX + 1), TEXT_BYTES_MAX),
        ("x" * (TEXT_BYTES_MAX - 1) + "\u00e9", TEXT_BYTES_MAX - 1),
    ):
        state = messages.decode_state(messages.encode_state(messages.State(0, 0, 0, text)))
        assert state.read_only_reason == text[:kept]
    fixed = messages.encode_state(messages.State())[:24]
    long = fixed + pack("<H", TEXT_BYTES_MAX + 1) + b"x" * (TEXT_BYTES_MAX + 1)
    with pytest.raises(FrameError):
        messages.decode_state(long)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LedgerFenced("x"), LedgerFenced),
        (BookieUnavailable("x"), BookieUnavailable),
        (BookieLate("x"), BookieUnavailable),
        (BookieReadOnly("x"), BookieReadOnly),
        (NoSuchEntry("x"), NoSuchEntry),
        (NoSuchLedger("x"), NoSuchLedger),
        (EntryUnknown("x"), EntryUnknown),
        (EntryCorrupt("x", "/path", 5), EntryCorrupt),
        (BookieError("x"), BookieError),
    ],
)
def test_error_keeps_its_class(error: BookieError, kind: type[BookieError]) -> None:
    payload = messages.encode_failure(messages.failure_of(error))
    result = messages.error_of(messages.decode_failure(payload))
    assert type(result) is kind
    assert result.message == "x"
    if isinstance(result, EntryCorrupt):
        assert (result.path, result.offset) == ("/path", 5)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (messages.CODE_OTHER_BOOKIE, BookieUnavailable),
        (messages.CODE_VERSION, BookieUnavailable),
        (messages.CODE_UNKNOWN_KIND, BookieError),
        (999, BookieError),
    ],
)
def test_unknown_code_is_a_bookie_error(code: int, kind: type[BookieError]) -> None:
    assert type(messages.error_of(messages.Failure(code, "x"))) is kind
