"""A process's lease: established, suspended to the moment, and back. Time is virtual throughout."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import looptime
import pytest

from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import (
    NOTIFY_TIMEOUT_S,
    RENEWALS_PER_TTL,
    RETRY_S,
    MetadataSession,
    SessionState,
)
from magnetar.metadata.store import Lease, LeaseLost, MetadataUnavailable, StoreClosed

TTL_S = 8.0
BETWEEN_S = TTL_S / RENEWALS_PER_TTL
TICK_S = 0.01


class LoopClock:
    """The loop's time; `jump` is a pause of the process in which no callback ran."""

    def __init__(self) -> None:
        self.jumped_s = 0.0

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.jumped_s

    def jump(self, seconds: float) -> None:
        self.jumped_s += seconds


class HeldLease:
    """A lease as a remote store gives it: its holder judges it by the holder's own clock."""

    def __init__(self, inner: Lease, clock: LoopClock) -> None:
        self._inner, self._clock = inner, clock
        self.id, self.ttl_s = inner.id, inner.ttl_s
        self.deadline = clock.monotonic() + inner.ttl_s
        self._lost = False

    @property
    def valid(self) -> bool:
        return not self._lost and self._clock.monotonic() < self.deadline

    async def keep_alive(self) -> None:
        since = self._clock.monotonic()
        try:
            await self._inner.keep_alive()
        except LeaseLost:
            self._lost = True
            raise
        self.deadline = since + self.ttl_s

    async def revoke(self) -> None:
        self._lost = True
        await self._inner.revoke()


class AwayStore(MemoryStore):
    """Out of reach while `away`; its own leases run on, by a clock of its own."""

    away = False

    def __init__(self, clock: LoopClock, holders_clock: LoopClock) -> None:
        super().__init__(clock)
        self._holders_clock = holders_clock

    async def grant_lease(self, ttl_s: float) -> Lease:
        return HeldLease(await super().grant_lease(ttl_s), self._holders_clock)

    def _check_open(self) -> None:
        if self.away:
            raise MetadataUnavailable("the store is away")
        super()._check_open()


