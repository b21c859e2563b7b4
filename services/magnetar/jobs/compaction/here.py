"""Runs the two passes of a compaction in this process, with a bounded index of keys.

Each part is read by `first_pass`, its keys go into the index (`key_index`), and the survivors come
back in order for `second_pass`. Memory: the table of the first pass, the index's bound twice (the
cache of pages, and one sort), the reader's groups, and one row group that is written.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.compaction.records import CompactedFile
from magnetar.core.ids import Position
from magnetar.jobs.compaction import chunks
from magnetar.jobs.compaction.first_pass import Counts, latest_places
from magnetar.jobs.compaction.key_index import KeyIndex
from magnetar.jobs.compaction.part_entries import entries_of_part
from magnetar.jobs.compaction.second_pass import Writing, written_files

INDEX_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Compacted:
    """The files of the new artifact in order, and the amount of input read."""

    files: tuple[CompactedFile, ...]
    entries_read: int
    bytes_read: int
    messages_read: int


def compact_here(
    writing: Writing,
    settled: Position,
    index_bytes: int = INDEX_BYTES,
    disk_bytes: int | None = None,
) -> Compacted:
    """Compacts; blocks. `settled` is that of `chunks.settled`, the sizes those of `KeyIndex`."""
    counts = Counts()
    with KeyIndex(index_bytes, disk_bytes) as index:
        for part in writing.parts:
            for latest in latest_places(part.number, entries_of_part(writing.reader, part), counts):
                index.update(latest)
        if counts.chunks:
            for part in writing.parts:
                entries = entries_of_part(writing.reader, part)
                index.add_chunks(chunks.chunks_of(part.number, entries, settled))
        files = [file for _, file in written_files(writing, index.survivors())]
    return Compacted(tuple(files), counts.entries, counts.bytes, counts.messages)
