"""The log as consumers with `read_compacted` see it: real files, a real managed ledger."""

from collections.abc import Collection
from pathlib import Path

import pytest
from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.broker.dispatch.compacted_log import RENEW_S, CompactedLog
from magnetar.compaction.artifact import Artifacts
from magnetar.compaction.deletion import delete_files, discard
from magnetar.compaction.records import (
    CompactedFile,
    CompactionRecord,
    RetiredFile,
    compaction_key,
    decode_compaction,
)
from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, Check
from magnetar.offload.cold import ColdLedgers
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.errors import ColdFileMissing
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.stores import StoreSpec
from magnetar.offload.trash import empty_trash

PER_LEDGER = 4


class Topic:
    """A log of several ledgers, and artifacts of it."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage()
        self.folder = folder
        self.files = ColdFiles()
        self.factory: ManagedLedgerFactory = self.stage.factory(trim_limit=self._limit)
        self.artifacts = Artifacts(self.stage.store, self.files)
        self.entries: list[Position] = []
        self._made = 0

    async def _limit(self, name: str, log_created_ms: int) -> Position | None:
        live = await self.artifacts.live(name, log_created_ms)
        return None if live is None else live.horizon

    async def open(self, ledgers: int) -> ManagedLedger:
        self.ledger = await self.factory.open(NAME)
        await self.write(ledgers)
        return self.ledger

    async def write(self, ledgers: int) -> None:
        for _ in range(ledgers):
            for number in range(PER_LEDGER):
                await publish(self.ledger, b"entry %d" % number)
                self.entries.append(self.ledger.last_confirmed)
            await self.ledger.roll_over()

    async def compact(self, horizon: Position, left: list[Position], *, files: int = 1) -> None:
        """Writes an artifact up to the horizon with these entries, in this number of files."""
        parts: list[CompactedFile] = []
        share = -(-len(left) // files) or 1
        for start in range(0, len(left), share):
            self._made += 1
            path = f"{self._made}.parquet"
            self.folder.mkdir(exist_ok=True)
            with (self.folder / path).open("wb") as sink:
                writer = EntryFileWriter(sink, managed_ledger=NAME, group_bytes=20)
                some = left[start : start + share]
                for position in some:
                    writer.add(*position, b"left of %s" % str(position).encode())
                made = writer.close()
            parts.append(
                CompactedFile(
                    path=path,
                    file_bytes=made.file_bytes,
                    checksum=made.checksum,
                    first=made.first,
                    last=made.last,
                    entries=made.entries,
                    messages=made.entries,
                    length_bytes=made.length_bytes,
                )
            )
        record = CompactionRecord(
            horizon=horizon,
            log_created_ms=self.ledger.created_ms,
            attempt=str(self._made),
            store=StoreSpec("filesystem", str(self.folder)),
            compacted_ms=1,
            files=tuple(parts),
        )
        await self.stage.store.put(compaction_key(NAME), encode(record))

    async def view(self) -> CompactedLog:
        return await CompactedLog.open(self.ledger, self.artifacts, self.stage.clock)


async def read_on(view: CompactedLog, start: Position, most: int = 3) -> list[Position]:
    """As an EntryReader does it, to the end."""
    found: list[Position] = []
    while True:
        entries: list[Entry] | None = view.read_cached(start, most, 1 << 20)
        if entries is None:
            entries = await view.read(start, most, 1 << 20)
        if not entries:
            return found
        found += [entry.position for entry in entries]
        start = Position(found[-1].ledger_id, found[-1].entry_id + 1)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path / "files")


@pytest.mark.parametrize("files", [1, 2, 3])
@pytest.mark.parametrize("kept", [[0, 3, 4, 7, 8], [1], [], [9], list(range(10))])
async def test_from_every_place_to_the_end(topic: Topic, kept: list[int], files: int) -> None:
    await topic.open(3)
    entries = topic.entries
    horizon = entries[9]
    left = [entries[at] for at in kept]
    await topic.compact(horizon, left, files=files)
    view = await topic.view()
    whole = [*left, *entries[10:]]
    assert await read_on(view, view.next_position(EARLIEST)) == whole
    for most in (1, 100):
        for place in entries:
            expected = [each for each in whole if each >= place]
            assert await read_on(view, place, most) == expected
            behind = [each for each in whole if each > place]
            assert await read_on(view, view.next_position(place), most) == behind


@pytest.mark.parametrize("kept", [[0, 3, 4, 7, 8], [1], [], [9]])
async def test_cached_entries_of_the_log_do_not_replace_the_artifact(
    topic: Topic, kept: list[int]
) -> None:
    await topic.open(0)
    await topic.ledger.open_cursor("keeper", initial=EARLIEST)  # else nothing would be in memory
    await topic.write(3)
    entries = topic.entries
    assert topic.ledger.read_cached(entries[9], 1, 1 << 20)
    await topic.compact(entries[9], [entries[at] for at in kept])
    view = await topic.view()
    whole = [*(entries[at] for at in kept), *entries[10:]]
    for place in entries:
        assert await read_on(view, place) == [each for each in whole if each >= place]


async def test_in_a_trimmed_log_the_artifact_is_read_from_its_first_entry(
    topic: Topic,
) -> None:
    ledger = await topic.open(3)
    entries = topic.entries
    await topic.compact(entries[9], [entries[2], entries[8]])
    ledger.set_retention(0, 0)
    await ledger.trim()
    view = await topic.view()
    whole = [entries[2], entries[8], *entries[10:]]
    assert ledger.first_position > entries[2]
    assert await read_on(view, view.next_position(EARLIEST)) == whole
    for place in entries:
        behind = [each for each in whole if each > place]
        assert await read_on(view, view.next_position(place)) == behind


async def test_a_view_that_cannot_fetch_the_newest_artifact_keeps_its_own(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await topic.open(3)
    entries = topic.entries
    await topic.compact(entries[5], [entries[2]])
    view = await topic.view()

    async def away(self: Artifacts, name: str, log_created_ms: int) -> None:
        raise MetadataError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Artifacts, "live", away)
        with pytest.raises(MetadataError):
            await topic.view()
        topic.stage.clock.advance(int(RENEW_S * 1000))
        assert await read_on(view, entries[0]) == [entries[2], *entries[6:]]
    await topic.compact(entries[9], [entries[7]])
    ledger.set_retention(0, 0)
    await ledger.trim()
    with monkeypatch.context() as patch:
        patch.setattr(Artifacts, "live", away)
        # The log was trimmed, so the view may not know all positions.
        with pytest.raises(MetadataError):
            await view.read(entries[6], 1, 1 << 20)
    assert await read_on(view, entries[6]) == [entries[7], *entries[10:]]


async def test_one_read_is_of_so_many_entries_and_bytes(topic: Topic) -> None:
    await topic.open(3)
    entries = topic.entries
    await topic.compact(entries[5], entries[:6])
    view = await topic.view()
    for start, most in ((0, 3), (0, 100), (8, 3), (8, 100), (8, 1)):
        found = await view.read(entries[start], most, 1 << 20)
        assert 1 <= len(found) <= most
        assert found[0].position == entries[start]
    assert len(await view.read(entries[8], 3, 1 << 20)) == 3
    assert len(await view.read(entries[8], 3, 1)) == 1


async def test_without_an_artifact_it_is_the_log(topic: Topic) -> None:
    await topic.open(2)
    view = await topic.view()
    assert view.artifact is None
    assert await read_on(view, view.next_position(EARLIEST)) == topic.entries


async def test_retention_stops_at_the_horizon_and_the_artifact_has_the_rest(topic: Topic) -> None:
    ledger = await topic.open(3)
    entries = topic.entries
    await topic.compact(entries[5], [entries[2]])
    view = await topic.view()
    ledger.set_retention(0, 0)
    await ledger.trim()
    # The horizon is within the second ledger: the first alone may go.
    assert ledger.first_position.ledger_id == entries[4].ledger_id
    assert await read_on(view, EARLIEST) == [entries[2], *entries[6:]]


async def test_a_reader_that_is_overtaken_continues_in_the_newest_artifact(topic: Topic) -> None:
    ledger = await topic.open(3)
    entries = topic.entries
    await topic.compact(entries[3], [entries[0]])
    view = await topic.view()
    assert await read_on(view, entries[8], most=1) == entries[8:]
    # The reader is at entry 5 of the raw log when the log is compacted and trimmed.
    await topic.compact(entries[11], [entries[6], entries[10]])
    ledger.set_retention(0, 0)
    await ledger.trim()
    assert ledger.entries_total == 0
    assert await read_on(view, entries[5]) == [entries[6], entries[10]]
    # Another reader is at the end of the old artifact.
    await topic.write(1)
    old = CompactedLog(ledger, topic.artifacts, topic.stage.clock)
    assert await read_on(old, entries[2]) == [entries[6], entries[10], *topic.entries[12:]]


async def test_entries_trimmed_under_a_reader_come_from_the_newest_artifact(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows of an old artifact only, when it asks where to go on, and while it reads."""
    ledger = await topic.open(4)
    entries = topic.entries
    await topic.compact(entries[1], [entries[0]])
    asks, reads = await topic.view(), await topic.view()
    read, left = ManagedLedger.read, [entries[6], entries[9], entries[11]]

    async def overtaken(
        self: ManagedLedger, start: Position, entries_max: int, bytes_max: int
    ) -> list[Entry]:
        monkeypatch.undo()
        await topic.compact(entries[11], left)
        self.set_retention(0, 0)
        await self.trim()
        return await read(self, start, entries_max, bytes_max)

    assert ledger.trimmed_to < entries[5]
    monkeypatch.setattr(ManagedLedger, "read", overtaken)
    first = await reads.read(entries[5], 1, 1 << 20)
    assert ledger.trimmed_to >= entries[11]
    assert [entry.position for entry in first] == [entries[6]]
    # As for a redelivery.
    assert await read_on(asks, asks.next_position(entries[5])) == [*left, *entries[12:]]


