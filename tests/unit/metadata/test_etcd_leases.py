"""How long the holder of a lease in etcd believes that it has it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.fake_etcd import FakeEtcd
from tests.unit.ledger.stage import ManualClock
from tests.unit.metadata.etcd_rig import WITHIN_S, answers, in_a_hurry, open_fake

from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import LEASE_GRANT, LEASE_REVOKE, RANGE
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.store import LeaseLost, MetadataUnavailable


async def test_a_lease_lasts_from_before_it_was_requested_however_late_etcd_answers(
    fake: FakeEtcd,
) -> None:
    """etcd may have begun to count when the request came, so the holder counts no later."""
    clock = ManualClock()

    def passing(handler: Callable[[Any], Awaitable[Any]], ms: int) -> Callable[[Any], Any]:
        async def slow(request: Any) -> Any:
            answer = await handler(request)
            clock.advance(ms)
            return answer

        return slow

    ttls = iter((60, 20))

    async def keep_alive(request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        return pb.LeaseKeepAliveResponse(ID=request.ID, TTL=next(ttls))

    fake.on(LEASE_GRANT, passing(answers(pb.LeaseGrantResponse(ID=3, TTL=60)), 7_000))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    fake.on(RANGE, passing(fake.handlers[RANGE.path], 11_000))
    fake.keep_alive = passing(keep_alive, 13_000)
    store = await open_fake(fake, clock=clock)
    asked = clock.monotonic()
    lease = await store.grant_lease(60)
    assert lease.deadline == asked + 60
    for granted_s in (60, 20):
        clock.advance(1_000)
        asked, before = clock.monotonic(), lease.deadline
        await lease.keep_alive()
        assert lease.deadline == max(before, asked + granted_s)
    clock.advance(int((lease.deadline - clock.monotonic()) * 1000) - 1)
    assert lease.valid
    clock.advance(1)
    assert not lease.valid
    await store.close()


async def test_a_lease_that_is_revoked_while_it_is_renewed_stays_lost(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    async def keep_alive(request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        await lease.revoke()
        return pb.LeaseKeepAliveResponse(ID=request.ID, TTL=60)

    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    fake.keep_alive = keep_alive
    lease = await store.grant_lease(60)
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    assert not lease.valid


async def test_a_lease_that_etcd_has_no_more_is_lost_at_once(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    async def keep_alive(request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        return pb.LeaseKeepAliveResponse(ID=request.ID, TTL=0)

    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.keep_alive = keep_alive
    lease = await store.grant_lease(60)
    assert lease.valid
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    assert not lease.valid


async def test_a_leader_without_a_quorum_renews_nothing(fake: FakeEtcd, store: EtcdStore) -> None:
    async def keep_alive(request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        return pb.LeaseKeepAliveResponse(ID=request.ID, TTL=60)

    async def stuck(request: pb.RangeRequest) -> pb.RangeResponse:
        await asyncio.sleep(WITHIN_S)
        return pb.RangeResponse()

    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    fake.keep_alive = keep_alive
    lease = await store.grant_lease(59.5)
    assert lease.ttl_s == 60
    before = lease.deadline
    await lease.keep_alive()
    assert lease.deadline > before
    after = lease.deadline
    answered = fake.handlers[RANGE.path]
    fake.on(RANGE, stuck)
    fake.calls.clear()
    in_a_hurry(store)
    with pytest.raises(MetadataUnavailable):
        await lease.keep_alive()
    assert "LeaseKeepAlive" not in fake.calls
    assert lease.deadline == after
    fake.on(RANGE, answered)
