"""Heads with a valid CRC and invalid fields, which no release writes, are refused."""

import struct
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value
from tests.support.sim_disk import SimDisk

from magnetar.bookie.api import ID_END
from magnetar.bookie.cache.write_cache import segment_of
from magnetar.bookie.entry_log import codec_v1 as log_codec
from magnetar.bookie.entry_log.codec_v1 import BadBlock, Segment, decode_block
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal import scan as scan_module
from magnetar.bookie.journal.codec_v1 import BadRecord, IncompleteRecord, Record
from magnetar.bookie.journal.files import file_name
from magnetar.bookie.journal.replay import _fault

from .test_journal_scan import DIRECTORY, SALT, START, Maker, make, scanned

MAGIC = log_codec.log_magic(SALT, 1)
ENTRIES = [b"one", b"", b"three"]
HEAD = struct.Struct("<8sIIqqqIIIIQ")
FIELDS = ("magic", "crc", "flags", "ledger", "first", "last", "count", "segments", "ranges",
          "body_bytes", "reserved")  # fmt: skip


def block(ranges: Any = None, **fields: Any) -> bytes:
    """A block of three entries, some fields of its head changed, its CRC right again."""
    ranges = ranges or [(4, 3)]
    head = log_codec.encode_head(MAGIC, 7, [segment_of(ENTRIES)], ranges)
    defaults = dict(zip(FIELDS, HEAD.unpack_from(head), strict=True)) | fields
    rest = HEAD.pack(*defaults.values())[12:] + head[HEAD.size :]
    body = b"".join(ENTRIES)
    whole = MAGIC + struct.pack("<I", value(rest)) + rest + body
    return whole + bytes(-len(whole) % 8)


def test_block_round_trip_at_any_offset() -> None:
    for ranges in ([(4, 3)], [(4, 1), (9, 2)]):
        whole = block(ranges)
        for before in (b"", b"12345678"):
            found = decode_block(before + whole + b"behind", MAGIC, len(before))
            assert found.entries == ENTRIES
            assert (found.ledger_id, found.first_entry) == (7, 4)
            assert found.last_entry == ranges[-1][0] + ranges[-1][1] - 1
            assert [tuple(item) for item in found.ranges] == ranges


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": 1},
        {"reserved": 1},
        {"count": 0, "segments": 0, "body_bytes": 0},
        {"body_bytes": 7},
        {"body_bytes": 9},
        {"body_bytes": 1 << 20},
        {"count": 1 << 20},
        {"segments": 1 << 20},
    ],
    ids=str,
)
def test_block_with_invalid_fields_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(BadBlock):
        decode_block(block(**fields), MAGIC)


@pytest.mark.parametrize("at", [8, 12, 16, 24, 39, HEAD.size, HEAD.size + 11])
def test_a_block_whose_head_or_tables_fail_their_crc_is_refused(at: int) -> None:
    whole = bytearray(block())
    whole[at] ^= 1
    with pytest.raises(BadBlock, match=r"head fails its CRC|tables do not fit"):
        decode_block(bytes(whole), MAGIC)


def test_block_without_entries_is_refused() -> None:
    rest = HEAD.pack(MAGIC, 0, 0, 7, 4, 3, 0, 0, 1, 0, 0)[12:]
    whole = MAGIC + struct.pack("<I", value(rest)) + rest
    with pytest.raises(BadBlock, match="no entries"):
        decode_block(whole, MAGIC)


def test_every_segment_is_checked_by_its_own_crc() -> None:
    segments = [segment_of(ENTRIES[:1]), segment_of(ENTRIES[1:])]
    head = log_codec.encode_head(MAGIC, 7, segments, [(4, 3)])
    body = b"".join(ENTRIES)
    whole = head + body + bytes(-(len(head) + len(body)) % 8)
    assert decode_block(whole, MAGIC).entries == ENTRIES
    for number in range(2):
        wrong = [Segment(s.count, s.crc ^ (number == at), s.body_bytes, s.lengths)
                 for at, s in enumerate(segments)]  # fmt: skip
        head = log_codec.encode_head(MAGIC, 7, wrong, [(4, 3)])
        with pytest.raises(BadBlock, match=f"entries {number} to {number * 2} of it"):
            decode_block(head + whole[len(head) :], MAGIC)


