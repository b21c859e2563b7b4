"""The durability of a folder's sink when it reports a file as closed."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from magnetar.disk.os_file import OsFile
from magnetar.offload import sinks
from magnetar.offload.errors import ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.sinks import FolderSink, ObjectSink, open_sink
from magnetar.offload.stores import FILESYSTEM, StoreSpec, open_object_store


def test_the_folder_above_a_new_store_is_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the store creates its folder, which must be synced as well."""
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


@pytest.mark.parametrize("size", [0, 5, 4096, 3_000_000])
def test_a_file_is_on_the_disk_before_its_name_is_and_both_before_its_close_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Afterwards, bookies may delete the ledger."""
    done: list[tuple[str, str]] = []

    def noting(name: str) -> None:
        call = getattr(os, name)

        def noted(number: int, *rest: Any) -> Any:
            done.append((name, os.readlink(f"/proc/self/fd/{number}")))
            return call(number, *rest)

        monkeypatch.setattr(os, name, noted)

    for name in ("pwritev", "fdatasync", "fsync"):
        noting(name)
    sink = FolderSink(tmp_path, path := tmp_path / "a" / "file")
    sink.write(bytes(size))
    sink.close()
    synced = done.index(("fdatasync", str(path)))
    assert ("pwritev", str(path)) not in done[synced:]
    folders = [target for name, target in done if name == "fsync"]
    assert folders[:2] == [str(tmp_path / "a"), str(tmp_path)]
    assert done.index(("fsync", str(tmp_path / "a"))) > synced
    held = {os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()}
    assert held.isdisjoint({str(path), *folders})
    assert path.stat().st_size == size


@pytest.mark.parametrize("taken", [0, 2])
def test_a_volume_that_takes_no_direct_writes_is_written_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """It opens the file for direct writes, and refuses only the write."""
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
    held = {os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()}
    assert str(tmp_path / "file") not in held, "the file is open neither way"


def test_other_errors_of_a_volume_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    sink = open_sink(spec, open_object_store(spec), "file")
    sink.write(b"data")
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space"):
        sink.close()
    sink.abandon()


def test_a_buckets_file_is_an_upload_and_a_folders_file_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a bucket would be a folder
    objects = MemoryStore()
    upload = open_sink(StoreSpec("S3", "bucket"), objects, "a/b")
    assert isinstance(upload, ObjectSink)
    upload.write(b"one ")
    upload.write(b"two")
    upload.close()
    assert obstore.get(objects, "a/b").bytes().to_bytes() == b"one two"
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    file = open_sink(spec, open_object_store(spec), "a/b")
    assert isinstance(file, FolderSink)
    with pytest.raises(FileExistsError):
        open_sink(spec, open_object_store(spec), "a/b")
    file.abandon()


class Failing:
    """An upload that the store refuses."""

    def write(self, _: bytes) -> None:
        raise FileNotFoundError("<Code>NoSuchBucket</Code>")

    def close(self) -> None:
        raise FileNotFoundError("gone")


def test_an_upload_that_fails_says_so_until_it_is_abandoned() -> None:
    upload = ObjectSink(MemoryStore(), "a/b")
    upload._upload.close()
    upload._upload = Failing()  # type: ignore[assignment]
    with pytest.raises(ColdStoreUnavailable, match="a/b cannot be read: the store has no such"):
        upload.write(b"x")
    with pytest.raises(ColdFileMissing, match="a/b is not in the store"):
        upload.close()
    upload.abandon()


@pytest.mark.parametrize(
    ("pieces", "writes"),
    [([50] * 4, [100, 100]), ([99, 1, 1], [100]), ([99, 2, 100], [101, 100]), ([250, 99], [250])],
)
def test_small_pieces_are_gathered_for_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[int], writes: list[int]
) -> None:
    monkeypatch.setattr(sinks, "WRITE_BYTES", 100)
    sizes: list[int] = []

    class Noting(OsFile):
        def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
            sizes.append(sum(map(len, buffers)))
            return super().write(buffers, offset, durable=durable)

    monkeypatch.setattr(sinks, "open_direct", lambda path, number, **_: Noting(path, number))
    sink = FolderSink(tmp_path, tmp_path / "file")
    for number, size in enumerate(pieces):
        sink.write(b"%d" % number * size)
    assert sizes == writes
    sink.close()
    content = b"".join(b"%d" % number * size for number, size in enumerate(pieces))
    assert (tmp_path / "file").read_bytes() == content


def test_a_folder_of_another_volume_is_none_that_we_made_nor_is_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ours" / "store"
    (root / "a").mkdir(parents=True)
    stat = Path.stat

    def mounted(path: Path) -> os.stat_result:
        """The volume begins at `ours`."""
        found = stat(path)
        values = list(found)
        values[2] = found.st_dev + (path == tmp_path)
        return os.stat_result(values)

    monkeypatch.setattr(Path, "stat", mounted)
    found = list(sinks._folders_of(root, root / "a" / "file"))
    assert found == [root / "a", root, tmp_path / "ours"]


def test_a_folder_where_we_may_not_write_is_none_that_we_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ours" / "store"
    (root / "a").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda folder, _: folder != tmp_path)
    found = list(sinks._folders_of(root, root / "a" / "file"))
    assert found[:3] == [root / "a", root, tmp_path / "ours"]
    assert tmp_path not in found
    assert found[3:] == list(tmp_path.parents)[: len(found) - 3]
