"""The inspection and the start of a bookie on a simulated disk: all facts and faults."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from google_crc32c import value
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.entry_log import codec_v1 as log_codec
from magnetar.bookie.entry_log.codec_v1 import BadBlock
from magnetar.bookie.entry_log.logs import file_name as log_name
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Damage, LedgerRecord, View
from magnetar.bookie.index.ledgers import LedgerState
from magnetar.bookie.index.store import Batch, IndexDamaged, IndexStore, RocksIndexStore
from magnetar.bookie.inspect import inspection as inspect_module
from magnetar.bookie.inspect.inspection import CopiedIndexStore, Inspection, inspect
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.codec_v1 import BadRecord
from magnetar.bookie.journal.files import file_name

from .conftest import DATA, SMALL, add, open_sim, read_all

LOGS = DATA / "entry-logs"
JOURNAL = DATA / "journal"


class Stage:
    """A data directory with ledgers 1 to 3 in one log, and faults of its index."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.index = SimIndexStore(self.disk, DATA / "index")

    async def fill(self) -> None:
        bookie = await open_sim(self.disk, self.index)
        for ledger_id in (1, 2, 3):
            await add(bookie, ledger_id, range(10))
        await bookie.ledger_end(2, fence=True)
        await bookie.flush()
        await bookie.delete_ledger(3)
        await bookie.flush()
        await bookie.abort()

    def change(self, batch: Batch) -> None:
        self.index.write(batch)
        self.index.sync()

    def inspect(self) -> Inspection:
        return inspect(self.disk, DATA, lambda _: self.index)

    def index_notes(self) -> int | None:
        return index_format.Index(self.index).flushed_seq

    def views(self) -> list[View]:
        return list(index_format.Index(self.index).all_views())

    def told(self, kind: str) -> list[tuple[str, int, str]]:
        return [
            (Path(item.file).name, item.offset, item.text)
            for item in self.inspect().findings
            if item.kind == kind
        ]


@pytest.fixture
async def stage() -> Stage:
    created = Stage()
    await created.fill()
    return created


async def test_ledgers_are_counted_by_state(stage: Stage) -> None:
    facts = stage.inspect().index
    assert facts is not None
    assert (facts.ledgers, facts.fenced, facts.deleted) == (3, 1, 1)
    assert (facts.views, facts.limbo_through, facts.damaged_ranges) == (2, -1, 0)
    assert facts.blocks_without_view == 1
    assert facts.bytes_without_view > 1000
    assert stage.told("damage") == []
    ((file, offset, text),) = [item for item in stage.told("note") if "no view" in item[2]]
    assert (file, offset) == (log_name(1), stage.views()[-1].offset + stage.views()[-1].length)
    assert "ledger 3, entries 0 to 9" in text


async def test_recorded_damage_is_reported_with_file_and_offset(stage: Stage) -> None:
    batch = Batch()
    index_format.put_damage(batch, Damage(1, 20, 25, "/journal/x.damaged", 77))
    index_format.put_damage(batch, Damage(2, 30, 30, "/journal/y.damaged", 78))
    index_format.put_limbo(batch, 2)
    stage.change(batch)
    result = stage.inspect()
    assert result.damaged
    assert result.index is not None
    assert (result.index.damaged_ranges, result.index.limbo_through) == (2, 2)
    assert stage.told("damage") == [
        ("index", 0, "ledgers up to 2 may have lost entries and fences"),
        ("x.damaged", 77, "entries 20 to 25 of ledger 1 were lost"),
        ("y.damaged", 78, "entries 30 to 30 of ledger 2 were lost"),
    ]


