"""The task that refreshes a registration: after each failure, and at its intervals."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.conftest import SMALL, add
from tests.unit.bookie.net.client_rig import turns
from tests.unit.bookie.net.peers import HOST, connected
from tests.unit.ledger.stage import ManualClock

from magnetar.bookie.net import server as server_module
from magnetar.bookie.registration import decode, known_key, registration_key
from magnetar.bookie.service import BookieService, BookieServiceSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.upkeep.ledger_garbage import LEDGER_ID_KEY, LEDGERS_PREFIX
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataUnavailable, Record, StoreClosed

KEY = registration_key("b1")
DATA = Path("/data")
VERIFY_S = 10.0


class Watched(MemoryStore):
    """A store that fails on demand and records requests for the registration."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.asked: list[str] = []
        self.failures: list[Exception] = []
        self.rival: bytes | None = None
        """What another writes just before the next write."""

    async def get(self, key: str) -> Record | None:
        if key == KEY:
            self.asked.append("get")
        return await super().get(key)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        if key == KEY:
            self.asked.append("put")
            if self.failures:
                raise self.failures.pop(0)
            rival, self.rival = self.rival, None
            if rival is not None:
                await super().put(key, rival)
        return await super().put(key, value, expected=expected, lease_id=lease_id)

    def taken(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


class Rig:
    """A registered bookie whose refreshes the test triggers."""

    def __init__(
        self, service: BookieService, store: Watched, clock: ManualClock, ticks: asyncio.Semaphore
    ) -> None:
        self.service, self.store, self.clock = service, store, clock
        self._ticks = ticks

    async def tick(self) -> list[str]:
        """Runs one refresh; returns its requests."""
        self.store.taken()
        self._ticks.release()
        await turns(20)
        return self.store.taken()

    def outdated(self) -> None:
        """The registration says that the bookie is read-only."""
        assert self.service._registered is not None
        self.service._registered = replace(self.service._registered, writable=False)

    async def told(self) -> bool:
        stored = await self.store.get(KEY)
        return stored is not None and decode(KEY, stored.value).writable


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    store, clock = Watched(), ManualClock()
    session = MetadataSession(store, 60.0, SystemClock(), "b1")
    disk = SimDisk(100 << 20)
    index = SimIndexStore(disk, DATA / "index")
    service = await BookieService.open(
        DATA,
        store,
        session,
        clock,
        BookieServiceSettings("b1", "host", refresh_s=77.0, verify_s=VERIFY_S),
        bookie_settings=SMALL,
        files=disk,
        open_index=lambda _: index,
        threads=False,
    )
    ticks = asyncio.Semaphore(0)
    sleep = asyncio.sleep

    async def at_a_tick(delay_s: float, result: object = None) -> object:
        if delay_s != 77.0:
            return await sleep(delay_s, result)
        await ticks.acquire()
        return result

    monkeypatch.setattr(asyncio, "sleep", at_a_tick)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(session.stop)
        stack.push_async_callback(service.stop)
        await session.start()
        await turns()
        yield Rig(service, store, clock, ticks)


async def test_unchanged_registration_costs_no_request(rig: Rig) -> None:
    assert await rig.tick() == []
    rig.outdated()
    assert await rig.tick() == ["put"]
    assert await rig.told()
    assert await rig.tick() == []


async def test_the_registration_is_verified_when_it_is_due_and_not_before(rig: Rig) -> None:
    rig.clock.advance(int(VERIFY_S * 1000) - 1)
    assert await rig.tick() == []
    rig.clock.advance(1)
    assert await rig.tick() == ["get"]
    assert await rig.tick() == []
    rig.clock.advance(int(VERIFY_S * 1000))
    assert await rig.tick() == ["get"], "counted from the last look"
    await rig.store.delete(KEY)
    rig.clock.advance(int(VERIFY_S * 1000))
    assert await rig.tick() == ["get", "put"]


@pytest.mark.parametrize(
    "error", [MetadataUnavailable("away"), TimeoutError(), RuntimeError("bug")]
)
async def test_after_a_write_of_unknown_outcome_it_is_verified_first(
    rig: Rig, error: Exception
) -> None:
    """The write may land late, so the next one must not assume the earlier revision."""
    rig.store.failures = [error]
    rig.outdated()
    assert await rig.tick() == ["put"]
    assert (await rig.tick())[0] == "get"
    assert await rig.tick() == ["put"], "it is sure again, and says what has changed"
    assert await rig.told()
    assert await rig.tick() == []


@pytest.mark.parametrize("deleted", [True, False])
async def test_registration_of_another_bookie_is_not_overwritten(rig: Rig, deleted: bool) -> None:
    """Otherwise two bookies would consider themselves the owner of the id."""
    stored = await rig.store.get(KEY)
    assert stored is not None
    other = encode(replace(decode(KEY, stored.value), incarnation="other"))
    if deleted:
        await rig.store.delete(KEY)
    else:
        await rig.store.put(KEY, stored.value)  # its revision is not the one that we wrote
    rig.store.rival = other
    rig.clock.advance(1_000_000)
    assert await rig.tick() == ["get", "put"]
    stored = await rig.store.get(KEY)
    assert stored is not None
    assert stored.value == other
    assert await rig.tick() == ["get"]
    assert not rig.service.registered


@pytest.mark.parametrize("written", ["at its start", "as it changed", "as it came back"])
async def test_every_write_of_the_registration_is_under_the_lease(rig: Rig, written: str) -> None:
    """Otherwise clients would send entries to a dead bookie forever."""
    if written == "as it changed":
        rig.outdated()
        assert await rig.tick() == ["put"]
    elif written == "as it came back":
        await rig.store.delete(KEY)
        rig.clock.advance(1_000_000)
        assert await rig.tick() == ["get", "put"]
    assert await rig.store.get(KEY) is not None
    lease_id = rig.service._session.lease_id
    assert lease_id is not None
    await rig.store.revoke_lease(lease_id)
    assert await rig.store.get(KEY) is None
    record = await rig.store.get(known_key(rig.service.bookie.identity))
    assert record is not None, "that its disks exist is known for good"


async def test_overwritten_registration_is_restored(rig: Rig) -> None:
    stored = await rig.store.get(KEY)
    assert stored is not None
    mine = decode(KEY, stored.value)
    await rig.store.put(KEY, encode(replace(mine, host="elsewhere")))
    rig.outdated()
    assert await rig.tick() == ["put"], "refused: the revision is another"
    assert await rig.tick() == ["get", "put"]
    stored = await rig.store.get(KEY)
    assert stored is not None
    assert decode(KEY, stored.value).host == "host"


async def test_a_closed_store_ends_the_refreshes(rig: Rig) -> None:
    rig.store.failures = [StoreClosed("closed")]
    rig.outdated()
    assert await rig.tick() == ["put"]
    rig.clock.advance(1_000_000)
    assert await rig.tick() == []


async def test_nothing_is_written_without_a_lease(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.outdated()
    with monkeypatch.context() as patch:
        patch.setattr(MetadataSession, "valid", property(lambda _: False))
        rig.clock.advance(1_000_000)
        assert await rig.tick() == []
    assert await rig.tick() == ["get"]


async def test_a_bookie_that_deregistered_is_not_registered_again(rig: Rig) -> None:
    await rig.service.stop()
    assert await rig.store.get(KEY) is None
    assert await rig.store.get(known_key(rig.service.bookie.identity)) is not None
    rig.clock.advance(1_000_000)
    assert await rig.tick() == []


async def test_a_registration_of_another_is_not_deleted_with_its_own(rig: Rig) -> None:
    stored = await rig.store.get(KEY)
    assert stored is not None
    await rig.store.put(KEY, stored.value)
    await rig.service.stop()
    assert await rig.store.get(KEY) is not None


async def test_garbage_ledgers_are_deleted_only_under_a_valid_lease(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie, garbage = rig.service.bookie, rig.service.garbage
    for ledger_id in (1, 2):
        await add(bookie, ledger_id, range(3))
    await rig.store.put(LEDGER_ID_KEY, b"2")
    await rig.store.put(f"{LEDGERS_PREFIX}{2:020d}", b"{}")
    assert await garbage.compare() == []
    with monkeypatch.context() as patch:
        patch.setattr(MetadataSession, "valid", property(lambda _: False))
        assert await garbage.compare() == []
    assert await bookie.list_ledgers() == [1, 2]
    assert await garbage.compare() == [1]
    assert await bookie.list_ledgers() == [2]


async def test_connections_are_paused_while_too_many_bytes_are_pending(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PENDING_BYTES_HIGH", 1000)
    await rig.service.start(host=HOST)
    bookie = rig.service.bookie
    bookie._journal.hold()
    adding = asyncio.ensure_future(add(bookie, 1, range(20), size=100))
    await turns()
    assert bookie.pending_bytes > 1000
    rig.service.server.added()
    assert rig.service.server.held
    bookie._journal.release()
    await adding
    await turns()
    assert not rig.service.server.held


async def test_storage_settings_default() -> None:
    store, disk = Watched(), SimDisk(1 << 30)
    service = await BookieService.open(
        DATA,
        store,
        MetadataSession(store, 60.0, SystemClock(), "b1"),
        ManualClock(),
        BookieServiceSettings("b1", "host"),
        files=disk,
        open_index=lambda _: SimIndexStore(disk, DATA / "index"),
        threads=False,
    )
    assert service.bookie._settings == BookieSettings()
    assert await add(service.bookie, 1, range(3)) is None
    assert not service.registered, "before its session it is nobody"
    await service.stop()


async def test_server_listens_on_the_given_socket(rig: Rig) -> None:
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    await rig.service.start(listener)
    assert rig.service.server.port == port
    assert rig.service._registration().port == port
    async with connected(rig.service.server, hello=False):
        pass
