"""The bookies of a cluster as a broker sees them: live, quarantined, and lost."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.unit.bookie.net.peers import HOST, IDENTITY, serving, until

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieLate,
    BookieReadOnly,
    BookieUnavailable,
    LedgerFenced,
    NoSuchEntry,
)
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.racks import (
    RACKS_KEY,
    Placed,
    change_racks,
    encode_racks,
    with_bookie,
)
from magnetar.bookie.registration import (
    RACK_DEFAULT,
    BookieRegistration,
    draining_key,
    known_key,
    registration_key,
)
from magnetar.core.clock import SystemClock
from magnetar.ledger.registered_bookies import RegisteredBookies, RegisteredSettings
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import Compacted, Record, Watch


class Hands(SystemClock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Stage:
    def __init__(self, store: MemoryStore, **settings: float) -> None:
        self.store = store
        self.clock = Hands()
        self.lost: list[BookieIdentity] = []
        self.bookies = RegisteredBookies(
            store,
            self.clock,
            settings=RegisteredSettings(**settings),  # type: ignore[arg-type]
        )
        self.bookies.add_listener(self.lost.append)

    async def put(self, bookie_id: str, incarnation: str = "one", **more: object) -> None:
        made = BookieRegistration(bookie_id, incarnation, HOST, 1)
        made = msgspec.structs.replace(made, **more)
        await self.store.put(registration_key(bookie_id), encode(made))

    async def settled(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    @property
    def names(self) -> list[str]:
        return [info.identity.bookie_id for info in self.bookies.living()]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(MemoryStore())
    for name in ("b2", "b1"):
        await stage.put(name)
    await stage.bookies.start()
    yield stage
    await stage.bookies.stop()


async def test_who_is_registered_lives(stage: Stage) -> None:
    assert stage.names == ["b1", "b2"]
    await stage.put("b3", rack="/r/1", disk_bytes_total=100, disk_bytes_free=25, writable=False)
    await until(lambda: len(stage.names) == 3)
    info = stage.bookies.living()[2]
    assert (info.rack, info.disk_free_ratio, info.writable) == ("/r/1", 0.25, False)
    bookie = stage.bookies.get(info.identity)
    assert isinstance(bookie, RemoteBookie)
    assert bookie.identity == info.identity
    assert stage.bookies.get(BookieIdentity("b3", "two")) is None
    assert not stage.lost


async def test_what_stands_beside_the_registrations_is_no_bookie(stage: Stage) -> None:
    await stage.store.put(known_key(BookieIdentity("b9", "x")), b"{}")
    await stage.store.put(registration_key("b8"), b"no registration")
    await stage.store.put(draining_key("b1"), b"")
    await until(lambda: stage.bookies.living()[0].draining)
    assert stage.names == ["b1", "b2"]
    await stage.store.delete(draining_key("b1"))
    await until(lambda: not stage.bookies.living()[0].draining)


async def test_a_registration_that_cannot_be_read_disturbs_nobody(stage: Stage) -> None:
    """The follower lists everything again where a change raises."""
    key = registration_key("b8")
    stage.bookies._changed(key, Record(key, b"no registration", 7))
    assert stage.names == ["b1", "b2"]
    assert not stage.lost


async def test_a_bookie_that_returns_is_not_forgotten_later() -> None:
    stage = Stage(MemoryStore(), keep_s=0.05)
    await stage.put("b1")
    await stage.bookies.start()
    before = stage.bookies.get(IDENTITY)
    await stage.store.delete(registration_key("b1"))
    await until(lambda: stage.names == [])
    await stage.put("b1")
    await until(lambda: stage.names == ["b1"])
    await asyncio.sleep(0.1)
    assert stage.bookies.get(IDENTITY) is before
    await stage.store.delete(registration_key("b1"))  # and leaves again
    await until(lambda: stage.bookies.get(IDENTITY) is None)
    await stage.bookies.stop()


class Closing(MemoryBookie):
    """Notes that its connection was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_the_connection_of_a_client_that_is_forgotten_or_moved_is_closed() -> None:
    stage = Stage(MemoryStore())
    made: list[Closing] = []

    def connect(registration: BookieRegistration) -> Closing:
        made.append(Closing(registration.bookie_id, registration.incarnation))
        return made[-1]

    settings = RegisteredSettings(keep_s=0.01)
    bookies = RegisteredBookies(stage.store, stage.clock, settings=settings, connect=connect)
    await stage.put("b1")
    await bookies.start()
    await stage.put("b1", port=2)
    await until(lambda: len(made) == 2)
    await until(lambda: made[0].closed)
    assert not made[1].closed
    assert bookies.get(IDENTITY) is made[1]
    await stage.put("b1", port=2, disk_bytes_free=5)  # it is where it was
    await stage.store.delete(registration_key("b1"))
    await until(lambda: made[1].closed)
    assert bookies.get(IDENTITY) is None
    await stage.put("b2")
    await until(lambda: len(made) == 3)
    assert not made[2].closed
    await bookies.stop()
    assert made[2].closed