class Listener:
    """Records its calls with their times; fails or hangs on request."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self.told: list[tuple[float, str]] = []
        self.failures: list[Exception] = []
        self.takes_s: list[float] = []
        self.session: MetadataSession | None = None

    def _note(self, what: str) -> None:
        self.told.append((round(self._clock.monotonic() - self._since, 2), what))

    def suspended(self) -> None:
        assert self.session is None or not self.session.valid
        self._note("suspended")

    async def established(self, *, renewed: bool) -> None:
        if self.failures:
            self._note("failed")
            raise self.failures.pop(0)
        if self.takes_s:
            await asyncio.sleep(self.takes_s.pop(0))
        self._note("renewed" if renewed else "established")

    @property
    def words(self) -> list[str]:
        return [word for _, word in self.told]


class Stage:
    """A store, and a session with its listeners, each side with a clock of its own."""

    def __init__(self, listeners: int = 1) -> None:
        self.clock, self.store_clock = LoopClock(), LoopClock()
        self.store = AwayStore(self.store_clock, self.clock)
        self.session = MetadataSession(self.store, TTL_S, self.clock, "p", random=Random(1))
        self.listeners = [Listener(self.clock) for _ in range(listeners)]
        for listener in self.listeners:
            listener.session = self.session
            self.session.add_listener(listener)
        self.listener = self.listeners[0]

    async def start(self) -> None:
        await self.session.start()
        await self.store.put("/own", b"", lease_id=self.session.lease_id)


def on_virtual_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test()

        with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
            runner.run(main())

    run.__name__ = test.__name__
    return run


@on_virtual_time
async def test_a_session_is_renewed_as_long_as_it_lives() -> None:
    stage = Stage()
    await stage.start()
    lease_id = stage.session.lease_id
    await asyncio.sleep(100 * TTL_S)
    assert stage.session.valid
    assert stage.session.lease_id == lease_id
    assert await stage.store.get("/own") is not None
    assert stage.listener.told == [(0.0, "renewed")]
    await stage.session.stop()


@on_virtual_time
async def test_an_outage_shorter_than_the_lease_is_not_noticed() -> None:
    stage = Stage()
    await stage.start()
    await asyncio.sleep(TICK_S)
    stage.store.away = True
    # The last renewal is at most BETWEEN_S old, so this much is left.
    await asyncio.sleep(TTL_S - BETWEEN_S - RETRY_S)
    assert stage.session.valid
    stage.store.away = False
    await asyncio.sleep(TTL_S)
    assert stage.session.valid
    assert stage.listener.words == ["renewed"]
    assert await stage.store.get("/own") is not None
    await stage.session.stop()


@on_virtual_time
async def test_it_is_suspended_at_the_deadline_and_not_before() -> None:
    stage = Stage()
    await stage.start()
    last = 3 * TTL_S + BETWEEN_S  # when it was renewed last
    await asyncio.sleep(last + TICK_S)
    stage.store.away = True
    await asyncio.sleep(TTL_S - 2 * TICK_S)
    assert stage.session.valid
    assert stage.session.suspensions == 0
    assert stage.listener.words == ["renewed"]
    await asyncio.sleep(2 * TICK_S)
    assert stage.listener.told[-1] == (last + TTL_S, "suspended")
    assert stage.session.state is SessionState.SUSPENDED
    with pytest.raises(LeaseLost):
        _ = stage.session.lease_id
    assert stage.session.suspensions == 1
    stage.store.away = False
    await stage.session.stop()


@on_virtual_time
async def test_out_of_a_longer_outage_comes_a_new_lease_where_the_store_ended_the_old() -> None:
    stage = Stage()
    await stage.start()
    first = stage.session.lease_id
    stage.store.away = True
    await asyncio.sleep(2 * TTL_S)
    assert not stage.session.valid
    stage.store.away = False
    await asyncio.sleep(2 * RETRY_S)
    assert stage.session.valid
    assert stage.session.lease_id != first
    assert stage.listener.words == ["renewed", "suspended", "renewed"]
    assert await stage.store.get("/own") is None
    await stage.session.stop()


@on_virtual_time
async def test_the_old_lease_comes_back_where_the_store_kept_it() -> None:
    stage = Stage()
    await stage.start()
    first = stage.session.lease_id
    stage.store.away = True
    # It rests with its leases, as etcd does without a leader.
    stage.store_clock.jump(-2 * TTL_S)
    await asyncio.sleep(2 * TTL_S)
    assert stage.listener.words == ["renewed", "suspended"]
    stage.store.away = False
    await asyncio.sleep(2 * RETRY_S)
    assert stage.session.lease_id == first
    assert stage.listener.words == ["renewed", "suspended", "established"]
    assert await stage.store.get("/own") is not None
    await stage.session.stop()


@on_virtual_time
async def test_a_lease_that_another_process_revoked_is_replaced() -> None:
    stage = Stage()
    await stage.start()
    first = stage.session.lease_id
    await stage.store.revoke_lease(first)
    await asyncio.sleep(BETWEEN_S + TICK_S)
    assert stage.session.valid
    assert stage.session.lease_id != first
    assert stage.listener.told == [
        (0.0, "renewed"),
        (BETWEEN_S, "suspended"),
        (BETWEEN_S, "renewed"),
    ]
    await stage.session.stop()


@pytest.mark.parametrize("paused_s", [TTL_S / 2, TTL_S, 5 * TTL_S])
@pytest.mark.parametrize("asleep_s", [0.0, BETWEEN_S / 2, BETWEEN_S - TICK_S])
@pytest.mark.parametrize("store_paused", [False, True], ids=["store-ran-on", "store-paused-too"])
def test_after_a_pause_nothing_is_valid_before_it_is_established_again(
    paused_s: float, asleep_s: float, store_paused: bool
) -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.start()
        await asyncio.sleep(2 * BETWEEN_S + asleep_s)
        stage.clock.jump(paused_s)
        if not store_paused:
            stage.store_clock.jump(paused_s)
        over = asleep_s + paused_s >= TTL_S
        # Before any callback ran, and at every turn after: valid means that listeners know.
        assert stage.session.valid is not over
        for _ in range(400):
            await asyncio.sleep(TICK_S)
            if over and stage.session.valid:
                assert "suspended" in stage.listener.words
        assert stage.session.valid
        if not over:
            assert stage.listener.words == ["renewed"]
        else:
            again = "established" if store_paused else "renewed"
            assert stage.listener.words == ["renewed", "suspended", again]
        await stage.session.stop()

    on_virtual_time(scenario)()


@on_virtual_time
async def test_a_listener_that_fails_is_notified_again_with_the_same_lease() -> None:
    stage = Stage(listeners=2)
    await stage.start()
    first, second = stage.listeners
    await stage.store.revoke_lease(stage.session.lease_id)
    first.failures = [MetadataError("no"), ValueError("a mistake")]
    await asyncio.sleep(BETWEEN_S + TICK_S)
    lease_id = stage.session.lease_id
    assert first.words[-2:] == ["suspended", "failed"]
    assert second.words[-1] == "suspended", "the order is kept"
    await asyncio.sleep(3 * RETRY_S)
    assert first.words[-4:] == ["suspended", "failed", "failed", "renewed"]
    assert second.words[-2:] == ["suspended", "renewed"]
    assert stage.session.lease_id == lease_id
    await stage.session.stop()


@on_virtual_time
async def test_a_slow_listener_costs_no_renewal() -> None:
    stage = Stage(listeners=2)
    stage.listener.takes_s = [3 * TTL_S]
    await stage.start()
    assert stage.session.valid
    assert [listener.words for listener in stage.listeners] == [["renewed"], ["renewed"]]
    await stage.session.stop()


@on_virtual_time
async def test_a_listener_that_never_ends_is_called_again() -> None:
    stage = Stage()
    await stage.start()
    await stage.store.revoke_lease(stage.session.lease_id)
    stage.listener.takes_s = [10 * NOTIFY_TIMEOUT_S]
    await asyncio.sleep(BETWEEN_S + NOTIFY_TIMEOUT_S + RETRY_S + TICK_S)
    assert stage.listener.words == ["renewed", "suspended", "renewed"]
    await stage.session.stop()


@on_virtual_time
async def test_a_suspension_during_a_notification_notifies_all_listeners_again() -> None:
    stage = Stage(listeners=2)
    await stage.start()
    first, second = stage.listeners
    await stage.store.revoke_lease(stage.session.lease_id)
    second.takes_s = [BETWEEN_S * 2]
    await asyncio.sleep(BETWEEN_S + TICK_S)
    assert first.words == ["renewed", "suspended", "renewed"]
    await stage.store.revoke_lease(stage.session.lease_id)
    await asyncio.sleep(3 * BETWEEN_S)
    assert first.words == ["renewed", "suspended", "renewed", "suspended", "renewed"]
    # Its first call ended meanwhile, for the former lease, so it does not count.
    assert second.words == ["renewed", "suspended", "suspended", "renewed", "renewed"]
    await stage.session.stop()


@on_virtual_time
async def test_one_listener_that_cannot_rest_does_not_keep_the_next_serving() -> None:
    stage = Stage(listeners=2)
    await stage.start()

    def broken() -> None:
        raise ValueError("a mistake")

    stage.listener.suspended = broken  # type: ignore[method-assign]
    stage.store.away = True
    await asyncio.sleep(TTL_S + TICK_S)
    assert stage.listeners[1].words[-1] == "suspended"
    stage.store.away = False
    await stage.session.stop()


@on_virtual_time
async def test_stop_takes_the_keys_at_once_and_twice_is_no_error() -> None:
    stage = Stage()
    await stage.start()
    await stage.session.stop()
    assert not stage.session.valid
    assert await stage.store.get("/own") is None
    assert stage.session.state is SessionState.CLOSED
    await stage.session.stop()
    await asyncio.sleep(3 * TTL_S)
    assert stage.listener.words == ["renewed"]


@on_virtual_time
async def test_stop_does_not_wait_for_a_store_that_is_away() -> None:
    stage = Stage()
    await stage.start()
    stage.store.away = True
    began = asyncio.get_running_loop().time()
    await stage.session.stop()
    assert asyncio.get_running_loop().time() - began < TTL_S
    assert not stage.session.valid


@on_virtual_time
async def test_a_start_that_fails_leaves_nothing() -> None:
    stage = Stage()
    stage.store.away = True
    with pytest.raises(MetadataUnavailable):
        await stage.session.start()
    stage = Stage()
    stage.listener.failures = [MetadataError("the name is taken")]
    with pytest.raises(MetadataError, match="taken"):
        await stage.session.start()
    assert stage.session.state is SessionState.CLOSED
    assert len(asyncio.all_tasks()) == 1


@on_virtual_time
async def test_a_store_closed_under_the_session_suspends_it() -> None:
    stage = Stage()
    await stage.start()
    await stage.store.close()
    await asyncio.sleep(BETWEEN_S + TICK_S)
    assert not stage.session.valid
    assert stage.listener.words == ["renewed", "suspended"]
    with pytest.raises(StoreClosed):
        await stage.store.get("/own")
    await stage.session.stop()


@on_virtual_time
async def test_a_bug_in_a_renewal_does_not_end_the_renewals() -> None:
    class Buggy(MemoryStore):
        bug = False

        def _check_open(self) -> None:
            if self.bug:
                raise RuntimeError("a bug")
            super()._check_open()

    clock = LoopClock()
    store = Buggy(clock)
    session = MetadataSession(store, TTL_S, clock, "p", random=Random(1))
    await session.start()
    store.bug = True
    await asyncio.sleep(2 * TTL_S)
    assert not session.valid
    store.bug = False
    await asyncio.sleep(2 * RETRY_S)
    assert session.valid
    await session.stop()
