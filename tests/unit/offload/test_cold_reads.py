"""A managed ledger with offloaded ledgers: reads, and the effects of deletions."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.offload_files import entries_of, move
from tests.unit.ledger.stage import NAME, Stage, publish, turns

from magnetar.core.errors import MagnetarError, NotFound
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.managed_ledger.settings import ManagedLedgerSettings, Retention
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import Delete, MetadataUnavailable, Operation, Record
from magnetar.offload.errors import ColdFileMissing, ColdStoreUnavailable
from magnetar.offload.records import object_path, offload_key, offloads_prefix
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.offload.trash import TRASH_PREFIX

SMALL = ManagedLedgerSettings(rollover_entries_max=20, rollover_ms_min=0)
ENTRIES = entries_of(100, 3000)


class CountingStore(MemoryStore):
    """Counts the reads of offload records."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.dies_at = ""

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """With `dies_at`, nothing is written from the first such key on."""
        self._may_die(key)
        return await super().delete(key, expected=expected)

    async def transact(self, operations: Sequence[Operation]) -> int:
        for each in operations:
            if isinstance(each, Delete):
                self._may_die(each.key)
        return await super().transact(operations)

    def _may_die(self, key: str) -> None:
        if self.dies_at and key.startswith(self.dies_at):
            self.dies_at = "/"
            raise MetadataUnavailable("killed")

    async def get(self, key: str) -> Record | None:
        self.asked.append(key)
        return await super().get(key)

    async def list(self, prefix: str) -> list[Record]:
        self.asked.append(prefix)
        return await super().list(prefix)


def about_offloads(stage: "ColdStage") -> list[str]:
    return [key for key in stage.counting.asked if key.startswith("/offload")]