async def test_a_bookie_that_tells_no_sizes_counts_as_empty(stage: Stage) -> None:
    await stage.put("b3", disk_bytes_total=0, disk_bytes_free=0)
    await until(lambda: len(stage.names) == 3)
    assert stage.bookies.living()[2].disk_free_ratio == 1.0


async def test_a_bookie_that_left_is_reported_and_kept_for_reads(stage: Stage) -> None:
    identity = BookieIdentity("b1", "one")
    before = stage.bookies.get(identity)
    await stage.store.delete(registration_key("b1"))
    await until(lambda: stage.lost == [identity])
    assert stage.names == ["b2"]
    assert stage.bookies.get(identity) is before
    await stage.put("b1")
    await until(lambda: len(stage.names) == 2)
    assert stage.bookies.get(identity) is before


async def test_who_left_for_long_is_forgotten() -> None:
    stage = Stage(MemoryStore(), keep_s=0.01)
    await stage.put("b1")
    await stage.bookies.start()
    await stage.store.delete(registration_key("b1"))
    await until(lambda: stage.bookies.get(BookieIdentity("b1", "one")) is None)
    await stage.bookies.stop()


async def test_another_incarnation_replaces(stage: Stage) -> None:
    await stage.put("b1", "two")
    await until(lambda: stage.lost == [BookieIdentity("b1", "one")])
    assert [info.identity.incarnation for info in stage.bookies.living()] == ["two", "one"]
    assert stage.bookies.get(BookieIdentity("b1", "one")) is not None
    assert stage.bookies.get(BookieIdentity("b1", "two")) is not None


async def test_who_moved_is_reached_where_it_is_now(stage: Stage) -> None:
    async with serving(MemoryBookie(*IDENTITY)) as server:
        await stage.put("b1", port=server.port)
        await until(lambda: stage.bookies.registrations()[0].port == server.port)
        bookie = stage.bookies.get(IDENTITY)
        assert isinstance(bookie, RemoteBookie)
        await bookie.ping()
        assert not stage.lost


async def test_a_listener_that_was_removed_or_fails_disturbs_nobody(stage: Stage) -> None:
    def failing(_: BookieIdentity) -> None:
        raise RuntimeError("a bug")

    others: list[BookieIdentity] = []
    stage.bookies.remove_listener(stage.lost.append)
    stage.bookies.add_listener(failing)
    stage.bookies.add_listener(others.append)
    await stage.store.delete(registration_key("b1"))
    await until(lambda: len(others) == 1)
    assert not stage.lost


# -- quarantine ----------------------------------------------------------------------------


def shunned(stage: Stage) -> bool:
    return stage.bookies.living()[0].quarantined


def fail(stage: Stage, error: BookieError, times: int, apart_s: float) -> None:
    for _ in range(times):
        stage.bookies.failed(IDENTITY, error)
        stage.clock.now += apart_s


async def test_too_many_errors_and_a_bookie_is_shunned_for_a_while(stage: Stage) -> None:
    fail(stage, BookieUnavailable("gone"), 4, 2.0)
    assert not shunned(stage)
    fail(stage, BookieUnavailable("gone"), 1, 0.0)
    assert shunned(stage)
    stage.clock.now += 1799
    assert shunned(stage)
    stage.clock.now += 1
    assert not shunned(stage)


async def test_errors_far_apart_or_all_at_once_do_not_count(stage: Stage) -> None:
    fail(stage, BookieUnavailable("gone"), 20, 16.0)
    assert not shunned(stage)
    fail(stage, BookieUnavailable("gone"), 100, 0.0)
    assert not shunned(stage)


async def test_errors_count_within_their_window_and_apart_from_each_other(stage: Stage) -> None:
    window_s, spacing_s = 60.0, 1.0
    error = BookieUnavailable("gone")
    fail(stage, error, 5, spacing_s - 0.01)
    assert not shunned(stage)
    stage.clock.now += 10 * window_s
    fail(stage, error, 5, spacing_s)
    assert shunned(stage)
    stage.clock.now += 2000
    assert not shunned(stage)
    fail(stage, error, 4, window_s / 4)  # the first is just within the window of the fifth
    assert not shunned(stage)
    fail(stage, error, 1, 0.0)
    assert shunned(stage)
    stage.clock.now += 2000
    fail(stage, error, 1, window_s / 4 + 0.01)
    fail(stage, error, 3, window_s / 4)
    fail(stage, error, 1, 0.0)
    assert not shunned(stage)


