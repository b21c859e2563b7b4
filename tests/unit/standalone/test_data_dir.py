"""The data directory: identity, lock, wipe, and the file with the server's addresses."""

import json
import os
from pathlib import Path

import pytest

from magnetar.standalone.data_dir import DataDir, DataDirError


def test_a_directory_is_created_and_locked(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path / "a" / "b")
    with pytest.raises(DataDirError, match=rf"b is in use .*{os.getpid()}"):
        DataDir.open(tmp_path / "a" / "b")
    first.close()
    DataDir.open(tmp_path / "a" / "b").close()


def test_a_foreign_directory_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for wipe in (False, True):
        with pytest.raises(DataDirError, match=r"thesis\.tex"):
            DataDir.open(tmp_path, wipe=wipe)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_foreign_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "magnetar.json").write_text('{"kind": "other"}')
    with pytest.raises(DataDirError, match=r"not Magnetar's"):
        DataDir.open(tmp_path, wipe=True)
    (tmp_path / "magnetar.json").write_text("not json")
    with pytest.raises(DataDirError, match=r"not Magnetar's"):
        DataDir.open(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "magnetar.json").write_text('{"kind": "magnetar", "format": 999}')
    with pytest.raises(DataDirError, match="999"):
        DataDir.open(tmp_path)


def test_wipe_empties_the_directory_and_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    path = tmp_path / "data"
    DataDir.open(path).close()
    (path / "journal").mkdir()
    (path / "journal" / "0001").write_text("x")
    (path / "link").symlink_to(outside)
    identity = (path / "magnetar.json").read_text()
    DataDir.open(path, wipe=True).close()
    assert {entry.name for entry in path.iterdir()} == {"lock", "magnetar.json"}
    assert (path / "magnetar.json").read_text() != identity
    assert (outside / "kept").exists()


def test_a_directory_in_use_is_not_wiped(tmp_path: Path) -> None:
    held = DataDir.open(tmp_path)
    (tmp_path / "journal").write_text("x")
    with pytest.raises(DataDirError, match="in use"):
        DataDir.open(tmp_path, wipe=True)
    assert (tmp_path / "journal").exists()
    held.close()


def test_ready_publishes_the_addresses_until_the_next_open(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data_dir = DataDir.open(path)
    data_dir.ready("pulsar://h:1", "http://h:2", "1.2.3")
    assert json.loads((path / "standalone.json").read_text()) == {
        "pid": os.getpid(),
        "service_url": "pulsar://h:1",
        "http_url": "http://h:2",
        "version": "1.2.3",
    }
    data_dir.close()
    again = DataDir.open(path)
    assert not (path / "standalone.json").exists(), "the file of a killed process remains"
    again.close()


def test_the_files_of_a_killed_process_do_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123\n")
    (tmp_path / "magnetar.json.123.new").write_text('{"ki')
    DataDir.open(tmp_path).close()


def test_the_error_names_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="file"):
        DataDir.open(tmp_path / "file")
