"""The second pass: writes the entries that have survivors to one file per part, and verifies it.

A task receives the places of its survivors in order, and reads its part alongside; neither is ever
whole in memory. A part without survivors is not read, and gets no file. A task that fails, or runs
twice, writes under another name each time. The file that counts is the one returned by the task
whose result Spark accepts; the others are deleted with the attempt's folder.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import obstore

from magnetar.compaction.records import CompactedFile
from magnetar.core.ids import Position
from magnetar.jobs.compaction.entries import without_others
from magnetar.jobs.compaction.part_entries import PlacedEntry, entries_of_part
from magnetar.jobs.compaction.plan import (
    ENTRY_MASK,
    ENTRY_SHIFT,
    INDEX_MASK,
    PART_SHIFT,
    PLACE_SHIFT,
    Part,
)
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.range_reader import OpenReader
from magnetar.jobs.sweeper import PROPERTY_CLUSTER, PROPERTY_HORIZON
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import FILE_SUFFIX
from magnetar.offload.sinks import open_sink
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar.offload.verify import verify_file


@dataclass(frozen=True, slots=True)
class Writing:
    """The parameters of all tasks. Sent to the processes that run them."""

    reader: OpenReader
    parts: tuple[Part, ...]
    store: StoreSpec
    folder: str
    managed_ledger: str
    cluster_id: str
    horizon: Position
    """The horizon of the new artifact."""


class Survivors(NamedTuple):
    """The surviving messages of one entry."""

    part: int
    entry: int
    indexes: frozenset[int]


def survivors_of(places: Iterable[int]) -> Iterator[Survivors]:
    """Groups places, which are in order, by entry. A place may occur twice."""
    current, indexes = -1, set[int]()
    for place in places:
        entry = place >> ENTRY_SHIFT
        if entry != current:
            if indexes:
                yield _survivors(current, indexes)
            current, indexes = entry, set()
        indexes.add(place >> PLACE_SHIFT & INDEX_MASK)
    if indexes:
        yield _survivors(current, indexes)


def _survivors(placed: int, indexes: set[int]) -> Survivors:
    part = placed >> (PART_SHIFT - ENTRY_SHIFT)
    return Survivors(part, placed & ENTRY_MASK, frozenset(indexes))


class KeptEntry(NamedTuple):
    """An entry of the new artifact, and the number of its messages."""

    ledger_id: int
    entry_id: int
    data: bytes
    messages: int


def kept_entries(
    entries: Iterable[PlacedEntry], survivors: Iterator[Survivors]
) -> Iterator[KeptEntry]:
    """The entries with survivors, rewritten; stops after the last survivor."""
    wanted = next(survivors, None)
    if wanted is None:
        return
    for number, ledger_id, entry_id, data in entries:
        if number != wanted.entry:
            continue
        kept, messages = without_others(data, wanted.indexes)
        yield KeptEntry(ledger_id, entry_id, kept, messages)
        wanted = next(survivors, None)
        if wanted is None:
            return
    raise AssertionError(f"entry {wanted.entry} of part {wanted.part} was not read again")


def written_files(writing: Writing, places: Iterable[int]) -> Iterator[tuple[int, CompactedFile]]:
    """Writes one file for each part that the places, which are in order, belong to."""
    survivors = survivors_of(places)
    first = next(survivors, None)
    while first is not None:
        of_part = _OfOnePart(first, survivors)
        yield first.part, _write(writing, writing.parts[first.part], of_part)
        first = of_part.next_part()


class _OfOnePart(Iterator[Survivors]):
    """The survivors of one part; buffers the first of the next part."""

    def __init__(self, first: Survivors, source: Iterator[Survivors]) -> None:
        self._part = first.part
        self._source = source
        self._ahead: Survivors | None = first

    def __next__(self) -> Survivors:
        survivors = self._ahead
        if survivors is None or survivors.part != self._part:
            raise StopIteration
        self._ahead = next(self._source, None)
        return survivors

    def next_part(self) -> Survivors | None:
        """The first survivors of the next part; None at the end."""
        return self._ahead


def _write(writing: Writing, part: Part, survivors: Iterator[Survivors]) -> CompactedFile:
    store = open_object_store(writing.store)
    path = f"{writing.folder}/{part.number:05d}-{uuid.uuid4().hex}{FILE_SUFFIX}"
    entries = entries_of_part(writing.reader, part)
    messages = 0
    try:
        sink = open_sink(writing.store, store, path)
        writer = EntryFileWriter(
            sink,
            managed_ledger=writing.managed_ledger,
            properties={
                PROPERTY_CLUSTER: writing.cluster_id,
                PROPERTY_HORIZON: str(writing.horizon),
            },
        )
        try:
            for ledger_id, entry_id, data, count in kept_entries(entries, survivors):
                writer.add(ledger_id, entry_id, data)
                messages += count
            written = writer.close()
        except BaseException:
            writer.abandon()
            sink.abandon()
            raise
        # Verified before it is returned, so before any record names it.
        verified = run(
            verify_file(store, path, length_bytes=written.length_bytes, checksum=written.checksum)
        )
        if (verified.entries, verified.first, verified.last) != (
            written.entries,
            written.first,
            written.last,
        ):
            raise AssertionError(f"{path} reads back as {verified}, not as {written}")
    except BaseException as error:
        with suppress(Exception):  # otherwise deleted with the attempt's folder
            obstore.delete(store, path)
        if isinstance(error, OSError) or type(error).__module__.startswith("obstore"):
            raise store_error(error, path) from error  # type: ignore[arg-type]
        raise
    finally:
        entries.close()  # type: ignore[attr-defined]
    return CompactedFile(
        path=path,
        file_bytes=written.file_bytes,
        checksum=written.checksum,
        first=written.first,
        last=written.last,
        entries=written.entries,
        messages=messages,
        length_bytes=written.length_bytes,
    )
