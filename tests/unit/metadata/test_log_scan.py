"""The scan of RocksDB's logs tells a torn tail from a flipped bit."""

from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.metadata.log_scan import BLOCK_BYTES, HEADER_BYTES, CorruptLog, check_log

WHERE = Path("000001.log")


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def physical(kind: int, payload: bytes) -> bytes:
    crc = masked(google_crc32c.value(bytes([kind]) + payload))
    return crc.to_bytes(4, "little") + len(payload).to_bytes(2, "little") + bytes([kind]) + payload


def written(payloads: list[bytes]) -> bytes:
    """A log as RocksDB writes it: records cut at block ends into first, middle and last."""
    out = bytearray()
    for payload in payloads:
        begin, rest = True, payload
        while begin or rest:
            left = BLOCK_BYTES - len(out) % BLOCK_BYTES
            if left < HEADER_BYTES:
                out += bytes(left)
                left = BLOCK_BYTES
            piece, rest = rest[: left - HEADER_BYTES], rest[left - HEADER_BYTES :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}
            out += physical(kind[begin, not rest], piece)
            begin = False
    return bytes(out)


SMALL = written([b"one", b"", b"three" * 20])


def test_whole_logs_pass_to_their_end() -> None:
    for payloads in ([], [b"x"], [b"a" * 40_000, b"b" * 25_500, b"c" * 70_000]):
        data = written(payloads)
        assert check_log(WHERE, data) == len(data)


def test_a_tail_torn_anywhere_is_cut_at_the_last_whole_record() -> None:
    ends = {0, HEADER_BYTES + 3, 2 * HEADER_BYTES + 3, len(SMALL)}
    for cut in range(len(SMALL) + 1):
        assert check_log(WHERE, SMALL[:cut]) == max(end for end in ends if end <= cut)


def test_every_flipped_bit_is_found_at_its_record() -> None:
    starts = [0, HEADER_BYTES + 3, 2 * HEADER_BYTES + 3]
    for at in range(len(SMALL)):
        for bit in range(8):
            data = bytearray(SMALL)
            data[at] ^= 1 << bit
            with pytest.raises(CorruptLog) as failure:
                check_log(WHERE, bytes(data))
            assert failure.value.path == WHERE
            assert failure.value.offset == max(start for start in starts if start <= at)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50_000), min_size=1, max_size=5),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_flips_in_long_logs_are_found(sizes: list[int], where: float, bit: int) -> None:
    data = bytearray(written([bytes([7]) * size for size in sizes]))
    data[int(len(data) * where)] ^= 1 << bit
    with pytest.raises(CorruptLog):
        check_log(WHERE, bytes(data))


def test_preallocated_zeros_are_no_records() -> None:
    assert check_log(WHERE, SMALL + bytes(100)) == len(SMALL) + 100
    with pytest.raises(CorruptLog):
        check_log(WHERE, SMALL + bytes(100) + b"\x01")
