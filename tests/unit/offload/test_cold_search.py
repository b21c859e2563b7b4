"""Searches by time over offloaded ledgers: results, and bytes fetched."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from tests.support.offload_files import entries_of
from tests.unit.ledger.stage import NAME, publish
from tests.unit.offload.test_cold_reads import ColdStage

from magnetar.broker.dispatch.metadata import publish_time_ms
from magnetar.broker.lifecycle.expiry import older_end
from magnetar.broker.subscription.cursor_moves import last_older_than, position_of_time
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.settings import ManagedLedgerSettings, Retention
from magnetar.offload import file_format
from magnetar.offload.file_format import TAIL_BYTES
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, with_broker_entry_metadata

FIRST_MS = 1_700_000_000_000
LEDGERS = 4
ENTRIES_PER_LEDGER = 150
SIZE = 3000
COUNT = LEDGERS * ENTRIES_PER_LEDGER
SETTINGS = ManagedLedgerSettings(rollover_entries_max=ENTRIES_PER_LEDGER, rollover_ms_min=0)
GROUP_BYTES = 64 << 10
COLUMN_BYTES_MAX = 1024


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The requests of bytes that are made: of which file, from where, how many."""
    made: list[tuple[str, int, int]] = []
    fetch: Callable[..., Awaitable[bytes]] = file_format.fetch

    async def counted(store: object, path: str, start: int, end: int) -> bytes:
        made.append((path, start, end - start))
        return await fetch(store, path, start, end)

    monkeypatch.setattr(file_format, "fetch", counted)
    return made


async def cold(stage: ColdStage, entries: list[bytes]) -> tuple[ManagedLedgerFactory, list[int]]:
    """A managed ledger of these entries whose closed ledgers are in files only."""
    first = stage.factory(SETTINGS)
    ledger = await first.open(NAME)
    ledger.retention = Retention(-1, -1)
    await ledger.open_cursor("sub", initial=EARLIEST)
    for entry in entries:
        await publish(ledger, entry)
        stage.clock.advance(1)
    full = [info.ledger_id for info in ledger.ledgers if info.entries == ENTRIES_PER_LEDGER]
    moved = await stage.move(ledger, len(full))
    await first.close()
    return stage.factory(SETTINGS), moved


async def test_a_search_by_time_fetches_footers_and_a_column(
    tmp_path: Path, fetched: list[tuple[str, int, int]]
) -> None:
    factory, moved = await cold(ColdStage(tmp_path), entries_of(COUNT + 10, SIZE))
    ledger = await factory.open(NAME)
    wanted = 2 * ENTRIES_PER_LEDGER + 70
    fetched.clear()
    assert await position_of_time(ledger, FIRST_MS + wanted) == Position(moved[2], 70)

    footers = [one for one in fetched if one[2] == TAIL_BYTES]
    columns = [one for one in fetched if one[2] != TAIL_BYTES]
    assert len(footers) == len({path for path, _, _ in footers}) <= 3
    assert len(columns) == 1
    assert columns[0][2] <= COLUMN_BYTES_MAX
    assert factory.cold.files.counters.group_reads == 0

    # By the entries' bytes, the same search fetches a row group for each entry that it examines.
    fetched.clear()
    limit = FIRST_MS + wanted
    found = await ledger.find_by(lambda data: publish_time_ms(data) < limit)
    assert found == Position(moved[2], 69)
    assert sum(size for _, _, size in fetched) > 5 * GROUP_BYTES
    await factory.close()


async def test_every_time_is_found_as_entries_tell_it(tmp_path: Path) -> None:
    """Times that come more than once, and gaps."""
    rng = Random(7)
    time_ms, times, entries = FIRST_MS, [], []
    for number in range(COUNT + 40):
        time_ms += rng.choice((0, 0, 1, 5, 1000))
        times.append(time_ms)
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=time_ms)
        entries.append(build_entry(metadata, rng.randbytes(SIZE)))
    factory, _ = await cold(ColdStage(tmp_path), entries)
    ledger = await factory.open(NAME)
    for wanted in {0, FIRST_MS, times[-1] + 1, *rng.sample(times, 60)}:
        older = sum(each < wanted for each in times)
        found = await last_older_than(ledger, wanted)
        by_bytes = await ledger.find_by(lambda data, limit=wanted: publish_time_ms(data) < limit)  # type: ignore[misc]
        assert found == by_bytes
        if found is None:
            assert older == 0
        else:
            place = ledger.ledgers.index(ledger.index.get(found.ledger_id))  # type: ignore[arg-type]
            assert place * ENTRIES_PER_LEDGER + found.entry_id + 1 == older
    await factory.close()


async def test_a_search_continues_with_the_bookies_where_the_store_fails(tmp_path: Path) -> None:
    stage = ColdStage(tmp_path)
    first = stage.factory(SETTINGS)
    ledger = await first.open(NAME)
    ledger.retention = Retention(-1, -1)
    await ledger.open_cursor("sub", initial=EARLIEST)
    for entry in entries_of(COUNT, SIZE):
        await publish(ledger, entry)
    moved = await stage.move(ledger, LEDGERS - 1, release=False)
    await first.close()
    for path in stage.folder.rglob("*.parquet"):
        path.unlink()
    factory = stage.factory(SETTINGS)
    ledger = await factory.open(NAME)
    wanted = FIRST_MS + ENTRIES_PER_LEDGER + 20
    assert await position_of_time(ledger, wanted) == Position(moved[1], 20)
    await factory.close()


@pytest.mark.parametrize("stamped", [False, True])
async def test_what_expires_is_what_entries_say(tmp_path: Path, stamped: bool) -> None:
    """A file has producers' times; an entry has the broker's, if it has any."""
    ahead_ms = 10**9 if stamped else 0
    entries = []
    for number in range(ENTRIES_PER_LEDGER + 10):
        time_ms = FIRST_MS + number
        metadata = MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=time_ms + ahead_ms
        )
        entry = build_entry(metadata, bytes(SIZE))
        entries.append(with_broker_entry_metadata(entry, time_ms) if stamped else entry)
    factory, moved = await cold(ColdStage(tmp_path), entries)
    ledger = await factory.open(NAME)
    assert await older_end(ledger, FIRST_MS + 40) == Position(moved[0], 39)
    await factory.close()
