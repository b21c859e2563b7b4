"""How a bookie keeps its registration true: under the lease that lives, and when it is worth it."""

import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.conftest import SMALL
from tests.unit.ledger.stage import ManualClock

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.garbage import LEDGER_ID_KEY, LEDGERS_PREFIX, LedgerGarbage
from magnetar.bookie.memory import MemoryBookie
from magnetar.bookie.registration import decode, encode, known_key, registration_key
from magnetar.bookie.service import DISK_RATIO_STEP, BookieService, BookieServiceSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Conflict
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession

KEY = registration_key("b1")
DATA = Path("/data")
TOTAL_BYTES = 100 << 20


class Rig:
    """A bookie on a simulated disk whose session is established; nothing of it runs by itself."""

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


async def test_it_says_who_it_is_and_where(rig: Rig) -> None:
    stored = await rig.store.get(KEY)
    assert stored is not None
    found = decode(KEY, stored.value)
    assert found.identity == rig.service.bookie.identity
    assert (found.host, found.http_port, found.rack) == ("host", 80, "rack")
    assert (found.writable, found.read_only_reason) == (True, "")
    assert found.disk_bytes_total == TOTAL_BYTES
    known = await rig.store.get(known_key(found.identity))
    assert known is not None
    assert decode("known", known.value) == replace(found, disk_bytes_free=0, started_ms=0)
    assert rig.service.registered


async def test_it_is_put_again_under_a_new_lease_and_only_then(rig: Rig) -> None:
    """The old lease may end at any moment, and take the registration with it."""
    first = await rig.revision()
    await rig.service.established(renewed=False)
    assert await rig.revision() == first
    await rig.service.established(renewed=True)
    assert await rig.revision() > first


async def test_adds_are_taken_while_the_lease_lives_only(
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


async def test_a_bookie_that_stops_takes_no_adds_again(rig: Rig) -> None:
    rig.service.suspended()
    rig.service._stopping = True
    await rig.service.established(renewed=True)
    await rig.service._register()
    assert not rig.service.registered


async def test_another_that_came_later_keeps_the_name(rig: Rig) -> None:
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


async def test_others_learn_of_the_disk_when_it_has_changed_enough(rig: Rig) -> None:
    service, clock = rig.service, rig.clock
    said = service._registered
    assert said is not None
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
        service._registered = replace(said, disk_bytes_free=said.disk_bytes_free + change)
        service._disk_said_at = clock.monotonic() - age_ms / 1000
        assert service._outdated(clock.monotonic()) == outdated, (age_ms, change)
    service._registered = replace(said, writable=False)
    service._disk_said_at = clock.monotonic()
    assert service._outdated(clock.monotonic()), "whether it takes adds is told at once"
    await service._say(clock.monotonic())
    assert service._registered is not None
    assert service._registered.writable
    stored = await rig.store.get(KEY)
    assert stored is not None
    assert decode(KEY, stored.value) == service._registered
    assert not service._outdated(clock.monotonic())


async def test_who_asks_is_told_why_no_adds_are_taken(rig: Rig) -> None:
    state = rig.service.state()
    assert (state.read_only_reason, state.disk_bytes_total) == ("", TOTAL_BYTES)
    rig.service.bookie._guard.full("no room")
    assert "no room" in rig.service.state().read_only_reason
    rig.service.suspended()
    assert "lease" in rig.service.state().read_only_reason


class Former:
    """Keeps which copies it is asked about, and says that it deleted them."""

    def __init__(self) -> None:
        self.asked: list[set[int]] = []

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        self.asked.append(set(ledger_ids))
        return list(ledger_ids)


async def test_former_copies_are_collected_in_good_standing_only() -> None:
    store, bookie, former = MemoryStore(SystemClock()), MemoryBookie("b1", "one"), Former()
    allowed = [True]
    garbage = LedgerGarbage(bookie, store, lambda: allowed[0])
    for ledger_id in (1, 2):
        bookie.add_entries(
            ledger_id, range(1), [b"x"], last_add_confirmed=-1, on_added=lambda _: None
        )
        await store.put(f"{LEDGERS_PREFIX}{ledger_id:020d}", b"{}")
    await store.put(LEDGER_ID_KEY, b"2")
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
