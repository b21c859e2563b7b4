"""Direct appends against a plain model: the same bytes and ends for all sizes."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.disk.direct_file import BLOCK_BYTES, BUFFER_BYTES, DirectFile
from magnetar.disk.files import Append, File
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles

SIZES = st.one_of(
    st.integers(0, 300),
    st.integers(BLOCK_BYTES - 9, BLOCK_BYTES + 9),
    st.integers(BUFFER_BYTES - 9, BUFFER_BYTES + 9),
    st.just(2 * BUFFER_BYTES + 5),
)
WRITES = st.lists(
    st.tuples(st.lists(SIZES, min_size=1, max_size=4), st.booleans(), st.booleans()), max_size=6
)


def opened(directory: str, append: Append) -> File:
    return OsFiles().open(Path(directory) / "file", create=True, append=append)


@settings(max_examples=40, deadline=None)
@given(WRITES)
def test_growing_files_end_with_their_last_byte(
    writes: list[tuple[list[int], bool, bool]],
) -> None:
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:
        file = opened(directory, Append.GROWING)
        model = b""
        for number, (sizes, durable, sync) in enumerate(writes):
            buffers = [bytes([number + 1]) * size for size in sizes]
            assert file.write(buffers, len(model), durable=durable) == sum(sizes)
            model += b"".join(buffers)
            assert file.read(0, len(model)) == model
            if sync:
                file.sync()
                assert file.size() == len(model)
        file.sync()
        path = file.path
        file.close()
        assert path.read_bytes() == model


def test_preallocated_file_keeps_its_size_and_the_bytes_after_the_block(tmp_path: Path) -> None:
    file = opened(str(tmp_path), Append.PREALLOCATED)
    file.preallocate(0, 64 * 1024)
    file.write([b"a" * 100], 0, durable=True)
    file.write([b"b" * 5000], 100, durable=True)
    assert file.size() == 64 * 1024
    assert file.read(0, 5100) == b"a" * 100 + b"b" * 5000
    assert file.read(5100, 64 * 1024) == bytes(64 * 1024 - 5100)
    file.close()


def test_append_within_a_block_keeps_the_bytes_before_it(tmp_path: Path) -> None:
    file = opened(str(tmp_path), Append.GROWING)
    file.write([b"x" * 6000], 0)
    file.write([b"y" * 10], 5000)
    file.sync()
    assert file.read(0, 6000) == b"x" * 5000 + b"y" * 10
    file.truncate(4100)
    file.write([b"z"], 4100)
    file.sync()
    assert file.read(0, 6000) == b"x" * 4100 + b"z"
    file.close()


def test_without_direct_io_the_page_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def without_direct(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", without_direct)
    file = opened(str(tmp_path), Append.GROWING)
    assert not isinstance(file, DirectFile)
    assert file.write([b"abc"], 0, durable=True) == 3
    assert file.read(0, 9) == b"abc"
    file.close()


def test_a_failed_read_names_its_file(tmp_path: Path) -> None:
    """The system call only has the descriptor, and the error appears in the log of a start."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    file = OsFile(path, os.open(path, os.O_WRONLY))
    with pytest.raises(OSError, match="file") as failed:
        file.read(0, 7)
    assert failed.value.filename == str(path)
    file.close()
