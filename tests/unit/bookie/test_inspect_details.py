"""The findings of an inspection, whole: kind, file, offset and range; and the counts of files."""

import pytest

from magnetar.bookie.entry_log.codec_v1 import FILE_HEADER_BYTES
from magnetar.bookie.entry_log.logs import file_name as log_name
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import View
from magnetar.bookie.index.store import Batch
from magnetar.bookie.inspect import files as scans
from magnetar.bookie.inspect.files import DAMAGE, NOTE, TORN, Finding
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import file_name

from .conftest import DATA, add, open_sim
from .test_inspect_parts import JOURNAL, LOGS, Stage


@pytest.fixture
async def stage() -> Stage:
    created = Stage()
    await created.fill()
    return created


def found(stage: Stage, kind: str) -> list[Finding]:
    return [item for item in stage.inspect().findings if item.kind == kind]


async def test_views_that_overlap_are_a_finding_of_the_index(stage: Stage) -> None:
    first, second = stage.views()
    batch = Batch()
    index_format.put_view(batch, View(1, 9, 9, first.log_id, first.offset, first.length))
    stage.change(batch)
    (finding,) = found(stage, DAMAGE)
    later = View(1, 9, 9, first.log_id, first.offset, first.length)
    assert finding == Finding(DAMAGE, str(DATA / "index"), 0, f"views {first} and {later} overlap")
    assert second.first == first.first, "views of different ledgers do not overlap"


async def test_a_view_without_its_block_is_a_finding_of_the_log(stage: Stage) -> None:
    batch = Batch()
    index_format.put_view(batch, View(7, 3, 5, 1, 72, 100))
    stage.change(batch)
    (finding,) = found(stage, DAMAGE)
    text = "the index has entries 3 to 5 of ledger 7 here, but no valid block begins there"
    assert finding == Finding(DAMAGE, str(LOGS / log_name(1)), 72, text)


@pytest.mark.parametrize("viewed", [True, False])
async def test_a_bad_header_of_a_log_is_damage_if_the_index_has_blocks_of_it(
    stage: Stage, viewed: bool
) -> None:
    stage.disk.flip(LOGS / log_name(1), 8 * 5)
    if not viewed:
        batch = Batch()
        for view in stage.views():
            batch.delete(index_format.block_key(view.ledger_id, view.first))
        stage.change(batch)
    (finding,) = found(stage, DAMAGE if viewed else TORN)
    assert (finding.file, finding.offset, finding.end) == (
        str(LOGS / log_name(1)),
        0,
        FILE_HEADER_BYTES,
    )
    assert stage.inspect().logs[0].blocks == 3, "the blocks behind it are read"


async def test_a_log_under_another_number_is_not_its_own(stage: Stage) -> None:
    stage.disk.rename(LOGS / log_name(1), LOGS / log_name(2))
    texts = [item.text for item in stage.inspect().findings if item.offset == 0]
    assert "entry log of another bookie, incarnation or number" in texts
    assert stage.inspect().damaged


async def test_bad_bytes_end_at_the_next_block_wherever_it_lies(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search reads the log in parts: a block may begin at the edge of a part."""
    first, second = stage.views()
    stage.disk.flip(LOGS / log_name(1), 8 * (first.offset + 40))
    for part in (16, 17, 18, 19, 20, 64, first.length - 1, first.length, 1 << 20):
        monkeypatch.setattr(scans, "CHUNK_BYTES", part)
        (finding,) = found(stage, DAMAGE)
        assert (finding.offset, finding.end) == (first.offset, second.offset), part
        assert finding.covers(first.offset)
        assert finding.covers(second.offset - 1)
        assert not finding.covers(second.offset)
    stage.disk.flip(LOGS / log_name(1), 8 * (second.offset + 40))
    last = stage.inspect().findings
    assert sum(item.kind == DAMAGE for item in last) == 2


async def test_files_are_counted_with_their_bytes(stage: Stage) -> None:
    result = stage.inspect()
    (log,) = result.logs
    assert (log.file, log.bytes) == (
        str(LOGS / log_name(1)),
        len(stage.disk.inodes[LOGS / log_name(1)].data),
    )
    assert (log.blocks, log.entries) == (3, 30)
    assert {key: facts.bytes for key, facts in log.ledgers.items()} == dict.fromkeys(
        (1, 2, 3), 1000
    )
    (journal,) = result.journals
    assert (journal.file, journal.recycled) == (str(JOURNAL / file_name(1)), False)
    assert journal.bytes == len(stage.disk.inodes[JOURNAL / file_name(1)].data)
    assert codec.FILE_HEADER_BYTES + 3000 < journal.used_bytes < journal.bytes
    assert journal.records == {"add": 3, "fence": 1, "delete": 1}
    assert result.checkpoint is not None
    assert (result.checkpoint.journal_file, result.checkpoint.newest_journal_file) == (1, 1)
    assert result.checkpoint.offset == journal.used_bytes


async def test_records_of_a_missing_journal_file_are_damage(stage: Stage) -> None:
    """The checkpoint knows the last record that it does not need."""
    bookie = await open_sim(stage.disk, stage.index)  # begins file 2
    assert await add(bookie, 4, range(3)) is None
    await bookie.abort()
    bookie = await open_sim(stage.disk, stage.index)  # begins file 3
    assert await add(bookie, 5, range(3)) is None
    await bookie.abort()
    mark = stage.inspect().checkpoint
    assert mark is not None
    assert (mark.journal_file, mark.newest_journal_file) == (1, 3)
    stage.disk.remove(JOURNAL / file_name(1))
    assert not stage.inspect().damaged, "the index has all records of that file"
    stage.disk.remove(JOURNAL / file_name(2))
    (finding,) = found(stage, DAMAGE)
    text = "the records before this file are missing"
    assert finding == Finding(DAMAGE, str(JOURNAL / file_name(3)), 0, text, 0)


async def test_notes_do_not_make_a_directory_damaged(stage: Stage) -> None:
    assert found(stage, NOTE)
    assert not stage.inspect().damaged
