"""How a bookie updates its registration: under the valid lease, and at bounded cost."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.memory_bookie import MemoryBookie
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.conftest import SMALL
from tests.unit.ledger.stage import ManualClock

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.registration import decode, known_key, registration_key
from magnetar.bookie.service import DISK_RATIO_STEP, BookieService, BookieServiceSettings
from magnetar.bookie.upkeep.ledger_garbage import LEDGER_ID_KEY, LEDGERS_PREFIX, LedgerGarbage
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Conflict
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession

KEY = registration_key("b1")
DATA = Path("/data")
TOTAL_BYTES = 100 << 20


class Rig:
    """A bookie on a simulated disk with an established session; the test runs its tasks."""

    def __init__(self, service: BookieService, disk: SimDisk, store: MemoryStore) -> None:
        self.service, self.disk, self.store = service, disk, store
        assert isinstance(service._clock, ManualClock)
        self.clock = service._clock

    async def revision(self) -> int:
        stored = await self.store.get(KEY)
        return 0 if stored is None else stored.revision


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    store = MemoryStore(SystemClock())
    session = MetadataSession(store, 60.0, SystemClock(), "b1")
    disk = SimDisk(TOTAL_BYTES)
    index = SimIndexStore(disk, DATA / "index")
    service = await BookieService.open(
        DATA,
        store,
        session,
        ManualClock(),
        BookieServiceSettings("b1", "host", 80, "rack", refresh_s=1e6, disk_refresh_s=30.0),
        bookie_settings=SMALL,
        files=disk,
        open_index=lambda _: index,
        threads=False,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(session.stop)
        stack.push_async_callback(service.stop)
        await session.start()
        yield Rig(service, disk, store)


async def test_registration_has_identity_and_address(rig: Rig) -> None:
    stored = await rig.store.get(KEY)
    assert stored is not None
    result = decode(KEY, stored.value)
    assert result.identity == rig.service.bookie.identity
    assert (result.host, result.http_port, result.rack) == ("host", 80, "rack")
    assert (result.writable, result.read_only_reason) == (True, "")
    assert result.disk_bytes_total == TOTAL_BYTES
    known = await rig.store.get(known_key(result.identity))
    assert known is not None
    assert decode("known", known.value) == replace(result, disk_bytes_free=0, started_ms=0)
    assert rig.service.registered


async def test_registration_is_rewritten_only_under_a_new_lease(rig: Rig) -> None:
    """The old lease may end at any moment, which deletes the registration."""
    first = await rig.revision()
    await rig.service.established(renewed=False)
    assert await rig.revision() == first
    await rig.service.established(renewed=True)
    assert await rig.revision() > first


async def test_periodic_work_runs_once_however_often_the_session_is_renewed(rig: Rig) -> None:
    tasks = asyncio.all_tasks()
    for renewed in (True, False, True):
        rig.service.suspended()
        await rig.service.established(renewed=renewed)
    assert asyncio.all_tasks() == tasks


async def test_adds_are_accepted_only_under_a_valid_lease(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.service.suspended()
    assert isinstance(rig.service.server.add_refusal, BookieReadOnly)
    monkeypatch.setattr(MetadataSession, "valid", property(lambda _: False))
    await rig.service._register()
    assert not rig.service.registered
    monkeypatch.undo()
    await rig.service._register()
    assert rig.service.registered


async def test_stopping_bookie_refuses_adds_permanently(rig: Rig) -> None:
    rig.service.suspended()
    rig.service._stopping = True
    await rig.store.delete(KEY)
    await rig.service.established(renewed=True)
    assert await rig.store.get(KEY) is None, "brokers would go on writing to it"
    await rig.service._register()
    assert not rig.service.registered


async def test_later_bookie_keeps_the_id(rig: Rig) -> None:
    stored = await rig.store.get(KEY)
    assert stored is not None
    mine = decode(KEY, stored.value)
    for other, taken in (
        (replace(mine, incarnation="other"), False),
        (replace(mine, started_ms=mine.started_ms + 1), False),
        (replace(mine, started_ms=mine.started_ms - 1), True),
    ):
        await rig.store.put(KEY, encode(other))
        if taken:
            await rig.service._register()
            stored = await rig.store.get(KEY)
            assert stored is not None
            assert decode(KEY, stored.value).started_ms == mine.started_ms
        else:
            with pytest.raises(Conflict, match="another living bookie"):
                await rig.service._register()
            assert not rig.service.registered


async def test_registration_is_updated_after_a_sufficient_disk_change(rig: Rig) -> None:
    service, clock = rig.service, rig.clock
    answers = service._registered
    assert answers is not None
    step = TOTAL_BYTES // 100
    assert step / TOTAL_BYTES == DISK_RATIO_STEP
    for age_ms, change, outdated in (
        (29_999, 5 * step, False),
        (30_000, 5 * step, True),
        (30_000, step, True),
        (30_000, -step, True),
        (30_000, step - 1, False),
        (30_000, 0, False),
    ):
        service._registered = replace(answers, disk_bytes_free=answers.disk_bytes_free + change)
        service._disk_reported_at = clock.monotonic() - age_ms / 1000
        assert service._outdated(clock.monotonic()) == outdated, (age_ms, change)
    service._registered = replace(answers, writable=False)
    service._disk_reported_at = clock.monotonic()
    assert service._outdated(clock.monotonic()), "whether it takes adds is told at once"
    await service._update(clock.monotonic())
    assert service._registered is not None
    assert service._registered.writable
    stored = await rig.store.get(KEY)
    assert stored is not None
    assert decode(KEY, stored.value) == service._registered
    assert not service._outdated(clock.monotonic())


async def test_state_gives_the_reason_why_adds_are_refused(rig: Rig) -> None:
    state = rig.service.state()
    assert (state.read_only_reason, state.disk_bytes_total) == ("", TOTAL_BYTES)
    rig.service.bookie._guard.mark_full("no room")
    assert "no room" in rig.service.state().read_only_reason
    rig.service.suspended()
    assert "lease" in rig.service.state().read_only_reason


class Former:
    """Records the requested copies and reports them as deleted."""

    def __init__(self) -> None:
        self.asked: list[set[int]] = []

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        self.asked.append(set(ledger_ids))
        return list(ledger_ids)


async def test_former_copies_are_collected_only_with_a_valid_session() -> None:
    store, bookie, former = MemoryStore(SystemClock()), MemoryBookie("b1", "one"), Former()
    allowed = [True]
    garbage = LedgerGarbage(bookie, store, lambda: allowed[0])
    for ledger_id in (1, 2):
        bookie.add_entries(
            ledger_id, range(1), [b"x"], last_add_confirmed=-1, on_added=lambda _: None
        )
        await store.put(f"{LEDGERS_PREFIX}{ledger_id:020d}", b"{}")
    bookie.add_entries(3, range(1), [b"x"], last_add_confirmed=-1, on_added=lambda _: None)
    await store.put(f"{LEDGERS_PREFIX}{3:020d}", b"{}")
    assert await bookie.drop_copies([3]) == [3], "no copy of it is left"
    await store.put(LEDGER_ID_KEY, b"3")
    await store.put(known_key(bookie.identity), b"{}")
    assert await garbage.compare() == []
    assert await garbage.collect_former() == [], "nobody can collect them"
    garbage.former = former
    assert await garbage.collect_former() == [], "of an older comparison"
    await garbage.compare()
    allowed[0] = False
    assert await garbage.collect_former() == []
    assert former.asked == []
    allowed[0] = True
    await garbage.compare()
    assert await garbage.collect_former() == [1, 2]
    assert await garbage.collect_former() == []
    assert former.asked == [{1, 2}]
    assert garbage.deleted == 2


async def test_a_comparison_that_hangs_ends_and_the_next_one_begins(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one lost answer of the store would keep deleted ledgers on the disk for good."""
    service = rig.service
    service._settings = dataclasses.replace(
        service._settings, garbage_interval_s=0.001, garbage_timeout_s=0.01
    )
    times, again = 0, asyncio.Event()

    async def compare() -> list[int]:
        nonlocal times
        times += 1
        if times == 1:
            await asyncio.Event().wait()
        again.set()
        return []

    monkeypatch.setattr(service.garbage, "compare", compare)
    service._tasks.start(service._collect(), "compare")
    async with asyncio.timeout(20):
        await again.wait()
