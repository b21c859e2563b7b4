"""Publish times of entries, from that column of an entry file only."""

import io

import obstore
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from tests.support.offload_files import entries_of

from magnetar.offload.errors import ColdFileCorrupt
from magnetar.offload.file_decode import times_range
from magnetar.offload.file_format import EntryFile, EntryFileWriter
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, parse_metadata

PATH = "ledger.parquet"


def written() -> tuple[MemoryStore, list[bytes]]:
    """Entries, in several groups, of which one says no time."""
    entries = [*entries_of(40, 150), b"no entry", *entries_of(20, 150)]
    store = MemoryStore()
    sink = obstore.open_writer(store, PATH)
    writer = EntryFileWriter(sink, managed_ledger="t/n/persistent/x", group_bytes=4096)
    for entry_id, data in enumerate(entries):
        writer.add(5, entry_id, data)
    writer.close()
    return store, entries


async def test_times_are_those_of_the_entries() -> None:
    store, entries = written()
    file = await EntryFile.open(store, PATH)
    assert len(file.groups) > 2
    found = [time for group in file.groups for time in await file.publish_times(group.number)]
    assert found[40] is None
    del found[40], entries[40]
    assert found == [parse_metadata(data).publish_time for data in entries]


async def test_a_changed_byte_is_no_other_time() -> None:
    """Pages have checksums, their headers have none: any change is an error, or changes nothing."""
    store, _ = written()
    good = obstore.get(store, PATH).bytes().to_bytes()
    file = await EntryFile.open(store, PATH)
    times = await file.publish_times(1)
    start, end = times_range(file._footer, 1)
    assert end - start < file.groups[1].data_bytes / 4
    detected = 0
    for place in range(start, end):
        for bit in range(8):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            obstore.put(store, PATH, bytes(bad))
            try:
                assert await file.publish_times(1) == times, f"byte {place - start}, bit {bit}"
            except ColdFileCorrupt:
                detected += 1
    assert detected > 4 * (end - start)


@pytest.mark.parametrize("beyond", [TIME_MS_MAX + 1, 2**63 - 1, 2**63, 2**64 - 1])
async def test_what_is_no_time_is_no_entrys_failure(beyond: int) -> None:
    """Producers may send any number: the column has none then, and the index does not count it."""
    store = MemoryStore()
    writer = EntryFileWriter(obstore.open_writer(store, PATH), managed_ledger="t/n/persistent/x")
    times = [(5, TIME_MS_MAX), (beyond, 7), (6, beyond), (beyond, beyond)]
    entries = [
        build_entry(
            MessageMetadata(producer_name="p", sequence_id=1, publish_time=at, event_time=event),
            b"x",
        )
        for at, event in times
    ]
    for entry_id, data in enumerate(entries):
        writer.add(5, entry_id, data)
    writer.close()
    file = await EntryFile.open(store, PATH)
    assert await file.publish_times(0) == [5, None, 6, None]
    assert (file.groups[0].publish_ms_min, file.groups[0].publish_ms_max) == (5, 6)
    assert [entry.data for entry in await file.read_group(0)] == entries
    whole = io.BytesIO(obstore.get(store, PATH).bytes().to_bytes())
    events = pq.read_table(whole, columns=["event_time"])["event_time"].to_pylist()
    assert [None if each is None else each.year for each in events] == [9999, 1970, None, None]
