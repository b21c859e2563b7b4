"""The formats on disk: round trips, every cut, every flipped bit, and the golden files."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie import identity
from magnetar.bookie.cache.write_cache import segment_of
from magnetar.bookie.entry_log import codec_v1 as log_codec
from magnetar.bookie.entry_log.codec_v1 import BadBlock
from magnetar.bookie.identity import DataDirError, Identity
from magnetar.bookie.journal import checkpoint
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.checkpoint import CheckpointDamaged, Mark
from magnetar.bookie.journal.codec_v1 import BadRecord, FileHeader, FileMarks, IncompleteRecord
from magnetar.bookie.journal.files import JournalPosition

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "bookie"
SALT = bytes(range(16))
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)
NUMBERS = st.integers(min_value=0, max_value=2**62)


def record_bytes(entry_ids: tuple[int, ...], entries: list[bytes], seq: int = 9) -> bytes:
    """A whole record without its tail."""
    body, size, crc = codec.body_of(entries)
    head = codec.encode_head(
        codec.KIND_ADD,
        seq,
        seq - 1,
        7,
        3,
        entry_ids=entry_ids,
        lengths=codec.pack_lengths(entries),
        body_bytes=size,
        body_crc=crc,
    )
    return head + b"".join(body)


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[int, ...], list[bytes]]:
    """Ascending ids, with and without holes, and as many entries."""
    entries = draw(BODIES)
    first = draw(NUMBERS)
    steps = draw(st.lists(st.integers(1, 3), min_size=len(entries), max_size=len(entries)))
    ids = [first]
    for step in steps[1:]:
        ids.append(ids[-1] + step)
    return tuple(ids), entries


@given(groups(), st.integers(1, 2**62), NUMBERS, st.integers(-1, 2**62))
def test_record_round_trip(
    group: tuple[tuple[int, ...], list[bytes]], seq: int, ledger_id: int, lac: int
) -> None:
    ids, entries = group
    body, size, crc = codec.body_of(entries)
    lengths = codec.pack_lengths(entries)
    head = codec.encode_head(
        codec.KIND_ADD,
        seq,
        seq - 1,
        ledger_id,
        lac,
        entry_ids=ids,
        lengths=lengths,
        body_bytes=size,
        body_crc=crc,
    )
    record = codec.decode_head(b"x" * 8 + head + b"".join(body), 8)
    assert (record.kind, record.seq, record.durable_seq) == (codec.KIND_ADD, seq, seq - 1)
    assert (record.ledger_id, record.last_add_confirmed) == (ledger_id, lac)
    assert tuple(record.entry_ids) == ids
    assert record.head_bytes == len(head)
    assert record.size % codec.ALIGNMENT == 0
    assert codec.split_body(b"".join(body), record.lengths) == entries
    assert record.body_crc == codec.entries_crc(entries)


@given(groups())
def test_truncated_record_reports_needed_bytes(group: tuple[tuple[int, ...], list[bytes]]) -> None:
    data = record_bytes(*group)
    head_bytes = codec.decode_head(data, 0).head_bytes
    for length in range(head_bytes):
        with pytest.raises(IncompleteRecord) as raised:
            codec.decode_head(data[:length], 0)
        assert length < raised.value.needed <= head_bytes


def test_every_flipped_bit_of_a_head_is_detected() -> None:
    data = record_bytes((4, 6, 7), [b"abc", b"", b"defg"])
    head_bytes = codec.decode_head(data, 0).head_bytes
    for bit in range(head_bytes * 8):
        with pytest.raises(BadRecord):
            codec.decode_head(flipped(data, bit), 0)


@given(st.binary(max_size=300))
def test_garbage_is_not_a_record(data: bytes) -> None:
    with pytest.raises(BadRecord):
        codec.decode_head(data, 0)
    with pytest.raises(BadRecord):
        codec.decode_file_header(data)


def test_marks_differ_by_file_and_bookie() -> None:
    marks = {FileMarks(salt, file).mark for salt in (SALT, bytes(16)) for file in range(50)}
    assert len(marks) == 100


def test_a_journal_header_is_checked_to_the_last_bit() -> None:
    header = FileHeader(5, 77, SALT, recycled=True)
    page = codec.encode_file_header(header)
    assert len(page) == codec.FILE_HEADER_BYTES
    assert codec.decode_file_header(page) == header
    for bit in range(len(page) * 8):
        with pytest.raises(BadRecord):
            codec.decode_file_header(flipped(page, bit))


def block_bytes(
    ranges: list[tuple[int, int]], segments: list[list[bytes]], magic: bytes
) -> tuple[bytes, list[bytes]]:
    entries = [entry for segment in segments for entry in segment]
    head = log_codec.encode_head(magic, 3, [segment_of(item) for item in segments], ranges)
    data = head + b"".join(entries)
    return data + bytes(-len(data) % log_codec.ALIGNMENT), entries


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[list[bytes]]]:
    segments = draw(st.lists(BODIES, min_size=1, max_size=5))
    remaining = sum(map(len, segments))
    ranges: list[tuple[int, int]] = []
    start = draw(NUMBERS)
    while remaining:
        count = draw(st.integers(1, remaining))
        ranges.append((start, count))
        start += count + draw(st.integers(1, 9))
        remaining -= count
    return ranges, segments


@given(blocks())
def test_block_round_trip(made: tuple[list[tuple[int, int]], list[list[bytes]]]) -> None:
    ranges, segments = made
    magic = log_codec.log_magic(SALT, 1)
    data, entries = block_bytes(ranges, segments, magic)
    block = log_codec.decode_block(b"12345678" + data, magic, 8)
    assert log_codec.decode_head(data, 0, magic).size == len(data)
    assert block.entries == entries
    ids = [base + n for base, count in ranges for n in range(count)]
    assert (block.first_entry, block.last_entry) == (ids[0], ids[-1])
    for low, high in ((ids[0], ids[-1]), (ids[0] + 1, ids[-1] + 5), (ids[-1], ids[-1])):
        found_ids, result = block.slice(low, high)
        requested = [(id_, e) for id_, e in zip(ids, entries, strict=True) if low <= id_ <= high]
        assert list(zip(found_ids, result, strict=True)) == requested


@settings(max_examples=20)
@given(blocks())
def test_every_flipped_bit_and_truncation_of_a_block_is_detected(
    made: tuple[list[tuple[int, int]], list[list[bytes]]],
) -> None:
    magic = log_codec.log_magic(SALT, 1)
    data, _ = block_bytes(*made, magic)
    for bit in range(0, len(data) * 8, 3):
        with pytest.raises(BadBlock):
            log_codec.decode_block(flipped(data, bit), magic)
    for length in range(0, len(data), 5):
        with pytest.raises(BadBlock):
            log_codec.decode_block(data[:length], magic)


@given(st.binary(max_size=300))
def test_garbage_is_not_a_block(data: bytes) -> None:
    magic = log_codec.log_magic(SALT, 1)
    for candidate in (data, magic + data):
        with pytest.raises(BadBlock):
            log_codec.decode_block(candidate, magic)
    with pytest.raises(BadBlock):
        log_codec.decode_file_header(data)


def test_a_log_header_is_checked_to_the_last_bit() -> None:
    data = log_codec.encode_file_header(SALT, 12)
    assert log_codec.decode_file_header(data) == (SALT, 12)
    for bit in range(len(data) * 8):
        with pytest.raises(BadBlock):
            log_codec.decode_file_header(flipped(data, bit))


def test_a_checkpoint_is_checked_to_the_last_bit() -> None:
    mark = Mark(JournalPosition(3, 8192, 44), 5)
    data = checkpoint.encode(SALT, mark)
    assert checkpoint.decode(data, SALT) == mark
    with pytest.raises(CheckpointDamaged, match="another bookie"):
        checkpoint.decode(data, bytes(16))
    for bit in range(len(data) * 8):
        with pytest.raises(CheckpointDamaged):
            checkpoint.decode(flipped(data, bit), SALT)
    for length in range(len(data)):
        with pytest.raises(CheckpointDamaged):
            checkpoint.decode(data[:length], SALT)


def test_an_identity_is_checked_to_the_last_bit() -> None:
    path = Path("/somewhere/identity")
    original = Identity("b1", "393351e6-9809-489c-885e-50a3f0680580", 1)
    data = identity.encode(original)
    assert identity.decode(data, path) == original
    for bit in range(len(data) * 8):
        with pytest.raises(DataDirError, match="/somewhere/identity"):
            identity.decode(flipped(data, bit), path)


def test_unsupported_format_version_is_reported() -> None:
    data = identity.encode(Identity("b1", "393351e6-9809-489c-885e-50a3f0680580", 2))
    with pytest.raises(DataDirError, match="format version 2, this software reads 1"):
        identity.decode(data, Path("/somewhere/identity"))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def golden_journal() -> bytes:
    """A journal file with one record of each kind."""
    marks = FileMarks(SALT, 2)
    data = codec.encode_file_header(FileHeader(2, 5, SALT))

    def record(head: bytes, body: bytes = b"") -> bytes:
        return head + body + marks.tails[-(len(head) + len(body)) % codec.ALIGNMENT]

    data += record(record_bytes((0, 1, 2), [b"first", b"", b"third entry"], seq=5))
    data += record(record_bytes((7,), [b"alone"], seq=6))
    data += record(record_bytes((9, 12), [b"with", b"a hole"], seq=7))
    data += record(codec.encode_head(codec.KIND_FENCE, 8, 7, 7, -1))
    data += record(codec.encode_head(codec.KIND_GAP, 11, 8, -1, -1, first_entry=9))
    data += record(codec.encode_head(codec.KIND_DELETE, 12, 8, 7, -1))
    data += record(codec.encode_head(codec.KIND_MARK, 12, 12, -1, -1))
    return data


def golden_log() -> bytes:
    """An entry log with a plain block and one with holes."""
    magic = log_codec.log_magic(SALT, 3)
    plain, _ = block_bytes([(0, 3)], [[b"first", b""], [b"third entry"]], magic)
    holes, _ = block_bytes([(7, 1), (9, 2)], [[b"a", b"b", b"c"]], magic)
    return log_codec.encode_file_header(SALT, 3) + plain + holes


def test_checkpoint_records_whether_the_index_has_flushed_seq() -> None:
    older = checkpoint.decode((GOLDEN / "checkpoint-v1.bin").read_bytes(), SALT)
    assert not older.index_notes
    newer = Mark(older.position, older.newest_file_id, index_notes=True)
    assert checkpoint.decode(checkpoint.encode(SALT, newer), SALT) == newer


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("journal-v1.bin", golden_journal()),
        ("entry-log-v1.bin", golden_log()),
        ("checkpoint-v1.bin", checkpoint.encode(SALT, Mark(JournalPosition(2, 4184, 5), 3))),
        (
            "identity-v1.txt",
            identity.encode(Identity("bookie-1", "393351e6-9809-489c-885e-50a3f0680580", 1)),
        ),
    ],
)
def test_version_1_never_changes(name: str, made: bytes) -> None:
    assert (GOLDEN / name).read_bytes() == made
