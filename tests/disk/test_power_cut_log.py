"""A process that is killed between a change of names and its record has bypassed nothing."""

from pathlib import Path

import pytest
from tests.disk.power_cut import Disk, Inode


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(tmp_path)
    for name in ("7.spare", "8.journal"):
        inode = disk.names[name] = Inode()
        inode.now = bytearray(b"content")
        (tmp_path / name).write_bytes(b"content")
    return disk


def test_a_rename_or_a_deletion_may_be_missing_in_the_log(disk: Disk) -> None:
    assert disk.differences() == []
    (disk.directory / "7.spare").rename(disk.directory / "7.journal")
    assert disk.differences() == []
    (disk.directory / "7.journal").unlink()
    assert disk.differences() == []


def test_more_than_one_change_went_past_the_library(disk: Disk) -> None:
    (disk.directory / "7.spare").rename(disk.directory / "7.journal")
    (disk.directory / "8.journal").unlink()
    assert len(disk.differences()) == 3


def test_a_renamed_file_with_other_bytes_went_past_the_library(disk: Disk) -> None:
    (disk.directory / "7.spare").unlink()
    (disk.directory / "7.journal").write_bytes(b"others")
    assert len(disk.differences()) == 2
