"""Scans of a journal: torn tails, damage, and their classification."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sim_disk import Inode, SimDisk

from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import file_name
from magnetar.bookie.journal.scan import BadRange, JournalScan

DIRECTORY = Path("/journal")
SALT = bytes(range(16))
START = codec.FILE_HEADER_BYTES


class Maker:
    """Builds a journal file record by record."""

    def __init__(self, file_id: int = 1, first_seq: int = 1, *, recycled: bool = False) -> None:
        self.file_id = file_id
        self.marks = codec.FileMarks(SALT, file_id)
        header = codec.FileHeader(file_id, first_seq, SALT, recycled)
        self.data = bytearray(codec.encode_file_header(header))
        self.seq = first_seq - 1
        self.starts: list[int] = []

    def add(self, *entries: bytes, durable: int | None = None, kind: int = codec.KIND_ADD) -> None:
        """Adds a record; `durable` is its `durable_seq`, by default the record before it."""
        if kind != codec.KIND_MARK:
            self.seq += 1
        body, size, crc = codec.body_of(entries) if entries else ((), 0, 0)
        proven_seq = self.seq - 1 if durable is None else durable
        if kind == codec.KIND_MARK and durable is None:
            proven_seq = self.seq
        ids = range(self.seq * 100, self.seq * 100 + len(entries))
        lengths = codec.pack_lengths(entries) if entries else b""
        head = codec.encode_head(
            kind,
            self.seq,
            proven_seq,
            7,
            -1,
            entry_ids=ids,
            lengths=lengths,
            body_bytes=size,
            body_crc=crc,
        )
        self.starts.append(len(self.data))
        self.data += head + b"".join(body)
        self.data += self.marks.tails[-(len(head) + size) % codec.ALIGNMENT]


def scanned(
    *makers: Maker, tail: bytes = bytes(8192), unreadable: tuple[int, int] | None = None
) -> tuple[list[int], list[BadRange], JournalScan]:
    """Returns (sequence numbers, bad ranges, scan) of files with `tail` behind them.

    The disk cannot read the bytes `unreadable` of any file.
    """
    disk = SimDisk()
    for maker in makers:
        if unreadable is not None:
            disk.unreadable[DIRECTORY / file_name(maker.file_id)] = [unreadable]
        disk.inodes[DIRECTORY / file_name(maker.file_id)] = Inode(bytearray(maker.data + tail))
    scan = JournalScan(disk, DIRECTORY, SALT)
    result = [item.record.seq for item in scan.records(0, START, -1)]
    return result, scan.classify(), scan


def make(count: int, **options: int) -> Maker:
    maker = Maker(recycled=bool(options.pop("recycled", 0)))
    for n in range(count):
        maker.add(b"entry %d " % n * 20, b"and more" * 9, **options)
    return maker


def test_a_whole_journal() -> None:
    result, bad, scan = scanned(make(20))
    assert result == list(range(1, 21))
    assert not bad
    assert scan.ends[1] == len(make(20).data)


def test_scan_continues_in_the_next_file() -> None:
    second = Maker(2, first_seq=4)
    second.add(b"x")
    result, bad, _ = scanned(make(3), second)
    assert result == [1, 2, 3, 4]
    assert not bad


def test_a_missing_file_is_damage() -> None:
    second = Maker(3, first_seq=6)
    second.add(b"x")
    result, bad, _ = scanned(make(3), second)
    assert result == [1, 2, 3, 6]
    assert [(item.first_seq, item.last_seq, item.damage) for item in bad] == [(4, 5, True)]


def test_file_header_proves_that_earlier_records_were_synced() -> None:
    """The last commit before a roll is lost, and no later record proves it yet."""
    first = Maker()
    for _ in range(3):
        first.add(b"one commit" * 50, durable=0)
    first.data[first.starts[2] :] = bytes(len(first.data) - first.starts[2])
    result, bad, _ = scanned(first, Maker(2, first_seq=4))
    assert result == [1, 2]
    assert [(item.first_seq, item.last_seq, item.damage) for item in bad] == [(3, 3, True)]


@given(st.integers(0, 2000))
def test_tail_truncated_anywhere_is_torn(cut: int) -> None:
    """A power cut during the write of the last record: the rest of the file is zeros."""
    maker = make(5)
    length = max(len(maker.data) - cut, maker.starts[-1])
    rest = bytes(len(maker.data) - length)
    maker.data = maker.data[:length] + rest
    result, bad, _ = scanned(maker)
    assert result[:4] == [1, 2, 3, 4]
    assert not [item for item in bad if item.damage]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("cut", "the file ends within the record"),
        ("cut by a byte", "the file ends within the record"),
        ("flipped", "record body fails its CRC"),
    ],
)
def test_a_bad_record_at_the_end_is_reported_with_its_head_and_the_reason(
    change: str, reason: str
) -> None:
    """`magnetar bookie inspect` shows which record it was, and of which ledger."""
    maker = make(3)
    start = maker.starts[-1]
    if change == "flipped":
        maker.data[start + codec.HEAD_BYTES + 40] ^= 1
    else:
        record = codec.decode_head(bytes(maker.data[start:]), 0)
        body_end = start + record.head_bytes + record.body_bytes
        del maker.data[body_end - (1 if change == "cut by a byte" else 40) :]
    result, bad, _ = scanned(maker, tail=b"" if change != "flipped" else bytes(8192))
    assert result == [1, 2]
    (found,) = bad
    assert (found.offset, found.first_seq, found.reason) == (start, 3, reason)
    assert found.record is not None
    assert (found.record.seq, found.record.ledger_id) == (3, 7)


@given(st.sets(st.integers(0, 7)))
def test_sectors_missing_from_an_unsynced_commit_are_torn(missing: set[int]) -> None:
    """Any part of an unacknowledged commit may be on the disk."""
    maker = make(2)
    for _ in range(4):
        maker.add(b"unsynced" * 100, durable=1)
    start = maker.starts[2]
    for sector in missing:
        low = max((start // 512 + 1 + sector) * 512, start)
        high = min(low + 512, len(maker.data))
        if low < high:
            maker.data[low:high] = bytes(high - low)
    result, bad, _ = scanned(maker)
    assert result[:2] == [1, 2]
    assert set(result) <= set(range(1, 7))
    assert not [item for item in bad if item.damage]


@pytest.mark.parametrize("where", ["head", "tables", "body"])
def test_flipped_bit_does_not_hide_later_records(where: str) -> None:
    maker = make(6)
    offset = {"head": 20, "tables": codec.HEAD_BYTES + 3, "body": codec.HEAD_BYTES + 30}[where]
    maker.data[maker.starts[2] + offset] ^= 4
    result, bad, _ = scanned(maker)
    assert result == [1, 2, 4, 5, 6]
    (item,) = bad
    assert item.damage
    assert (item.offset, item.end) == (maker.starts[2], maker.starts[3])
    assert (item.first_seq, item.last_seq) == (3, 3)
    assert item.path.name == file_name(1)
    if where == "body":
        # The head is good: it says which entries were lost.
        assert item.record is not None
        assert list(item.record.entry_ids) == [300, 301]
    else:
        assert item.record is None


@given(st.data())
def test_any_flipped_bit_is_reported(data: st.DataObject) -> None:
    maker = make(5)
    maker.add(kind=codec.KIND_MARK)
    bit = data.draw(st.integers(0, len(maker.data) * 8 - 1))
    maker.data[bit // 8] ^= 1 << bit % 8
    result, bad, _ = scanned(maker)
    if bit // 8 >= maker.starts[-1]:
        # The mark itself: it carries nothing.
        assert result[:5] == [1, 2, 3, 4, 5]
        return
    assert [item for item in bad if item.damage]
    assert any(item.offset <= bit // 8 < max(item.end, item.offset + 8) for item in bad)
    assert len(set(result) - {6}) >= 4


def test_torn_mark_between_synced_records_is_not_damage() -> None:
    """The journal writes marks without a sync; a power cut may take half of one for good."""
    maker = make(3)
    maker.add(kind=codec.KIND_MARK)
    start = maker.starts[-1]
    maker.data[start : start + 8] = bytes(8)
    maker.add(b"synced later")
    maker.add(b"and more", durable=4)
    result, bad, _ = scanned(maker)
    assert result == [1, 2, 3, 4, 5]
    assert [item.damage for item in bad] == [False]


def test_flipped_bit_in_the_last_record_of_a_new_file_is_damage() -> None:
    """The record is whole and no sector of it is zeros: this was no torn write."""
    for offset in (20, codec.HEAD_BYTES + 30):
        maker = make(4)
        maker.data[maker.starts[3] + offset] ^= 1
        result, bad, _ = scanned(maker)
        assert result == [1, 2, 3]
        assert [item.damage for item in bad] == [True]


def test_in_a_recycled_file_a_mark_proves_damage() -> None:
    old = bytes(range(256)) * 64
    for marked in (True, False):
        maker = make(4, recycled=1)
        if marked:
            maker.add(kind=codec.KIND_MARK)
        maker.data[maker.starts[3] + codec.HEAD_BYTES + 30] ^= 1
        _, bad, _ = scanned(maker, tail=old)
        assert [item.damage for item in bad] == [marked]


def test_records_of_a_former_life_are_ignored() -> None:
    old = make(30)
    for records in range(1, 8):
        new = Maker(2, first_seq=31, recycled=True)
        for n in range(records):
            # As long as the old ones: the old heads stand where new ones would.
            new.add(b"entry %d " % n * 20, b"and more" * 9)
        new.data += old.data[len(new.data) :]
        result, bad, _ = scanned(new, tail=b"")
        assert result == list(range(31, 31 + records))
        assert not bad


def test_a_recycled_file_that_was_not_begun_is_empty() -> None:
    renamed = Maker(file_id=1, first_seq=31)
    for _ in range(3):
        renamed.add(b"of its former life")
    renamed.file_id = 4
    result, bad, scan = scanned(renamed)
    assert not result
    assert not bad
    # The numbers go on behind the former life, also if no checkpoint says where it ended.
    assert (scan.first_seq, scan.last_seq) == (31, 30)


def test_payload_that_looks_like_records_is_ignored() -> None:
    another = Maker(file_id=9)
    another.add(b"z", durable=0)
    maker = Maker()
    maker.add(b"x")
    maker.add(bytes(another.data[START - 8 :]), durable=1)
    maker.add(b"y")
    maker.data[maker.starts[1] + 5] ^= 1
    assert scanned(maker)[0] == [1, 3]


def test_records_beside_an_unreadable_sector_are_replayed() -> None:
    """One bad sector costs the records on its page, not the rest of the journal."""
    maker = Maker()
    for _ in range(40):
        maker.add(b"x" * 900)
    page = maker.starts[20] // 4096 * 4096
    lost = [
        n + 1
        for n, start in enumerate(maker.starts)
        if start < page + 4096 and page < start + 64 + 900 + 8
    ]
    result, bad, _ = scanned(maker, unreadable=(page + 512, page + 1024))
    assert result == [n for n in range(1, 41) if n not in lost]
    (item,) = bad
    assert (item.damage, item.first_seq, item.last_seq) == (True, lost[0], lost[-1])


@pytest.mark.parametrize("recycled", [False, True])
@pytest.mark.parametrize("where", ["head", "body"])
def test_an_unreadable_last_record_is_damage(where: str, recycled: bool) -> None:
    """A torn write reads without an error, so a read error means that the record was there."""
    maker = make(3, recycled=int(recycled))
    maker.add(b"y" * 20_000)
    start = maker.starts[3] if where == "head" else maker.starts[3] + 8192
    result, bad, _ = scanned(maker, tail=bytes(8192), unreadable=(start, start + 1))
    assert 4 not in result
    assert bad[-1].damage
    named = bad[-1].record
    assert (named is not None and list(named.entry_ids) == [400]) == (where == "body")


def test_unreadable_page_does_not_hide_later_records() -> None:
    """The first lost record has a good head on the page before; the others have none."""
    maker = make(3)
    maker.add(b"z" * 5000)
    maker.add(b"small")
    page = maker.starts[4] // 4096 * 4096
    assert maker.starts[3] + codec.HEAD_BYTES <= page
    result, bad, _ = scanned(maker, unreadable=(page, page + 512))
    assert result == [1, 2, 3]
    assert [(item.first_seq, item.damage) for item in bad] == [(4, True), (5, True)]
    assert bad[0].record is not None
    assert bad[1].record is None  # its ledger is unknown


def test_unreadable_page_behind_the_last_record_is_not_damage() -> None:
    maker = make(3)
    result, bad, _ = scanned(maker, tail=bytes(16_384), unreadable=(12_288, 12_800))
    assert len(maker.data) < 8192
    assert result == [1, 2, 3]
    assert not bad


def test_unreadable_disk_fails_the_scan() -> None:
    """Megabytes of filler are no journal: a dead disk must not look like one with bad sectors."""
    maker = make(3)
    with pytest.raises(OSError, match="Input/output error"):
        scanned(maker, tail=bytes(6 << 20), unreadable=(0, 7 << 20))


def test_records_behind_the_header_of_a_former_life_are_replayed() -> None:
    """The disk lost the write of a recycled file's header, and kept its records."""
    maker = Maker(2, first_seq=4, recycled=True)
    maker.add(b"acknowledged")
    maker.add(b"as well")
    maker.data[:START] = codec.encode_file_header(codec.FileHeader(1, 1, SALT))
    result, bad, _ = scanned(make(3), maker)
    assert result == [1, 2, 3, 4, 5]
    assert [item.damage for item in bad] == [True]