@pytest.mark.parametrize("ranges", [[(4, 3)], [(4, 1), (9, 2)]])
def test_slice_of_a_block_returns_the_requested_entries(ranges: list[tuple[int, int]]) -> None:
    found = decode_block(block(ranges), MAGIC)
    held = [first + number for first, count in ranges for number in range(count)]
    for first in range(2, 13):
        for last in range(first, 13):
            ids, entries = found.slice(first, last)
            requested = [entry_id for entry_id in held if first <= entry_id <= last]
            assert list(ids) == requested
            assert entries == [ENTRIES[held.index(entry_id)] for entry_id in requested]


def record(**fields: Any) -> Record:
    defaults: dict[str, Any] = {
        "kind": codec.KIND_ADD,
        "seq": 5,
        "durable_seq": 4,
        "ledger_id": 7,
        "last_add_confirmed": -1,
        "first_entry": 3,
        "count": 2,
        "body_bytes": 5,
        "body_crc": 0,
        "lengths": codec.pack_lengths([b"ab", b"cde"]),
        "entry_ids": range(3, 5),
        "head_bytes": 72,
    }
    return Record(**(defaults | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"ledger_id": -1},
        {"ledger_id": ID_END},
        {"entry_ids": ()},
        {"entry_ids": range(-1, 1)},
        {"entry_ids": (ID_END - 1, ID_END)},
        {"entry_ids": (4, 4)},
        {"entry_ids": (4, 3)},
        {"body_bytes": 4},
        {"last_add_confirmed": -2},
        {"last_add_confirmed": ID_END},
    ],
    ids=str,
)
def test_invalid_record_has_a_fault(fields: dict[str, Any]) -> None:
    assert _fault(record(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ledger_id": 0},
        {"ledger_id": ID_END - 1},
        {"entry_ids": range(2)},
        {"entry_ids": (ID_END - 2, ID_END - 1)},
        {"entry_ids": (3, 9)},
        {"last_add_confirmed": 0},
        {"last_add_confirmed": ID_END - 1},
        {"kind": codec.KIND_MARK, "ledger_id": -1},
        {"kind": codec.KIND_GAP, "ledger_id": -1},
        {"kind": codec.KIND_FENCE, "entry_ids": ()},
        {"kind": codec.KIND_DELETE, "entry_ids": (), "last_add_confirmed": -5},
    ],
    ids=str,
)
def test_record_at_the_bounds_has_no_fault(fields: dict[str, Any]) -> None:
    assert not _fault(record(**fields))


@pytest.mark.parametrize("kind", [codec.KIND_FENCE, codec.KIND_DELETE])
@pytest.mark.parametrize("ledger_id", [-1, ID_END])
def test_fence_or_delete_with_invalid_ledger_id_has_a_fault(kind: int, ledger_id: int) -> None:
    assert _fault(record(kind=kind, ledger_id=ledger_id, entry_ids=()))


@pytest.mark.parametrize("entries", [[b"x"], [b"", b"ab", b"c" * 300]])
@pytest.mark.parametrize("holes", [False, True])
def test_truncated_head_reports_needed_bytes(entries: list[bytes], holes: bool) -> None:
    count = len(entries)
    ids = tuple(range(3, 3 + 2 * count, 2)) if holes and count > 1 else range(3, 3 + count)
    body, size, crc = codec.body_of(entries)
    lengths = codec.pack_lengths(entries)
    head = codec.encode_head(
        codec.KIND_ADD, 5, 4, 7, 2, entry_ids=ids, lengths=lengths, body_bytes=size, body_crc=crc
    )
    found = codec.decode_head(b"12" + head + b"".join(body), 2)
    assert (found.seq, found.durable_seq, found.ledger_id) == (5, 4, 7)
    assert (found.last_add_confirmed, found.first_entry, found.count) == (2, 3, count)
    assert list(found.entry_ids) == list(ids)
    assert found.head_bytes == len(head)
    assert codec.split_body(b"".join(body), found.lengths) == entries
    for length in range(len(head)):
        with pytest.raises(BadRecord) as raised:
            codec.decode_head(head[:length], 0)
        if isinstance(raised.value, IncompleteRecord):
            assert length < raised.value.needed <= len(head)


