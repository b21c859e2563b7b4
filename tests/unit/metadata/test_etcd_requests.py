"""Requests to etcd: linearizable reads, writes that happen once, and their members."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.support.fake_etcd import FakeEtcd, Refusal
from tests.unit.metadata.etcd_rig import LOST, WITHIN_S, answers, head, open_fake, txn

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import AUTHENTICATE, LEASE_GRANT, LEASE_REVOKE, RANGE, TXN
from magnetar.metadata.etcd.errors import MetadataRefused, MetadataWentBack
from magnetar.metadata.etcd.reads import ALONE_MAX
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.etcd.store import EtcdStore, open_etcd
from magnetar.metadata.store import (
    ABSENT,
    Check,
    Delete,
    LeaseLost,
    MetadataUnavailable,
    Operation,
    Put,
)


class Reads:
    """Answers range requests, single keys only while `answering` is set; records the requests."""

    def __init__(self, fake: FakeEtcd) -> None:
        self.asked: list[pb.RangeRequest] = []
        self.under_way = asyncio.Semaphore(0)
        self.answering = asyncio.Event()
        self.revision = 7
        self.pages = 0
        """Of a list, each at a newer revision of the store."""
        fake.on(RANGE, self.range)
        fake.on(TXN, self.transaction)

    def _found(self, request: pb.RangeRequest) -> pb.RangeResponse:
        self.asked.append(request)
        answer = pb.RangeResponse()
        if request.limit > 1:
            self.pages -= 1
            self.revision += 1
            answer.more = self.pages > 0
        answer.kvs.add(key=request.key, mod_revision=3)
        return answer

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        self.under_way.release()
        await self.answering.wait()
        answer = self._found(request)
        answer.header.revision = self.revision
        return answer

    async def transaction(self, request: pb.TxnRequest) -> pb.TxnResponse:
        assert not request.compare
        assert not request.failure
        answer = pb.TxnResponse(succeeded=True)
        for one in request.success:
            # The ranges in a transaction come without a header of their own.
            answer.responses.add().response_range.CopyFrom(self._found(one.request_range))
        answer.header.revision = self.revision
        return answer

    async def fill(self, store: EtcdStore) -> "list[asyncio.Task[Any]]":
        """As many reads under way as go out alone."""
        self.answering.clear()
        tasks = [asyncio.create_task(store.get("/alone")) for _ in range(ALONE_MAX)]
        async with asyncio.timeout(WITHIN_S):
            for _ in tasks:
                await self.under_way.acquire()
        return tasks


@pytest.fixture
async def reads(fake: FakeEtcd, store: EtcdStore) -> AsyncIterator[Reads]:
    reads = Reads(fake)
    yield reads
    reads.answering.set()


# -- reads


async def test_no_read_may_be_answered_by_a_member_that_is_behind(
    fake: FakeEtcd, store: EtcdStore, reads: Reads
) -> None:
    tasks = await reads.fill(store)
    tasks += [
        asyncio.create_task(call)
        for call in (store.list("/l"), store.children("/c/"), store.revision(), store.get("/g"))
    ]
    await asyncio.sleep(0)
    reads.answering.set()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*tasks)
    assert "Txn" in fake.calls, "some went out together"
    assert len(reads.asked) == len(tasks)
    for request in reads.asked:
        assert not request.serializable
        assert request.revision == 0


@pytest.mark.parametrize("together", [False, True])
async def test_the_pages_of_a_list_are_of_one_revision_however_its_first_page_was_read(
    store: EtcdStore, reads: Reads, together: bool
) -> None:
    tasks = await reads.fill(store) if together else []
    reads.pages = 3
    listing = asyncio.create_task(store.list("/l/"))
    other = asyncio.create_task(store.get("/g"))
    await asyncio.sleep(0)
    reads.answering.set()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(listing, other, *tasks)
    pages = [each for each in reads.asked if each.limit > 1]
    assert [each.revision for each in pages] == [0, 8, 8]


@pytest.mark.parametrize("together", [False, True])
async def test_a_read_may_be_older_than_what_was_written_after_it_was_sent(
    fake: FakeEtcd, store: EtcdStore, reads: Reads, together: bool
) -> None:
    """Only a revision known before the read was sent shows that etcd has gone back."""
    tasks = await reads.fill(store)
    if together:
        tasks += [asyncio.create_task(store.get(f"/t/{number}")) for number in range(2)]
        await asyncio.sleep(0)

        async def overtaken(request: pb.TxnRequest) -> pb.TxnResponse:
            store._client.note(head(20))
            return await reads.transaction(request)

        fake.on(TXN, overtaken)
    else:
        store._client.note(head(20))
    reads.answering.set()
    async with asyncio.timeout(WITHIN_S):
        assert all(await asyncio.gather(*tasks))
    assert store._client.revision == 20


async def test_reads_that_go_out_together_notice_that_etcd_went_back(
    store: EtcdStore, reads: Reads
) -> None:
    tasks = await reads.fill(store)
    tasks += [asyncio.create_task(store.get(f"/t/{number}")) for number in range(2)]
    await asyncio.sleep(0)
    reads.revision = 9
    reads.answering.set()
    async with asyncio.timeout(WITHIN_S):
        assert all(await asyncio.gather(*tasks))
    tasks = await reads.fill(store)
    tasks += [asyncio.create_task(store.get(f"/t/{number}")) for number in range(2)]
    await asyncio.sleep(0)
    reads.revision = 8
    reads.answering.set()
    async with asyncio.timeout(WITHIN_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, MetadataWentBack) for outcome in outcomes), outcomes


async def test_reads_that_go_out_together_are_repeated_as_single_ones_are(
    fake: FakeEtcd, store: EtcdStore, reads: Reads
) -> None:
    tasks = await reads.fill(store)
    tasks += [asyncio.create_task(store.get(f"/t/{number}")) for number in range(3)]
    await asyncio.sleep(0)
    failures = [LOST, LOST]

    async def lost_first(request: pb.TxnRequest) -> pb.TxnResponse:
        if failures:
            raise failures.pop()
        return await reads.transaction(request)

    fake.on(TXN, lost_first)
    reads.answering.set()
    async with asyncio.timeout(WITHIN_S):
        records = await asyncio.gather(*tasks)
    assert [record.key for record in records[-3:]] == ["/t/0", "/t/1", "/t/2"]
    assert fake.calls.count("Txn") == 3


async def test_children_are_names_alone_and_a_folder_is_left_at_once(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    asked = []

    async def ranged(request: pb.RangeRequest) -> pb.RangeResponse:
        asked.append((request.key, request.range_end, request.keys_only))
        keys = iter((b"/r/a/b/c/d", b"/r/a/e", b"/r/a/f/g"))
        key = next(each for each in keys if each >= request.key)
        answer = pb.RangeResponse(header=head(9), more=key != b"/r/a/f/g")
        answer.kvs.add(key=key)
        return answer

    fake.on(RANGE, ranged)
    assert await store.children("/a/") == ["b", "e", "f"]
    # Values may be large: of a thousand children none is needed.
    assert asked == [
        (b"/r/a/", b"/r/a0", True),
        (b"/r/a/b0", b"/r/a0", True),
        (b"/r/a/e\0", b"/r/a0", True),
    ]


async def test_a_record_that_is_too_large_for_an_answer_is_an_error(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    limits = []

    async def too_large(request: pb.RangeRequest) -> pb.RangeResponse:
        limits.append(request.limit)
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9)")

    fake.on(RANGE, too_large)
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(MetadataError, match="larger than max"):
            await store.list("/")
    assert limits == [1000, 250, 62, 15, 3, 1]


async def test_only_a_member_with_a_leader_is_to_serve_a_call(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    """One that is cut off from the others refuses at once instead of holding the call."""

    async def keep_alive(request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        return pb.LeaseKeepAliveResponse(ID=request.ID, TTL=60)

    fake.on(TXN, answers(txn(succeeded=True, revision=7)))
    fake.on(LEASE_GRANT, answers(pb.LeaseGrantResponse(ID=3, TTL=60)))
    fake.on(LEASE_REVOKE, answers(pb.LeaseRevokeResponse()))
    fake.keep_alive = keep_alive
    await store.put("/a", b"")
    lease = await store.grant_lease(60)
    await lease.keep_alive()
    watch = store.watch("/")
    await asyncio.wait_for(fake.from_watches.get(), WITHIN_S)
    await lease.revoke()
    watch.close()
    assert {name for name, _ in fake.headers} == {
        "Range", "Txn", "LeaseGrant", "LeaseKeepAlive", "LeaseRevoke", "Watch",
    }  # fmt: skip
    assert all(given.get("hasleader") == "true" for _, given in fake.headers)


# -- writes


@pytest.mark.parametrize(
    "operations",
    [
        [Check("/c", 5), Put("/a", b"")],
        [Check("/c", 5), Put("/a", b"", ABSENT)],
        [Check("/c", 5), Delete("/a")],
    ],
)
async def test_a_check_does_not_make_a_write_safe_to_repeat(
    fake: FakeEtcd, store: EtcdStore, operations: list[Operation]
) -> None:
    """What it checks is as it was also after the write: the second would happen as well."""
    fake.on(TXN, answers(LOST, txn(succeeded=False)))
    with pytest.raises(MetadataUnavailable, match="may or may not have happened"):
        await store.transact(operations)
    assert fake.calls == ["Txn"]


async def test_one_expected_revision_makes_a_whole_transaction_safe_to_repeat(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    done = pb.TxnResponse(header=head(9), succeeded=True)
    done.responses.add().response_put.SetInParent()
    done.responses.add().response_delete_range.deleted = 1
    fake.on(TXN, answers(LOST, done))
    assert await store.transact([Put("/a", b""), Delete("/b", 5)]) == 9


async def test_a_repeated_write_ends_by_the_deadline_of_its_call(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    async def lost(request: pb.TxnRequest) -> pb.TxnResponse:
        raise LOST

    fake.on(TXN, lost)
    store._client.deadline = (  # type: ignore[method-assign]
        lambda: asyncio.get_running_loop().time() + 0.2
    )
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(MetadataUnavailable, match="may or may not"):
            await store.put("/a", b"", expected=5)


async def test_all_that_a_transaction_expects_is_compared_and_all_it_does_is_in_one_request(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    sent: list[pb.TxnRequest] = []

    async def transact(request: pb.TxnRequest) -> pb.TxnResponse:
        sent.append(request)
        answer = pb.TxnResponse(header=head(9), succeeded=True)
        for one in request.success:
            if one.HasField("request_put"):
                answer.responses.add().response_put.SetInParent()
            else:
                answer.responses.add().response_delete_range.deleted = 0
        return answer

    fake.on(TXN, transact)
    await store.transact(
        [
            Put("/a", b"A", 4, 77),
            Put("/b", b"B"),
            Delete("/c", ABSENT),
            Delete("/d"),
            Check("/e", 5),
        ]
    )
    (request,) = sent
    assert [
        (each.key, each.mod_revision, each.result, each.target) for each in request.compare
    ] == [
        (key, revision, pb.Compare.EQUAL, pb.Compare.MOD)
        for key, revision in ((b"/r/a", 4), (b"/r/c", 0), (b"/r/e", 5))
    ]
    # Where one does not hold, all that were expected are read.
    reads = [each.request_range for each in request.failure]
    assert [(each.key, each.keys_only) for each in reads] == [
        (b"/r/a", True),
        (b"/r/c", True),
        (b"/r/e", True),
    ]
    puts = [each.request_put for each in request.success if each.HasField("request_put")]
    assert [(each.key, each.value, each.lease) for each in puts] == [
        (b"/r/a", b"A", 77),
        (b"/r/b", b"B", 0),
    ]
    deleted = [each.request_delete_range for each in request.success[2:]]
    assert [(each.key, each.range_end) for each in deleted] == [(b"/r/c", b""), (b"/r/d", b"")]


async def test_a_refusal_that_fits_no_expectation_is_no_success(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    fake.on(TXN, answers(txn(succeeded=False, actual=5)))
    with pytest.raises(MetadataError, match="all of whose compares hold"):
        await store.put("/a", b"", expected=5)


@pytest.mark.parametrize("there", [False, True])
async def test_a_deletion_says_whether_the_key_was_there(
    fake: FakeEtcd, store: EtcdStore, there: bool
) -> None:
    answer = pb.TxnResponse(header=head(9), succeeded=True)
    answer.responses.add().response_delete_range.deleted = int(there)
    fake.on(TXN, answers(answer))
    assert await store.delete("/a") is there


async def test_a_revision_that_is_none_of_a_lease_is_not_sent(
    fake: FakeEtcd, store: EtcdStore
) -> None:
    """To etcd lease 0 is none at all: the key would outlive its holder."""
    for operations in ([Put("/a", b"", None, 0)], [Put("/b", b""), Put("/a", b"", None, -7)]):
        with pytest.raises(LeaseLost):
            await store.transact(operations)
    assert fake.calls == []


# -- users


async def test_an_etcd_without_authentication_lets_a_user_in(fake: FakeEtcd) -> None:
    fake.on(
        AUTHENTICATE,
        answers(
            Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: authentication is not enabled"
            )
        ),
    )
    store = await open_fake(fake, username="u", password="p")  # noqa: S106
    assert await store.revision() == 7
    assert fake.calls.count("Authenticate") == 1
    assert all("token" not in given for _, given in fake.headers)
    await store.close()


async def test_authentication_that_is_enabled_later_is_noticed(fake: FakeEtcd) -> None:
    not_enabled = Refusal(
        grpc.StatusCode.FAILED_PRECONDITION, "etcdserver: authentication is not enabled"
    )
    fake.on(AUTHENTICATE, answers(not_enabled, pb.AuthenticateResponse(token="t")))  # noqa: S106
    store = await open_fake(fake, username="u", password="p")  # noqa: S106
    asks = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")
    found = fake.handlers[RANGE.path]
    fake.on(RANGE, answers(asks, pb.RangeResponse(header=head(9))))
    assert await store.revision() == 9
    assert fake.headers[-1] == ("Range", {**fake.headers[-1][1], "token": "t"})
    fake.on(RANGE, found)
    await store.close()


async def test_a_wrong_password_is_final_and_leaves_no_connection(fake: FakeEtcd) -> None:
    wrong = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: authentication failed")
    fake.on(AUTHENTICATE, answers(wrong))
    with pytest.raises(MetadataRefused, match=r"user u: .*authentication failed"):
        await open_fake(fake, username="u", password="p")  # noqa: S106
    assert fake.calls == ["Authenticate"]


async def test_every_call_of_a_user_carries_its_token(fake: FakeEtcd) -> None:
    fake.on(AUTHENTICATE, answers(pb.AuthenticateResponse(token="t")))  # noqa: S106
    store = await open_fake(fake, username="u", password="p")  # noqa: S106
    fake.on(TXN, answers(txn(succeeded=True)))
    await store.put("/a", b"")
    watch = store.watch("/")
    await asyncio.wait_for(fake.from_watches.get(), WITHIN_S)
    watch.close()
    await store.close()
    given = {name: headers.get("token") for name, headers in fake.headers}
    assert given == {"Authenticate": None, "Range": "t", "Txn": "t", "Watch": "t"}


async def test_a_store_that_finds_no_etcd_says_so_and_leaves_no_connection() -> None:
    fake = FakeEtcd()
    await fake.start()
    await fake.stop()
    settings = EtcdSettings(
        endpoints=[f"127.0.0.1:{fake.port}"], attempt_timeout_s=0.1, operation_timeout_s=0.2
    )
    before = asyncio.all_tasks()
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(MetadataUnavailable, match=f"at 127.0.0.1:{fake.port}"):
            await open_etcd(settings, SystemClock())
    assert asyncio.all_tasks() <= before
