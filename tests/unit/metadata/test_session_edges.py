"""A session at its edges: stopped while it starts, asked too late, a lease that is not enough."""

import asyncio
import gc
import weakref
from itertools import pairwise
from random import Random

import pytest
from tests.unit.metadata.test_session import (
    BETWEEN_S,
    TICK_S,
    TTL_S,
    HeldLease,
    LoopClock,
    Stage,
    on_virtual_time,
)

from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import (
    RETRY_S,
    REVOKE_TIMEOUT_S,
    MetadataSession,
    SessionState,
)
from magnetar.metadata.store import Lease, LeaseLost, MetadataUnavailable


class HangingStore(MemoryStore):
    """Answers requests about leases only while `hangs` is not set."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.hangs = asyncio.Event()
        self.asked = asyncio.Event()
        self.granted: list[Lease] = []

    async def grant_lease(self, ttl_s: float) -> Lease:
        self.asked.set()
        while self.hangs.is_set():  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(TICK_S)
        lease = await super().grant_lease(ttl_s)
        self.granted.append(lease)
        return lease


def session_on(store: MemoryStore, clock: LoopClock) -> MetadataSession:
    return MetadataSession(store, TTL_S, clock, "p", random=Random(1))


@on_virtual_time
async def test_a_store_that_does_not_answer_is_waited_for_no_longer_than_a_lease_lasts() -> None:
    clock = LoopClock()
    store = HangingStore(clock)
    store.hangs.set()
    session = session_on(store, clock)
    began = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable, match=f"not renewed within {TTL_S} s"):
        await session.start()
    assert asyncio.get_running_loop().time() - began == pytest.approx(TTL_S)
    assert session.state is SessionState.CLOSED


@on_virtual_time
async def test_a_session_that_is_stopped_while_it_starts_stays_stopped() -> None:
    clock = LoopClock()
    store = HangingStore(clock)
    store.hangs.set()
    session = session_on(store, clock)
    told: list[str] = []

    class Told:
        def suspended(self) -> None:
            told.append("suspended")

        async def established(self, *, renewed: bool) -> None:
            told.append("established")

    session.add_listener(Told())
    starting = asyncio.ensure_future(session.start())
    await store.asked.wait()
    await session.stop()
    store.hangs.clear()
    await asyncio.wait([starting])
    await asyncio.sleep(3 * TTL_S)
    assert session.state is SessionState.CLOSED
    assert not session.valid
    assert told == []
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(LeaseLost):
        _ = session.lease_id


@on_virtual_time
async def test_a_session_is_what_its_lease_is() -> None:
    """Once any caller finds the lease expired, by a write for example, nothing is served on it."""
    stage = Stage()
    assert not stage.session.valid
    assert stage.session.ttl_s == TTL_S
    with pytest.raises(LeaseLost):
        _ = stage.session.lease_id
    await stage.start()
    assert stage.session.valid
    lease = stage.session._lease
    assert lease is not None
    await lease.revoke()
    assert stage.session.state is SessionState.ESTABLISHED, "nobody has noticed yet"
    assert not stage.session.valid
    with pytest.raises(LeaseLost):
        _ = stage.session.lease_id
    await stage.session.stop()


@on_virtual_time
async def test_the_time_that_was_granted_counts_and_not_what_was_requested() -> None:
    class Generous(MemoryStore):
        async def grant_lease(self, ttl_s: float) -> Lease:
            return await super().grant_lease(ttl_s * 4)

    clock = LoopClock()
    session = session_on(Generous(clock), clock)
    await session.start()
    assert session.ttl_s == TTL_S * 4
    assert session._deadline == clock.monotonic() + TTL_S * 4
    await session.stop()


@on_virtual_time
async def test_the_end_of_validity_is_the_deadline_itself() -> None:
    stage = Stage()
    await stage.start()
    lease = stage.session._lease
    assert lease is not None
    stage.clock.jump(lease.deadline - stage.clock.monotonic() - TICK_S)
    assert stage.session.valid
    stage.clock.jump(lease.deadline - stage.clock.monotonic())
    assert stage.clock.monotonic() == lease.deadline
    assert not stage.session.valid
    with pytest.raises(LeaseLost):
        _ = stage.session.lease_id
    await stage.session.stop()


@on_virtual_time
async def test_a_listener_notified_while_suspended_is_notified_of_the_same_lease_again() -> None:
    """What it wrote under the lease may have been refused: it must write it again."""
    stage = Stage()
    await stage.start()
    await stage.store.revoke_lease(stage.session.lease_id)
    stage.listener.takes_s = [TTL_S + BETWEEN_S]
    await asyncio.sleep(BETWEEN_S + TICK_S)
    lease_id = stage.session.lease_id
    # The store is unreachable and keeps its leases: the session continues with the same lease.
    stage.store.away = True
    stage.store_clock.jump(-4 * TTL_S)
    await asyncio.sleep(2 * TTL_S)
    assert stage.session.state is SessionState.SUSPENDED
    assert stage.listener.words == ["renewed", "suspended", "suspended", "renewed"]
    stage.store.away = False
    await asyncio.sleep(2 * RETRY_S)
    assert stage.session.lease_id == lease_id
    assert stage.listener.words[4:] == ["renewed"]
    await stage.session.stop()


@on_virtual_time
async def test_a_listener_notified_over_a_whole_suspension_is_notified_again_before_the_next() -> (
    None
):
    stage = Stage(listeners=2)
    await stage.start()
    first, second = stage.listeners
    await stage.store.revoke_lease(stage.session.lease_id)
    first.takes_s = [3 * TTL_S]
    await asyncio.sleep(BETWEEN_S + TICK_S)
    stage.store.away = True
    stage.store_clock.jump(-4 * TTL_S)
    await asyncio.sleep(TTL_S + BETWEEN_S)
    stage.store.away = False
    await asyncio.sleep(2 * RETRY_S)
    assert stage.session.state is SessionState.ESTABLISHED, "by the same lease"
    assert first.words == ["renewed", "suspended", "suspended"]
    await asyncio.sleep(3 * TTL_S)
    assert first.words[3:] == ["renewed", "renewed"]
    assert second.words == ["renewed", "suspended", "suspended", "renewed"]
    assert second.told[-1][0] >= first.told[-1][0]
    await stage.session.stop()


@on_virtual_time
async def test_a_renewal_does_not_repeat_a_notification() -> None:
    stage = Stage(listeners=2)
    await stage.start()
    await asyncio.sleep(20 * TTL_S)
    assert [listener.words for listener in stage.listeners] == [["renewed"]] * 2
    await stage.session.stop()


@on_virtual_time
async def test_a_store_that_is_away_is_asked_again_soon_and_not_all_the_time() -> None:
    stage = Stage()
    await stage.start()
    asked: list[float] = []
    lease = stage.session._lease
    assert isinstance(lease, HeldLease)
    keep_alive = lease.keep_alive

    async def counted() -> None:
        asked.append(asyncio.get_running_loop().time())
        await keep_alive()

    lease.keep_alive = counted  # type: ignore[method-assign]
    stage.store.away = True
    await asyncio.sleep(TTL_S)
    stage.store.away = False
    between = [later - earlier for earlier, later in pairwise(asked)]
    assert len(between) > 10
    assert all(RETRY_S / 2 <= pause <= RETRY_S + TICK_S for pause in between)
    await stage.session.stop()


@on_virtual_time
async def test_stop_waits_for_a_revocation_no_longer_than_its_bound() -> None:
    class StuckLease(HeldLease):
        async def revoke(self) -> None:
            await asyncio.Event().wait()

    class Stuck(MemoryStore):
        async def grant_lease(self, ttl_s: float) -> Lease:
            return StuckLease(await super().grant_lease(ttl_s), clock)

    clock = LoopClock()
    session = session_on(Stuck(clock), clock)
    await session.start()
    began = asyncio.get_running_loop().time()
    await session.stop()
    assert asyncio.get_running_loop().time() - began == pytest.approx(REVOKE_TIMEOUT_S)
    assert not session.valid


@on_virtual_time
async def test_a_stopped_session_is_held_by_nothing() -> None:
    stage = Stage()
    await stage.start()
    session, stage.listener.session = stage.session, None
    await session.stop()
    gone = weakref.ref(session)
    del session, stage
    gc.collect()
    assert gone() is None
