"""The second pass: of each part, the entries that have a survivor, written to a file and read back.

A task gets the places of its survivors in order, and reads its part along with them: neither is
ever whole in memory. A part without survivors is not read, and makes no file. A task that fails, or
is run twice, writes under another name each time: which file counts is what the task that Spark
believes returns; the others go with the attempt's folder.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import obstore
import pyarrow as pa

from magnetar.bookie.registration import BookieRegistration
from magnetar.compaction.records import CompactedFile
from magnetar.core.ids import Position
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import FILE_SUFFIX
from magnetar.offload.sinks import open_sink
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar.offload.verify import verify_file
from magnetar_spark.jobs.compact.entries import without_others
from magnetar_spark.jobs.compact.plan import (
    ENTRY_MASK,
    ENTRY_SHIFT,
    INDEX_MASK,
    PART_SHIFT,
    PLACE_SHIFT,
    Part,
)
from magnetar_spark.jobs.compact.reading import PlacedEntry, entries_of_part
from magnetar_spark.jobs.sweeping import PROPERTY_CLUSTER, PROPERTY_HORIZON
from magnetar_spark.log.running import run
from magnetar_spark.log.settings import LogSettings

FILES_SCHEMA: Final = "part int, file binary"
_SCHEMA: Final = pa.schema([("part", pa.int32()), ("file", pa.binary())])


@dataclass(frozen=True, slots=True)
class Writing:
    """What every task needs. Travels to Spark's executors."""

    settings: LogSettings
    bookies: tuple[BookieRegistration, ...]
    parts: tuple[Part, ...]
    store: StoreSpec
    folder: str
    managed_ledger: str
    cluster_id: str
    horizon: Position
    """Of the artefact that comes into being."""


class Survivors(NamedTuple):
    """The messages of one entry that stay."""

    part: int
    entry: int
    indexes: frozenset[int]


def survivors_of(places: Iterable[int]) -> Iterator[Survivors]:
    """From places in order, entry by entry. The same place may come twice."""
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


class Left(NamedTuple):
    """An entry of the new artefact, and how many messages it has."""

    ledger_id: int
    entry_id: int
    data: bytes
    messages: int


def left_of(entries: Iterable[PlacedEntry], survivors: Iterator[Survivors]) -> Iterator[Left]:
    """The entries that are left, rewritten; ends behind the last survivor."""
    wanted = next(survivors, None)
    if wanted is None:
        return
    for number, ledger_id, entry_id, data in entries:
        if number != wanted.entry:
            continue
        left, messages = without_others(data, wanted.indexes)
        yield Left(ledger_id, entry_id, left, messages)
        wanted = next(survivors, None)
        if wanted is None:
            return
    raise AssertionError(f"entry {wanted.entry} of part {wanted.part} was not read again")


def written_files(writing: Writing, places: Iterable[int]) -> Iterator[tuple[int, CompactedFile]]:
    """One file for each part that the places, which are in order, are of."""
    survivors = survivors_of(places)
    first = next(survivors, None)
    while first is not None:
        some = _OfOnePart(first, survivors)
        yield first.part, _write(writing, writing.parts[first.part], some)
        first = some.next_part()


class _OfOnePart(Iterator[Survivors]):
    """The survivors of one part; keeps the first of the next."""

    def __init__(self, first: Survivors, source: Iterator[Survivors]) -> None:
        self._part = first.part
        self._source = source
        self._ahead: Survivors | None = first

    def __next__(self) -> Survivors:
        found = self._ahead
        if found is None or found.part != self._part:
            raise StopIteration
        self._ahead = next(self._source, None)
        return found

    def next_part(self) -> Survivors | None:
        return self._ahead


def _write(writing: Writing, part: Part, survivors: Iterator[Survivors]) -> CompactedFile:
    store = open_object_store(writing.store)
    path = f"{writing.folder}/{part.number:05d}-{uuid.uuid4().hex}{FILE_SUFFIX}"
    entries = entries_of_part(writing.settings, writing.bookies, part)
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
            for ledger_id, entry_id, data, count in left_of(entries, survivors):
                writer.add(ledger_id, entry_id, data)
                messages += count
            written = writer.close()
        except BaseException:
            writer.abandon()
            sink.abandon()
            raise
        # Read back before anything says that it is there.
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
        with suppress(Exception):  # it goes with the attempt's folder
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


def as_batch(part: int, file: CompactedFile) -> pa.RecordBatch:
    """For Spark, `FILES_SCHEMA`."""
    return pa.record_batch([[part], [msgspec.json.encode(file)]], _SCHEMA)
