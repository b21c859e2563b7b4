"""Bad days of a disk, by seed: which operation fails, and what a latent error does to a file."""

import errno
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.disk.bookie import BookieProcess
from tests.disk.control import ALWAYS, CHANGES, Action, Op
from tests.disk.power_cut import Inode

SECTOR: Final = 512
BLOCK: Final = 4096
SYNCS: Final = Op.SYNC | Op.WRITE_SYNCED | Op.SYNC_DIRECTORY
PLACES: Final = ("/journal", "/entry-logs", "/index", "checkpoint")
STARTED_OPS_MAX: Final = 160
"""About what a start on an empty disk does."""


def arm_cut(process: BookieProcess, rng: Random, *, starting: bool) -> str:
    """The power goes before or right after some operation; says which."""
    action = rng.choice((Action.KILL_BEFORE, Action.KILL_AFTER))
    if starting:
        operations, place, skip = CHANGES, "", rng.randint(0, STARTED_OPS_MAX)
    else:
        place = rng.choice(("", "", *PLACES))
        operations = rng.choice((CHANGES, SYNCS, Op.RENAME | Op.UNLINK | Op.CREATE))
        many = 250 if place in ("", "/journal") and operations != Op(0) else 25
        skip = rng.randint(0, many)
    process.control.arm(operations, place, action, skip=skip)
    return f"{action.name} {operations!r} of '{place}' after {skip}"


def arm_write_errors(process: BookieProcess, rng: Random) -> list[str]:
    """Some changes fail, or are cut short, once, some times or from then on."""
    told: list[str] = []
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(PLACES)
        skip = rng.randint(0, 40 if place in ("/journal", "/index") else 8)
        if rng.random() < 0.15:
            process.control.arm(Op.WRITE | Op.WRITE_SYNCED, place, Action.SHORT, skip=skip, times=5)
            told.append(f"short writes to {place}")
            continue
        operations = rng.choice((CHANGES, SYNCS, SYNCS, Op.WRITE | Op.ALLOCATE, Op.CREATE))
        error = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        times = rng.choice((1, 1, 3, ALWAYS))
        process.control.arm(
            operations,
            place,
            Action.FAIL,
            error=error,
            skip=skip,
            times=times,
            argument=rng.randint(0, 1),
        )
        told.append(f"{errno.errorcode[error]} of {operations!r} in {place} x {times}")
    return told


def arm_short_writes(process: BookieProcess) -> None:
    """Every write to the journal and the entry logs ends half way."""
    for place in ("/journal", "/entry-logs"):
        process.control.arm(Op.WRITE | Op.WRITE_SYNCED, place, Action.SHORT, times=ALWAYS)


def arm_failed_sync(process: BookieProcess, rng: Random) -> int:
    """One sync of the journal fails: the disk dropped what was written, and syncs well later."""
    return process.control.arm(
        Op.SYNC | Op.WRITE_SYNCED,
        "/journal",
        Action.FAIL,
        error=errno.EIO,
        skip=rng.randint(3, 12),
        argument=1,
    )


def arm_flips(process: BookieProcess, rng: Random) -> None:
    """Every read of an entry log returns one flipped bit."""
    process.control.arm(
        Op.READ, "/entry-logs", Action.FLIP, times=ALWAYS, argument=rng.getrandbits(31)
    )


def arm_read_errors(process: BookieProcess, rng: Random) -> list[str]:
    """Many reads of entry logs and the index are wrong, short, or fail."""
    told: list[str] = []
    for _ in range(rng.randint(2, 6)):
        place = rng.choice(("/entry-logs", "/entry-logs", ".sst"))
        kinds = (Action.FAIL, Action.SHORT, Action.FLIP, Action.STALE, Action.MISDIRECT)
        action = rng.choice(kinds)
        process.control.arm(
            Op.READ,
            place,
            action,
            error=errno.EIO,
            skip=rng.randint(0, 6),
            times=rng.randint(1, 8),
            argument=rng.getrandbits(31),
        )
        told.append(f"{action.name} of reads in {place}")
    return told


@dataclass(frozen=True, slots=True)
class Latent:
    """A latent error that was put into a file."""

    name: str
    story: str

    @property
    def may_refuse_to_start(self) -> bool:
        """A damaged identity or index cannot be worked around by one bookie: it says so."""
        return self.name.startswith(("index", "identity", "cluster.json"))


def spoil(process: BookieProcess, rng: Random) -> Latent | None:
    """Damages one file of a stopped bookie; None where there is nothing to damage."""
    disk = process.disk
    place = rng.choice(("journal/", "journal/", "journal/", "entry-logs/", "index/", "checkpoint"))
    names = [
        name
        for name, inode in disk.names.items()
        if name.startswith(place) and inode is not None and inode.now and "spare" not in name
    ]
    if not names:
        return None
    newest = max(names)
    if place == "journal/" and rng.random() < 0.7:
        names = [newest]
    name = rng.choice(sorted(names))
    inode = disk.names[name]
    assert inode is not None
    end = inode.top or len(inode.now)
    offset = rng.randrange(BLOCK) if rng.random() < 0.15 else rng.randrange(max(end, 1))
    if place == "journal/" and rng.random() < 0.3:
        # The last records, whose loss nothing behind them shows.
        offset = max(end - 1 - rng.randrange(2 * BLOCK), 0)
    kinds = ["flip", "unreadable", "unreadable"]
    if name != newest or place != "journal/" or offset < end - 3 * BLOCK:
        # If a disk loses the last writes of all without an error, nothing on it shows that.
        kinds += ["sector", "stale", "stale", "swap"]
    offset = min(offset, len(inode.now) - 1)
    return Latent(name, _spoil(process, rng, name, inode, offset, rng.choice(kinds)))


def spoil_end(process: BookieProcess) -> str:
    """Makes the end of the newest journal file unreadable: the last records and their mark."""
    name = max(name for name in process.disk.names if name.endswith(".journal"))
    inode = process.disk.names[name]
    assert inode is not None
    start = max(inode.top - 2 * BLOCK, 0) // BLOCK * BLOCK
    process.control.spoil(process.data_dir / name, start, 3 * BLOCK)
    return f"{name}: bytes from {start} on cannot be read"


def _spoil(
    process: BookieProcess, rng: Random, name: str, inode: Inode, offset: int, kind: str
) -> str:
    path = process.data_dir / name
    data = bytearray(path.read_bytes())
    size = rng.choice((SECTOR, BLOCK))
    start = offset // size * size
    stop = min(start + size, len(data))
    if kind == "unreadable":
        process.control.spoil(path, start, size)
        return f"{name}: bytes {start} to {start + size} cannot be read"
    if kind == "flip":
        data[offset] ^= 1 << rng.randrange(8)
    elif kind == "sector":
        data[start:stop] = rng.randbytes(stop - start)
    elif kind == "stale":
        old = inode.former[start:stop]
        data[start:stop] = old + bytes(stop - start - len(old))
    else:
        others = [i for i in process.disk.names.values() if i is not None and len(i.now) > BLOCK]
        other = rng.choice(others) if others else inode
        at = rng.randrange(max(len(other.now) // size, 1)) * size
        piece = bytes(other.now[at : at + stop - start])
        data[start : start + len(piece)] = piece
    path.write_bytes(data)
    return f"{name}: {kind} at {start} to {stop}, byte {offset}"
