"""Streams to etcd that are refused, break or move to another member: keep-alives and watches."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.support.fake_etcd import FakeEtcd, Refusal
from tests.unit.ledger.stage import ManualClock
from tests.unit.metadata.etcd_rig import LOST, UNAVAILABLE, WITHIN_S, answers, head, open_fake

from magnetar.core.errors import MetadataError
from magnetar.metadata.etcd import client as etcd_client
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import LEASE_GRANT, LEASE_REVOKE, RANGE
from magnetar.metadata.etcd.errors import MetadataRefused, MetadataWentBack
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.store import InvalidOperation, Lease, LeaseLost

NO_LEASE = Refusal(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
DENIED = Refusal(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_client, "BACKOFF_S_MAX", 0.001)


@pytest.fixture
async def members() -> AsyncIterator[tuple[FakeEtcd, FakeEtcd]]:
    fakes = FakeEtcd(), FakeEtcd()
    for fake in fakes:
        await fake.start()
        fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
        fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    yield fakes
    for fake in fakes:
        await fake.stop()


def kept(ttl_s: int = 60) -> pb.LeaseKeepAliveResponse:
    return pb.LeaseKeepAliveResponse(ID=3, TTL=ttl_s)


async def granted(fake: FakeEtcd, store: EtcdStore) -> Lease:
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    return await store.grant_lease(60)


# -- keep-alives


@pytest.mark.parametrize("fault", [LOST, None], ids=["refused", "ended"])
async def test_a_renewal_that_fails_in_passing_is_retried_as_a_whole(
    fake: FakeEtcd, store: EtcdStore, fault: Refusal | None
) -> None:
    """The read before each keep-alive shows that the member is no deposed leader."""
    lease = await granted(fake, store)
    fake.keep_alive = answers(fault, fault, kept())
    fake.calls.clear()
    async with asyncio.timeout(WITHIN_S):
        await lease.keep_alive()
    assert fake.calls == ["Range", "LeaseKeepAlive"] * 3
    assert lease.valid


@pytest.mark.parametrize("gone", [NO_LEASE, kept(0), kept(-1)], ids=["refused", "zero", "less"])
async def test_a_lease_that_etcd_does_not_have_is_lost_and_not_requested_again(
    fake: FakeEtcd, store: EtcdStore, gone: Any
) -> None:
    lease = await granted(fake, store)
    fake.keep_alive = answers(gone)
    fake.calls.clear()
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    assert fake.calls == ["Range", "LeaseKeepAlive"]


async def test_the_member_that_renews_is_the_one_that_was_read_from(
    members: tuple[FakeEtcd, FakeEtcd],
) -> None:
    async def lost(request: pb.RangeRequest) -> pb.RangeResponse:
        raise LOST

    for fake in members:
        fake.keep_alive = answers(LOST, kept())
    store = await open_fake(*members)
    lease = await store.grant_lease(60)
    used, other = sorted(members, key=lambda fake: "LeaseGrant" not in fake.calls)
    answered = used.handlers[RANGE.path]
    used.on(RANGE, lost)
    async with asyncio.timeout(WITHIN_S):
        await lease.keep_alive()
    # The first member could not be read, so it got no keep-alive request.
    assert "LeaseKeepAlive" not in used.calls
    assert other.calls.count("LeaseKeepAlive") == 2
    used.on(RANGE, answered)
    await store.close()


async def test_a_renewal_that_is_tried_twice_counts_from_before_its_last_try(
    fake: FakeEtcd,
) -> None:
    clock = ManualClock()

    async def slow(request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        clock.advance(10_000)
        fake.keep_alive = answers(kept())
        raise LOST

    store = await open_fake(fake, clock=clock)
    lease = await granted(fake, store)
    began = clock.monotonic()
    fake.keep_alive = slow
    async with asyncio.timeout(WITHIN_S):
        await lease.keep_alive()
    assert lease.deadline == began + 10 + 60
    await store.close()


async def test_a_renewal_leaves_no_stream_open(fake: FakeEtcd, store: EtcdStore) -> None:
    # Of a lease so long that no stream ends by its deadline.
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=600)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    lease = await store.grant_lease(600)
    fake.keep_alive = answers(*[kept()] * 3)
    for _ in range(3):
        await lease.keep_alive()
        await asyncio.wait_for(fake.keep_alives_ended.acquire(), WITHIN_S)


async def test_a_renewal_notices_that_etcd_went_back_and_trusts_it_no_more(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    lease = await granted(fake, store)
    store._client.note(head(9))
    before = lease.deadline
    with pytest.raises(MetadataWentBack):
        await lease.keep_alive()
    assert "LeaseKeepAlive" not in fake.calls
    assert lease.deadline == before


async def test_a_renewal_may_be_overtaken_by_writes(fake: FakeEtcd, store: EtcdStore) -> None:
    lease = await granted(fake, store)

    async def overtaken(request: pb.RangeRequest) -> pb.RangeResponse:
        store._client.note(head(20))
        return pb.RangeResponse(header=head(10))

    fake.on(RANGE, overtaken)
    fake.keep_alive = answers(kept())
    await lease.keep_alive()
    assert lease.valid


async def test_a_lease_is_requested_in_whole_seconds_and_never_for_less_than_was_asked(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    asked = []

    async def grant(request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        asked.append(request.TTL)
        # As etcd: no less than it grants at least.
        return pb.LeaseGrantResponse(ID=len(asked), TTL=max(request.TTL, 2))

    async def revoke(request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        return pb.LeaseRevokeResponse()

    fake.on(LEASE_GRANT, grant)
    fake.on(LEASE_REVOKE, revoke)
    leases = [await store.grant_lease(ttl_s) for ttl_s in (0.1, 1, 2.0, 2.1, 59.99)]
    assert asked == [1, 1, 2, 3, 60]
    assert [lease.ttl_s for lease in leases] == [2.0, 2.0, 2.0, 3.0, 60.0]
    assert all(lease.valid for lease in leases)


@pytest.mark.parametrize(("ttl_s", "granted_s"), [(9e9, 9_000_000_000), (9e9 + 1, None)])
async def test_a_lease_lasts_no_longer_than_etcd_can_count(
    fake: FakeEtcd, store: EtcdStore, ttl_s: float, granted_s: int | None
) -> None:
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=9_000_000_000)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    if granted_s is None:
        with pytest.raises(InvalidOperation, match="up to 9000000000 s"):
            await store.grant_lease(ttl_s)
    else:
        assert (await store.grant_lease(ttl_s)).ttl_s == granted_s


async def test_a_lease_of_somebody_else_is_revoked_and_one_that_is_gone_is_no_error(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    revoked = []

    async def revoke(request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        revoked.append(request.ID)
        raise NO_LEASE

    lease = await granted(fake, store)
    fake.on(LEASE_REVOKE, revoke)
    for lease_id in (77, 0, -5, 3):
        await store.revoke_lease(lease_id)
    assert revoked == [77, 3], "etcd counts leases from 1"
    assert not lease.valid, "its holder here learns it at once"


# -- watches


async def creation(fake: FakeEtcd) -> pb.WatchCreateRequest:
    async with asyncio.timeout(WITHIN_S):
        while True:
            request = await fake.from_watches.get()
            if request.HasField("create_request"):
                return request.create_request


async def test_watches_continue_at_the_next_member_from_where_they_were(
    members: tuple[FakeEtcd, FakeEtcd],
) -> None:
    store = await open_fake(*members)
    used, other = sorted(members, key=lambda fake: "Range" not in fake.calls)
    watch, idle = store.watch("/a"), store.watch("/b")
    request = await creation(used)
    await creation(used)
    found = pb.WatchResponse(watch_id=request.watch_id)
    found.events.add(kv=pb.KeyValue(key=b"/r/a", mod_revision=9))
    await used.to_watches.put(found)
    async with asyncio.timeout(WITHIN_S):
        assert (await anext(watch)).record.revision == 9
        await used.to_watches.put(None)
        asked = {(each.key, each.start_revision) for each in [await creation(other) for _ in "ab"]}
    assert asked == {(b"/r/a", 10), (b"/r/b", 8)}
    assert used.from_watches.empty()
    for each in (watch, idle):
        each.close()
    await store.close()


async def test_a_stream_that_breaks_in_passing_ends_no_watch(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    watch = store.watch("/a")
    for fault in (Refusal(UNAVAILABLE, "etcdserver: no leader"), LOST, None):
        await creation(fake)
        await fake.to_watches.put(fault)
    request = await creation(fake)
    assert request.start_revision == 8
    found = pb.WatchResponse(watch_id=request.watch_id)
    found.events.add(kv=pb.KeyValue(key=b"/r/a", mod_revision=9))
    await fake.to_watches.put(found)
    async with asyncio.timeout(WITHIN_S):
        assert (await anext(watch)).record.revision == 9
    assert store._watches._failures == 0, "the next interruption is a first one"


async def test_a_refused_stream_ends_every_watch_and_later_ones_are_tried(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    watches = [store.watch("/a"), store.watch("/b")]
    for _ in watches:
        await creation(fake)
    await fake.to_watches.put(DENIED)
    for watch in watches:
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(MetadataRefused, match="permission denied"):
                await anext(watch)
    later = store.watch("/c")
    assert (await creation(fake)).key == b"/r/c"
    later.close()


async def test_an_unexpected_refusal_of_the_stream_ends_no_watch(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    watch = store.watch("/a")
    await creation(fake)
    await fake.to_watches.put(Refusal(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: odd"))
    assert (await creation(fake)).key == b"/r/a"
    watch.close()


async def test_a_mistake_in_one_answer_ends_no_watch(
    fake: FakeEtcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = store.watch("/a")
    request = await creation(fake)

    def mistaken(event: pb.Event) -> Any:
        raise ValueError("a mistake")

    found = pb.WatchResponse(watch_id=request.watch_id)
    found.events.add(kv=pb.KeyValue(key=b"/r/a", mod_revision=9))
    with monkeypatch.context() as broken:
        broken.setattr(store._watches, "event_of", mistaken)
        await fake.to_watches.put(found)
        again = await creation(fake)
    found.watch_id = again.watch_id
    await fake.to_watches.put(found)
    async with asyncio.timeout(WITHIN_S):
        assert (await anext(watch)).record.revision == 9


async def test_a_watch_denied_without_a_user_ends_at_once(fake: FakeEtcd, store: EtcdStore) -> None:
    watch = store.watch("/a")
    request = await creation(fake)
    await fake.to_watches.put(
        pb.WatchResponse(watch_id=request.watch_id, canceled=True, cancel_reason="denied")
    )
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(MetadataError, match="etcd ended the watch of '/a': denied"):
            await anext(watch)
    assert fake.streams_opened == 1


async def test_one_stream_serves_all_watches(fake: FakeEtcd, store: EtcdStore) -> None:
    watches = []
    for number in range(5):
        watches.append(store.watch(f"/{number}"))
        assert (await creation(fake)).key == f"/r/{number}".encode()
    assert fake.streams_opened == 1
