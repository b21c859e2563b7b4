"""What a power cut leaves of a data directory, from the log that the library wrote.

`Disk` follows the log: what each file and directory is now, and what of it was synced. The rules
are those of POSIX and of disks that keep a cache, so a file system may do better, never worse:

- what was written since the last sync may be there or not, each sector for itself (512 or 4,096
  bytes); a sector holds one of the states that it went through;
- names follow their directory's syncs alone; those after it come true up to a random point;
- what was dirty when a sync failed is gone, whatever a later sync says.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import Final

MAGIC: Final = 0x4B534944
_RECORD: Final = struct.Struct("<IIQQQII")
UNWATCHED: Final = "LOG"
"""RocksDB's own log, which it writes by stdio."""


class Kind(IntEnum):
    """Records; see `lying_disk.h`."""

    CREATE = 1
    WRITE = 2
    DURABLE = 3
    TRUNCATE = 4
    ALLOCATE = 5
    SYNC = 6
    SYNC_FAILED = 7
    RENAME = 8
    UNLINK = 9
    MKDIR = 10
    SYNC_DIRECTORY = 11
    LOST = 12


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of the log."""

    kind: Kind
    number: int
    inode: int
    offset: int
    name: str
    data: bytes


def read_log(path: Path) -> Iterator[LogRecord]:
    """The records; one that a kill cut off is none."""
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _RECORD.size <= len(data):
        magic, kind, number, inode, offset, name_bytes, data_bytes = _RECORD.unpack_from(data, at)
        assert magic == MAGIC, f"{path} at {at}: no record"
        at += _RECORD.size
        if at + name_bytes + data_bytes > len(data):
            return
        name = data[at : at + name_bytes].decode()
        at += name_bytes + data_bytes
        yield LogRecord(Kind(kind), number, inode, offset, name, data[at - data_bytes : at])


@dataclass(slots=True)
class Change:
    """A change of a file: a write, or a new size (`data` is None)."""

    number: int
    kind: Kind
    offset: int
    data: bytes
    durable: bool = False
    gone: bool = False


@dataclass(slots=True, eq=False)
class Inode:
    """A file's bytes as they are, as they were synced, and the changes in between."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)
    former: bytes = b""
    """Its bytes when the life began: what a block that was not written since would hold."""
    top: int = 0
    """The end of what was written in this life."""

    def change(self, change: Change) -> None:
        _carry_out(self.now, change)
        if change.kind is Kind.WRITE:
            self.top = max(self.top, change.offset + len(change.data))
        self.changes.append(change)

    def sync(self, before: int) -> None:
        left: list[Change] = []
        for change in self.changes:
            if change.number < before and not change.gone:
                change.durable = True
        # Up to the first change that is open, the synced bytes take them all.
        for index, change in enumerate(self.changes):
            if not (change.durable or change.gone):
                left = self.changes[index:]
                break
            if change.durable:
                _carry_out(self.synced, change)
        self.changes = left

    def fail(self, before: int) -> None:
        for change in self.changes:
            change.gone = change.gone or (change.number < before and not change.durable)

    def after_cut(self, rng: Random, kept: float, sector: int) -> bytearray:
        """What may be found of it."""
        found = bytearray(self.synced)
        behind: set[int] = set()
        for change in self.changes:
            if change.durable:
                _carry_out(found, change)
                behind -= set(_sectors(change, sector))
            elif change.gone:
                continue
            elif change.kind is not Kind.WRITE:
                if rng.random() < kept:
                    _carry_out(found, change)
            else:
                for index in _sectors(change, sector):
                    if index in behind or rng.random() >= kept:
                        behind.add(index)
                        continue
                    start = max(change.offset, index * sector)
                    stop = min(change.offset + len(change.data), (index + 1) * sector)
                    piece = change.data[start - change.offset : stop - change.offset]
                    _carry_out(found, Change(0, Kind.WRITE, start, piece))
        return found