async def test_blocks_without_views_are_all_counted_and_reported_up_to_a_bound(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view refers to a block of its own log only; another log has a block at that offset."""
    bookie = await open_sim(stage.disk, stage.index)
    await add(bookie, 4, range(10))
    await bookie.flush()
    await bookie.abort()
    first, second, fourth = stage.views()
    assert (first.offset, first.log_id) == (fourth.offset, fourth.log_id - 1)
    before = stage.inspect().index
    assert before is not None
    batch = Batch()
    for view in (second, fourth):
        batch.delete(index_format.block_key(view.ledger_id, view.first))
    stage.change(batch)
    for limit, named in ((3, 3), (2, 2)):
        monkeypatch.setattr(inspect_module, "BLOCKS_REPORTED_MAX", limit)
        facts = stage.inspect().index
        assert facts is not None
        assert facts.blocks_without_view == 3
        bytes_more = facts.bytes_without_view - before.bytes_without_view
        assert bytes_more == second.length + fourth.length
        notes = [item for item in stage.told("note") if "no view" in item[2]]
        places = [(log_name(1), second.offset), (log_name(1), second.offset + second.length)]
        places.append((log_name(2), fourth.offset))
        assert [item[:2] for item in notes] == places[:named]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"log_id": 9}, "the file is missing"),
        ({"offset": 72}, "no valid block begins there"),
        ({"ledger_id": 5}, "the block there is of ledger 1"),
        ({"last": 10}, "the block there has entries 0 to 9"),
        ({"length": 8}, "the block there has entries 0 to 9"),
    ],
    ids=str,
)
async def test_wrong_view_is_damage(stage: Stage, fields: dict[str, int], text: str) -> None:
    first = stage.views()[0]
    defaults = {name: getattr(first, name) for name in first.__struct_fields__}
    batch = Batch()
    batch.delete(index_format.block_key(1, 0))
    index_format.put_view(batch, View(**(defaults | fields)))
    stage.change(batch)
    ((_, offset, told),) = stage.told("damage")
    assert text in told
    assert offset == fields.get("offset", first.offset)


async def test_views_that_overlap_are_damage_and_parts_of_a_block_are_not(stage: Stage) -> None:
    first = stage.views()[0]
    batch = Batch()
    for begin, end in ((0, 4), (5, 9)):
        place = first.log_id, first.offset, first.length
        index_format.put_view(batch, View(1, begin, end, *place))
    stage.change(batch)
    assert stage.told("damage") == []
    batch = Batch()
    index_format.put_view(batch, View(1, 0, 5, first.log_id, first.offset, first.length))
    stage.change(batch)
    ((_, _, text),) = stage.told("damage")
    assert "overlap" in text


async def test_bad_blocks_are_reported_with_the_entries_of_their_views(stage: Stage) -> None:
    first, second = stage.views()
    for view in (first, second):
        stage.disk.flip(LOGS / log_name(1), (view.offset + 40) * 8)
    told = stage.told("damage")
    assert [offset for _, offset, _ in told] == [first.offset, second.offset]
    for ledger_id, (_, offset, text) in enumerate(told, 1):
        assert text.endswith(f"; the index has entries 0 to 9 of ledger {ledger_id} at {offset}")


async def test_directory_is_unchanged_by_inspection(stage: Stage) -> None:
    """Also a directory without a lock file, e.g. a copy."""
    for name in ("lock", "lock"):
        before = {path: bytes(inode.data) for path, inode in stage.disk.inodes.items()}
        stage.inspect()
        assert {path: bytes(inode.data) for path, inode in stage.disk.inodes.items()} == before
        if DATA / name in stage.disk.inodes:
            stage.disk.remove(DATA / name)
    assert "lock" not in stage.disk.names(DATA)


async def test_damaged_index_is_reported_with_its_own_path_not_its_copy(
    tmp_path: Path,
) -> None:
    index = tmp_path / "index"
    store = RocksIndexStore(index)
    batch = Batch()
    for number in range(100):
        batch.put(b"l%d" % number, bytes(33))
    store.write(batch)
    store.sync()
    store.close()
    (table,) = index.glob("*.sst")
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(IndexDamaged) as damaged:
        CopiedIndexStore(index).get(b"l1")
    assert damaged.value.path.startswith(str(index))
    assert str(index) in damaged.value.message
    assert "magnetar-inspect" not in damaged.value.message
    assert type(damaged.value.offset) is int


async def test_an_index_that_cannot_be_opened_is_damage_and_the_rest_is_counted(
    stage: Stage,
) -> None:
    def broken(_: Path) -> IndexStore:
        raise IndexDamaged("index /data/index: bad block", "/data/index/7.sst", 77)

    stage.disk.flip(LOGS / log_name(1), (stage.views()[0].offset + 40) * 8)
    result = inspect(stage.disk, DATA, broken)
    assert result.damaged
    told = [(item.kind, Path(item.file).name, item.offset) for item in result.findings]
    assert ("damage", "7.sst", 77) in told
    assert ("damage", log_name(1), stage.views()[0].offset) in told, "nobody knows that it is not"
    assert [facts.blocks for facts in result.logs] == [2]
    assert result.journals
    assert not [item for item in result.findings if "no view" in item.text]


async def test_damaged_checkpoint_is_damage_and_missing_one_is_a_note(stage: Stage) -> None:
    facts = stage.inspect().checkpoint
    assert facts is not None
    assert facts.seq == stage.index_notes()
    stage.disk.flip(DATA / "checkpoint", 200)
    ((name, offset, text),) = stage.told("damage")
    assert (name, offset) == ("checkpoint", 0)
    assert text.endswith("the whole journal is replayed in its place")
    assert stage.inspect().checkpoint is None
    stage.disk.remove(DATA / "checkpoint")
    assert stage.told("damage") == []
    assert ("checkpoint", 0, "no checkpoint yet") in stage.told("note")


async def test_strange_files_beside_the_journal_are_notes(stage: Stage) -> None:
    for name in ("0000000000000009.journal.damaged", "strange", "0000000000000009.spare"):
        stage.disk.open(JOURNAL / name, create=True)
    notes = [(name, text) for name, _, text in stage.told("note") if "view" not in text]
    assert notes == [
        (
            "0000000000000009.journal.damaged",
            "set aside at a restart: its damage is on record in the index",
        ),
        ("strange", "not a file of a bookie"),
    ]


async def test_missing_newest_journal_file_is_damage(stage: Stage) -> None:
    names = [item for item in stage.disk.names(JOURNAL) if item.endswith(".journal")]
    del stage.disk.inodes[JOURNAL / names[-1]]
    told = stage.told("damage")
    assert told == [(names[-1], 0, "the checkpoint names this file: missing")]


def test_truncated_or_foreign_header_is_refused() -> None:
    salt = bytes(16)
    whole = log_codec.encode_file_header(salt, 7)
    for size in range(len(whole)):
        with pytest.raises(BadBlock):
            log_codec.decode_file_header(whole[:size])
    with pytest.raises(BadBlock, match="no entry log header"):
        log_codec.decode_file_header(b"X" + whole[1:])
    page = codec.encode_file_header(codec.FileHeader(7, 1, salt))
    for size in (0, 1, 40, len(page) - 1):
        with pytest.raises(BadRecord):
            codec.decode_file_header(page[:size])
    with pytest.raises(BadRecord, match="no journal file header"):
        codec.decode_file_header(b"X" + page[1:])


@pytest.mark.parametrize(("at", "byte"), [(56, 0), (56, 6), (57, 2), (57, 0x80), (58, 1), (60, 1)])
def test_head_with_unknown_kind_or_flags_is_refused(at: int, byte: int) -> None:
    head = bytearray(codec.encode_head(codec.KIND_FENCE, 5, 4, 7, -1))
    assert codec.decode_head(bytes(head), 0).kind == codec.KIND_FENCE
    head[at] = byte
    head[:4] = value(bytes(head[4:])).to_bytes(4, "little")
    with pytest.raises(BadRecord, match="no record head"):
        codec.decode_head(bytes(head), 0)


async def replayed(disk: SimDisk) -> SimIndexStore:
    """A directory with entries in its journal that do not fit half of the write cache."""
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    for first in range(0, 100, 10):
        await add(bookie, 1, range(first, first + 10))
    await bookie.abort()
    return SimIndexStore(disk, DATA / "index", index.synced)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_replay_keeps_entries_in_memory_only_on_a_full_disk(number: int) -> None:
    small = replace(SMALL, write_cache_bytes=3_000, tick_s=1000.0)
    disk = SimDisk()
    index = await replayed(disk)
    broken = OSError(number, "no")
    disk.fault = lambda step, path: (
        broken if path.suffix == ".log" and step in ("create", "write") else None
    )
    if number == errno.EIO:
        with pytest.raises(OSError, match="no"):
            await open_sim(disk, index, small)
        disk.fault = None
    bookie = await open_sim(disk, index, small)
    assert await read_all(bookie, 1) == list(range(100))
    disk.fault = None
    await bookie.close()


async def test_a_refused_commit_writes_nothing() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    assert await add(bookie, 1, range(3)) is None
    path = JOURNAL / file_name(1)
    disk.fault = lambda step, _: OSError(errno.ENOSPC, "full") if step == "preallocate" else None
    bookie._journal._writer._allocated = 0
    touched: list[str] = []
    fault = disk.fault

    def noted(step: str, at: Path) -> OSError | None:
        if at == path and step in ("write", "sync"):
            touched.append(step)
        return fault(step, at)

    disk.fault = noted
    assert await add(bookie, 1, range(3, 4)) is not None
    assert touched == []
    disk.fault = None
    await bookie.close()


async def test_failed_load_of_states_leaves_the_half_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(3))

    def broken(_: object) -> dict[int, LedgerState]:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(bookie._ledgers, "take", broken)
    with pytest.raises(OSError, match="broken"):
        await bookie.flush()
    monkeypatch.undo()
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.flush()
    assert bookie.stats().flushes == 1
    assert LedgerRecord(-1, 2, 300, -1, 0) == bookie._parts.index.ledger(1)
    await bookie.close()
