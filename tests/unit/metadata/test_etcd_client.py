"""What the store makes of etcd's rarer answers; a fake etcd gives them, call by call."""

import asyncio
from typing import Any

import grpc
import pytest
from tests.support.fake_etcd import FakeEtcd, Refusal
from tests.unit.metadata.etcd_rig import (
    LOST,
    UNAVAILABLE,
    WITHIN_S,
    answers,
    head,
    open_fake,
    txn,
)

from magnetar.core.errors import MetadataError
from magnetar.metadata.etcd import watch_stream as watching
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import LEASE_GRANT, LEASE_REVOKE, RANGE, TXN
from magnetar.metadata.etcd.errors import MetadataFull, MetadataRefused, MetadataWentBack
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.store import (
    BadRevision,
    Check,
    Compacted,
    Delete,
    InvalidOperation,
    MetadataUnavailable,
    Operation,
    Put,
)


async def test_a_create_whose_answer_is_missing_is_not_repeated(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    fake.on(TXN, answers(LOST))
    for operation in (Put("/a", b"", 0), Put("/a", b""), Delete("/a")):
        fake.on(TXN, answers(LOST))
        with pytest.raises(MetadataUnavailable, match="may or may not have happened"):
            await store.transact([operation])
    assert fake.calls.count("Txn") == 3


@pytest.mark.parametrize("operation", [Put("/a", b"", 5), Delete("/a", 5)])
async def test_a_replacement_is_repeated_and_found_done_or_in_doubt(
    fake: FakeEtcd, store: EtcdStore, operation: Operation
) -> None:
    fake.on(TXN, answers(LOST, LOST, txn(succeeded=True, revision=9)))
    if isinstance(operation, Put):
        assert await store.transact([operation]) == 9
    fake.on(TXN, answers(LOST, txn(succeeded=False, actual=8)))
    with pytest.raises(MetadataUnavailable):
        await store.transact([operation])
    fake.on(TXN, answers(txn(succeeded=False, actual=8)))
    with pytest.raises(BadRevision) as failure:
        await store.transact([operation])
    assert failure.value.actual == 8


async def test_checks_alone_are_read_again(fake: FakeEtcd, store: EtcdStore) -> None:
    fake.on(TXN, answers(LOST, pb.TxnResponse(header=head(9), succeeded=True)))
    assert await store.transact([Check("/a", 5)]) == 9


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(UNAVAILABLE, "etcdserver: no leader"),
        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
    ],
)
async def test_what_was_surely_not_done_is_repeated(
    fake: FakeEtcd, store: EtcdStore, refusal: Refusal
) -> None:
    fake.on(TXN, answers(refusal, refusal, txn(succeeded=True, revision=9)))
    assert await store.put("/a", b"") == 9


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", MetadataFull),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", InvalidOperation),
        ("PERMISSION_DENIED", "etcdserver: permission denied", MetadataRefused),
        ("UNIMPLEMENTED", "unknown service", MetadataError),
    ],
)
async def test_what_is_final_is_raised_at_once(
    fake: FakeEtcd, store: EtcdStore, code: str, text: str, error: type[Exception]
) -> None:
    fake.on(TXN, answers(Refusal(grpc.StatusCode[code], text)))
    with pytest.raises(error):
        await store.put("/a", b"")
    assert fake.calls == ["Txn"]


async def test_a_write_goes_to_the_member_that_answers() -> None:
    fakes = FakeEtcd(), FakeEtcd()
    for fake in fakes:
        await fake.start()
        fake.on(TXN, answers(txn(succeeded=True, revision=8), txn(succeeded=True, revision=9)))
    store = await open_fake(*fakes)
    assert await store.put("/a", b"") == 8
    used, other = sorted(fakes, key=lambda fake: "Txn" not in fake.calls)
    await used.stop()
    # Until it is noticed, a write is in doubt.
    while store._client.endpoints.current.connected:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    # The outcome is certain: the request was not sent before a member answered.
    assert await store.put("/b", b"") == 8
    assert "Txn" in other.calls
    await store.close()
    await other.stop()


