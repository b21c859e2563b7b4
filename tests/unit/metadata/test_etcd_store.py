"""The store's requests to etcd, and its handling of refused tokens, leases and revisions."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.support.fake_etcd import FakeEtcd, Refusal
from tests.unit.metadata.etcd_rig import (
    LOST,
    SOON_S,
    WITHIN_S,
    answers,
    head,
    in_a_hurry,
    open_fake,
    txn,
)

from magnetar.metadata.etcd import watch_stream as watching
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import AUTHENTICATE, LEASE_GRANT, LEASE_REVOKE, RANGE, TXN
from magnetar.metadata.etcd.errors import MetadataRefused, MetadataWentBack
from magnetar.metadata.etcd.leases import EtcdLease
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.store import (
    BadRevision,
    Check,
    Delete,
    LeaseLost,
    MetadataUnavailable,
    Operation,
    Put,
    Watch,
)

USER: dict[str, Any] = dict.fromkeys(("username", "password"), "u")
NO_TOKEN = Refusal(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
NO_LEASE = Refusal(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")


async def creation(fake: FakeEtcd) -> pb.WatchCreateRequest:
    async with asyncio.timeout(WITHIN_S):
        while True:
            request = await fake.from_watches.get()
            if request.HasField("create_request"):
                return request.create_request


async def stuck(request: Any) -> Any:
    await asyncio.Event().wait()


def tokens(fake: FakeEtcd, *rows: Any) -> None:
    fake.on(AUTHENTICATE, answers(*rows))


def token(name: str) -> pb.AuthenticateResponse:
    return pb.AuthenticateResponse(token=name)


# -- revisions


async def test_all_pages_of_a_list_are_of_the_first_ones_revision(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    asked = []

    async def ranged(request: pb.RangeRequest) -> pb.RangeResponse:
        asked.append((request.key, request.range_end, request.revision))
        kvs = [pb.KeyValue(key=b"/r/k%d" % len(asked), mod_revision=3)]
        return pb.RangeResponse(header=head(8 + len(asked)), kvs=kvs, more=len(asked) < 3)

    fake.on(RANGE, ranged)
    assert [record.key for record in await store.list("/")] == ["/k1", "/k2", "/k3"]
    assert asked == [(b"/r/", b"/r0", 0), (b"/r/k1\0", b"/r0", 9), (b"/r/k2\0", b"/r0", 9)]


@pytest.mark.parametrize("back", [1, 2, 9])
async def test_a_read_that_is_older_than_what_is_known_is_never_believed(
    fake: FakeEtcd, store: EtcdStore, back: int
) -> None:
    fake.on(TXN, answers(txn(succeeded=True, revision=7 + back)))
    await store.put("/a", b"")
    for reading in (store.get("/a"), store.list("/"), store.revision()):
        with pytest.raises(MetadataWentBack, match=f"from revision {7 + back} to 7"):
            await reading


@pytest.mark.parametrize("actual", [0, 3, 9])
async def test_the_operation_that_does_not_fit_is_named_with_the_revision_that_is_there(
    fake: FakeEtcd, store: EtcdStore, actual: int
) -> None:
    answer = pb.TxnResponse(header=head(20), succeeded=False)
    for revision in (4, actual, 6):
        kvs = answer.responses.add().response_range.kvs
        if revision:
            kvs.add(mod_revision=revision)
    fake.on(TXN, answers(answer))
    operations: list[Operation] = [
        Put("/x", b""),
        Put("/a", b"", 4),
        Check("/b", 5),
        Delete("/c", 6),
    ]
    with pytest.raises(BadRevision) as failure:
        await store.transact(operations)
    assert (failure.value.key, failure.value.actual) == ("/b", actual)


async def test_a_watch_from_now_begins_behind_all_that_this_process_has_heard_of(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    watches = []

    async def begins_at(revision: int) -> None:
        watches.append(store.watch("/"))
        assert (await creation(fake)).start_revision == revision

    await begins_at(8)
    fake.on(TXN, answers(txn(succeeded=True, revision=11)))
    await store.put("/a", b"")
    await begins_at(12)
    fake.on(TXN, answers(txn(succeeded=False, revision=20, actual=15)))
    with pytest.raises(BadRevision):
        await store.put("/a", b"", expected=11)
    await begins_at(21)
    await fake.to_watches.put(pb.WatchResponse(watch_id=1, header=head(30)))
    while store._client.revision < 30:  # noqa: ASYNC110 - the store tells nobody of progress
        await asyncio.sleep(0.001)
    await begins_at(31)


async def test_a_watch_that_rests_continues_once_half_of_what_it_holds_is_read(
    fake: FakeEtcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_EVENTS_MAX", 4)
    watch = store.watch("/full")
    request = await creation(fake)
    response = pb.WatchResponse(watch_id=request.watch_id)
    for revision in range(8, 14):
        response.events.add(kv=pb.KeyValue(key=b"/r/full/a", mod_revision=revision))
    await fake.to_watches.put(response)
    opened: list[Watch] = []
    for read, asks in ((1, False), (1, False), (1, True)):
        async with asyncio.timeout(WITHIN_S):
            for _ in range(read):
                await anext(watch)
        # Requests go out in their order: what the watch asks for comes before this one.
        opened.append(store.watch(f"/{len(opened)}"))
        found = await creation(fake)
        if asks:
            assert (found.key, found.start_revision) == (b"/r/full", 12)
            found = await creation(fake)
        assert found.key == b"/r/%d" % (len(opened) - 1)


# -- tokens


async def test_a_refused_token_is_replaced_once_and_a_second_refusal_is_final(
    fake: FakeEtcd,
) -> None:
    tokens(fake, token("a"), token("b"), token("c"))
    store = await open_fake(fake, **USER)
    fake.calls.clear()
    # Nothing was executed, so even a write that must not be repeated is sent again.
    fake.on(TXN, answers(NO_TOKEN, txn(succeeded=True, revision=9)))
    assert await store.put("/a", b"") == 9
    assert fake.calls == ["Txn", "Authenticate", "Txn"]
    fake.on(TXN, answers(NO_TOKEN, NO_TOKEN))
    with pytest.raises(MetadataRefused, match="refuses new tokens"):
        await store.put("/a", b"")
    await store.close()


async def test_a_token_that_replaced_the_refused_one_is_kept(fake: FakeEtcd) -> None:
    """Calls that went out with the old one are refused after it was replaced."""
    tokens(fake, token("a"), token("b"))
    store = await open_fake(fake, **USER)
    late = asyncio.Event()
    begun = asyncio.Event()
    refusals = [None, late]

    async def refusing(request: Any) -> pb.TxnResponse:
        if refusals:
            waits = refusals.pop()
            if waits is not None:
                begun.set()
                await waits.wait()
            raise NO_TOKEN
        return txn(succeeded=True, revision=9)

    fake.on(TXN, refusing)
    second = asyncio.ensure_future(store.put("/b", b""))
    await asyncio.wait_for(begun.wait(), WITHIN_S)
    assert await store.put("/a", b"") == 9
    late.set()
    assert await second == 9
    assert fake.calls.count("Authenticate") == 2
    await store.close()


async def test_a_missing_answer_to_the_login_leaves_no_write_in_doubt(fake: FakeEtcd) -> None:
    tokens(fake, token("a"), LOST, token("b"))
    store = await open_fake(fake, **USER)
    fake.on(TXN, answers(NO_TOKEN, txn(succeeded=True, revision=9)))
    assert await store.put("/a", b"") == 9
    await store.close()
    sent = [given.get("token") for name, given in fake.headers if name != "Authenticate"]
    assert set(sent) == {"a", "b"}, "nothing goes out without a token"


async def test_a_denied_watch_logs_in_again_and_a_second_denial_in_a_row_is_final(
    fake: FakeEtcd,
) -> None:
    tokens(fake, *(token(name) for name in "abcd"))
    store = await open_fake(fake, **USER)
    watch = store.watch("/")

    async def denied() -> None:
        request = await creation(fake)
        assert request.start_revision == 8
        response = pb.WatchResponse(watch_id=request.watch_id, created=True, canceled=True)
        response.cancel_reason = "etcdserver: permission denied"
        await fake.to_watches.put(response)

    await denied()
    # A success in between resets the count.
    request = await creation(fake)
    await fake.to_watches.put(pb.WatchResponse(watch_id=request.watch_id, created=True))
    await fake.to_watches.put(None)
    for _ in range(2):
        await denied()
    with pytest.raises(MetadataRefused, match="permission denied"):
        async with asyncio.timeout(WITHIN_S):
            await anext(watch)
    assert fake.calls.count("Authenticate") == 3
    await store.close()


# -- deadlines


async def test_a_try_lasts_no_longer_than_what_is_left_of_its_call(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    client = store._client
    client.settings = replace(client.settings, operation_timeout_s=SOON_S)
    fake.on(RANGE, stuck)
    with pytest.raises(MetadataUnavailable):
        async with asyncio.timeout(WITHIN_S):
            await store.get("/a")


async def test_a_renewal_is_given_up_with_its_lease(fake: FakeEtcd, store: EtcdStore) -> None:
    """Its caller has to learn in time that there is no lease any more."""
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    lease = await store.grant_lease(60)
    assert isinstance(lease, EtcdLease)
    lease.ttl_s = SOON_S
    answered = fake.handlers[RANGE.path]
    fake.on(RANGE, stuck)
    with pytest.raises(MetadataUnavailable):
        async with asyncio.timeout(WITHIN_S):
            await lease.keep_alive()
    fake.on(RANGE, answered)


# -- leases


async def test_a_lease_whose_revocation_is_not_answered_is_lost_and_revoked_later(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    patient = store._client.settings
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    lease = await store.grant_lease(60)
    fake.on(LEASE_REVOKE, stuck)
    in_a_hurry(store)
    with pytest.raises(MetadataUnavailable):
        await lease.revoke()
    assert not lease.valid
    store._client.settings = patient
    revoked = []

    async def revoke(request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        revoked.append(request.ID)
        return pb.LeaseRevokeResponse()

    fake.on(LEASE_REVOKE, revoke)
    for _ in range(2):
        await lease.revoke()
    assert revoked == [3]


async def test_the_end_of_a_store_revokes_the_leases_that_it_holds_still(fake: FakeEtcd) -> None:
    store = await open_fake(fake)
    grants = [pb.LeaseGrantResponse(ID=number, TTL=60) for number in (3, 4, 5)]
    fake.on(LEASE_GRANT, answers(*grants))
    revoked = []

    async def revoke(request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        revoked.append(request.ID)
        return pb.LeaseRevokeResponse()

    fake.on(LEASE_REVOKE, revoke)
    held = [await store.grant_lease(60) for _ in grants]
    await held[0].revoke()
    await store.close()
    assert sorted(revoked) == [3, 4, 5]
    assert not any(lease.valid for lease in held)


async def test_a_write_that_finds_its_lease_gone_tells_the_leases_holder_at_once(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    grants = [pb.LeaseGrantResponse(ID=number, TTL=60) for number in (3, 4)]
    fake.on(LEASE_GRANT, answers(*grants))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse(), pb.LeaseRevokeResponse()))
    first, second = [await store.grant_lease(60) for _ in grants]
    # Of two, etcd does not say which.
    fake.on(TXN, answers(NO_LEASE, NO_LEASE))
    with pytest.raises(LeaseLost):
        await store.transact([Put("/a", b"", None, 3), Put("/b", b"", None, 4)])
    assert first.valid
    assert second.valid
    with pytest.raises(LeaseLost):
        await store.put("/a", b"", lease_id=3)
    assert not first.valid
    assert second.valid
    fake.calls.clear()
    for none in (0, -1):
        with pytest.raises(LeaseLost):
            await store.put("/a", b"", lease_id=none)
    assert fake.calls == []
