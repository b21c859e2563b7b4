"""A disk that loses what was not synced, tears writes, fills up and fails: for `bookie.files`.

Every operation that changes something is a step. `cut_at` names the step at which the power goes:
that step is done in part or not at all, and from then on every operation fails. `after_cut` is the
disk as it may be found afterwards: of what was not synced, each 512-byte sector of each write came
through or not as the random generator says; names follow their order, up to a random point.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.memory_index import MemoryIndexStore

from magnetar.bookie.index.store import Batch
from magnetar.disk.files import Append, DataDirLocked, DiskUsage

SECTOR_BYTES = 512


@dataclass(slots=True)
class Inode:
    """A file's bytes: as read now, as synced, and the writes in between."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        apply(self.data, offset, data)
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        self.synced = bytearray(self.data)
        self.unsynced = []

    def after_cut(self, rng: random.Random) -> "Inode":
        found = bytearray(self.synced)
        kept = rng.choice((0.0, 0.5, 0.9, 1.0))
        for offset, data in self.unsynced:
            at = 0
            while at < len(data):
                stop = at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES
                if rng.random() < kept:
                    apply(found, offset + at, data[at:stop])
                at = stop
        return Inode(bytearray(found), found)


def apply(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def set_name(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


class SimFile:
    """See `bookie.files.File`."""

    def __init__(self, disk: "SimDisk", path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
        data = b"".join(buffers)
        self._disk.grow(self.path, max(offset + len(data) - len(self._inode.data), 0))
        if self._disk.step("write", self.path):
            self._inode.write(offset, data)
            self._disk.check()
        self._inode.write(offset, data)
        if durable:
            self.sync()
        return len(data)

    def read(self, offset: int, length: int) -> bytes:
        self._disk.check()
        for begin, end in self._disk.unreadable.get(self.path, ()):
            if offset < end and begin < offset + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        return bytes(self._inode.data[offset : offset + length])

    def read_once(self, offset: int, length: int) -> bytes:
        return self.read(offset, length)

    def will_read(self, offset: int, length: int) -> None:
        self._disk.check()

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        self._disk.check()
        self._inode.sync()

    def preallocate(self, offset: int, length: int) -> None:
        self._disk.grow(self.path, max(offset + length - len(self._inode.data), 0))
        self._disk.step("preallocate", self.path)
        self._disk.check()
        self._inode.write(offset, bytes(length))

    def truncate(self, length: int) -> None:
        self._disk.step("truncate", self.path)
        self._disk.check()
        del self._inode.data[length:]
        self._inode.sync()

    def size(self) -> int:
        self._disk.check()
        return len(self._inode.data)

    def close(self) -> None:
        """Nothing is held."""


class SimDisk:
    """See `bookie.files.Files`."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.steps = 0
        self.cut_at = -1
        self.dead = False
        self.fault: Callable[[str, Path], OSError | None] | None = None
        """What a step (its kind and path) fails with, if anything."""
        self.unreadable: dict[Path, list[tuple[int, int]]] = {}
        """Bad sectors: bytes `begin` to `end` of a file, which no read may touch."""
        self.inodes: dict[Path, Inode] = {}
        self._changes: list[tuple[Path, Inode | None]] = []
        """Names that came (with their file) and went since their directory was synced."""
        self._synced: dict[Path, Inode] = {}

    # --- faults ----------------------------------------------------------------------------

    def check(self) -> None:
        if self.dead:
            raise OSError(errno.EIO, "no power")

    def step(self, kind: str, path: Path) -> bool:
        """Counts; True if the power goes in the middle of this one."""
        self.check()
        error = self.fault(kind, path) if self.fault is not None else None
        if error is not None:
            raise error
        self.steps += 1
        if self.steps == self.cut_at:
            self.dead = True
        return self.dead

    def grow(self, path: Path, size: int) -> None:
        self.check()
        if size and self.used() + size > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def used(self) -> int:
        return sum(len(inode.data) for inode in self.inodes.values())

    def after_cut(self, rng: random.Random) -> "SimDisk":
        """The disk as the next start may find it."""
        disk = SimDisk(self.capacity)
        names = dict(self._synced)
        for path, inode in self._changes[: rng.randint(0, len(self._changes))]:
            set_name(names, path, inode)
        copies = {id(inode): inode.after_cut(rng) for inode in names.values()}
        disk.inodes = {path: copies[id(inode)] for path, inode in names.items()}
        disk._synced = dict(disk.inodes)
        return disk

    def flip(self, path: Path, bit: int) -> None:
        """Flips one bit of a file, where it is and where it was synced."""
        inode = self.inodes[path]
        inode.data[bit // 8] ^= 1 << bit % 8
        inode.sync()

    # --- files -----------------------------------------------------------------------------

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: Append | None = None,
    ) -> SimFile:
        self.check()
        if create:
            if path in self.inodes:
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            self.step("create", path)
            self.check()
            self._change(path, Inode())
        if path not in self.inodes:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return SimFile(self, path, self.inodes[path])

    def read_all(self, path: Path) -> bytes:
        return self.open(path, read_only=True).read(0, 1 << 40)

    def names(self, directory: Path) -> list[str]:
        self.check()
        head = f"{directory}/"
        names = (text[len(head) :] for text in map(str, self.inodes) if text.startswith(head))
        return sorted(name for name in names if "/" not in name)

    def make_directory(self, path: Path) -> None:
        self.check()

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", source)
        self.check()
        if source not in self.inodes:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(source))
        inode = self.inodes[source]
        self._change(target, inode)
        self._change(source, None)

    def remove(self, path: Path) -> None:
        self.step("remove", path)
        self.check()
        self._change(path, None)

    def sync_directory(self, path: Path) -> None:
        try:
            self.step("sync directory", path)
        except OSError:
            # The system drops what it could not write: no later sync makes these names durable.
            self._changes = [change for change in self._changes if change[0].parent != path]
            raise
        self.check()
        for changed, inode in self._changes:
            if changed.parent == path:
                set_name(self._synced, changed, inode)
        self._changes = [change for change in self._changes if change[0].parent != path]

    def usage(self, path: Path) -> DiskUsage:
        self.check()
        return DiskUsage(self.capacity, self.capacity - self.used())

    def lock(self, path: Path) -> SimFile:
        self.check()
        if path in self.inodes:
            raise DataDirLocked(errno.EWOULDBLOCK, f"{path.parent} is in use")
        return SimFile(self, path, Inode())

    def _change(self, path: Path, inode: Inode | None) -> None:
        set_name(self.inodes, path, inode)
        self._changes.append((path, inode))


class SimIndexStore(MemoryIndexStore):
    """An index whose syncs are steps of a disk."""

    def __init__(self, disk: SimDisk, path: Path, synced: dict[bytes, bytes] | None = None) -> None:
        super().__init__(synced)
        self._disk = disk
        self._path = path

    def write(self, batch: Batch) -> None:
        self._disk.check()
        super().write(batch)

    def sync(self) -> None:
        self._disk.step("index sync", self._path)
        self._disk.check()
        super().sync()