def damaged(count: int, *places: int) -> Maker:
    maker = make(count)
    for place in places:
        maker.data[maker.starts[place] + 30] ^= 1
    return maker


@pytest.mark.parametrize("chunk", [64, 72, 256, 4096, 5000])
@pytest.mark.parametrize("places", [(), (3,), (0,), (4, 5), (9,)], ids=str)
def test_scan_result_is_independent_of_the_window_size(
    monkeypatch: pytest.MonkeyPatch, chunk: int, places: tuple[int, ...]
) -> None:
    def found() -> tuple[Any, ...]:
        numbers, bad, scan = scanned(damaged(10, *places))
        reported = [
            (item.offset, item.first_seq, item.last_seq, item.reason, item.harmless, item.damage)
            for item in bad
        ]
        return numbers, reported, scan.ends, scan.durable_seq, scan.last_seq

    whole = found()
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", chunk)
    small = found()
    assert small[0] == whole[0]
    assert small[2:] == whole[2:]
    if 9 not in places:  # of a tail, no more is shown than is in memory
        assert small[1] == whole[1]


@pytest.mark.parametrize("hole", [0, 1, 7, 8, 9, 64, 150])
def test_records_behind_a_hole_of_any_length_are_scanned(
    monkeypatch: pytest.MonkeyPatch, hole: int
) -> None:
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 64)
    maker = make(3)
    begin = maker.starts[1]
    maker.data[begin : begin + 64 + hole] = bytes(64 + hole)
    numbers, bad, _ = scanned(maker)
    assert numbers == [1, 3]
    (lost,) = bad
    assert (lost.first_seq, lost.last_seq, lost.damage) == (2, 2, True)
    assert (lost.offset, lost.end) == (begin, maker.starts[2])


def test_samples_decide_whether_a_long_hole_is_searched_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 64)
    monkeypatch.setattr(scan_module, "SEARCH_BYTES", 512)
    monkeypatch.setattr(scan_module, "SAMPLE_BYTES", 256)
    monkeypatch.setattr(scan_module, "SAMPLE_EVERY_BYTES", 256)
    maker = make(3)
    begin = maker.starts[1]
    maker.data[begin : begin + 64] = bytes(64 + 4096)  # the second record's mark is behind it
    numbers, bad, _ = scanned(maker)
    assert numbers == [1, 3], "samples have the mark"
    assert [item.damage for item in bad] == [True]
    monkeypatch.setattr(scan_module, "SAMPLE_BYTES", 8)
    monkeypatch.setattr(scan_module, "SAMPLE_EVERY_BYTES", 1 << 20)
    numbers, _, _ = scanned(maker)
    assert numbers == [1], "so long a stretch is a tail"


def test_scan_begins_at_the_given_position(tmp_path: Path) -> None:
    disk = SimDisk()
    for file_id, first_seq in ((1, 1), (2, 4), (3, 6)):
        maker = Maker(file_id, first_seq)
        for number in range({1: 3, 2: 2, 3: 1}[file_id]):
            maker.add(b"%d" % number)
        path = DIRECTORY / file_name(file_id)
        disk.open(path, create=True).write([bytes(maker.data)], 0)
        if file_id == 2:
            second = maker
    scan = scan_module.JournalScan(disk, DIRECTORY, SALT)
    assert [item.record.seq for item in scan.records(2, second.starts[1], 4)] == [5, 6]
    assert set(scan.ends) == {2, 3}
    scan = scan_module.JournalScan(disk, DIRECTORY, SALT)
    assert [item.record.seq for item in scan.records(2, START, -1)] == [4, 5, 6]
    assert not scan.classify()
