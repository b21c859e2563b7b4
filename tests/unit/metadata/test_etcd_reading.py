"""Reads of etcd that go out together: what each gets, and what failures make of them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.support.fake_etcd import FakeEtcd, Refusal

from magnetar.core.clock import SystemClock
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import RANGE, TXN
from magnetar.metadata.etcd.errors import MetadataRefused
from magnetar.metadata.etcd.reads import ALONE_MAX, TOGETHER_MAX
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.etcd.store import EtcdStore, open_etcd
from magnetar.metadata.store import MetadataUnavailable, Record, StoreClosed

ROOT = "/r"
WITHIN_S = 20.0
PATIENT_S = 60.0


def found(request: pb.RangeRequest) -> pb.RangeResponse:
    """Every key is there, with its own name as its value."""
    key = pb.KeyValue(key=request.key, value=request.key, mod_revision=3)
    return pb.RangeResponse(header=pb.ResponseHeader(revision=7), kvs=[key])


class Etcd:
    """Answers single reads while `answering` is set."""

    def __init__(self, fake: FakeEtcd) -> None:
        self.fake = fake
        self.answering = asyncio.Event()
        self.answering.set()
        self.begun = 0
        self.full = asyncio.Event()
        self.ranges: list[int] = []
        fake.on(RANGE, self.range)
        fake.on(TXN, self.transaction)

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        self.begun += 1
        if self.begun == ALONE_MAX:
            self.full.set()
        await self.answering.wait()
        return found(request)

    async def transaction(self, request: pb.TxnRequest) -> pb.TxnResponse:
        assert not request.compare
        self.ranges.append(len(request.success))
        answer = pb.TxnResponse(header=pb.ResponseHeader(revision=7), succeeded=True)
        for one in request.success:
            response = answer.responses.add().response_range
            response.kvs.extend(found(one.request_range).kvs)
        return answer


@pytest.fixture
async def etcd() -> AsyncIterator[Etcd]:
    fake = FakeEtcd()
    await fake.start()
    yield Etcd(fake)
    await fake.stop()


@pytest.fixture
async def store(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    settings = EtcdSettings(
        endpoints=[f"127.0.0.1:{etcd.fake.port}"],
        root=ROOT,
        attempt_timeout_s=PATIENT_S,
        operation_timeout_s=PATIENT_S,
    )
    store = await open_etcd(settings, SystemClock())
    yield store
    etcd.answering.set()
    await store.close()


async def gathered(etcd: Etcd, store: EtcdStore, count: int) -> "list[asyncio.Task[Record | None]]":
    """So many reads, of which the first are under way and not answered."""
    etcd.answering.clear()
    etcd.begun = 0
    etcd.full.clear()
    tasks = [asyncio.create_task(store.get(f"/k/{number}")) for number in range(count)]
    async with asyncio.timeout(WITHIN_S):
        await etcd.full.wait()
    return tasks


async def test_each_gets_its_own_answer_and_few_requests_are_sent(
    etcd: Etcd, store: EtcdStore
) -> None:
    tasks = await gathered(etcd, store, count := ALONE_MAX + TOGETHER_MAX + 10)
    etcd.answering.set()
    records = await asyncio.gather(*tasks)
    for number, record in enumerate(records):
        assert record == Record(f"/k/{number}", f"{ROOT}/k/{number}".encode(), 3)
    assert sorted(etcd.ranges) == [10, TOGETHER_MAX]  # in the order in which they arrive
    assert etcd.begun == ALONE_MAX
    assert count == ALONE_MAX + sum(etcd.ranges)


async def test_few_reads_go_out_at_once_and_alone(etcd: Etcd, store: EtcdStore) -> None:
    etcd.begun = 0
    await asyncio.gather(*(store.get(f"/k/{number}") for number in range(ALONE_MAX)))
    assert (etcd.begun, etcd.ranges) == (ALONE_MAX, [])


async def test_reads_that_go_out_together_have_the_time_of_the_one_that_was_asked_first(
    etcd: Etcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second lies between each two."""
    client = store._client
    call, deadline = client.call, client.deadline
    asked: list[float] = []
    given: list[float] = []

    def later() -> float:
        asked.append(deadline() + len(asked))
        return asked[-1]

    async def noted(method: Any, request: Any, **options: Any) -> Any:
        if method is TXN:
            given.append(options["deadline"])
        return await call(method, request, **options)

    monkeypatch.setattr(client, "deadline", later)
    monkeypatch.setattr(client, "call", noted)
    tasks = await gathered(etcd, store, ALONE_MAX + 3)
    etcd.answering.set()
    await asyncio.gather(*tasks)
    assert given == [asked[ALONE_MAX]]


