"""Files in folders: direct writes and reads, at any alignment."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.offload.folder_reads import PIECE_BYTES, read_range
from magnetar.offload.sinks import WRITE_BYTES, FolderSink

BLOCK = 4096
SIZES = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 70_000, WRITE_BYTES - 1, WRITE_BYTES])


@pytest.fixture(scope="module", params=["disk", "memory"])
def root(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A disk, and a file system that may know no direct reads."""
    shared = Path("/dev/shm")  # noqa: S108
    if request.param == "disk" or not shared.is_dir():
        yield tmp_path_factory.mktemp("store")
        return
    with TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@given(sizes=st.lists(SIZES, max_size=6))
def test_a_file_has_what_was_written(root: Path, sizes: list[int]) -> None:
    path = root / "file"
    path.unlink(missing_ok=True)
    data = os.urandom(sum(sizes))
    sink, at = FolderSink(root, path), 0
    for size in sizes:
        sink.write(data[at : at + size])
        at += size
    sink.close()
    assert path.read_bytes() == data
    assert read_range(path, 0, len(data)) == data


@pytest.fixture(scope="module")
def long_file(root: Path) -> Path:
    path = root / "long"
    path.write_bytes(os.urandom(2 * PIECE_BYTES + 12_345))
    return path


ENDS = [0, 1, BLOCK, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + BLOCK, 2 * PIECE_BYTES + 12_345]


@pytest.mark.parametrize("start", ENDS)
def test_any_range_is_read(long_file: Path, start: int) -> None:
    data = long_file.read_bytes()
    for end in (*ENDS, len(data) + BLOCK):
        assert read_range(long_file, start, end) == data[start:end]


def test_a_file_is_never_written_over(root: Path) -> None:
    path = root / "there"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        FolderSink(root, path)
    assert path.read_bytes() == b"mine"


def test_what_is_not_there_is_said(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_range(root / "absent", 0, 1)