def test_a_header_of_another_bookie_is_damage() -> None:
    maker = make(2)
    maker.data[:START] = codec.encode_file_header(codec.FileHeader(1, 1, bytes(16)))
    _, bad, _ = scanned(maker)
    assert bad[0].damage
    assert "another bookie" in bad[0].reason


def test_torn_header_of_the_newest_file_is_not_damage() -> None:
    second = Maker(2, first_seq=4)
    second.data[100:600] = bytes(range(250)) * 2
    _, bad, _ = scanned(make(3), second)
    assert [item.damage for item in bad] == [False]


def test_records_behind_a_very_long_hole_are_scanned() -> None:
    maker = make(2)
    hole = len(maker.data)
    maker.data += bytes(range(1, 256)) * (6 << 12)
    maker.data += bytes(-len(maker.data) % 8 - 8 + 8)
    maker.data += maker.marks.mark
    maker.seq = 5
    # As many as a sample needs to meet one of their marks.
    for _ in range(400):
        maker.add(b"x" * 3000)
    result, bad, _ = scanned(maker)
    assert result == [1, 2, *range(6, 406)]
    assert [(item.offset, item.damage) for item in bad] == [(hole, True)]


def test_a_copy_of_journal_bytes_within_a_damaged_entry_is_not_taken_for_a_record() -> None:
    """As of a message that carries a backup of the journal. Records begin at aligned offsets."""
    copied = Maker(first_seq=4)
    copied.add(b"a copy")
    mark = copied.marks.mark
    copy = mark + copied.data[copied.starts[0] :]
    tried = 0
    for shift in range(codec.ALIGNMENT):
        maker = make(2)
        maker.add(bytes(shift) + copy * 3)
        maker.add(b"the record")
        if not (maker.data.index(copy, maker.starts[2]) + len(mark)) % codec.ALIGNMENT:
            continue
        tried += 1
        maker.data[maker.starts[2] + 9] ^= 1
        disk = SimDisk()
        disk.inodes[DIRECTORY / file_name(1)] = Inode(bytearray(maker.data + bytes(8192)))
        scan = JournalScan(disk, DIRECTORY, SALT)
        found = {item.record.seq: item.body for item in scan.records(0, START, -1)}
        assert (list(found), found[4]) == ([1, 2, 4], b"the record")
    assert tried == codec.ALIGNMENT - 1
