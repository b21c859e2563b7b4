"""GET_LAST_MESSAGE_ID: the last message that a consumer may wait for, of log or artifact."""

import shutil
from pathlib import Path

import pytest
from pyroaring import BitMap
from tests.unit.broker.subscription.conftest import entry_bytes
from tests.unit.broker.topic.stage import Stage, stage
from tests.unit.ledger.stage import publish, turns

from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.topic.last_message import last_readable
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.artifact import Artifacts
from magnetar.compaction.records import CompactedFile, CompactionRecord, compaction_key
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.records import encode
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.errors import ColdFileMissing
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.stores import StoreSpec
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.checksum import with_checksum
from magnetar.wire.entry import build_entry


def batch(*left: bool) -> bytes:
    """Returns an entry of a batch; messages that are not left were compacted out."""
    messages = [
        (SingleMessageMetadata(payload_size=1, compacted_out=not each), b"x") for each in left
    ]
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.num_messages_in_batch = len(left)
    return build_entry(metadata, build_batch(messages))


def existing(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


async def view(
    s: Stage, topic: PersistentTopic, folder: Path, horizon: Position, *left: tuple[Position, bytes]
) -> CompactedLog:
    """The compacted log of the topic, with these messages left up to the horizon."""
    files: tuple[CompactedFile, ...] = ()
    if left:
        with (existing(folder) / "left.parquet").open("wb") as sink:
            writer = EntryFileWriter(sink, managed_ledger=topic.managed_ledger.name, group_bytes=20)
            for position, data in left:
                writer.add(*position, data)
            made = writer.close()
        files = (
            CompactedFile(
                path="left.parquet",
                file_bytes=made.file_bytes,
                checksum=made.checksum,
                first=made.first,
                last=made.last,
                entries=made.entries,
                messages=made.entries,
                length_bytes=made.length_bytes,
            ),
        )
    record = CompactionRecord(
        horizon=horizon,
        log_created_ms=topic.managed_ledger.created_ms,
        attempt="1",
        store=StoreSpec("filesystem", str(folder)),
        compacted_ms=1,
        files=files,
    )
    await s.store.put(compaction_key(topic.managed_ledger.name), encode(record))
    artifacts = Artifacts(s.store, ColdFiles())
    return await CompactedLog.open(topic.managed_ledger, artifacts, s.clock)


async def stored(topic: PersistentTopic, *entries: bytes) -> list[Position]:
    ledger_id, first = await publish(topic.managed_ledger, *entries)
    return [Position(ledger_id, first + each) for each in range(len(entries))]


async def test_without_an_artifact_it_is_the_last_message_of_the_log() -> None:
    async with stage() as s:
        topic = await s.topic()
        assert await topic.last_message(None) == (EARLIEST, -1)
        (one,) = await stored(topic, entry_bytes("single"))
        assert await topic.last_message(None) == (one, -1)
        (two,) = await stored(topic, batch(True, True, True))
        assert await topic.last_message(None) == (two, 2)
        (three,) = await stored(topic, batch(True))
        assert await topic.last_message(None) == (three, 0)
        (four,) = await stored(topic, with_checksum(b"\0\0\0\4\xff\xff\xff\xff"))
        assert await topic.last_message(None) == (four, -1), "its metadata cannot be read"


@pytest.mark.parametrize(
    ("left", "index"),
    [
        (entry_bytes("single"), -1),
        (batch(True, True, True), 2),
        (batch(True, True, False), 1),
        (batch(True, False, False), 0),
        (batch(False, False, True), 2),
        (entry_bytes("cannot be cut", batch=3), 2),
        (with_checksum(b"\0\0\0\4\xff\xff\xff\xff"), -1),
    ],
    ids=["single", "all", "without the last", "the first", "the last", "unreadable", "malformed"],
)
async def test_up_to_the_horizon_it_is_the_last_that_was_not_compacted_out(
    tmp_path: Path, left: bytes, index: int
) -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, entry_bytes("a"), entry_bytes("b"), entry_bytes("c"))
        seen = await view(s, topic, tmp_path, places[2], (places[1], left))
        assert await topic.last_message(seen) == (places[1], index)
        assert await topic.last_message(None) == (places[2], -1), "of other consumers"
        (newer,) = await stored(topic, batch(True, True))
        assert await topic.last_message(seen) == (newer, 1)