async def test_a_newer_artifact_is_looked_for_now_and_then(topic: Topic) -> None:
    await topic.open(2)
    entries = topic.entries
    await topic.compact(entries[7], entries[:6])
    view = await topic.view()
    await topic.compact(entries[7], [entries[1], entries[5]])
    assert await read_on(view, entries[2]) == entries[2:6]
    topic.stage.clock.advance(int(RENEW_S * 1000))
    assert await read_on(view, entries[2]) == [entries[5]]


async def test_files_that_are_gone_were_replaced(topic: Topic) -> None:
    await topic.open(2)
    entries = topic.entries
    await topic.compact(entries[7], entries[:6])
    view = await topic.view()
    record = view.artifact
    assert record is not None
    gone = [RetiredFile(record.record.store, file.path, 0) for file in record.record.files]
    await delete_files(gone)
    with pytest.raises(ColdFileMissing):
        await view.read(entries[0], 1, 1)
    await topic.compact(entries[7], [entries[5]])
    assert await read_on(view, entries[0]) == [entries[5]]


async def test_the_artifact_is_deleted_with_its_log(topic: Topic) -> None:
    await topic.open(1)
    await topic.compact(topic.entries[3], [topic.entries[0]])
    store, files = topic.stage.store, topic.folder
    stored = await store.get(compaction_key(NAME))
    assert stored is not None
    await topic.factory.delete(NAME)
    assert await store.get(compaction_key(NAME)) is None
    await empty_trash(store)
    assert list(files.iterdir()) == []
    marked = Check("/mark", ABSENT)
    assert not await discard(store, NAME, topic.ledger.created_ms, marked, 0)
    # A new log of the same name does not see the old artifact, even if its record exists.
    topic.stage.clock.advance(1)
    await topic.open(1)
    await store.put(stored.key, stored.value)
    assert decode_compaction(stored.key, stored.value).log_created_ms != topic.ledger.created_ms
    assert (await topic.view()).artifact is None


async def test_a_deletion_that_comes_late_leaves_the_next_log_its_artifact(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was paused during a deletion resumes after the topic was recreated."""
    await topic.open(1)
    store, delete = topic.stage.store, ColdLedgers.delete

    async def paused(self: ColdLedgers, name: str, ledger_ids: Collection[int]) -> None:
        monkeypatch.undo()
        await delete(self, name, ledger_ids)
        await topic.stage.factory().delete(NAME)
        topic.stage.clock.advance(1)
        topic.factory = topic.stage.factory()
        await topic.open(1)
        await topic.compact(topic.entries[-1], topic.entries[-2:])

    monkeypatch.setattr(ColdLedgers, "delete", paused)
    await topic.factory.delete(NAME)
    await empty_trash(store)
    view = await topic.view()
    assert view.artifact is not None
    assert await read_on(view, EARLIEST) == topic.entries[-2:]
