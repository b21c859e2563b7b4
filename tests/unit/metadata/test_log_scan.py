"""The scan of RocksDB's logs tells a torn tail from a flipped bit."""

from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.metadata import log_scan
from magnetar.metadata.log_scan import (
    BLOCK_BYTES,
    HEADER_BYTES,
    CorruptLog,
    check_log,
    check_logs,
)

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


@pytest.mark.parametrize("left", range(HEADER_BYTES + 2))
def test_a_block_with_little_room_left_is_padded_or_holds_a_header_alone(left: int) -> None:
    first = b"a" * (BLOCK_BYTES - HEADER_BYTES - left)
    data = written([first, b"second", b"third"])
    assert check_log(WHERE, data) == len(data)
    # A cut anywhere around the end of the block keeps the records before it.
    for cut in range(BLOCK_BYTES - left, BLOCK_BYTES + HEADER_BYTES + 1):
        assert BLOCK_BYTES - left <= check_log(WHERE, data[:cut]) <= cut
    if 0 < left < HEADER_BYTES:
        for at in range(BLOCK_BYTES - left, BLOCK_BYTES):
            dirty = bytearray(data)
            dirty[at] = 1
            with pytest.raises(CorruptLog, match="padding") as failure:
                check_log(WHERE, bytes(dirty))
            assert failure.value.offset == BLOCK_BYTES - left


@pytest.mark.parametrize("kind", [0, 5, 9, 255])
def test_a_record_of_a_type_that_is_never_written_is_damage(kind: int) -> None:
    with pytest.raises(CorruptLog, match=f"unknown type {kind}"):
        check_log(WHERE, SMALL + physical(kind, b"x"))


def test_a_record_reaches_to_the_end_of_its_block_and_no_further() -> None:
    whole = physical(1, b"a" * (BLOCK_BYTES - HEADER_BYTES))
    assert check_log(WHERE, whole + SMALL) == len(whole + SMALL)
    longer = physical(1, b"a" * (BLOCK_BYTES - HEADER_BYTES + 1))
    with pytest.raises(CorruptLog, match="crosses its block"):
        check_log(WHERE, longer)


def test_logs_of_both_kinds_are_checked_and_no_other_files(tmp_path: Path) -> None:
    damaged = b"x" * 100
    for name in ("CURRENT", "000007.sst", "LOG"):
        (tmp_path / name).write_bytes(damaged)
    (tmp_path / "000001.log").write_bytes(SMALL)
    check_logs(tmp_path)
    for name in ("000009.log", "MANIFEST-000004"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CorruptLog) as failure:
            check_logs(tmp_path)
        assert failure.value.path == tmp_path / name
        (tmp_path / name).unlink()


def test_a_log_beyond_the_bound_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "000001.log"
    path.write_bytes(SMALL)
    monkeypatch.setattr(log_scan, "LOG_BYTES_MAX", len(SMALL))
    check_logs(tmp_path)
    monkeypatch.setattr(log_scan, "LOG_BYTES_MAX", len(SMALL) - 1)
    with pytest.raises(CorruptLog, match="longer than"):
        check_logs(tmp_path)


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
