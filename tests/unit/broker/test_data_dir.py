"""The data directory: identity, lock, wipe, and the file that says where the server is."""

import json
import os
from pathlib import Path

import pytest

from magnetar.broker.data_dir import DataDir, DataDirError


def test_it_is_made_marked_and_locked(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path / "a" / "b")
    with pytest.raises(DataDirError, match=rf"b is in use .*{os.getpid()}"):
        DataDir.open(tmp_path / "a" / "b")
    first.close()
    DataDir.open(tmp_path / "a" / "b").close()


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for wipe in (False, True):
        with pytest.raises(DataDirError, match=r"thesis\.tex"):
            DataDir.open(tmp_path, wipe=wipe)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_identity_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "magnetar.json").write_text('{"kind": "other"}')
    with pytest.raises(DataDirError, match=r"not Magnetar's"):
        DataDir.open(tmp_path, wipe=True)
    (tmp_path / "magnetar.json").write_text("not json")
    with pytest.raises(DataDirError, match=r"not Magnetar's"):
        DataDir.open(tmp_path)


def test_a_format_from_the_future_is_refused(tmp_path: Path) -> None:
    (tmp_path / "magnetar.json").write_text('{"kind": "magnetar", "format": 999}')
    with pytest.raises(DataDirError, match="999"):
        DataDir.open(tmp_path)


def test_wipe_empties_ours_and_nothing_behind_links(tmp_path: Path) -> None:
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


def test_ready_says_where_the_server_is_until_it_is_not(tmp_path: Path) -> None:
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
    assert not (path / "standalone.json").exists(), "a killed process's word still stands"
    again.close()


def test_a_killed_process_leaves_nothing_that_blocks_the_next(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123\n")
    (tmp_path / "magnetar.json.123.new").write_text('{"ki')
    DataDir.open(tmp_path).close()


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="file"):
        DataDir.open(tmp_path / "file")