async def test_an_answer_that_is_too_large_is_requested_in_parts(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    limits = []

    async def ranged(request: pb.RangeRequest) -> pb.RangeResponse:
        limits.append(request.limit)
        if request.limit > 100:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max"
            )
        kvs = [pb.KeyValue(key=b"/r/a", mod_revision=3)]
        return pb.RangeResponse(header=head(7), kvs=kvs, more=len(limits) < 4)

    fake.on(RANGE, ranged)
    assert len(await store.list("/")) == 2
    assert limits == [1000, 250, 62, 62]


async def test_a_list_overtaken_by_compaction_begins_again(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    kvs = [pb.KeyValue(key=b"/r/a", mod_revision=3)]
    first = pb.RangeResponse(header=head(9), kvs=kvs, more=True)
    last = pb.RangeResponse(header=head(9), kvs=kvs)
    gone = Refusal(
        grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"
    )
    fake.on(RANGE, answers(first, gone, last))
    assert [record.key for record in await store.list("/")] == ["/a"]
    fake.on(RANGE, answers(*[first, gone] * 3))
    with pytest.raises(MetadataUnavailable, match="compaction"):
        await store.list("/")


async def test_an_etcd_that_went_back_is_believed_no_more(fake: FakeEtcd, store: EtcdStore) -> None:
    fake.on(TXN, answers(txn(succeeded=True, revision=9)))
    assert await store.put("/a", b"") == 9
    # The fake reads at revision 7 still.
    with pytest.raises(MetadataWentBack, match="from revision 9 to 7"):
        await store.get("/a")
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    lease = await store.grant_lease(60)
    with pytest.raises(MetadataWentBack):
        await lease.keep_alive()


# Watches.


def events(*revisions: int, watch_id: int = 1, fragment: bool = False) -> pb.WatchResponse:
    response = pb.WatchResponse(watch_id=watch_id, fragment=fragment)
    for number, revision in enumerate(revisions):
        response.events.add(kv=pb.KeyValue(key=f"/r/{number}".encode(), mod_revision=revision))
    return response


async def creation(fake: FakeEtcd) -> pb.WatchCreateRequest:
    async with asyncio.timeout(WITHIN_S):
        while True:
            request = await fake.from_watches.get()
            if request.HasField("create_request"):
                return request.create_request


async def created(fake: FakeEtcd) -> pb.WatchCreateRequest:
    request = await creation(fake)
    # Its header says nothing of what the watch has seen.
    response = pb.WatchResponse(watch_id=request.watch_id, created=True, header=head(100))
    await fake.to_watches.put(response)
    return request


async def revisions(watch: Any, count: int) -> list[int]:
    async with asyncio.timeout(WITHIN_S):
        return [(await anext(watch)).record.revision for _ in range(count)]


async def test_a_fragment_is_no_whole_revision_and_a_break_repeats_none(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    watch = store.watch("/")
    assert (await created(fake)).start_revision == 8
    await fake.to_watches.put(events(8, 9, 9, fragment=True))
    assert await revisions(watch, 1) == [8]
    await fake.to_watches.put(events(9, 10, fragment=True))
    assert await revisions(watch, 3) == [9, 9, 9]
    await fake.to_watches.put(None)
    again = await created(fake)
    assert again.start_revision == 10
    await fake.to_watches.put(events(10, 10, 11, watch_id=again.watch_id))
    assert await revisions(watch, 3) == [10, 10, 11]
    assert fake.streams_opened == 2


async def test_progress_moves_an_idle_watch_but_not_that_of_the_stream(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    watch = store.watch("/")
    assert await created(fake)
    await fake.to_watches.put(pb.WatchResponse(watch_id=-1, header=head(50)))
    await fake.to_watches.put(pb.WatchResponse(watch_id=1, header=head(20)))
    await fake.to_watches.put(None)
    again = await created(fake)
    assert again.start_revision == 21
    watch.close()


async def test_a_refused_creation_may_come_without_its_id(fake: FakeEtcd, store: EtcdStore) -> None:
    first, second = store.watch("/a"), store.watch("/b")
    await creation(fake)
    await creation(fake)
    refused = pb.WatchResponse(
        watch_id=-1, created=True, canceled=True, cancel_reason="etcdserver: permission denied"
    )
    await fake.to_watches.put(refused)
    await fake.to_watches.put(pb.WatchResponse(watch_id=2, created=True))
    await fake.to_watches.put(events(8, watch_id=2))
    assert await revisions(second, 1) == [8]
    with pytest.raises(MetadataError, match="permission denied"):
        await revisions(first, 1)


async def test_a_compacted_watch_names_where_to_continue(fake: FakeEtcd, store: EtcdStore) -> None:
    watch = store.watch("/", from_revision=3)
    await created(fake)
    await fake.to_watches.put(pb.WatchResponse(watch_id=1, canceled=True, compact_revision=6))
    with pytest.raises(Compacted, match="watch from 6"):
        await revisions(watch, 1)


async def test_a_full_watch_rests_and_continues_where_it_was(
    fake: FakeEtcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_EVENTS_MAX", 4)
    watch, other = store.watch("/"), store.watch("/")
    await created(fake)
    await created(fake)
    await fake.to_watches.put(events(8, 9, 10, 11, 11, 12, 13))
    await fake.to_watches.put(events(8, watch_id=2))
    assert await revisions(other, 1) == [8]
    cancel = await asyncio.wait_for(fake.from_watches.get(), WITHIN_S)
    assert cancel.cancel_request.watch_id == 1
    # What was on its way still is not taken twice.
    await fake.to_watches.put(events(12, 13))
    assert await revisions(watch, 5) == [8, 9, 10, 11, 11]
    again = await created(fake)
    assert again.start_revision == 12
    await fake.to_watches.put(events(12, 13, watch_id=again.watch_id))
    assert await revisions(watch, 2) == [12, 13]


async def test_a_watch_without_references_is_cancelled(
    fake: FakeEtcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SWEEP_S", 0.02)
    store.watch("/gone")
    kept = store.watch("/kept")
    assert (await created(fake)).key == b"/r/kept", "it went before it was asked for"
    dropped = store.watch("/gone")
    request = await created(fake)
    assert request.key == b"/r/gone"
    del dropped
    cancel = await asyncio.wait_for(fake.from_watches.get(), WITHIN_S)
    assert cancel.cancel_request.watch_id == request.watch_id
    kept.close()


# Cancellation, and the end.


async def test_a_cancelled_call_leaves_the_store_usable(fake: FakeEtcd, store: EtcdStore) -> None:
    held = asyncio.Event()

    async def hang(request: Any) -> Any:
        held.set()
        await asyncio.sleep(WITHIN_S)

    answered = fake.handlers[RANGE.path]
    for method, call in (
        (RANGE, lambda: store.get("/a")),
        (RANGE, lambda: store.list("/a")),
        (TXN, lambda: store.put("/a", b"")),
        (LEASE_GRANT, lambda: store.grant_lease(1)),
    ):
        held.clear()
        fake.on(method, hang)
        task = asyncio.ensure_future(call())
        await asyncio.wait_for(held.wait(), WITHIN_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.on(RANGE, answered)
    assert await store.revision() == 7


async def test_close_with_calls_under_way_ends_them_in_time(
    fake: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.metadata.etcd.store.CLOSE_WRITES_S", 0.1)
    store = await open_fake(fake)
    under_way = asyncio.Semaphore(0)

    async def hang(request: Any) -> Any:
        under_way.release()
        await asyncio.Event().wait()

    fake.on(RANGE, hang)
    fake.on(TXN, hang)
    calls = [
        asyncio.ensure_future(store.get("/a")),
        asyncio.ensure_future(store.put("/a", b"")),
        asyncio.ensure_future(store.put("/a", b"", expected=3)),
    ]
    async with asyncio.timeout(WITHIN_S):
        for _ in calls:
            await under_way.acquire()
        await store.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, MetadataError) for result in results), results
    assert isinstance(results[1], MetadataUnavailable)
