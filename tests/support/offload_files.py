"""Moves ledgers to a store as a job does, without Spark: for tests of who reads them."""

from random import Random

import obstore

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerState, decode, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, Check, MetadataStore, Put
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import OffloadRecord, object_path, offload_key
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar.offload.verify import verify_file
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry

READ_BYTES = 1 << 20


def entries_of(count: int, size: int, *, seed: int = 0) -> list[bytes]:
    """Entries as producers send them, of random bytes."""
    rng = Random(seed)
    return [
        build_entry(
            MessageMetadata(
                producer_name="producer",
                sequence_id=number,
                publish_time=1_700_000_000_000 + number,
                partition_key=f"key-{number % 7}",
            ),
            rng.randbytes(size),
        )
        for number in range(count)
    ]


async def move(
    store: MetadataStore,
    ledgers: LedgerClient,
    name: str,
    ledger_id: int,
    spec: StoreSpec,
    *,
    release: bool = True,
    group_bytes: int = 64 << 10,
) -> OffloadRecord:
    """Writes the ledger's file, checks it, makes it live, and has the bookies let go of it."""
    key = ledger_key(ledger_id)
    stored = await store.get(key)
    assert stored is not None
    metadata = decode(key, stored.value)
    assert metadata.state is LedgerState.CLOSED
    reader = await ledgers.open(ledger_id, recover=False)
    objects = open_object_store(spec)
    path = object_path(name, ledger_id, "test")
    writer = EntryFileWriter(
        obstore.open_writer(objects, path), managed_ledger=name, group_bytes=group_bytes
    )
    first = 0
    while first <= metadata.last_entry:
        some = await reader.read(first, metadata.last_entry, bytes_max=READ_BYTES)
        writer.add_entries(ledger_id, some)
        first = some[-1].entry_id + 1
    written = writer.close()
    await verify_file(
        objects,
        path,
        ledger_id=ledger_id,
        last_entry=metadata.last_entry,
        length_bytes=metadata.length_bytes,
        checksum=written.checksum,
    )
    record = OffloadRecord(
        ledger_id=ledger_id,
        attempt="test",
        store=spec,
        path=path,
        file_bytes=written.file_bytes,
        entries=written.entries,
        length_bytes=written.length_bytes,
        checksum=written.checksum,
        created_ms=metadata.created_ms,
        closed_ms=metadata.closed_ms,
        offloaded_ms=metadata.closed_ms + 1,
        released_ms=metadata.closed_ms + 2 if release else 0,
    )
    put = Put(offload_key(name, ledger_id), encode(record), ABSENT)
    await store.transact([Check(key, stored.revision), put])
    if release:
        await ledgers.delete(ledger_id)
    return record