async def test_an_artifact_of_which_nothing_is_left_has_no_last_message(tmp_path: Path) -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, entry_bytes("a"))
        seen = await view(s, topic, tmp_path, places[0])
        assert await topic.last_message(seen) == (EARLIEST, -1)


async def test_an_artifact_outlives_the_entries_of_its_log(tmp_path: Path) -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, entry_bytes("a"), entry_bytes("b"))
        seen = await view(s, topic, tmp_path, places[1], (places[0], batch(True, True)))
        await topic.managed_ledger.truncate()
        assert last_readable(topic.managed_ledger) is None
        assert await topic.last_message(seen) == (places[0], 1)


async def test_the_last_message_of_a_log_that_was_compacted_and_trimmed_again(
    tmp_path: Path,
) -> None:
    """A reader at the end of the log has read of the former artifact only."""
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, entry_bytes("a"), entry_bytes("b"))
        seen = await view(s, topic, tmp_path / "1", places[1], (places[0], batch(True, True)))
        assert await topic.last_message(seen) == (places[0], 1)
        (newer,) = await stored(topic, entry_bytes("c"))
        await view(s, topic, tmp_path / "2", newer, (newer, entry_bytes("c")))
        await topic.managed_ledger.truncate()
        assert await topic.last_message(seen) == (newer, -1)


async def test_the_last_message_of_an_artifact_that_was_replaced_and_deleted(
    tmp_path: Path,
) -> None:
    """Only entries of an aborted transaction came since, so a reader reads nothing."""
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, entry_bytes("a"), entry_bytes("b"), entry_bytes("aborted"))
        await topic.managed_ledger.abort_entries({places[2][0]: BitMap((places[2][1],))})
        seen = await view(s, topic, tmp_path / "1", places[1], (places[0], entry_bytes("a")))
        shutil.rmtree(tmp_path / "1")
        with pytest.raises(ColdFileMissing):
            await topic.last_message(seen)
        await view(s, topic, tmp_path / "2", places[2], (places[0], entry_bytes("a")))
        assert await topic.last_message(seen) == (places[0], -1)


async def test_a_last_message_that_is_trimmed_before_it_is_read_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        topic = await s.topic()
        await stored(topic, entry_bytes("a"))
        read_entry = ManagedLedger.read_entry

        async def overtaken(ledger: ManagedLedger, position: Position) -> Entry:
            monkeypatch.undo()
            await ledger.truncate()
            return await read_entry(ledger, position)

        monkeypatch.setattr(ManagedLedger, "read_entry", overtaken)
        assert await topic.last_message(None) == (EARLIEST, -1)


async def test_the_last_message_is_the_newest_that_is_kept() -> None:
    async with stage() as s:
        topic = await s.topic()
        await topic.create_subscription("keeper", EARLIEST, {})
        assert last_readable(topic.managed_ledger) is None
        (first,) = await s.publish(topic, "a")
        assert last_readable(topic.managed_ledger) == first
        await topic.managed_ledger.roll_over()
        assert last_readable(topic.managed_ledger) == first
        s.bookie.refuse = lambda _ledger, _ids: True
        producer, sink = await s.producer(topic)
        topic.managed_ledger.append([b"refused"], lambda *_: None)
        await turns(200)
        assert last_readable(topic.managed_ledger) == first, "ledgers without entries have none"
        await topic.managed_ledger.truncate()
        assert last_readable(topic.managed_ledger) is None
        assert not sink.told
        topic.remove_producer(producer)
