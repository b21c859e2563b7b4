"""A file of the machine's: reads past the page cache, direct appends at the edges of their buffer,
and descriptors that are closed once."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.disk import direct_file as direct_io
from magnetar.disk import os_file
from magnetar.disk.direct_file import BLOCK_BYTES, DirectFile
from magnetar.disk.direct_read import ALIGNMENT, read_direct
from magnetar.disk.files import Append
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles

CONTENT = bytes(number % 251 for number in range(5 * ALIGNMENT + 77))
BROKEN = OSError(errno.EIO, "Input/output error")
UNALIGNED = OSError(errno.EINVAL, "Invalid argument")
OPEN = os.open


class Descriptors:
    """Which files were opened for direct reads; with `offered` False the file system refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, offered: bool = True) -> None:
        self.direct = 0
        self._offered = offered
        monkeypatch.setattr(os, "open", self._open)

    def _open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            self.direct += 1
            if not self._offered:
                raise UNALIGNED
            flags &= ~os.O_DIRECT  # independent of the file system of the test
        return OPEN(path, flags, mode)


def open_count(path: Path) -> int:
    """How many descriptors of this process are this file."""
    result = 0
    for item in Path("/proc/self/fd").iterdir():
        try:
            result += os.readlink(item) == str(path)
        except FileNotFoundError:
            continue  # that of the listing
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    created = tmp_path / "file"
    created.write_bytes(CONTENT)
    return created


PLACES = [
    (0, 1),
    (0, ALIGNMENT),
    (1, ALIGNMENT),
    (ALIGNMENT - 1, 2),
    (ALIGNMENT, 3 * ALIGNMENT),
    (77, 2 * ALIGNMENT - 1),
    (len(CONTENT) - 5, 5),
    (len(CONTENT) - 5, 50),
    (len(CONTENT), 5),
    (len(CONTENT) + 2 * ALIGNMENT, 5),
]


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize(("offset", "length"), PLACES)
def test_long_read_returns_the_existing_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch, offered: bool, offset: int, length: int
) -> None:
    Descriptors(monkeypatch, offered=offered)
    file = OsFiles().open(path, read_only=True)
    assert file.read_once(offset, length) == CONTENT[offset : offset + length]
    file.close()


def test_read_longer_than_the_direct_buffer_uses_the_page_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Descriptors(monkeypatch)
    monkeypatch.setattr(os_file, "LENGTH_MAX", 100)
    direct: list[int] = []

    def noted(fd: int, offset: int, length: int) -> bytes:
        direct.append(length)
        return read_direct(fd, offset, length)

    monkeypatch.setattr(os_file, "read_direct", noted)
    file = OsFiles().open(path, read_only=True)
    for length in (99, 100, 101, 5000):
        assert file.read_once(50, length) == CONTENT[50 : 50 + length]
    assert direct == [99, 100]
    file.close()


@pytest.mark.parametrize("offered", [True, False])
def test_a_file_is_opened_for_direct_reads_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, offered: bool
) -> None:
    opened = Descriptors(monkeypatch, offered=offered)
    file = OsFiles().open(path, read_only=True)
    assert opened.direct == 0, "before it is needed there is none"
    for _ in range(3):
        file.read_once(3, 9)
    assert opened.direct == 1
    assert open_count(path) == (2 if offered else 1)
    file.close()
    assert open_count(path) == 0


def test_concurrent_opens_keep_one_descriptor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(path, read_only=True)

    def both(path_: Path, flags: int, mode: int = 0o777) -> int:
        if file._direct_reads_fd == os_file._NOT_OPEN:
            file._direct_reads_fd = OPEN(path_, flags & ~os.O_DIRECT, mode)
        return OPEN(path_, flags & ~os.O_DIRECT, mode)

    monkeypatch.setattr(os, "open", both)
    assert file.read_once(0, 9) == CONTENT[:9]
    assert open_count(path) == 2
    file.close()
    assert open_count(path) == 0


