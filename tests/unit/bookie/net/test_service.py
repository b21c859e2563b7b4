"""A bookie of a cluster: registration, lease, and garbage ledgers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.unit.bookie.net.peers import DEADLINE_S, HOST, until

from magnetar.bookie import service as service_module
from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.settings import ServerSettings
from magnetar.bookie.registration import BookieRegistration, decode, known_key, registration_key
from magnetar.bookie.service import BookieService, BookieServiceSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.upkeep.ledger_garbage import LEDGER_ID_KEY, LEDGERS_PREFIX, LedgerGarbage
from magnetar.cluster.bookie_process import BookieHealth
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Conflict, MetadataError
from magnetar.ledger import metadata as ledger_metadata
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataUnavailable, Record

KEY = registration_key("b1")
STORAGE = BookieSettings(journal_preallocate_bytes=1 << 20, disk_usage_high=1.0, disk_usage_low=1.0)


class Cut(MemoryStore):
    """A store that can become unreachable."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.away = False

    def _check_open(self) -> None:
        if self.away:
            raise MetadataUnavailable("out of reach")
        super()._check_open()


@asynccontextmanager
async def running(
    store: MemoryStore, data_dir: Path, ttl_s: float = 60.0, **settings: float
) -> AsyncIterator[BookieService]:
    """A bookie's process, without the process."""
    clock = SystemClock()
    session = MetadataSession(store, ttl_s, clock, "b1")
    service = await BookieService.open(
        data_dir,
        store,
        session,
        clock,
        BookieServiceSettings("b1", HOST, **settings),  # type: ignore[arg-type]
        bookie_settings=STORAGE,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.stop)
        await service.start(host=HOST)
        stack.push_async_callback(session.stop)
        await session.start()
        # The service stops before the session.
        stack.push_async_callback(service.stop)
        yield service


async def registration(store: MemoryStore) -> BookieRegistration | None:
    record = await store.get(KEY)
    return None if record is None else decode(KEY, record.value)


async def add(service: BookieService, ledger_id: int = 1) -> BookieError | None:
    """Over the network."""
    remote = RemoteBookie(service.bookie.identity, HOST, service.server.port)
    answered: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    remote.add_entries(
        ledger_id, range(1), [b"x"], last_add_confirmed=-1, on_added=answered.set_result
    )
    try:
        return await asyncio.wait_for(answered, DEADLINE_S)
    finally:
        await remote.close()


