"""Reading a journal back: torn tails, damage, and what tells the one from the other."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sim_disk import Inode, SimDisk

from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.journal_files import file_name
from magnetar.bookie.journal_scan import Bad, JournalScan

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
        """A record; `durable` is what was known to be synced, by default all before it."""
        if kind != codec.KIND_MARK:
            self.seq += 1
        body, size, crc = codec.body_of(entries) if entries else ((), 0, 0)
        known = self.seq - 1 if durable is None else durable
        if kind == codec.KIND_MARK and durable is None:
            known = self.seq
        ids = range(self.seq * 100, self.seq * 100 + len(entries))
        lengths = codec.pack_lengths(entries) if entries else b""
        head = codec.encode_head(kind, self.seq, known, 7, -1, ids, lengths, size, crc)
        self.starts.append(len(self.data))
        self.data += head + b"".join(body)
        self.data += self.marks.tails[-(len(head) + size) % codec.ALIGNMENT]


def scanned(
    *makers: Maker, tail: bytes = bytes(8192), unreadable: tuple[int, int] | None = None
) -> tuple[list[int], list[Bad], JournalScan]:
    """(sequence numbers found, what is bad, the scan) of files with `tail` behind them.

    The disk cannot read the bytes `unreadable` of any file.
    """
    disk = SimDisk()
    for maker in makers:
        if unreadable is not None:
            disk.unreadable[DIRECTORY / file_name(maker.file_id)] = [unreadable]
        disk.inodes[DIRECTORY / file_name(maker.file_id)] = Inode(bytearray(maker.data + tail))
    scan = JournalScan(disk, DIRECTORY, SALT)
    found = [item.record.seq for item in scan.records(0, START, -1)]
    return found, scan.judge(), scan


def make(count: int, **options: int) -> Maker:
    maker = Maker(recycled=bool(options.pop("recycled", 0)))
    for n in range(count):
        maker.add(b"entry %d " % n * 20, b"and more" * 9, **options)
    return maker


def test_a_whole_journal() -> None:
    found, bad, scan = scanned(make(20))
    assert found == list(range(1, 21))
    assert not bad
    assert scan.ends[1] == len(make(20).data)


def test_two_files_go_on_from_each_other() -> None:
    second = Maker(2, first_seq=4)
    second.add(b"x")
    found, bad, _ = scanned(make(3), second)
    assert found == [1, 2, 3, 4]
    assert not bad


def test_a_missing_file_is_damage() -> None:
    second = Maker(3, first_seq=6)
    second.add(b"x")
    found, bad, _ = scanned(make(3), second)
    assert found == [1, 2, 3, 6]
    assert [(item.first_seq, item.last_seq, item.damage) for item in bad] == [(4, 5, True)]


def test_a_file_proves_that_all_before_it_was_synced() -> None:
    """The last commit before a roll is lost, and no record behind it speaks of it yet."""
    first = Maker()
    for _ in range(3):
        first.add(b"one commit" * 50, durable=0)
    first.data[first.starts[2] :] = bytes(len(first.data) - first.starts[2])
    found, bad, _ = scanned(first, Maker(2, first_seq=4))
    assert found == [1, 2]
    assert [(item.first_seq, item.last_seq, item.damage) for item in bad] == [(3, 3, True)]


@given(st.integers(0, 2000))
def test_a_tail_cut_anywhere_is_torn(cut: int) -> None:
    """Power goes while the last record is written: the rest of the file is still zeros."""
    maker = make(5)
    length = max(len(maker.data) - cut, maker.starts[-1])
    rest = bytes(len(maker.data) - length)
    maker.data = maker.data[:length] + rest
    found, bad, _ = scanned(maker)
    assert found[:4] == [1, 2, 3, 4]
    assert not [item for item in bad if item.damage]


@given(st.sets(st.integers(0, 7)))
def test_sectors_missing_from_an_unsynced_commit_are_torn(missing: set[int]) -> None:
    """The records of one commit may come through in any part; none of it was acknowledged."""
    maker = make(2)
    for _ in range(4):
        maker.add(b"unsynced" * 100, durable=1)
    start = maker.starts[2]
    for sector in missing:
        low = max((start // 512 + 1 + sector) * 512, start)
        high = min(low + 512, len(maker.data))
        if low < high:
            maker.data[low:high] = bytes(high - low)
    found, bad, _ = scanned(maker)
    assert found[:2] == [1, 2]
    assert set(found) <= set(range(1, 7))
    assert not [item for item in bad if item.damage]


@pytest.mark.parametrize("where", ["head", "tables", "body"])
def test_a_flipped_bit_hides_nothing_behind_it(where: str) -> None:
    maker = make(6)
    offset = {"head": 20, "tables": codec.HEAD_BYTES + 3, "body": codec.HEAD_BYTES + 30}[where]
    maker.data[maker.starts[2] + offset] ^= 4
    found, bad, _ = scanned(maker)
    assert found == [1, 2, 4, 5, 6]
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
    found, bad, _ = scanned(maker)
    if bit // 8 >= maker.starts[-1]:
        # The mark itself: it carries nothing.
        assert found[:5] == [1, 2, 3, 4, 5]
        return
    assert [item for item in bad if item.damage]
    assert any(item.offset <= bit // 8 < max(item.end, item.offset + 8) for item in bad)
    assert len(set(found) - {6}) >= 4


def test_a_torn_mark_between_synced_records_is_no_damage() -> None:
    """The journal writes marks without a sync; a power cut may take half of one for good."""
    maker = make(3)
    maker.add(kind=codec.KIND_MARK)
    start = maker.starts[-1]
    maker.data[start : start + 8] = bytes(8)
    maker.add(b"synced later")
    maker.add(b"and more", durable=4)
    found, bad, _ = scanned(maker)
    assert found == [1, 2, 3, 4, 5]
    assert [item.damage for item in bad] == [False]


def test_a_flipped_bit_in_the_last_record_is_no_tear_in_a_new_file() -> None:
    """The record is whole and no sector of it is zeros: this was no torn write."""
    for offset in (20, codec.HEAD_BYTES + 30):
        maker = make(4)
        maker.data[maker.starts[3] + offset] ^= 1
        found, bad, _ = scanned(maker)
        assert found == [1, 2, 3]
        assert [item.damage for item in bad] == [True]


def test_in_a_recycled_file_the_mark_is_what_proves_damage() -> None:
    old = bytes(range(256)) * 64
    for marked in (True, False):
        maker = make(4, recycled=1)
        if marked:
            maker.add(kind=codec.KIND_MARK)
        maker.data[maker.starts[3] + codec.HEAD_BYTES + 30] ^= 1
        _, bad, _ = scanned(maker, tail=old)
        assert [item.damage for item in bad] == [marked]


def test_a_former_life_is_not_seen() -> None:
    old = make(30)
    for records in range(1, 8):
        new = Maker(2, first_seq=31, recycled=True)
        for n in range(records):
            # As long as the old ones: the old heads stand where new ones would.
            new.add(b"entry %d " % n * 20, b"and more" * 9)
        new.data += old.data[len(new.data) :]
        found, bad, _ = scanned(new, tail=b"")
        assert found == list(range(31, 31 + records))
        assert not bad


def test_a_recycled_file_that_was_not_begun_is_empty() -> None:
    renamed = make(3)
    renamed.file_id = 4
    found, bad, _ = scanned(renamed)
    assert not found
    assert not bad


def test_a_payload_that_looks_like_records_is_none() -> None:
    other = Maker(file_id=9)
    other.add(b"z", durable=0)
    maker = Maker()
    maker.add(b"x")
    maker.add(bytes(other.data[START - 8 :]), durable=1)
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
    found, bad, _ = scanned(maker, unreadable=(page + 512, page + 1024))
    assert found == [n for n in range(1, 41) if n not in lost]
    (item,) = bad
    assert (item.damage, item.first_seq, item.last_seq) == (True, lost[0], lost[-1])


@pytest.mark.parametrize("recycled", [False, True])
@pytest.mark.parametrize("where", ["head", "body"])
def test_an_unreadable_last_record_is_damage(where: str, recycled: bool) -> None:
    """A torn write reads without an error, so a read error means that the record was there."""
    maker = make(3, recycled=int(recycled))
    maker.add(b"y" * 20_000)
    start = maker.starts[3] if where == "head" else maker.starts[3] + 8192
    found, bad, _ = scanned(maker, tail=bytes(8192), unreadable=(start, start + 1))
    assert 4 not in found
    assert bad[-1].damage
    named = bad[-1].record
    assert (named is not None and list(named.entry_ids) == [400]) == (where == "body")


def test_an_unreadable_page_hides_no_record_behind_the_one_that_it_cuts() -> None:
    """The first lost record has a good head on the page before; the others have none."""
    maker = make(3)
    maker.add(b"z" * 5000)
    maker.add(b"small")
    page = maker.starts[4] // 4096 * 4096
    assert maker.starts[3] + codec.HEAD_BYTES <= page
    found, bad, _ = scanned(maker, unreadable=(page, page + 512))
    assert found == [1, 2, 3]
    assert [(item.first_seq, item.damage) for item in bad] == [(4, True), (5, True)]
    assert bad[0].record is not None
    assert bad[1].record is None  # nobody knows whose it was


def test_an_unreadable_page_behind_the_last_record_is_no_damage() -> None:
    maker = make(3)
    found, bad, _ = scanned(maker, tail=bytes(16_384), unreadable=(12_288, 12_800))
    assert len(maker.data) < 8192
    assert found == [1, 2, 3]
    assert not bad


def test_a_disk_that_reads_nothing_fails_the_scan() -> None:
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
    found, bad, _ = scanned(make(3), maker)
    assert found == [1, 2, 3, 4, 5]
    assert [item.damage for item in bad] == [True]


def test_a_header_of_another_bookie_is_damage() -> None:
    maker = make(2)
    maker.data[:START] = codec.encode_file_header(codec.FileHeader(1, 1, bytes(16)))
    _, bad, _ = scanned(maker)
    assert bad[0].damage
    assert "another bookie" in bad[0].reason


def test_a_torn_header_of_the_newest_file_is_no_damage() -> None:
    second = Maker(2, first_seq=4)
    second.data[100:600] = bytes(range(250)) * 2
    _, bad, _ = scanned(make(3), second)
    assert [item.damage for item in bad] == [False]


def test_records_behind_a_very_long_hole_are_found() -> None:
    maker = make(2)
    hole = len(maker.data)
    maker.data += bytes(range(1, 256)) * (6 << 12)
    maker.data += bytes(-len(maker.data) % 8 - 8 + 8)
    maker.data += maker.marks.mark
    maker.seq = 5
    # As many as a sample needs to meet one of their marks.
    for _ in range(400):
        maker.add(b"x" * 3000)
    found, bad, _ = scanned(maker)
    assert found == [1, 2, *range(6, 406)]
    assert [(item.offset, item.damage) for item in bad] == [(hole, True)]