async def test_a_bookie_of_which_nothing_is_known_is_not_shunned(stage: Stage) -> None:
    stage.bookies.failed(BookieIdentity("b1", "another life"), BookieUnavailable("gone"))
    stage.bookies.failed(BookieIdentity("b77", "one"), BookieUnavailable("gone"))
    assert not shunned(stage)


async def test_a_slow_bookie_is_shunned_for_less(stage: Stage) -> None:
    fail(stage, BookieLate("late"), 5, 2.0)
    assert shunned(stage)
    stage.clock.now += 120
    assert not shunned(stage)


@pytest.mark.parametrize("kind", [LedgerFenced, NoSuchEntry, BookieReadOnly])
async def test_refusals_are_no_failures(stage: Stage, kind: type[BookieError]) -> None:
    fail(stage, kind("no"), 20, 2.0)
    assert not shunned(stage)


async def test_a_bookie_that_was_started_again_is_taken_back(stage: Stage) -> None:
    fail(stage, BookieUnavailable("gone"), 5, 2.0)
    assert shunned(stage)
    await stage.put("b1", disk_bytes_total=10, disk_bytes_free=5)  # it only says how it is
    await until(lambda: stage.bookies.living()[0].disk_free_ratio == 0.5)
    assert shunned(stage)
    await stage.put("b1", started_ms=5)
    await until(lambda: not shunned(stage))


# -- the store is away, or forgets ---------------------------------------------------------


class Forgetting(MemoryStore):
    """Its first watches end with Compacted; then lists fail for a while."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.watches: list[Watch] = []

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        watch = super().watch(prefix, from_revision=from_revision)
        self.watches.append(watch)
        return watch


async def test_a_watch_that_ends_is_begun_again_without_anybody_leaving() -> None:
    store = Forgetting()
    stage = Stage(store)
    for name in ("b1", "b2", "b3"):
        await stage.put(name)
    await stage.bookies.start()
    await until(lambda: len(store.watches) == 1)
    await stage.store.delete(registration_key("b3"))
    store.watches[0].end(Compacted("gone"))  # type: ignore[attr-defined]
    await until(lambda: len(store.watches) == 2)
    assert stage.names == ["b1", "b2"]
    assert stage.lost == [BookieIdentity("b3", "one")]
    await stage.put("b4")
    await until(lambda: stage.names == ["b1", "b2", "b4"])
    await stage.bookies.stop()


async def test_stopping_ends_the_connections(stage: Stage) -> None:
    async with serving(MemoryBookie(*IDENTITY)) as server:
        await stage.put("b1", port=server.port)
        await until(lambda: stage.bookies.registrations()[0].port == server.port)
        bookie = stage.bookies.get(IDENTITY)
        assert isinstance(bookie, RemoteBookie)
        await bookie.ping()
        await stage.bookies.stop()
        assert not bookie.connected
        await asyncio.sleep(0)
        assert stage.bookies.get(IDENTITY) is None


async def test_a_rack_has_one_name_however_it_is_written(stage: Stage) -> None:
    for name, rack in (("b1", "r1"), ("b2", "/r1/"), ("b3", "/r1"), ("b4", "/eu//r1")):
        await stage.put(name, rack=rack)
    await stage.settled(lambda: len(stage.names) == 4)
    assert [info.rack for info in stage.bookies.living()] == ["/r1", "/r1", "/r1", "/eu/r1"]


async def test_racks_and_groups_that_are_set_precede_those_of_registrations(stage: Stage) -> None:
    def places() -> list[tuple[str, str]]:
        return [(info.rack, info.group) for info in stage.bookies.living()]

    own = (RACK_DEFAULT, "default")
    assert places() == [own, own]
    await change_racks(stage.store, lambda groups: with_bookie(groups, "g", "b1", Placed("/r/7")))
    await until(lambda: places() == [("/r/7", "g"), own])
    assert stage.names == ["b1", "b2"], "the record of racks is no bookie"
    for unreadable in (b"{", b'{"version":2}'):
        await stage.store.put(RACKS_KEY, unreadable)
    await stage.put("b3")
    await until(lambda: len(stage.names) == 3)
    assert places()[0] == ("/r/7", "g"), "an unreadable record changes nothing"
    await stage.store.put(RACKS_KEY, encode_racks({"h": {"b2": Placed("/r/8")}}))
    await until(lambda: places() == [own, ("/r/8", "h"), own])
    await stage.store.delete(RACKS_KEY)
    await until(lambda: places() == [own, own, own])
