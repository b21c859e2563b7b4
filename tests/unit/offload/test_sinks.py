"""What a folder's sink has brought to the disk when it says that a file stays."""

import os
from pathlib import Path

import pytest

from magnetar.offload.sinks import open_sink
from magnetar.offload.stores import FILESYSTEM, StoreSpec, open_object_store


def test_the_folder_above_a_new_store_is_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the store makes its folder, which is as new as what is made below it."""
    synced: list[Path] = []
    fsync = os.fsync

    def recorded(number: int) -> None:
        fsync(number)
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        if path.is_dir():
            synced.append(path)

    monkeypatch.setattr(os, "fsync", recorded)
    root = tmp_path / "made" / "with it"
    spec = StoreSpec(FILESYSTEM, str(root))
    sink = open_sink(spec, open_object_store(spec), "a/b/file")
    sink.write(b"data")
    sink.close()
    assert synced[:5] == [
        root / "a/b",
        root / "a",
        root,
        tmp_path / "made",
        tmp_path,
    ]