class ColdStage(Stage):
    """With a folder for files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.store = self.counting = CountingStore()
        self.folder = folder
        self.spec = StoreSpec(FILESYSTEM, str(folder))
        self.cold_first = True

    def factory(
        self, settings: ManagedLedgerSettings | None = None, **hooks: Any
    ) -> ManagedLedgerFactory:
        hooks = {"cold_first": lambda _name: self.cold_first, **hooks}
        return super().factory(settings or SMALL, **hooks)

    async def filled(self, factory: ManagedLedgerFactory) -> ManagedLedger:
        """Returns five ledgers of 20 entries, none of them acked."""
        ledger = await factory.open(NAME)
        ledger.retention = Retention(-1, -1)
        await ledger.open_cursor("sub", initial=EARLIEST)
        for entry in ENTRIES:
            await publish(ledger, entry)
        return ledger

    async def move(self, ledger: ManagedLedger, count: int, *, release: bool = True) -> list[int]:
        ids = [info.ledger_id for info in ledger.ledgers[:count]]
        for ledger_id in ids:
            await move(self.store, self.client(), NAME, ledger_id, self.spec, release=release)
        return ids

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.parquet"))

    async def emptied(self) -> None:
        """Waits until nothing is left to delete in any store."""
        while await self.store.list(TRASH_PREFIX):
            await turns(20)


@pytest.fixture
def stage(tmp_path: Path) -> ColdStage:
    return ColdStage(tmp_path)


async def everything(ledger: ManagedLedger, *, step: int = 7) -> list[Entry]:
    found: list[Entry] = []
    start = EARLIEST
    while some := await ledger.read(start, step, 1 << 20):
        found += some
        start = ledger.next_position(some[-1].position)
    return found


def data_of(entries: list[Entry]) -> list[bytes]:
    return [entry.data for entry in entries]


@pytest.mark.parametrize("cold_first", [True, False])
async def test_there_is_no_seam(stage: ColdStage, cold_first: bool) -> None:
    stage.cold_first = cold_first
    first = stage.factory()
    places = [entry.position for entry in await everything(await stage.filled(first))]
    await stage.move((await first.open(NAME)), 3)
    await first.close()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    found = await everything(ledger)
    assert data_of(found) == ENTRIES
    assert [entry.position for entry in found] == places
    assert (await ledger.read_entry(places[33])).data == ENTRIES[33]
    assert factory.cold.files.counters.group_reads > 0
    await factory.close()


async def test_a_reader_of_bookies_continues_with_the_file(stage: ColdStage) -> None:
    """The bookies delete the ledger that is being read."""
    first = stage.factory()
    await stage.filled(first)
    await first.close()  # and with it, what is cached
    factory = stage.factory()
    ledger = await factory.open(NAME)
    start = await ledger.read(EARLIEST, 5, 1 << 20)
    assert factory.cold.files.counters.group_reads == 0
    await stage.move(ledger, 4)
    rest = await everything(ledger)
    assert data_of(start) == ENTRIES[:5]
    assert data_of(rest) == ENTRIES
    assert factory.cold.files.counters.group_reads > 0
    await factory.close()


async def test_bookies_serve_what_the_store_cannot_while_they_have_it(stage: ColdStage) -> None:
    first = stage.factory()
    await stage.move(await stage.filled(first), 2, release=False)
    await first.close()
    for path in stage.folder.rglob("*.parquet"):
        path.unlink()
    factory = stage.factory()
    assert data_of(await everything(await factory.open(NAME))) == ENTRIES
    await factory.close()


async def test_the_newest_ledger_may_have_gone_before_the_list_says_where_it_ended(
    stage: ColdStage,
) -> None:
    first = stage.factory()
    ledger = await stage.filled(first)
    await first.close()
    await stage.move(ledger, 5)
    factory = stage.factory()
    assert data_of(await everything(await factory.open(NAME))) == ENTRIES
    await factory.close()


async def test_a_store_that_is_down_is_a_passing_error(stage: ColdStage) -> None:
    first = stage.factory()
    await stage.move(await stage.filled(first), 2)
    await first.close()
    away = stage.folder.with_name("away")
    stage.folder.rename(away)
    stage.folder.touch()  # no folder: the store answers nothing
    factory = stage.factory()
    ledger = await factory.open(NAME)
    with pytest.raises(MagnetarError) as raised:
        await ledger.read(EARLIEST, 5, 1 << 20)
    assert isinstance(raised.value, ColdStoreUnavailable | ColdFileMissing) or (
        "cannot be opened" in raised.value.message
    )
    stage.folder.unlink()
    away.rename(stage.folder)
    assert data_of(await everything(ledger)) == ENTRIES
    await factory.close()


async def test_topics_that_are_not_offloaded_ask_nothing(stage: ColdStage) -> None:
    stage.cold_first = False
    first = stage.factory()
    await stage.filled(first)
    await first.close()
    stage.counting.asked.clear()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    assert data_of(await everything(ledger)) == ENTRIES
    assert about_offloads(stage) == []
    stage.cold_first = True
    await factory.close()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    assert about_offloads(stage) == []
    assert data_of(await everything(ledger)) == ENTRIES
    assert len(about_offloads(stage)) == 5  # closed ledgers, each once
    await factory.close()


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, magnetar.standalone.server, magnetar.cluster.broker_process;"
        "import magnetar.offload.cold;"
        "print([name for name in ('pyarrow', 'obstore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_trimming_deletes_files_and_records(stage: ColdStage) -> None:
    factory = stage.factory()
    ledger = await stage.filled(factory)
    ids = await stage.move(ledger, 3)
    assert len(stage.files()) == 3
    ledger.retention = Retention()
    ledger.cursors["sub"].ack_cumulative(Position(ids[1], 19))
    await ledger.trim()
    await turns(200)
    while len(left := await stage.store.list(offloads_prefix(NAME))) != 1:
        await turns(20)
    await stage.emptied()
    assert len(stage.files()) == 1
    assert [stored.key for stored in left] == [offload_key(NAME, ids[2])]
    assert data_of(await everything(ledger)) == ENTRIES[40:]
    await factory.close()


async def test_deleting_a_topic_deletes_its_files(stage: ColdStage) -> None:
    factory = stage.factory()
    await stage.move(await stage.filled(factory), 3)
    await factory.delete(NAME)
    await stage.emptied()
    assert stage.files() == []
    assert await stage.store.list("/offload") == []
    with pytest.raises(NotFound):
        await factory.open(NAME, create=False)
    await factory.close()


async def test_what_a_store_that_is_away_has_is_deleted_when_it_is_back(stage: ColdStage) -> None:
    """Its files stay on record, also where the broker ends meanwhile."""
    factory = stage.factory()
    ledger = await stage.filled(factory)
    ids = await stage.move(ledger, 2)
    away = stage.folder.with_name("away")
    stage.folder.rename(away)
    stage.folder.touch()
    ledger.retention = Retention()
    ledger.cursors["sub"].ack_cumulative(Position(ids[1], 19))
    await ledger.trim()
    while await stage.store.list(offloads_prefix(NAME)):
        await turns(20)
    assert [await stage.store.get(ledger_key(each)) for each in ids] == [None, None]
    await factory.close()
    stage.folder.unlink()
    away.rename(stage.folder)
    assert len(stage.files()) == 2
    factory = stage.factory()
    factory.cold.empty_trash_soon()
    await stage.emptied()
    assert stage.files() == []
    await factory.close()


async def test_a_topic_whose_store_is_gone_is_deleted_and_created_again(stage: ColdStage) -> None:
    factory = stage.factory()
    await stage.move(await stage.filled(factory), 3)
    away = stage.folder.with_name("away")
    stage.folder.rename(away)
    await factory.delete(NAME)
    assert not await factory.exists(NAME)
    assert await stage.store.list("/offload") == []
    assert await stage.store.list("/ledgers/") == []
    ledger = await stage.filled(factory)
    away.rename(stage.folder)
    old = stage.files()
    await stage.move(ledger, 2)
    new = sorted({*stage.files()}.difference(old))
    assert (len(old), len(new)) == (3, 2)
    factory.cold.empty_trash_soon()
    await stage.emptied()
    assert stage.files() == new
    assert data_of(await everything(await factory.open(NAME))) == ENTRIES
    await factory.close()


async def test_a_store_that_is_away_does_not_keep_the_files_of_others(stage: ColdStage) -> None:
    factory = stage.factory()
    ledger = await stage.filled(factory)
    here, stage.spec = stage.spec, StoreSpec(FILESYSTEM, str(stage.folder / "other"))
    first = await stage.move(ledger, 1)
    stage.spec = here
    second = ledger.ledgers[1].ledger_id
    await move(stage.store, stage.client(), NAME, second, here)
    (stage.folder / "other").rename(stage.folder / "away")
    (stage.folder / "other").touch()  # no folder: the store answers nothing
    ledger.retention = Retention()
    ledger.cursors["sub"].ack_cumulative(Position(second, 19))
    await ledger.trim()
    while len(stage.files()) > 1:
        await turns(20)
    assert stage.files() == [f"{first[0]:020d}-test.parquet"]
    await factory.close()


async def test_a_ledger_that_cannot_be_deleted_does_not_keep_the_others(stage: ColdStage) -> None:
    factory = stage.factory()
    ledger = await stage.filled(factory)
    ids = [info.ledger_id for info in ledger.ledgers[:3]]
    key = ledger_key(ids[0])
    stored = await stage.store.get(key)
    assert stored is not None
    await stage.store.put(key, b"unreadable")
    ledger.retention = Retention()
    ledger.cursors["sub"].ack_cumulative(Position(ids[2], 19))
    await ledger.trim()
    while any([await stage.store.get(ledger_key(each)) for each in ids[1:]]):
        await turns(20)
    await factory.close()
    record = await stage.store.get(managed_ledger_key(NAME))
    assert record is not None
    assert ids[0] in decode_managed_ledger(record.key, record.value).deleting
    await stage.store.put(key, stored.value)
    factory = stage.factory()
    await factory.open(NAME)
    while await stage.store.get(key):
        await turns(20)
    await factory.close()


@pytest.mark.parametrize("point", ["/ledgers/", "/offloads/", "/offload-requests/"])
async def test_a_topics_deletion_that_is_killed_at_any_point_is_finished_by_the_next(
    stage: ColdStage, point: str
) -> None:
    factory = stage.factory()
    ids = await stage.move(await stage.filled(factory), 3)
    stage.counting.dies_at = point
    with pytest.raises(MagnetarError):
        await factory.delete(NAME)
    assert await stage.store.get(managed_ledger_key(NAME)) is not None
    await factory.abandon()
    stage.counting.dies_at = ""
    factory = stage.factory()
    with pytest.raises(NotFound):
        await factory.open(NAME, create=False)
    factory.cold.empty_trash_soon()  # as the next deletion does, and the next job
    await stage.emptied()
    assert stage.files() == []
    assert await stage.store.list("/offload") == []
    assert await stage.store.list("/ledgers/") == []
    assert len(ids) == 3
    await factory.close()


async def test_only_what_a_record_names_is_deleted(stage: ColdStage) -> None:
    """Another topic's files, and files that no record names, are left alone."""
    factory = stage.factory()
    ledger = await stage.filled(factory)
    (ledger_id,) = await stage.move(ledger, 1)
    other = stage.folder / object_path(NAME, ledger_id, "other")
    other.write_bytes(b"somebody's")
    beside = offload_key(NAME + "2", ledger_id)
    record = await factory.cold.record(NAME, ledger_id)
    assert record is not None
    await stage.store.put(beside, encode(msgspec.structs.replace(record, path="elsewhere")))
    await factory.delete(NAME)
    await stage.emptied()
    assert stage.files() == [other.name]
    assert await stage.store.get(beside) is not None
    await factory.close()


async def test_the_cache_is_bounded_and_shared(stage: ColdStage) -> None:
    first = stage.factory()
    await stage.move(await stage.filled(first), 4)
    await first.close()
    group_bytes = 64 << 10
    settings = replace(SMALL, cold_cache_bytes_max=3 * group_bytes)
    factory = stage.factory(settings)
    ledger = await factory.open(NAME)
    files = factory.cold.files
    for _ in range(2):
        assert data_of(await everything(ledger, step=3)) == ENTRIES
        assert 0 < files.kept_bytes <= 3 * group_bytes
    reads = files.counters.group_reads
    await ledger.read(ledger.first_position, 3, 1 << 20)
    await ledger.read(ledger.first_position, 3, 1 << 20)
    assert files.counters.group_reads <= reads + 2
    await factory.close()
