"""The bookie protocol's codec: round trips, and detection of all damage."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

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
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.protocol_v1 import (
    Add,
    Added,
    AnyFrame,
    Entries,
    Frame,
    FrameDecoder,
    FrameError,
)
from magnetar.bookie.packed import pack
from magnetar.wire import receive_buffer
from magnetar.wire.receive_buffer import BUFFER_BYTES_DEFAULT

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
ENTRY_ID = st.integers(0, 1 << 62)
ENTRY_IDS = st.integers(0, ID_END - 1)
U64 = st.integers(0, (1 << 64) - 1)
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=6)
TEXT = st.text(max_size=30)


@st.composite
def ids_for(draw: st.DrawFn, count: int) -> Sequence[int]:
    """Consecutive ids, or ids with holes."""
    first = draw(ENTRY_ID)
    if draw(st.booleans()):
        return range(first, first + count)
    steps = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    ids = [first]
    for step in steps[1:]:
        ids.append(ids[-1] + step)
    return tuple(ids)


@st.composite
def adds(draw: st.DrawFn) -> tuple[bytes, AnyFrame]:
    entries = draw(BODIES)
    if draw(st.booleans()):
        entries = [entry * 400 for entry in entries]  # too large to be joined
    ids = draw(ids_for(len(entries)))
    number, ledger_id, lac = draw(U64), draw(I64), draw(I64)
    recovery = draw(st.booleans())
    group = pack(entries)
    head = protocol.encode_add(number, ledger_id, lac, ids, group, recovery=recovery)
    holes = ids[-1] - ids[0] != len(ids) - 1
    explicit = len(ids) > 1 and type(ids) is not range
    flags = protocol.FLAG_RECOVERY * recovery | protocol.FLAG_IDS * explicit
    if not holes and not explicit:
        ids = range(ids[0], ids[0] + len(ids))
    return head + b"".join(group.body), Add(flags, number, ledger_id, lac, ids, group)


@st.composite
def reads(draw: st.DrawFn) -> tuple[bytes, AnyFrame]:
    entries = draw(BODIES)
    ids = draw(ids_for(len(entries)))
    id_ = draw(U64)
    holes = ids[-1] - ids[0] != len(ids) - 1
    parts = protocol.encode_entries(0, id_, ids, entries)
    if not holes:
        ids = range(ids[0], ids[0] + len(ids))
    return b"".join(parts), Entries(protocol.FLAG_IDS * holes, id_, ids, entries)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, AnyFrame]:
    first, count = draw(U64), draw(st.integers(0, (1 << 32) - 1))
    return protocol.encode_added(0x80, first, count), Added(0x80, first, count)


@st.composite
def small(draw: st.DrawFn) -> tuple[bytes, AnyFrame]:
    id_ = draw(U64)
    kind, payload = draw(
        st.sampled_from(
            [
                (protocol.READ, messages.encode_read(1, 2, 3, 4)),
                (protocol.LEDGER_END, messages.encode_ledger(-7)),
                (protocol.PING, b""),
                (protocol.LIST, messages.encode_list(-1, 10)),
                (protocol.CONFIRM, messages.encode_confirm([(1, 2), (3, 4)])),
                (protocol.CLOSING, messages.encode_failure(messages.Failure(1, "so"))),
                (0x3E, b"of another version"),
            ]
        )
    )
    return protocol.encode_frame(kind, 0, id_, payload), Frame(kind, 0, id_, payload)


FRAMES = st.one_of(adds(), reads(), answers(), small())


def feed(decoder: FrameDecoder, data: bytes) -> list[AnyFrame]:
    """The frames that these bytes complete."""
    result: list[AnyFrame] = []
    at = 0
    while at < len(data):
        free = decoder.get_buffer()
        count = min(len(free), len(data) - at)
        free[:count] = data[at : at + count]
        at += count
        decoder.received(count)
        while (frame := decoder.take()) is not None:
            result.append(frame)
    return result


def same(result: AnyFrame, sent: AnyFrame) -> bool:
    if isinstance(result, Add) and isinstance(sent, Add):
        a, b = result.entries, sent.entries
        if (b"".join(a.body), a.body_bytes, a.crc, a.lengths) != (
            b"".join(b.body),
            b.body_bytes,
            b.crc,
            b.lengths,
        ):
            return False
    return result == sent


@given(st.lists(FRAMES, min_size=1, max_size=5), st.data())
def test_frames_round_trip_in_chunks_of_any_size(
    frames: list[tuple[bytes, AnyFrame]], data: st.DataObject
) -> None:
    stream = b"".join(encoded for encoded, _ in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    result: list[AnyFrame] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        result += feed(decoder, stream[start:stop])
    assert len(result) == len(frames)
    assert all(same(decoded, sent) for decoded, (_, sent) in zip(result, frames, strict=True))
    assert decoder.held_bytes == 0


@given(FRAMES)
def test_incomplete_frame_waits_for_more_bytes(frame: tuple[bytes, AnyFrame]) -> None:
    encoded, sent = frame
    step = max(1, len(encoded) // 97)
    for cut in [*range(0, len(encoded), step), len(encoded) - 1]:
        decoder = FrameDecoder()
        assert feed(decoder, encoded[:cut]) == []
        (result,) = feed(decoder, encoded[cut:])
        assert same(result, sent)


@given(FRAMES, st.data())
def test_flipped_bit_is_never_accepted(frame: tuple[bytes, AnyFrame], data: st.DataObject) -> None:
    encoded, _ = frame
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    damaged = bytearray(encoded)
    damaged[bit // 8] ^= 1 << bit % 8
    with suppress(FrameError):
        assert feed(FrameDecoder(), bytes(damaged)) == []  # waits for more, by a flipped size


@pytest.mark.parametrize("cut", [protocol.HEAD_BYTES, -2, None])
def test_head_is_checked_behind_a_frame_received_in_parts(
    cut: int | None,
) -> None:
    group = pack([b"x" * 50])
    head = protocol.encode_add(1, 1, -1, range(1), group, recovery=False)
    add = b"".join((head, *group.body))
    ping = protocol.encode_frame(protocol.PING, 0, 7)
    bad = bytes([ping[0] ^ 1]) + ping[1:]
    decoder = FrameDecoder()
    result = feed(decoder, add[:cut]) + (feed(decoder, add[cut:]) if cut is not None else [])
    assert [type(frame) for frame in result] == [Add]
    assert [type(frame) for frame in feed(decoder, ping)] == [Frame]
    with pytest.raises(FrameError, match="head fails its CRC"):
        feed(decoder, bad)


@given(st.binary(min_size=protocol.HEAD_BYTES, max_size=200))
def test_garbage_is_not_a_frame(garbage: bytes) -> None:
    with suppress(FrameError):
        assert feed(FrameDecoder(), garbage) == []


def reframed(kind: int, payload: bytes, body: bytes = b"", flags: int = 0) -> bytes:
    """Returns a frame with these bytes and a valid CRC."""
    return protocol.encode_frame(kind, flags, 1, payload, len(body)) + body


def _add_payload(first: int, count: int, crc: int, tables: bytes = b"") -> bytes:
    return (
        (7).to_bytes(8, "little")
        + (0).to_bytes(8, "little")
        + first.to_bytes(8, "little", signed=True)
        + count.to_bytes(4, "little")
        + crc.to_bytes(4, "little")
        + tables
    )


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (reframed(protocol.ADD, _add_payload(0, 0, 0)), "0 entries"),
        (reframed(protocol.ADD, _add_payload(-1, 1, 0)), "from -1"),
        (reframed(protocol.ADD, _add_payload(0, 1, 1), b"x"), "CRC"),
        (reframed(protocol.ADD, _add_payload(0, 2, value(b"xy")), b"xy"), "tables"),
        (
            reframed(protocol.ADD, _add_payload(0, 2, value(b"xy"), bytes(8)), b"xy"),
            "lengths",
        ),
        (
            reframed(
                protocol.ADD,
                _add_payload(0, 2, value(b"xy"), b"\1\0\0\0" * 2 + bytes(16)),
                b"xy",
                protocol.FLAG_IDS,
            ),
            "ascend",
        ),
        (reframed(protocol.ADD, _add_payload(0, 1 << 31, 0)), "entries"),
        (reframed(protocol.ADD, _add_payload(ID_END, 1, value(b"x")), b"x"), "not all from 0"),
        (
            reframed(
                protocol.ADD,
                _add_payload(ID_END - 1, 2, value(b"xy"), b"\1\0\0\0" * 2),
                b"xy",
            ),
            "not all from 0",
        ),
        (
            reframed(
                protocol.ADD,
                _add_payload(
                    0, 2, value(b"xy"), b"\1\0\0\0" * 2 + bytes(8) + ID_END.to_bytes(8, "little")
                ),
                b"xy",
                protocol.FLAG_IDS,
            ),
            "above",
        ),
        (
            reframed(
                protocol.ADD, _add_payload(0, 1, value(b"x"), bytes(8)), b"x", protocol.FLAG_IDS
            ),
            "ids for one entry",
        ),
        (reframed(protocol.ADD, _add_payload(0, 1, value(b"x")), b"x", 0x40), "flags"),
        (reframed(protocol.PING, b"x"), "payload"),
        (reframed(protocol.PING, b"", b"body"), "of body"),
        (reframed(protocol.READ, bytes(31)), "payload"),
        (protocol.encode_frame(protocol.ADD, 0, 1, _add_payload(0, 1, 0), (64 << 20) + 1), "body"),
    ],
)
def test_frames_that_contradict_themselves_are_refused(frame: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        feed(FrameDecoder(), frame)


def test_a_large_frame_is_refused_by_its_head_alone() -> None:
    head = protocol.encode_frame(protocol.ADD, 0, 1, _add_payload(0, 1, 0), 64 << 20)
    assert feed(FrameDecoder(), head) == []
    damaged = bytearray(head)
    damaged[40] ^= 1
    with pytest.raises(FrameError, match="CRC"):
        feed(FrameDecoder(), bytes(damaged))


@given(TEXT, TEXT, TEXT, TEXT, st.integers(1, 9), st.integers(0, 9), U64)
def test_hello_and_welcome_round_trip(
    cluster: str, name: str, life: str, client: str, low: int, more: int, features: int
) -> None:
    hello = messages.Hello(BookieIdentity(name, life), cluster, client, low, low + more, features)
    assert messages.decode_hello(messages.encode_hello(hello)) == hello
    welcome = messages.Welcome(BookieIdentity(name, life), 1 << 20, cluster, low, features)
    assert messages.decode_welcome(messages.encode_welcome(welcome)) == welcome


@given(
    ENTRY_IDS,
    ENTRY_IDS,
    st.integers(-1, ID_END - 1),
    st.booleans(),
    st.integers(0, (1 << 64) - 1),
    st.lists(I64, max_size=5, unique=True).map(sorted),
)
def test_small_payloads_round_trip(
    first: int, second: int, third: int, flag: bool, count: int, ids: list[int]
) -> None:
    read = (first, second, third, count)
    assert messages.decode_read(messages.encode_read(*read)) == read
    prove = (first, second, third, count & 0xFFFFFFFF)
    assert messages.decode_prove(messages.encode_prove(*prove)) == prove
    end = LedgerEnd(first, second, flag, third)
    assert messages.decode_end(messages.encode_end(end)) == end
    more = flag and bool(ids)
    assert messages.decode_ledgers(messages.encode_ledgers(ids, more=more)) == (tuple(ids), more)
    proofs = EntryProofs([EntryProof(first, kind, 5, 6) for kind in ProofKind], second)
    assert messages.decode_proofs(messages.encode_proofs(proofs)) == proofs
    state = messages.State(count, 1, 2, "full")
    assert messages.decode_state(messages.encode_state(state)) == state


@pytest.mark.parametrize(
    "kind",
    [
        BookieError,
        LedgerFenced,
        BookieUnavailable,
        BookieReadOnly,
        NoSuchEntry,
        NoSuchLedger,
        EntryUnknown,
    ],
)
def test_errors_keep_their_class_and_text(kind: type[BookieError]) -> None:
    failure = messages.failure_of(kind("because"))
    error = messages.error_of(messages.decode_failure(messages.encode_failure(failure)))
    assert type(error) is kind
    assert str(error) == "because"


def test_errors_keep_path_and_offset() -> None:
    corrupt = messages.error_of(messages.failure_of(EntryCorrupt("bad", "/log", 77)))
    assert isinstance(corrupt, EntryCorrupt)
    assert (corrupt.path, corrupt.offset) == ("/log", 77)
    assert type(messages.error_of(messages.failure_of(BookieLate("late")))) is BookieUnavailable
    assert type(messages.error_of(messages.Failure(999, "new"))) is BookieError
    cut = messages.decode_failure(messages.encode_failure(messages.Failure(1, "é" * 5000)))
    assert cut.message == "é" * 2048


@given(st.binary(max_size=60))
def test_garbage_payloads_are_refused_or_decoded(garbage: bytes) -> None:
    for decode in (
        messages.decode_hello,
        messages.decode_welcome,
        messages.decode_proofs,
        messages.decode_ledgers,
        messages.decode_state,
        messages.decode_failure,
        messages.decode_end,
        messages.decode_confirm,
    ):
        with suppress(FrameError):
            decode(garbage)


def test_the_version_is_the_highest_in_common() -> None:
    bookie_identity = BookieIdentity("b", "i")
    assert messages.version_for(messages.Hello(bookie_identity, version_min=1, version_max=7)) == 1
    assert (
        messages.version_for(messages.Hello(bookie_identity, version_min=2, version_max=7)) is None
    )


def test_a_packed_group_is_not_packed_again() -> None:
    entries = [b"a" * 10, b"b"]
    group = pack(entries)
    assert pack(group) is group
    assert group == entries


def test_buffer_of_a_large_frame_is_reused() -> None:
    entries = [bytes([n]) * 1000 for n in range(250)] * 4
    encoded = b"".join(protocol.encode_entries(0, 1, range(1000), entries))
    assert 2 * BUFFER_BYTES_DEFAULT > len(encoded) > BUFFER_BYTES_DEFAULT
    receive_buffer._spare_grown.clear()
    kept: list[bytearray] = []
    for _ in range(3):
        decoder = FrameDecoder()
        (result,) = feed(decoder, encoded)
        assert isinstance(result, Entries)
        assert result.entries == entries
        assert decoder.held_bytes == 0
        kept += receive_buffer._spare_grown.values()
    assert len(kept) == 3
    assert all(buffer is kept[0] for buffer in kept)


@pytest.mark.parametrize(
    ("decode", "payload"),
    [
        (messages.decode_end, messages.encode_end(LedgerEnd(ID_END, 0, False, 0))),
        (messages.decode_end, messages.encode_end(LedgerEnd(-1, -2, False, 0))),
        (messages.decode_end, messages.encode_end(LedgerEnd(-1, -1, False, -2))),
        (messages.decode_ledgers, messages.encode_ledgers([5, 1], more=True)),
        (
            messages.decode_proofs,
            messages.encode_proofs(EntryProofs([EntryProof(-1, ProofKind.PRESENT)], 1)),
        ),
    ],
)
def test_answers_with_invalid_ids_are_refused(
    decode: Callable[[bytes], object], payload: bytes
) -> None:
    with pytest.raises(FrameError):
        decode(payload)


def test_the_head_of_a_frame_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many reads its body takes: the tables of a frame may have 12 MiB."""
    verified: list[int] = []

    def count(data: bytes) -> int:
        verified.append(len(data))
        return int(value(data))

    monkeypatch.setattr(protocol, "value", count)
    payload = _add_payload(0, 1, value(bytes(1000)))
    frame = reframed(protocol.ADD, payload, bytes(1000))
    decoder = FrameDecoder()
    verified.clear()
    for start in range(0, len(frame), 100):
        piece = frame[start : start + 100]
        decoder.get_buffer()[: len(piece)] = piece
        decoder.received(len(piece))
        taken = decoder.take()
    assert isinstance(taken, Add)
    head_bytes = protocol.HEAD_BYTES - 4 + len(payload)
    assert [size for size in verified if size == head_bytes] == [head_bytes]
