"""The end of a store on etcd: its writes come first, then its watches, then its leases."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from tests.support.fake_etcd import FakeEtcd, Refusal
from tests.unit.metadata.etcd_rig import LOST, WITHIN_S, answers, head, open_fake, txn

from magnetar.metadata.etcd import store as etcd_store
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import LEASE_GRANT, LEASE_REVOKE, RANGE, TXN
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.store import (
    Check,
    Delete,
    MetadataUnavailable,
    Operation,
    Put,
    StoreClosed,
)

NO_LEADER = Refusal(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
FOREVER_S = 10 * WITHIN_S


class Held:
    """A call that is answered on the test's command."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.begun, self.answered = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Any) -> Any:
        self.begun.set()
        await self.answered.wait()
        return self._answer


async def under_way(held: Held, call: Awaitable[Any]) -> "asyncio.Task[Any]":
    task = asyncio.ensure_future(call)
    await asyncio.wait_for(held.begun.wait(), WITHIN_S)
    return task


async def created(fake: FakeEtcd) -> pb.WatchCreateRequest:
    async with asyncio.timeout(WITHIN_S):
        request = (await fake.from_watches.get()).create_request
    await fake.to_watches.put(pb.WatchResponse(watch_id=request.watch_id, created=True))
    return request


async def test_the_end_waits_for_the_writes_under_way_and_takes_no_new_ones(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WRITES_S", FOREVER_S)
    store = await open_fake(fake)
    held = Held(txn(succeeded=True, revision=9))
    fake.on(TXN, held)
    writes = [await under_way(held, store.put(f"/{number}", b"")) for number in range(2)]
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    for refused in (store.put("/b", b""), store.get("/a"), store.grant_lease(9), store.revision()):
        with pytest.raises(StoreClosed):
            await refused
    assert not closing.done()
    held.answered.set()
    async with asyncio.timeout(WITHIN_S):
        assert await asyncio.gather(*writes) == [9, 9]
        await closing


async def test_the_end_comes_though_a_write_is_never_answered(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WRITES_S", 0.05)
    store = await open_fake(fake)
    tries: dict[str, list[Refusal]] = {"/never": [], "/unknown": [LOST]}
    begun = asyncio.Semaphore(0)

    async def refusing(request: pb.TxnRequest) -> Any:
        key = request.success[0].request_put.key.decode().removeprefix("/r")
        begun.release()
        raise tries[key].pop() if tries[key] else NO_LEADER

    fake.on(TXN, refusing)
    never = asyncio.ensure_future(store.put("/never", b"", expected=5))
    unknown = asyncio.ensure_future(store.put("/unknown", b"", expected=5))
    async with asyncio.timeout(WITHIN_S):
        for _ in range(4):
            await begun.acquire()
        await store.close()
        outcomes = await asyncio.gather(never, unknown, return_exceptions=True)
    assert isinstance(outcomes[0], StoreClosed), "it surely did not happen"
    assert isinstance(outcomes[1], MetadataUnavailable), "it may have happened"


@pytest.mark.parametrize("callers", [1, 3])
async def test_whoever_closes_a_store_waits_until_it_is_closed(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch, callers: int
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WRITES_S", FOREVER_S)
    store = await open_fake(fake)
    held = Held(txn(succeeded=True, revision=9))
    fake.on(TXN, held)
    write = await under_way(held, store.put("/a", b""))
    given_up = asyncio.ensure_future(store.close())
    closing = [asyncio.ensure_future(store.close()) for _ in range(callers)]
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert not any(each.done() for each in closing)
    held.answered.set()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*closing)
    assert write.done()
    await store.close()


# -- watches


def event(revision: int, key: bytes) -> pb.WatchResponse:
    response = pb.WatchResponse(watch_id=1)
    response.events.add(kv=pb.KeyValue(key=key, mod_revision=revision))
    return response


async def test_a_watch_sees_the_last_writes_of_its_own_store_before_it_ends(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WATCHES_S", FOREVER_S)
    store = await open_fake(fake)
    watch = store.watch("/a/")
    await created(fake)
    fake.on(TXN, answers(txn(succeeded=True, revision=9), txn(succeeded=True, revision=12)))
    await store.put("/a/x", b"")
    await store.put("/b", b"")
    closing = asyncio.ensure_future(store.close())
    await fake.to_watches.put(event(8, b"/r/a/w"))
    async with asyncio.timeout(WITHIN_S):
        assert (await anext(watch)).record.revision == 8
        assert not closing.done()
        await fake.to_watches.put(event(9, b"/r/a/x"))
        await closing
        assert (await anext(watch)).record.revision == 9
        with pytest.raises(StoreClosed):
            await anext(watch)


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([Put("/b/x", b"")], id="elsewhere"),
        pytest.param([Delete("/a/gone")], id="nothing deleted"),
        pytest.param([Check("/a/x", 5)], id="only checked"),
        pytest.param([Check("/a/x", 5), Put("/b", b""), Delete("/a/gone")], id="all of them"),
    ],
)
async def test_the_end_waits_for_no_event_that_never_comes(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch, operations: list[Operation]
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WATCHES_S", FOREVER_S)
    store = await open_fake(fake)
    watch = store.watch("/a/")
    await created(fake)
    answer = pb.TxnResponse(header=head(9), succeeded=True)
    for operation in operations:
        if isinstance(operation, Put):
            answer.responses.add().response_put.SetInParent()
        elif isinstance(operation, Delete):
            answer.responses.add().response_delete_range.deleted = 0
    fake.on(TXN, answers(answer))
    await store.transact(operations)
    async with asyncio.timeout(WITHIN_S):
        await store.close()
        with pytest.raises(StoreClosed):
            await anext(watch)


async def test_the_end_waits_for_the_event_of_a_key_that_was_deleted(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WATCHES_S", FOREVER_S)
    store = await open_fake(fake)
    watch = store.watch("/a/")
    await created(fake)
    answer = pb.TxnResponse(header=head(9), succeeded=True)
    answer.responses.add().response_put.SetInParent()
    answer.responses.add().response_delete_range.deleted = 1
    fake.on(TXN, answers(answer))
    await store.transact([Check("/c", 5), Put("/b", b""), Delete("/a/x")])
    closing = asyncio.ensure_future(store.close())
    await fake.to_watches.put(event(8, b"/r/a/w"))
    async with asyncio.timeout(WITHIN_S):
        await anext(watch)
        assert not closing.done()
        await fake.to_watches.put(event(9, b"/r/a/x"))
        await closing


async def test_the_end_comes_though_a_watch_does_not_catch_up(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_WATCHES_S", 0.05)
    store = await open_fake(fake)
    watch = store.watch("/a")
    await created(fake)
    fake.on(TXN, answers(txn(succeeded=True, revision=9)))
    await store.put("/a", b"")
    async with asyncio.timeout(WITHIN_S):
        await store.close()
        with pytest.raises(StoreClosed):
            await anext(watch)


# -- leases


async def test_the_end_comes_though_no_lease_can_be_revoked(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "CLOSE_LEASES_S", 0.05)
    store = await open_fake(fake)
    grants = [pb.LeaseGrantResponse(ID=number, TTL=60) for number in (3, 4)]
    fake.on(LEASE_GRANT, answers(*grants))
    held = Held(pb.LeaseRevokeResponse())
    fake.on(LEASE_REVOKE, held)
    leases = [await store.grant_lease(60) for _ in grants]
    async with asyncio.timeout(WITHIN_S):
        await store.close()
    assert not any(lease.valid for lease in leases)


async def test_a_lease_that_etcd_refuses_to_revoke_does_not_keep_the_store_from_closing(
    fake: FakeEtcd,
) -> None:
    store = await open_fake(fake)
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    denied = Refusal(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
    fake.on(LEASE_REVOKE, answers(denied))
    lease = await store.grant_lease(60)
    async with asyncio.timeout(WITHIN_S):
        await store.close()
    assert fake.calls[-1] == "LeaseRevoke"
    assert not lease.valid


async def test_a_lease_granted_while_the_store_is_closed_is_no_lease(fake: FakeEtcd) -> None:
    store = await open_fake(fake)
    held = Held(pb.LeaseGrantResponse(ID=3, TTL=60))
    fake.on(LEASE_GRANT, held)
    # Keeps the store from closing until the grant is answered.
    writing = Held(txn(succeeded=True, revision=9))
    fake.on(TXN, writing)
    write = await under_way(writing, store.put("/a", b""))
    grant = await under_way(held, store.grant_lease(60))
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    held.answered.set()
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(StoreClosed):
            await grant
        writing.answered.set()
        await write
        await closing


async def test_a_lease_outlives_its_store_in_name_only(fake: FakeEtcd) -> None:
    store = await open_fake(fake)
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    lease = await store.grant_lease(60)
    await store.close()
    calls: list[Callable[[], Awaitable[None]]] = [
        lease.keep_alive,
        lease.revoke,
        lambda: store.revoke_lease(3),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            await call()
    assert not lease.valid


# -- nothing is left


async def test_a_closed_store_leaves_no_task_and_no_call(fake: FakeEtcd) -> None:
    before = asyncio.all_tasks()
    store: EtcdStore = await open_fake(fake)
    watches = [store.watch(f"/{number}") for number in range(3)]
    for _ in watches:
        await created(fake)
    held = Held(pb.RangeResponse(header=head(7)))
    fake.on(RANGE, held)
    reads = [await under_way(held, store.get(f"/{number}")) for number in range(9)]
    async with asyncio.timeout(WITHIN_S):
        await store.close()
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(each, StoreClosed | MetadataUnavailable) for each in outcomes)
    left = {
        each.get_name() for each in asyncio.all_tasks() - before if "metadata" in each.get_name()
    }
    assert left == set()
    assert len(store._tasks) == 0
    assert len(store._watches) == 0