def test_system_without_direct_io_reads_and_writes_the_same_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    file = OsFiles().open(path, append=Append.GROWING)
    assert type(file) is OsFile
    assert file.read_once(10, 5) == CONTENT[10:15]
    assert file.write([b"more"], len(CONTENT), durable=True) == 4
    file.close()
    assert path.read_bytes() == CONTENT + b"more"


def test_a_device_of_larger_blocks_is_read_through_the_cache_and_an_error_is_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Descriptors(monkeypatch)
    file = OsFiles().open(path, read_only=True)
    failures = [UNALIGNED, BROKEN]

    def refused(*_: object) -> int:
        raise failures.pop(0)

    monkeypatch.setattr(os, "preadv", refused)
    assert file.read_once(10, 5) == CONTENT[10:15]
    with pytest.raises(OSError, match="Input/output"):
        file.read_once(10, 5)
    file.close()


def test_direct_read_continues_after_a_short_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Descriptors(monkeypatch)
    preadv = os.preadv
    calls: list[int] = []

    def less(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        return preadv(fd, [buffers[0][:ALIGNMENT]], offset)

    monkeypatch.setattr(os, "preadv", less)
    file = OsFiles().open(path, read_only=True)
    assert file.read_once(10, 2 * ALIGNMENT) == CONTENT[10 : 10 + 2 * ALIGNMENT]
    assert calls == [0, ALIGNMENT, 2 * ALIGNMENT]
    calls.clear()
    assert file.read_once(4 * ALIGNMENT, 4 * ALIGNMENT) == CONTENT[4 * ALIGNMENT :]
    assert calls == [4 * ALIGNMENT, 5 * ALIGNMENT], "a part of a block is the end of the file"
    file.close()


def test_closed_file_closes_no_other_descriptor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptors may belong to other files by then."""
    Descriptors(monkeypatch)
    file = OsFiles().open(path, read_only=True)
    file.read_once(10, 5)
    file.close()
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)
    file.close()
    file.__del__()
    assert closed == []


def test_buffers_beyond_one_call_are_written_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_file, "IOVECS_MAX", 3)
    calls: list[int] = []
    pwritev = os.pwritev

    def noted(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        calls.append(len(buffers))
        return pwritev(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", noted)
    file = OsFiles().open(path)
    for count in (2, 3, 4, 7):
        calls.clear()
        buffers = [b"%d," % number for number in range(count)]
        assert file.write(buffers, 5) == 2 * count
        assert path.read_bytes()[5:].startswith(b"".join(buffers))
        assert calls == [min(3, count - start) for start in range(0, count, 3)]
    file.close()


def test_write_of_zero_bytes_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(path)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="no bytes written"):
        file.write([b"x"], 0)
    file.close()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOSPC])
def test_preallocation_errors_other_than_unsupported_are_raised(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, "refused")

    file = OsFiles().open(path)
    monkeypatch.setattr(os, "posix_fallocate", refused)
    if code == errno.ENOSPC:
        with pytest.raises(OSError, match="refused"):
            file.preallocate(0, 10)
    else:
        file.preallocate(0, 10)
    file.close()


SMALL_BUFFER = 2 * BLOCK_BYTES


class Disk:
    """Records writes and which of them a sync covered; a write with flags syncs itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unsynced = 0
        self.syncs = 0
        self.longest = 0
        self._pwritev, self._fdatasync = os.pwritev, os.fdatasync
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        assert offset % BLOCK_BYTES == 0
        assert sum(map(len, buffers)) % BLOCK_BYTES == 0
        self.longest = max(self.longest, sum(map(len, buffers)))
        if flags:
            self.syncs += 1
        else:
            self.unsynced += 1
        return self._pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        self.unsynced = 0
        self._fdatasync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(direct_io, "BUFFER_BYTES", SMALL_BUFFER)
    Descriptors(monkeypatch)
    return Disk(monkeypatch)


def direct(path: Path, append: Append = Append.GROWING) -> DirectFile:
    file = OsFiles().open(path, create=True, append=append)
    assert isinstance(file, DirectFile)
    return file


EDGES = [
    SMALL_BUFFER + by
    for by in (-BLOCK_BYTES - 1, -BLOCK_BYTES, -1, 0, 1, BLOCK_BYTES, SMALL_BUFFER)
]


@pytest.mark.parametrize("held", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES])
@pytest.mark.parametrize("size", EDGES)
@pytest.mark.parametrize("cut", [0, 1, 4097])
def test_append_of_any_size_is_durable_when_it_returns(
    tmp_path: Path, disk: Disk, held: int, size: int, cut: int
) -> None:
    """Appends up to the last byte that fits into the partly filled buffer, and beyond."""
    file = direct(tmp_path / "file")
    model = b"h" * held
    assert file.write([model], 0, durable=True) == held
    data = bytes(number % 251 for number in range(size))
    for part, durable in (([data[:cut], data[cut:]], True), ([b"more"], False)):
        syncs = disk.syncs
        assert file.write(part, len(model), durable=durable) == sum(map(len, part))
        model += b"".join(part)
        assert file.read(0, len(model)) == model
        if durable:
            assert disk.unsynced == 0
        else:
            assert disk.syncs == syncs, "what need not be durable costs no sync"
        assert disk.longest <= SMALL_BUFFER
    file.sync()
    assert disk.unsynced == 0
    file.close()
    assert (tmp_path / "file").read_bytes() == model


