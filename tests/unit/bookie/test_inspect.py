"""The inspection: counts, damage, and its command."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.bookie.index.index import Index, View, put_view
from magnetar.bookie.index.store import Batch, RocksIndexStore
from magnetar.bookie.inspect.inspection import Inspection, inspect
from magnetar.cli.main import main
from magnetar.disk.files import Append
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles

from .conftest import Opener, add


@pytest.fixture
async def data_dir(open_bookie: Opener, tmp_path: Path) -> Path:
    """Two ledgers in entry logs, a third in the journal only, a fence and a delete."""
    bookie = await open_bookie()
    for start in range(0, 200, 50):
        await add(bookie, 1, range(start, start + 50))
        await add(bookie, 2, [start, start + 2, start + 7])
    await bookie.flush()
    await add(bookie, 3, range(30))
    await bookie.ledger_end(2, fence=True)
    await bookie.delete_ledger(2)
    await bookie.abort()
    return tmp_path / "data"


def of_kind(result: Inspection, kind: str) -> list[tuple[str, int, str]]:
    return [
        (Path(item.file).name, item.offset, item.text)
        for item in result.findings
        if item.kind == kind
    ]


async def test_undamaged_data_is_counted(data_dir: Path) -> None:
    result = inspect(OsFiles(), data_dir)
    assert not of_kind(result, "damage")
    assert not of_kind(result, "torn")
    assert not result.damaged
    assert result.bookie_id == "b1"
    assert result.format_version == 1
    assert result.checkpoint is not None
    assert result.checkpoint.seq == 8
    (journal,) = result.journals
    assert journal.records["add"] == 9
    assert (journal.records["fence"], journal.records["delete"]) == (1, 1)
    assert (journal.first_seq, journal.last_seq) == (1, 11)
    ledger = journal.ledgers[3]
    assert (ledger.first_entry, ledger.last_entry, ledger.entries) == (0, 29, 30)
    assert ledger.bytes == 3000
    (log,) = result.logs
    assert log.entries == 212
    assert {
        key: (facts.ledger_id, facts.first_entry, facts.last_entry, facts.entries)
        for key, facts in log.ledgers.items()
    } == {1: (1, 0, 199, 200), 2: (2, 0, 157, 12)}
    assert {key: facts.ledger_id for key, facts in journal.ledgers.items()} == {1: 1, 2: 2, 3: 3}
    assert result.index is not None
    assert result.index.views == log.blocks
    assert result.index.ledgers == 2
    assert result.index.blocks_without_view == 0


async def test_blocks_without_a_view_are_notes(open_bookie: Opener, data_dir: Path) -> None:
    bookie = await open_bookie()
    await bookie.flush()
    await bookie.close()
    result = inspect(OsFiles(), data_dir)
    assert not result.damaged
    assert result.index is not None
    assert result.index.blocks_without_view == 1
    assert result.index.deleted == 1
    ((name, offset, text),) = of_kind(result, "note")
    assert name == "0000000001.log"
    assert offset > 0
    assert "ledger 2, entries 0 to 157" in text


def change(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


async def test_damaged_block_is_reported_with_its_offset(data_dir: Path) -> None:
    log = data_dir / "entry-logs" / "0000000001.log"
    change(log, log.read_bytes().index(b"1:100 "))
    result = inspect(OsFiles(), data_dir)
    assert result.damaged
    ((name, offset, text),) = of_kind(result, "damage")
    assert name == log.name
    assert log.read_bytes()[offset : offset + 4] == b"MEB1"
    assert "fail their CRC" in text
    assert "the index has entries 100 to 149 of ledger 1" in text
    # The blocks after it are still counted.
    assert result.index is not None
    assert result.logs[0].blocks == result.index.views - 1


class BadSectors(OsFiles):
    """A disk that cannot read one range of each file of a kind."""

    def __init__(self, suffix: str, place: int) -> None:
        self._suffix, self._place = suffix, place

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: Append | None = None,
    ) -> OsFile:
        file = super().open(path, create=create, read_only=read_only, append=append)
        if path.suffix != self._suffix:
            return file
        place = self._place

        class Bad(OsFile):
            def read(self, offset: int, length: int) -> bytes:
                if offset <= place < offset + length:
                    raise OSError(errno.EIO, "Input/output error", str(path))
                return super().read(offset, length)

        bad = Bad(path, file._fd)
        file._fd = -1
        return bad


@pytest.mark.parametrize("suffix", [".log", ".journal"])
async def test_unreadable_sector_is_a_finding_and_does_not_end_the_inspection(
    data_dir: Path, suffix: str
) -> None:
    """An inspection is for failing disks: it reads everything that is readable."""
    result = inspect(BadSectors(suffix, 6000), data_dir)
    damage = of_kind(result, "damage")
    assert any(name.endswith(suffix) and "cannot" in text for name, _, text in damage)
    assert result.journals[0].records["fence"] == 1
    assert result.logs[0].blocks >= 2


async def test_damaged_record_is_reported_with_its_offset(data_dir: Path) -> None:
    (journal,) = (data_dir / "journal").glob("*.journal")
    changed = journal.read_bytes().index(b"3:7 ")
    change(journal, changed)
    result = inspect(OsFiles(), data_dir)
    ((name, offset, text),) = of_kind(result, "damage")
    assert name == journal.name
    assert 4096 <= offset < changed
    assert "CRC" in text
    assert result.journals[0].records["fence"] == 1


async def test_a_cut_log_is_damage_and_a_cut_tail_is_torn(data_dir: Path) -> None:
    log = data_dir / "entry-logs" / "0000000001.log"
    content = log.read_bytes()
    log.write_bytes(content + b"MEB1 and then the power went")
    assert [item[:2] for item in of_kind(inspect(OsFiles(), data_dir), "torn")] == [
        (log.name, len(content))
    ]
    log.write_bytes(content[:-10])
    result = inspect(OsFiles(), data_dir)
    assert [item[0] for item in of_kind(result, "damage")] == [log.name]
    texts = [found.text for found in result.findings if Path(found.file).name == log.name]
    assert any("the file ends within a block" in text for text in texts), texts


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("entry-logs/0000000001.log", "the file is missing"),
        ("journal/0000000000000001.journal", "the checkpoint names this file: missing"),
        ("identity", "no identity file"),
    ],
)
async def test_a_missing_file_is_damage(data_dir: Path, lost: str, text: str) -> None:
    (data_dir / lost).unlink()
    result = inspect(OsFiles(), data_dir)
    assert any(text in item[2] for item in of_kind(result, "damage"))


async def test_views_are_compared_with_blocks(data_dir: Path) -> None:
    store = RocksIndexStore(data_dir / "index")
    (first, *_) = list(Index(store).views(1))
    batch = Batch()
    put_view(batch, View(9, 0, 5, 1, first.offset + 8, 100))
    put_view(batch, View(10, 0, 5, 1, first.offset, first.length))
    put_view(batch, View(1, first.first + 1, first.last, 1, first.offset, first.length))
    store.write(batch)
    store.sync()
    store.close()
    texts = [item[2] for item in of_kind(inspect(OsFiles(), data_dir), "damage")]
    assert any("no valid block begins there" in text for text in texts)
    assert any("the block there is of ledger 1" in text for text in texts)
    assert any("overlap" in text for text in texts)


async def test_running_bookie_is_reported_as_a_note(open_bookie: Opener, data_dir: Path) -> None:
    await open_bookie()
    notes = of_kind(inspect(OsFiles(), data_dir), "note")
    assert any("in use by process" in text for _, _, text in notes)


async def test_inspection_changes_no_file(data_dir: Path) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = [path for path in data_dir.rglob("*") if path.is_file() and path.name != "lock"]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    inspect(OsFiles(), data_dir)
    assert state() == before


async def test_command_output(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bookie", "inspect", str(data_dir)]) == 0
    text = capsys.readouterr().out
    assert "bookie 'b1'" in text
    assert "0000000000000001.journal" in text
    assert "0000000001.log" in text
    assert "0 damage" in text
    assert main(["bookie", "inspect", str(data_dir), "--ledger", "3"]) == 0
    assert "29" in capsys.readouterr().out
    assert main(["bookie", "inspect", str(data_dir), "--journal"]) == 0
    assert "0000000001.log" not in capsys.readouterr().out
    assert main(["bookie", "inspect", str(data_dir / "nowhere")]) == 2


def test_command_reports_damage(data_dir: Path) -> None:
    log = data_dir / "entry-logs" / "0000000001.log"
    change(log, log.stat().st_size // 2)
    command = [sys.executable, "-m", "magnetar.cli.main", "bookie", "inspect", str(data_dir)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert [item["file"] for item in findings if item["kind"] == "damage"] == [str(log)]


async def test_directory_without_bookie_data_is_damage(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    result = inspect(OsFiles(), tmp_path / "other")
    assert result.damaged
    shutil.rmtree(tmp_path / "other")
