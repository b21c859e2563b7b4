"""What a folder's sink has brought to the disk when it says that a file stays."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.offload import sinks
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


@pytest.mark.parametrize("taken", [0, 2])
def test_a_volume_that_takes_no_direct_writes_is_written_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """It lets the file be opened for them, and says so only when it is written to."""
    pwritev, calls, refused = os.pwritev, 0, 0

    def written(number: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        nonlocal calls, refused
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DIRECT:
            calls += 1
            if calls > taken:
                refused += 1
                raise OSError(errno.EINVAL, "Invalid argument")
        return pwritev(number, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", written)
    monkeypatch.setattr(sinks, "WRITE_BYTES", 10_000)
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    sink = open_sink(spec, open_object_store(spec), "file")
    parts = [bytes([step]) * 3_333 for step in range(20)]
    for part in parts:
        sink.write(part)
    sink.close()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    assert refused == 1


def test_other_errors_of_a_volume_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    sink = open_sink(spec, open_object_store(spec), "file")
    sink.write(b"data")
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space"):
        sink.close()
    sink.abandon()
