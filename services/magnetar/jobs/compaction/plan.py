"""Plans the input of a compaction: the current artifact, then the log after its horizon. Pure.

The input is divided into parts in the order of positions: a part is some files of the old artifact,
or some ranges of the log. Each part is one task in both passes, and becomes at most one file.

A *place* is the position of a message in that input as one number, so that Spark compares and
shuffles eight bytes: the part, the entry within the part, the message within the entry, and whether
the message has a value. Later messages have greater places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.compaction.records import FILES_MAX, CompactedFile, CompactionRecord
from magnetar.core.ids import Position
from magnetar.jobs.log.ranges import Range
from magnetar.offload.stores import StoreSpec

PART_BYTES_MIN: Final = 16 << 20
PART_BYTES_MAX: Final = 256 << 20
PARTS_PER_CORE: Final = 4

INDEX_BITS: Final = 24
"""Messages of one batch: 16 million; clients bound their batches far below."""
ENTRY_BITS: Final = 25
"""Entries of one part."""
PLACE_SHIFT: Final = 1
"""The lowest bit: whether the message has a value."""
ENTRY_SHIFT: Final = PLACE_SHIFT + INDEX_BITS
PART_SHIFT: Final = ENTRY_SHIFT + ENTRY_BITS
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1
PART_ENTRIES_MAX: Final = 1 << ENTRY_BITS


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file of the current artifact."""

    store: StoreSpec
    file: CompactedFile


Piece = OldFile | Range


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive pieces of input; `number` counts from 0."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(size_of(piece) for piece in self.pieces)


def place_of(part: int, entry: int, index: int, *, alive: bool) -> int:
    """The place of a message as one number; see the module's docstring for its fields."""
    return part << PART_SHIFT | entry << ENTRY_SHIFT | index << PLACE_SHIFT | alive


def part_bytes(total_bytes: int, cores: int) -> int:
    """The size of parts: small enough to use all cores, and few enough parts for one record."""
    wanted = total_bytes // max(1, cores * PARTS_PER_CORE)
    bounded = min(max(wanted, PART_BYTES_MIN), PART_BYTES_MAX)
    # Half of the bound, since the last piece of a part may exceed its size.
    return max(bounded, total_bytes * 2 // FILES_MAX)


def parts_of(
    previous: CompactionRecord | None, ranges: Sequence[Range], bytes_each: int
) -> list[Part]:
    """Divides the input into parts, in the order of positions."""
    pieces: list[Piece] = []
    if previous is not None:
        pieces += [OldFile(previous.store, file) for file in previous.files]
    pieces += ranges
    groups = _grouped(pieces, bytes_each)
    return [Part(number, tuple(group)) for number, group in enumerate(groups)]


def _grouped(pieces: Iterable[Piece], bytes_each: int) -> Iterable[list[Piece]]:
    group: list[Piece] = []
    size = entries = 0
    for piece in pieces:
        more = entries_of(piece)
        if group and (
            size + size_of(piece) > bytes_each
            or entries + more > PART_ENTRIES_MAX
            or type(group[0]) is not type(piece)
        ):
            yield group
            group, size, entries = [], 0, 0
        group.append(piece)
        size += size_of(piece)
        entries += more
    if group:
        yield group


def size_of(piece: Piece) -> int:
    """The bytes of a piece's entries; an estimate for a log's newest ledger."""
    return piece.file.length_bytes if isinstance(piece, OldFile) else piece.size_bytes


def entries_of(piece: Piece) -> int:
    """The exact number of a piece's entries."""
    return piece.file.entries if isinstance(piece, OldFile) else piece.last - piece.first + 1


def behind(horizon: Position | None) -> Position:
    """The position from which the log is read."""
    return Position(-1, -1) if horizon is None else Position(horizon[0], horizon[1] + 1)
