"""The entries of a part, in order: from files of the old artifact, or from the log.

Files are read one row group at a time, and every entry's checksum is verified. The log is read by a
`RangeReader`. Both stream: one group of entries is in memory.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from magnetar.jobs.compaction.plan import OldFile, Part
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.range_reader import OpenReader
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import open_object_store


class PlacedEntry(NamedTuple):
    """An entry of a part; `number` counts the part's entries from 0."""

    number: int
    ledger_id: int
    entry_id: int
    data: bytes


def entries_of_part(open_reader: OpenReader, part: Part) -> Iterator[PlacedEntry]:
    """All entries of the part. Raises any error of reading them."""
    number = 0
    with open_reader() as reader:
        for piece in part.pieces:
            if isinstance(piece, OldFile):
                for ledger_id, entry_id, data in _of_file(piece):
                    yield PlacedEntry(number, ledger_id, entry_id, data)
                    number += 1
                continue
            ledger_id = piece.ledger_id
            for group in reader.read(piece):
                for entry_id, data in group:
                    yield PlacedEntry(number, ledger_id, entry_id, data)
                    number += 1


def _of_file(old: OldFile) -> Iterable[tuple[int, int, bytes]]:
    store = open_object_store(old.store)
    file = run(EntryFile.open(store, old.file.path))
    for group in file.groups:
        yield from run(file.read_group(group.number))