async def test_a_bookie_is_registered_while_it_lives(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(store, tmp_path / "data") as service:
        result = await registration(store)
        assert result is not None
        assert result.identity == service.bookie.identity
        assert (result.host, result.port) == (HOST, service.server.port)
        assert await add(service) is None
    assert await registration(store) is None
    assert await store.get(known_key(result.identity)) is not None


async def test_adds_are_refused_while_the_session_is_suspended(tmp_path: Path) -> None:
    store = Cut()
    async with running(store, tmp_path / "data", ttl_s=3.0) as service:
        assert await add(service) is None
        store.away = True
        await until(lambda: not service.registered)
        error = await add(service)
        assert isinstance(error, BookieReadOnly)
        assert "lease" in str(error)
        remote = RemoteBookie(service.bookie.identity, HOST, service.server.port)
        assert len(await remote.read_entries(1, 0, 0, bytes_max=9)) == 1
        assert "lease" in (await remote.state()).read_only_reason
        await remote.close()
        store.away = False
        await until(lambda: service.registered)
        assert await add(service, 2) is None
        assert await registration(store) is not None


async def test_registration_of_a_former_process_is_taken_over_at_once(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(store, tmp_path / "data") as service:
        identity = service.bookie.identity
    await store.put(KEY, encode(BookieRegistration(*identity, "elsewhere", 1)))
    async with running(store, tmp_path / "data") as service:
        result = await registration(store)
        assert result is not None
        assert result.host == HOST


async def test_another_bookie_of_the_same_id_is_not_displaced(tmp_path: Path) -> None:
    store = MemoryStore()
    value = encode(BookieRegistration("b1", "other", "elsewhere", 7))
    await store.put(KEY, value)
    with pytest.raises(Conflict, match=r"another living bookie is called b1: incarnation other"):
        async with running(store, tmp_path / "data", ttl_s=1.0):
            pass
    record = await store.get(KEY)
    assert record is not None
    assert record.value == value


class Polled(MemoryStore):
    """A store that counts the reads of the registration."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = asyncio.Semaphore(0)

    async def get(self, key: str) -> Record | None:
        if key == KEY:
            self.reads.release()
        return await super().get(key)


async def test_start_waits_for_the_lease_of_the_former_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease may last as long as this bookie's own would."""
    monkeypatch.setattr(service_module, "NAME_POLL_S", 0.01)
    store = Polled()
    lease = await store.grant_lease(60.0)
    other = encode(BookieRegistration("b1", "other", "elsewhere", 7))
    await store.put(KEY, other, lease_id=lease.id)

    async def end_lease() -> None:
        for _ in range(5):
            await store.reads.acquire()
        record = await MemoryStore.get(store, KEY)
        assert record is not None
        assert record.value == other
        await lease.revoke()

    ending = asyncio.ensure_future(end_lease())
    async with running(store, tmp_path / "data") as service:
        assert ending.done()
        await ending
        result = await registration(store)
        assert result is not None
        assert result.identity == service.bookie.identity


async def test_the_server_has_the_bounds_that_were_given(tmp_path: Path) -> None:
    clock, store = SystemClock(), MemoryStore()
    bounds = ServerSettings(connections_max=7, idle_timeout_s=11.0)
    service = await BookieService.open(
        tmp_path / "data",
        store,
        MetadataSession(store, 60.0, clock, "b1"),
        clock,
        BookieServiceSettings("b1", HOST, cluster="ours"),
        bookie_settings=STORAGE,
        server_settings=bounds,
    )
    try:
        assert service.server.settings == bounds
    finally:
        await service.stop()


async def test_deleted_registration_is_restored(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(store, tmp_path / "data", refresh_s=0.01, verify_s=0.02):
        await store.delete(KEY)
        async with asyncio.timeout(DEADLINE_S):
            while await registration(store) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_later_copy_of_the_disks_keeps_the_id(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(store, tmp_path / "data", refresh_s=0.01, verify_s=0.02) as service:
        copy = msgspec.structs.replace(
            BookieRegistration(*service.bookie.identity, "elsewhere", 7), started_ms=1 << 60
        )
        await store.put(KEY, encode(copy))
        await until(lambda: not service.registered)
        error = await add(service)
        assert isinstance(error, BookieReadOnly)
        assert "another living bookie" in str(error)


async def test_registration_reports_read_only(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(store, tmp_path / "data", refresh_s=0.01) as service:
        await service.bookie.abort()  # a closed bookie refuses adds
        async with asyncio.timeout(DEADLINE_S):
            while (result := await registration(store)) is None or result.writable:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert result.read_only_reason


def test_keys_match_the_ledger_layer() -> None:
    assert LEDGER_ID_KEY == ledger_metadata.LEDGER_ID_KEY
    assert LEDGERS_PREFIX == ledger_metadata.LEDGERS_PREFIX
    assert ledger_metadata.ledger_key(7) == f"{LEDGERS_PREFIX}{7:020d}"


class Stage:
    """A bookie with ledgers 1 to 5; the metadata store has 2 and 4, and 4 as the last id."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.bookie = MemoryBookie("b1")
        self.good = True
        self.garbage = LedgerGarbage(self.bookie, store, lambda: self.good)

    async def set_up(self) -> None:
        for ledger_id in range(1, 6):
            self.hold(ledger_id)
        await self.store.put(known_key(self.bookie.identity), b"{}")
        await self.store.put(LEDGER_ID_KEY, b"4")
        for ledger_id in (2, 4):
            await self.store.put(ledger_metadata.ledger_key(ledger_id), b"{}")

    def hold(self, ledger_id: int) -> None:
        self.bookie.add_entries(
            ledger_id, range(1), [b"x"], last_add_confirmed=-1, on_added=lambda _: None
        )


@pytest.fixture
async def stage() -> Stage:
    stage = Stage(MemoryStore())
    await stage.set_up()
    return stage


async def test_ledgers_absent_in_two_comparisons_are_deleted_up_to_the_last_id(
    stage: Stage,
) -> None:
    assert await stage.garbage.compare() == []
    assert await stage.garbage.compare() == [1, 3]
    assert await stage.garbage.compare() == []
    assert await stage.bookie.list_ledgers() == [2, 4, 5]


async def no_ledgers(stage: Stage) -> None:
    for ledger_id in (2, 4):
        await stage.store.delete(ledger_metadata.ledger_key(ledger_id))


async def no_counter(stage: Stage) -> None:
    await stage.store.delete(LEDGER_ID_KEY)


async def gone_back(stage: Stage) -> None:
    await stage.store.put(LEDGER_ID_KEY, b"3")


async def another_cluster(stage: Stage) -> None:
    await stage.store.delete(known_key(stage.bookie.identity))


async def no_standing(stage: Stage) -> None:
    stage.good = False


@pytest.mark.parametrize(
    "accident", [no_ledgers, no_counter, gone_back, another_cluster, no_standing]
)
async def test_damaged_metadata_deletes_no_ledger(stage: Stage, accident: object) -> None:
    assert await stage.garbage.compare() == []
    assert callable(accident)
    await accident(stage)
    assert await stage.garbage.compare() == []
    assert await stage.garbage.compare() == []
    assert await stage.bookie.list_ledgers() == [1, 2, 3, 4, 5]


async def test_unreachable_store_deletes_nothing_and_is_not_a_comparison() -> None:
    store = Cut()
    stage = Stage(store)
    await stage.set_up()
    await stage.garbage.compare()
    store.away = True
    with pytest.raises(MetadataError):
        await stage.garbage.compare()
    store.away = False
    assert await stage.garbage.compare() == []
    assert await stage.garbage.compare() == [1, 3]


async def test_incomplete_listing_is_detected(stage: Stage) -> None:
    class Forgetful(MemoryStore):
        async def children(self, prefix: str) -> Sequence[str]:
            return [name for name in await super().children(prefix) if int(name) != 2]

    forgetful = Stage(Forgetful())
    await forgetful.set_up()
    await forgetful.garbage.compare()
    assert await forgetful.garbage.compare() == [1]
    assert 2 in await forgetful.bookie.list_ledgers()


async def test_ledger_created_during_a_comparison_is_not_garbage() -> None:
    class Creating(MemoryStore):
        """A store in which a ledger is created after the counter was read."""

        made = 4

        async def get(self, key: str) -> object:  # type: ignore[override]
            result = await super().get(key)
            if key == LEDGER_ID_KEY:
                self.made += 1
                await self.put(LEDGER_ID_KEY, b"%d" % self.made)
                await self.put(ledger_metadata.ledger_key(self.made), b"{}")
                scene.hold(self.made)
            return result

    scene = Stage(Creating())
    await scene.set_up()
    for _ in range(4):
        await scene.garbage.compare()
    assert await scene.bookie.list_ledgers() == [2, 4, 5, 6, 7, 8]


async def test_exception_in_a_refresh_does_not_end_the_task(tmp_path: Path) -> None:
    class Buggy(MemoryStore):
        bugs = 0

        async def put(
            self,
            key: str,
            value: bytes,
            *,
            expected: int | None = None,
            lease_id: int | None = None,
        ) -> int:
            if self.bugs:
                self.bugs -= 1
                raise RuntimeError("a bug")
            return await super().put(key, value, expected=expected, lease_id=lease_id)

    store = Buggy()
    async with running(store, tmp_path / "data", refresh_s=0.01, verify_s=0.01) as service:
        store.bugs = 3
        await store.delete(KEY)
        async with asyncio.timeout(DEADLINE_S):
            while await registration(store) is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert store.bugs == 0
        assert service.registered


async def test_bookie_with_failed_storage_is_not_ready(tmp_path: Path) -> None:
    async with running(MemoryStore(), tmp_path / "data") as service:
        health = BookieHealth(cluster_name="c", bookie_id="b", service=service)
        assert health.storage_reason() == ""
        service.bookie._journal._failed(BookieReadOnly("Input/output error"), [])
        assert "journal stopped until a restart" in health.storage_reason()
        # It stays registered, because it serves reads.
        assert health.registered_reason() == ""
        assert health.status()["fault"] == health.storage_reason()