def _sectors(change: Change, sector: int) -> range:
    if change.kind is not Kind.WRITE or not change.data:
        return range(0)
    return range(change.offset // sector, (change.offset + len(change.data) - 1) // sector + 1)


def _carry_out(data: bytearray, change: Change) -> None:
    end = change.offset + len(change.data)
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    if change.kind is Kind.TRUNCATE:
        del data[end:]
    elif change.kind is Kind.WRITE:
        data[change.offset : end] = change.data


@dataclass(slots=True)
class NameChange:
    """Names that get a file, a directory (None) or nothing (absent from `to`)."""

    number: int
    directory: str
    gone: str
    name: str
    inode: Inode | None
    durable: bool = False
    dropped: bool = False
    """A sync of the directory failed: no later one makes it durable."""


class Disk:
    """A data directory, followed from life to life."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: dict[str, Inode | None] = {}
        self._synced_names: dict[str, Inode | None] = {}
        self._name_changes: list[NameChange] = []
        self._inodes: dict[int, Inode] = {}
        self._last: Inode | None = None

    def follow(self, log: Path) -> None:
        """Carries out the log of one life."""
        for record in read_log(log):
            self._last = None
            self._apply(record)

    def _apply(self, record: LogRecord) -> None:
        inode = self._inodes.get(record.inode)
        if record.kind is Kind.CREATE:
            inode = self._inodes[record.inode] = Inode()
            self._rename(NameChange(record.number, _parent(record.name), "", record.name, inode))
        elif record.kind is Kind.MKDIR:
            self._rename(NameChange(record.number, _parent(record.name), "", record.name, None))
        elif record.kind is Kind.RENAME:
            source, _, target = record.name.partition("\0")
            if source in self.names:
                moved = self.names[source]
                change = NameChange(record.number, _parent(target), source, target, moved)
                self._rename(change)
        elif record.kind is Kind.UNLINK:
            if record.name in self.names:
                self._rename(NameChange(record.number, _parent(record.name), record.name, "", None))
        elif record.kind is Kind.SYNC_DIRECTORY:
            self._sync_directory(record.name, record.offset)
        elif record.kind is Kind.SYNC_FAILED and inode is None:
            for change in self._name_changes:
                dropped = change.directory == record.name and change.number < record.offset
                change.dropped = change.dropped or (dropped and not change.durable)
        elif inode is not None:
            self._last = inode
            self._apply_to(inode, record)

    def _apply_to(self, inode: Inode, record: LogRecord) -> None:
        if record.kind in (Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE):
            inode.change(Change(record.number, record.kind, record.offset, record.data))
        elif record.kind is Kind.DURABLE:
            for change in inode.changes:
                change.durable = change.durable or change.number == record.offset
        elif record.kind is Kind.SYNC:
            inode.sync(record.offset)
        elif record.kind is Kind.SYNC_FAILED:
            inode.fail(record.offset)

    def _rename(self, change: NameChange) -> None:
        _put_name(self.names, change)
        self._name_changes.append(change)

    def _sync_directory(self, directory: str, before: int) -> None:
        for change in self._name_changes:
            if change.directory == directory and change.number < before and not change.dropped:
                change.durable = True
        left = [c for c in self._name_changes if not (c.durable or c.dropped)]
        if all(change.directory != directory for change in left):
            # No change of this directory is open: it may be taken over without those of others.
            for change in self._name_changes:
                if change.directory == directory and not change.dropped:
                    _put_name(self._synced_names, change)
            self._name_changes = [c for c in self._name_changes if c.directory != directory]

    def differences(self) -> list[str]:
        """Where the directory is not what the log says: something went past the library."""
        found: list[str] = []
        there = {
            str(path.relative_to(self.directory)): path
            for path in self.directory.rglob("*")
            if not path.name.startswith(UNWATCHED)
        }
        for name in sorted((set(there) ^ set(self.names)) - self._unrecorded(there)):
            if name in there and there[name].is_file() and not there[name].stat().st_size:
                continue  # killed between the creation and its record
            found.append(f"{name}: {'not in the log' if name in there else 'in the log only'}")
        for name, inode in self.names.items():
            if inode is None or name not in there or inode is self._last:
                continue
            if there[name].read_bytes() != inode.now:
                found.append(f"{name}: other bytes than in the log")
        return found

    def _unrecorded(self, there: dict[str, Path]) -> set[str]:
        """Returns the names of a rename or deletion after which the process was killed.

        The library records a call after it has carried it out, so one may be missing in the log.
        """
        gone, new = set(self.names) - set(there), set(there) - set(self.names)
        if len(gone) != 1 or len(new) > 1:
            return set()
        moved = self.names[next(iter(gone))]
        if not all(moved is not None and there[name].read_bytes() == moved.now for name in new):
            return set()
        return gone | new

    def cut(self, rng: Random, *, harsh: bool = False) -> None:
        """The power goes: puts into the directory what may be found afterwards.

        A `harsh` cut takes all that was not synced.
        """
        kept = 0.0 if harsh else rng.choice((0.0, 0.3, 0.7, 0.95, 1.0))
        sector = rng.choice((512, 4096))
        names = dict(self._synced_names)
        some = not harsh and rng.random() < 0.7
        point = rng.randint(0, len(self._name_changes)) if some else 0
        for index, change in enumerate(self._name_changes):
            if change.durable or (index < point and not change.dropped):
                _put_name(names, change)
        found: dict[str, bytes | None] = {}
        for name, inode in names.items():
            if not _reachable(names, name):
                continue
            found[name] = None if inode is None else bytes(inode.after_cut(rng, kept, sector))
        self._restore(found)

    def settle(self) -> None:
        """The process is gone, the machine lives on: all that was written stays."""
        before = dict(self.names)
        found = {name: None if i is None else bytes(i.now) for name, i in before.items()}
        self._restore(found)
        for name, inode in self.names.items():
            old = before.get(name)
            if inode is not None and old is not None:
                inode.former, inode.top = old.former, old.top

    def _restore(self, found: dict[str, bytes | None]) -> None:
        for path in sorted(self.directory.rglob("*"), reverse=True):
            name = str(path.relative_to(self.directory))
            if path.name.startswith(UNWATCHED):
                continue
            if name not in found:
                _remove(path)
        for name in sorted(found):
            path, data = self.directory / name, found[name]
            if data is None:
                path.mkdir(exist_ok=True)
            elif not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
        self.take_over()

    def take_over(self) -> None:
        """Takes the directory as it is for what is durable: somebody else changed it."""
        self.names, self._inodes, self._name_changes, self._last = {}, {}, [], None
        for path in sorted(self.directory.rglob("*")):
            if path.name.startswith(UNWATCHED):
                continue
            name = str(path.relative_to(self.directory))
            if path.is_dir():
                self.names[name] = None
                continue
            data = path.read_bytes()
            inode = Inode(bytearray(data), bytearray(data), [], data)
            self.names[name] = self._inodes[path.stat().st_ino] = inode
        self._synced_names = dict(self.names)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _put_name(names: dict[str, Inode | None], change: NameChange) -> None:
    if change.gone:
        names.pop(change.gone, None)
    if change.name:
        names[change.name] = change.inode


def _reachable(names: dict[str, Inode | None], name: str) -> bool:
    parent = _parent(name)
    return not parent or (parent in names and _reachable(names, parent))


def _remove(path: Path) -> None:
    if not path.is_dir():
        path.unlink()
        return
    for child in path.iterdir():
        _remove(child)
    path.rmdir()