async def test_an_answer_too_large_for_all_is_requested_one_by_one(
    etcd: Etcd, store: EtcdStore
) -> None:
    async def too_large(request: pb.TxnRequest) -> pb.TxnResponse:
        raise Refusal(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 8)"
        )

    etcd.fake.on(TXN, too_large)
    tasks = await gathered(etcd, store, ALONE_MAX + 3)
    etcd.answering.set()
    records = await asyncio.gather(*tasks)
    assert [record.key for record in records if record] == [f"/k/{n}" for n in range(len(tasks))]


async def test_one_that_is_refused_when_requested_alone_fails_as_etcd_says_and_no_other_does(
    etcd: Etcd, store: EtcdStore
) -> None:
    async def too_large(request: pb.TxnRequest) -> pb.TxnResponse:
        raise Refusal(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 8)"
        )

    refused = f"{ROOT}/k/{ALONE_MAX + 1}".encode()

    async def range_(request: pb.RangeRequest) -> pb.RangeResponse:
        if request.key == refused:
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
        return await etcd.range(request)

    etcd.fake.on(TXN, too_large)
    etcd.fake.on(RANGE, range_)
    tasks = await gathered(etcd, store, ALONE_MAX + 3)
    etcd.answering.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes.pop(ALONE_MAX + 1), MetadataRefused)
    assert all(isinstance(one, Record) for one in outcomes)


async def test_a_request_that_fails_fails_all_that_are_part_of_it_and_no_others(
    etcd: Etcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(request: pb.TxnRequest) -> pb.TxnResponse:
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "no leader")

    etcd.fake.on(TXN, away)
    tasks = await gathered(etcd, store, ALONE_MAX)
    with monkeypatch.context() as hurried:
        client = store._client
        hurried.setattr(client, "settings", replace(client.settings, operation_timeout_s=0.5))
        tasks += [asyncio.create_task(store.get(f"/l/{number}")) for number in range(5)]
        await asyncio.sleep(0)  # each has its deadline now
    etcd.answering.set()
    async with asyncio.timeout(WITHIN_S):  # by their own deadline, not by that of a new call
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, Record) for one in outcomes[:ALONE_MAX])
    assert all(isinstance(one, MetadataUnavailable) for one in outcomes[ALONE_MAX:])
    etcd.fake.on(TXN, etcd.transaction)
    assert await store.get("/k/again") is not None


async def test_no_request_is_sent_for_a_caller_that_gave_up(etcd: Etcd, store: EtcdStore) -> None:
    tasks = await gathered(etcd, store, ALONE_MAX + 4)
    tasks[-1].cancel()
    tasks[0].cancel()  # one that is under way: its place is free then
    await asyncio.wait(tasks[:1])
    etcd.answering.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, Record) for one in outcomes) == len(tasks) - 2
    assert etcd.ranges == [3]


async def test_nothing_is_requested_once_all_who_waited_have_given_up(
    etcd: Etcd, store: EtcdStore
) -> None:
    tasks = await gathered(etcd, store, ALONE_MAX + 3)
    for task in tasks[ALONE_MAX:]:
        task.cancel()
    await asyncio.wait(tasks[ALONE_MAX:])
    etcd.answering.set()
    await asyncio.gather(*tasks[:ALONE_MAX])
    assert etcd.ranges == []
    assert await store.get("/k/later") is not None


async def test_closing_the_store_fails_waiting_callers(etcd: Etcd, store: EtcdStore) -> None:
    tasks = await gathered(etcd, store, ALONE_MAX + 4)
    closing = asyncio.create_task(store.close())
    async with asyncio.timeout(WITHIN_S):
        await closing
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, StoreClosed | MetadataUnavailable) for one in outcomes)
    assert isinstance(outcomes[-1], StoreClosed)
