"""Requests to offload and to compact, which jobs carry out, and what changes while one is made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.support.held_store import HeldStore, deletes, puts
from tests.unit.admin.support import start_service, stop_service
from tests.unit.ledger.stage import publish

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.cold.offload_state import NO_DRIVER
from magnetar.broker.service import BrokerService
from magnetar.compaction import records as compaction
from magnetar.compaction.deletion import discard
from magnetar.core.errors import Conflict
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, Check
from magnetar.offload import records as offload
from magnetar.offload.stores import StoreSpec
from magnetar.offload.trash import TRASH_PREFIX, decode_trash

FOLDER = {"managedLedgerOffloadDriver": "filesystem", "managedLedgerOffloadBucket": "/cold"}
NAME = ledger_name(parse_topic("persistent://t1/n1/a"))
OTHER = ledger_name(parse_topic("persistent://t1/n1/b"))
JOB = "job-1"
OLD_MS = 7


@pytest.fixture
async def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
async def service(store: HeldStore) -> AsyncIterator[BrokerService]:
    service = await start_service(store=store)
    yield service
    await stop_service(service)


@pytest.fixture
async def log(service: BrokerService) -> ManagedLedger:
    """A log of two closed ledgers and an open one, and a cursor that keeps them."""
    ledger = await service.ledgers.open(NAME)
    await ledger.open_cursor("keeps", initial=EARLIEST)
    for _ in range(2):
        await publish(ledger, b"x")
        await ledger.roll_over()
    await publish(ledger, b"y")
    return ledger


async def offloads_to_a_folder(service: BrokerService) -> None:
    await service.resources.update_policies(
        NamespaceName("t1", "n1"), lambda document: {**document, "offload_policies": FOLDER}
    )


async def meanwhile(
    store: HeldStore, prefix: str, doing: Awaitable[object], change: Callable[[], Awaitable[object]]
) -> None:
    held = store.hold(puts(prefix))
    task = asyncio.ensure_future(doing)
    await held.reached.wait()
    await change()
    held.go.set()
    await task


# -- offloading


@pytest.mark.parametrize(
    ("up_to", "status"), [(EARLIEST, "SUCCESS"), (LATEST, "ERROR"), (Position(1 << 40, 0), "ERROR")]
)
async def test_what_cannot_be_put_anywhere_is_refused_and_nothing_to_do_is_done(
    service: BrokerService, log: ManagedLedger, up_to: Position, status: str
) -> None:
    await service.offloading.request(log, up_to)
    found = await service.offloading.status(log)
    assert (found.status, found.last_error) == (status, NO_DRIVER if status == "ERROR" else "")


async def test_a_request_is_one_at_a_time_until_its_job_has_ended(
    service: BrokerService, store: HeldStore, log: ManagedLedger
) -> None:
    await offloads_to_a_folder(service)
    offloading, key = service.offloading, offload.request_key(NAME)
    await offloading.request(log, LATEST)
    assert (await offloading.status(log)).status == "RUNNING"
    with pytest.raises(Conflict, match="already in progress"):
        await offloading.request(log, LATEST)
    stored = await store.get(key)
    assert stored is not None
    request = offload.decode_request(key, stored.value)
    assert request.up_to == Position(log.ledgers[-1].ledger_id, 0)
    for state, job, again in (
        (offload.RequestState.RUNNING, JOB, False),
        (offload.RequestState.RUNNING, "dead", True),
        (offload.RequestState.SUCCESS, JOB, True),
        (offload.RequestState.ERROR, JOB, True),
    ):
        await store.put(offload.job_key(JOB), b"{}")
        taken = offload.OffloadRequest(request.up_to, 1, state, job=job)
        await store.put(key, encode(taken))
        if again:
            await offloading.request(log, LATEST)
            assert (await offloading.status(log)).status == "RUNNING"
        else:
            with pytest.raises(Conflict):
                await offloading.request(log, LATEST)


async def test_a_request_to_offload_does_not_overwrite_one_that_came_first(
    service: BrokerService, store: HeldStore, log: ManagedLedger
) -> None:
    await offloads_to_a_folder(service)
    key, first = offload.request_key(NAME), log.ledgers[1].ledger_id
    other = offload.OffloadRequest(Position(first, 0), OLD_MS)
    with pytest.raises(Conflict):
        await meanwhile(
            store,
            key,
            service.offloading.request(log, LATEST),
            lambda: store.put(key, encode(other)),
        )
    stored = await store.get(key)
    assert stored is not None
    assert offload.decode_request(key, stored.value) == other


# -- compaction


async def asked_for(store: HeldStore, name: str = NAME) -> compaction.CompactionRequest:
    stored = await store.get(compaction.request_key(name))
    assert stored is not None
    return compaction.decode_request(stored.key, stored.value)


async def test_of_several_logs_those_are_requested_that_were_not(
    service: BrokerService, store: HeldStore
) -> None:
    await service.compaction.request([NAME])
    await service.compaction.request([NAME, OTHER])
    assert (await asked_for(store, OTHER)).state is offload.RequestState.PENDING
    with pytest.raises(Conflict, match="already in progress"):
        await service.compaction.request([NAME, OTHER])
    await service.compaction.request([])


async def test_a_new_request_remembers_when_a_job_failed_last(
    service: BrokerService, store: HeldStore
) -> None:
    failed = compaction.CompactionRequest(
        1, offload.RequestState.ERROR, finished_ms=OLD_MS, failed_ms=OLD_MS
    )
    await store.put(compaction.request_key(NAME), encode(failed))
    before_ms = service.clock.now_ms()
    await service.compaction.request([NAME])
    found, status = await asked_for(store), await service.compaction.status(NAME)
    assert found.requested_ms >= before_ms
    assert (found.failed_ms, status.status) == (OLD_MS, "RUNNING")


async def test_a_request_to_compact_does_not_overwrite_one_that_came_first(
    service: BrokerService, store: HeldStore
) -> None:
    key = compaction.request_key(NAME)
    other = compaction.CompactionRequest(
        service.clock.now_ms(), offload.RequestState.RUNNING, job=JOB
    )
    await store.put(compaction.job_key(JOB), b"{}")
    with pytest.raises(Conflict):
        await meanwhile(
            store,
            key,
            service.compaction.request([NAME]),
            lambda: store.put(key, encode(other)),
        )
    assert await asked_for(store) == other


async def test_a_log_is_deleted_with_an_artifact_committed_at_that_moment(
    store: HeldStore,
) -> None:
    folder, key = StoreSpec("filesystem", "/cold"), compaction.compaction_key(NAME)

    def artifact(path: str) -> bytes:
        file = compaction.CompactedFile(path, 1, 1, EARLIEST, EARLIEST, 1, 1, 1)
        record = compaction.CompactionRecord(EARLIEST, OLD_MS, path, folder, 1, (file,))
        return encode(record)

    request = encode(compaction.CompactionRequest(1))
    await store.put(compaction.request_key(NAME), request)
    await store.put(key, artifact("old"))
    held = store.hold(deletes(key))
    discarding = asyncio.ensure_future(discard(store, NAME, OLD_MS, Check("/mark", ABSENT), 1))
    await held.reached.wait()
    await store.put(key, artifact("new"))
    held.go.set()
    assert await discarding
    assert await store.get(key) is None
    assert await store.get(compaction.request_key(NAME)) is None
    trash = [decode_trash(each.key, each.value) for each in await store.list(TRASH_PREFIX)]
    assert [file.path for each in trash for file in each.files] == ["new"]