@pytest.mark.parametrize("append", list(Append))
def test_only_growing_files_are_truncated_to_their_last_byte(
    tmp_path: Path, disk: Disk, append: Append
) -> None:
    for end in ("sync", "close"):
        path = tmp_path / end
        file = direct(path, append)
        file.write([b"x" * 100], 0)
        assert path.stat().st_size == BLOCK_BYTES
        getattr(file, end)()
        assert path.stat().st_size == (100 if append is Append.GROWING else BLOCK_BYTES)
        file.close()
    file = direct(tmp_path / "nothing", append)
    file.preallocate(0, 3 * BLOCK_BYTES)
    file.sync()
    file.close()
    assert (tmp_path / "nothing").stat().st_size == 3 * BLOCK_BYTES, "nothing was appended"


def test_short_direct_write_within_a_block_is_an_error_and_at_its_end_continues(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, fails in ((BLOCK_BYTES, False), (BLOCK_BYTES - 1, True), (0, True)):
        path = tmp_path / str(most)
        file = direct(path)

        def less(
            fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0, most: int = most
        ) -> int:
            return disk._pwritev(fd, [bytes(buffers[0][:most])], offset) if most else 0

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", less)
            if fails:
                with pytest.raises(OSError, match="cut within a block"):
                    file.write([b"x" * SMALL_BUFFER], 0)
            else:
                file.write([b"x" * SMALL_BUFFER], 0)
        file.close()
        if not fails:
            assert path.read_bytes() == b"x" * SMALL_BUFFER


def test_closed_direct_file_has_no_descriptor_and_no_buffer(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "file"
    file = direct(path)
    file.write([b"x"], 0, durable=True)
    file.read_once(0, 1)
    assert open_count(path) == 3
    file.close()
    assert open_count(path) == 0
    assert file._buffer is None
    file.close()


def test_reopened_file_continues_within_its_last_block(tmp_path: Path, disk: Disk) -> None:
    file = direct(tmp_path / "file")
    file.write([b"a" * 5000], 0, durable=True)
    file.close()
    again = OsFiles().open(tmp_path / "file", append=Append.GROWING)
    again.write([b"b" * 10], 5000, durable=True)
    again.close()
    assert (tmp_path / "file").read_bytes() == b"a" * 5000 + b"b" * 10
    assert isinstance(again, OsFile)
