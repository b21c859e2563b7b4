"""The hand scan of SEND, ACK and FLOW sees exactly what protobuf sees, whatever a peer writes."""

import pytest
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.wire import frames
from tests.unit.wire.reference import decoded, expected

from magnetar.wire.decoder import FrameDecoder

ENTRY = frames.entry(1)
INTERESTING = [0, 1, 127, 128, 16_383, 16_384, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]

numbers = st.one_of(st.sampled_from(INTERESTING), st.integers(0, 2**64 - 1), st.integers(0, 300))


def varint(value: int, padding: int = 0) -> bytes:
    """A varint, overlong by `padding` bytes."""
    data = bytearray()
    while value > 0x7F or padding:
        padding -= value <= 0x7F
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(data) + bytes((value,))


@st.composite
def varints(draw: st.DrawFn) -> bytes:
    return varint(draw(numbers), draw(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 9])))


@st.composite
def fields(draw: st.DrawFn, numbers_known: list[int]) -> bytes:
    """One field of any number and wire type, its tag now and then overlong."""
    number = draw(st.sampled_from(numbers_known) | st.integers(1, 40))
    kind = draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 5]))
    tag = varint(number << 3 | kind, draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1])))
    if kind == 0:
        return tag + draw(varints())
    if kind == 2:
        body = draw(st.binary(max_size=12) | message_ids())
        return tag + varint(len(body)) + body
    return tag + draw(st.binary(min_size=8 if kind == 1 else 4, max_size=8 if kind == 1 else 4))


@st.composite
def message_ids(draw: st.DrawFn) -> bytes:
    parts = [b"\x08" + draw(varints()), b"\x10" + draw(varints())]
    parts += draw(st.lists(st.builds(lambda v: b"\x18" + v, varints()), max_size=1))
    parts += draw(st.lists(st.builds(lambda v: b"\x28" + v, varints()), max_size=1))
    return b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)


@st.composite
def commands(draw: st.DrawFn, number: int, body: bytes) -> bytes:
    """A BaseCommand around a body: mostly as clients write it, sometimes not."""
    length = varint(len(body), draw(st.sampled_from([0, 0, 0, 0, 0, 1])))
    parts = [b"\x08" + bytes((number,)), bytes((number << 3 | 2,)) + length + body]
    parts += draw(st.lists(fields([2, 6, 10, 11, 18]), max_size=1)) if draw(st.booleans()) else []
    return b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    parts = [b"\x08" + draw(varints()), b"\x10" + draw(varints())]
    parts += [bytes((t,)) + draw(varints()) for t in (0x18, 0x30, 0x38) if draw(st.booleans())]
    parts += draw(st.lists(fields(list(range(1, 10))), max_size=2)) if draw(st.booleans()) else []
    body = b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)
    return draw(commands(6, body))


@st.composite
def acks(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([b"\x10\x00", b"\x10\x00", b"\x10\x00", b"\x10\x01", b"\x10\x02"]))
    ids = draw(st.lists(message_ids(), min_size=1, max_size=2))
    parts = [b"\x08" + draw(varints()), kind, *(b"\x1a" + varint(len(i)) + i for i in ids)]
    parts += draw(st.lists(fields(list(range(1, 9))), max_size=1)) if draw(st.booleans()) else []
    body = b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)
    return draw(commands(10, body))


@st.composite
def flows(draw: st.DrawFn) -> bytes:
    parts = [b"\x08" + draw(varints()), b"\x10" + draw(varints())]
    parts += draw(st.lists(fields([1, 2, 3]), max_size=1)) if draw(st.booleans()) else []
    body = b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)
    return draw(commands(11, body))


@settings(max_examples=600)
@given(st.lists(sends(), min_size=1, max_size=3))
@example([b"\x08\x06\x32\x84\x08\x01" + b"\x10\x01" * 65])  # a length of two bytes
@example([b"\x08\x06\x32\x06\x08\x01\x10\x01\x18\x00"])
@example([b"\x08\x06\x32\x04\x08\x01\x10"])
def test_sends(bodies: list[bytes]) -> None:
    stream = b"".join(frames.frame(body, ENTRY) for body in bodies)
    assert decoded(FrameDecoder(), stream) == expected(stream)


@settings(max_examples=400)
@given(acks())
@example(b"\x08\x0a\x52\x84\x08\x01\x10\x00\x1a\x7c\x08\x01\x10\x01" + bytes(122))
def test_acks(body: bytes) -> None:
    stream = frames.frame(body)
    assert decoded(FrameDecoder(), stream) == expected(stream)


@settings(max_examples=300)
@given(flows())
def test_flows(body: bytes) -> None:
    stream = frames.frame(body)
    assert decoded(FrameDecoder(), stream) == expected(stream)


@settings(max_examples=300)
@given(st.binary(max_size=40), st.sampled_from([b"\x08\x06\x32", b"\x08\x0a\x52", b"\x08\x0b\x5a"]))
def test_any_bytes_after_a_hot_start(data: bytes, start: bytes) -> None:
    stream = frames.frame(start + bytes((len(data),)) + data, ENTRY)
    assert decoded(FrameDecoder(), stream) == expected(stream)


def test_what_clients_write_is_scanned_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scanners that always decline would pass all of the above."""

    def parse(data: bytes) -> tuple[int, Message]:
        raise AssertionError(f"parsed in full: {data.hex()}")

    monkeypatch.setattr("magnetar.wire.decoder.parse_command", parse)
    decoder = FrameDecoder()
    for n in INTERESTING[:10]:
        count = min(max(n, 1), 2**31 - 1)
        assert decoder.feed(frames.send(n, n, num_messages=count, highest_sequence_id=n))
        assert decoder.feed(frames.send(n, n, is_chunk=True))
        assert decoder.feed(frames.ack(n, n, n))
        assert decoder.feed(frames.flow(n, min(n, 2**32 - 1)))
