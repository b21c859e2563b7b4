"""The harness's side of `lying_disk.h`: builds the library, arms faults, counts what they hit."""

import ctypes
import mmap
import os
import shutil
import subprocess
from collections import Counter
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SOURCES: Final = ("lying_disk.c", "lying_calls.h", "lying_disk.h")
LIBRARY: Final = HERE.parents[1] / "build" / "lying_disk.so"
RULES: Final = 32
BAD_RANGES: Final = 32
ALWAYS: Final = -1


class Op(IntFlag):
    """Operations that a rule can name."""

    CREATE = 1
    READ = 2
    WRITE = 4
    WRITE_SYNCED = 8
    SYNC = 16
    ALLOCATE = 32
    TRUNCATE = 64
    RENAME = 128
    UNLINK = 256
    SYNC_DIRECTORY = 512


CHANGES: Final = Op(1023) & ~Op.READ


class Action(IntEnum):
    """What a rule does to an operation; see the header."""

    NONE = 0
    FAIL = 1
    SHORT = 2
    FLIP = 3
    STALE = 4
    MISDIRECT = 5
    HANG = 6
    LOSE = 7
    KILL_BEFORE = 8
    KILL_AFTER = 9


class _Rule(ctypes.Structure):
    _fields_ = (
        ("armed", ctypes.c_uint32),
        ("operations", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("skip", ctypes.c_int64),
        ("times", ctypes.c_int64),
        ("argument", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("name", ctypes.c_char * 64),
    )


class _Bad(ctypes.Structure):
    _fields_ = (
        ("inode", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
    )


class _Shared(ctypes.Structure):
    _fields_ = (
        ("full", ctypes.c_uint32),
        ("hanging", ctypes.c_uint32),
        ("operations", ctypes.c_uint64),
        ("hits", ctypes.c_uint64 * 16),
        ("bad_reads", ctypes.c_uint64),
        ("full_refusals", ctypes.c_uint64),
        ("rules", _Rule * RULES),
        ("bad", _Bad * BAD_RANGES),
    )


def build() -> Path:
    """The library, compiled if a source is newer; raises RuntimeError without a compiler."""
    newest = max((HERE / name).stat().st_mtime for name in SOURCES)
    if LIBRARY.exists() and LIBRARY.stat().st_mtime >= newest:
        return LIBRARY
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(
            "tests/disk needs a C compiler: apt-get install gcc libc6-dev, or make cc"
        )
    LIBRARY.parent.mkdir(exist_ok=True)
    fresh = LIBRARY.with_name(f"{LIBRARY.name}.{os.getpid()}")
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-ldl", "-lpthread")
    command = [compiler, str(HERE / SOURCES[0]), "-o", str(fresh), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    fresh.replace(LIBRARY)
    return LIBRARY


class Control:
    """The shared memory of one bookie's disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Shared)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._shared = _Shared.from_buffer(self._map)
        self._names: list[str] = []

    def arm(
        self,
        operations: Op,
        name: str,
        action: Action,
        *,
        error: int = 0,
        skip: int = 0,
        times: int = 1,
        argument: int = 0,
    ) -> int:
        """Adds a fault for operations on paths that contain `name`; returns its number."""
        index = next(i for i in range(RULES) if not self._shared.rules[i].armed)
        rule = self._shared.rules[index]
        rule.operations, rule.action, rule.error = operations, action, error
        rule.skip, rule.times, rule.argument, rule.hits = skip, times, argument, 0
        rule.name = name.encode()
        rule.armed = 1
        return index

    def hits(self, index: int) -> int:
        """How often a fault struck."""
        return int(self._shared.rules[index].hits)

    def calm(self) -> None:
        """Disarms every fault; what hangs goes on."""
        self._shared.full = 0
        for rule in self._shared.rules:
            rule.armed = 0

    def disarm(self, index: int) -> None:
        """Disarms one fault."""
        self._shared.rules[index].armed = 0

    def set_full(self, full: bool) -> None:
        """No file may grow while the disk is full."""
        self._shared.full = int(full)

    @property
    def hanging(self) -> int:
        """Operations that hang now."""
        return int(self._shared.hanging)

    @property
    def operations(self) -> int:
        """Operations that could have been hit."""
        return int(self._shared.operations)

    def spoil(self, path: Path, offset: int, length: int) -> None:
        """Makes a part of a file unreadable until it is written again."""
        bad = next(bad for bad in self._shared.bad if not bad.length)
        bad.inode, bad.offset, bad.length = path.stat().st_ino, offset, length

    def restart(self) -> None:
        """A new process begins: what hung is gone."""
        self._shared.hanging = 0

    def counts(self) -> Counter[str]:
        """Faults that struck, by kind."""
        found = Counter({action.name.lower(): self._shared.hits[action] for action in Action})
        found["bad sector read"] = self._shared.bad_reads
        found["disk full"] = self._shared.full_refusals
        return +found
