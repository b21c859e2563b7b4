"""Requests to offload jobs: their records and their status."""

import pytest
from msgspec.structs import replace
from tests.unit.admin.support import start_service, stop_service
from tests.unit.ledger.stage import publish

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.cold.offload import ATTEMPTS_MAX, offload_defaults, publish_defaults
from magnetar.broker.cold.offload_state import NO_DRIVER
from magnetar.broker.service import BrokerService
from magnetar.core.errors import Conflict, MetadataError
from magnetar.core.ids import LATEST, Position
from magnetar.core.names import parse_topic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision
from magnetar.offload.policy import OffloadDefaults, decode_defaults
from magnetar.offload.records import (
    DEFAULTS_KEY,
    OffloadRecord,
    OffloadRequest,
    RequestState,
    decode_request,
    job_key,
    offload_key,
    request_key,
)
from magnetar.offload.stores import StoreSpec
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.settings.offload import OffloadSettings

FOLDER = compose(BrokerSettings, offload_driver="filesystem", offload_folder="/cold")


class Racing(MemoryStore):
    """Another writes the same key first, as often as `rivals` says."""

    rivals = 0

    async def put(self, key: str, value: bytes, **options: object) -> int:
        if self.rivals:
            self.rivals -= 1
            raise BadRevision(key, 0, 1)
        return await super().put(key, value, **options)  # type: ignore[arg-type]


async def closed_ledgers(service: BrokerService, count: int) -> ManagedLedger:
    """Returns a log with this number of closed ledgers and an open one."""
    name = parse_topic("persistent://t1/n1/t")
    ledger = await service.ledgers.open(ledger_name(name))
    for _ in range(count):
        await publish(ledger, b"x" * 70)
        await ledger.roll_over()
    await publish(ledger, b"y")
    return ledger


async def move(service: BrokerService, ledger: ManagedLedger, number: int) -> int:
    ledger_id = ledger.ledgers[number].ledger_id
    spec = StoreSpec("filesystem", "/cold")
    record = OffloadRecord(ledger_id, "a", spec, "p", 9, 1, 70, 1, 1, 2, 30 + number)
    await service.store.put(offload_key(ledger.name, ledger_id), encode(record))
    return ledger_id


async def on_record(service: BrokerService, ledger: ManagedLedger) -> OffloadRequest:
    key = request_key(ledger.name)
    stored = await service.store.get(key)
    assert stored is not None
    return decode_request(key, stored.value)


async def became(
    service: BrokerService, ledger: ManagedLedger, state: RequestState, **fields: object
) -> None:
    """A job takes the request up, or is done with it."""
    asked = replace(await on_record(service, ledger), state=state, **fields)
    await service.store.put(request_key(ledger.name), encode(asked))


async def test_a_request_is_on_record_until_its_ledgers_are_moved() -> None:
    service = await start_service(FOLDER)
    ledger = await closed_ledgers(service, 3)
    offloading = service.offloading
    assert (await offloading.status(ledger)).status == "NOT_RUN"
    before_ms = service.offloading._clock.now_ms()
    third = Position(ledger.ledgers[2].ledger_id, 0)
    await offloading.request(ledger, Position(third.ledger_id, 7))
    asked = await on_record(service, ledger)
    assert asked.state is RequestState.PENDING
    assert (asked.up_to, asked.first_unoffloaded, asked.finished_ms) == (third, third, 0)
    assert asked.requested_ms >= before_ms
    assert (await offloading.status(ledger)).status == "RUNNING"
    with pytest.raises(Conflict, match="already in progress"):
        await offloading.request(ledger, LATEST)

    await became(service, ledger, RequestState.RUNNING, job="j")
    assert (await offloading.status(ledger)).status == "ERROR", "its job is dead"
    await service.store.put(job_key("j"), b"{}")
    assert (await offloading.status(ledger)).status == "RUNNING"
    await move(service, ledger, 0)
    assert (await offloading.status(ledger)).status == "RUNNING"
    await move(service, ledger, 1)
    done = await offloading.status(ledger)
    assert (done.status, done.first_unoffloaded) == ("SUCCESS", third)
    await stop_service(service)


async def test_a_request_for_nothing_is_done_at_once() -> None:
    service = await start_service(FOLDER)
    ledger = await closed_ledgers(service, 1)
    await move(service, ledger, 0)
    await service.offloading.request(ledger, LATEST)
    asked = await on_record(service, ledger)
    assert asked.state is RequestState.SUCCESS
    assert asked.finished_ms == asked.requested_ms > 0
    assert (await service.offloading.status(ledger)).status == "SUCCESS"
    await service.offloading.request(ledger, LATEST)
    await stop_service(service)


async def test_a_request_without_a_store_fails_and_may_be_made_again() -> None:
    service = await start_service()
    ledger = await closed_ledgers(service, 1)
    for _ in range(2):
        await service.offloading.request(ledger, LATEST)
        asked = await on_record(service, ledger)
        assert (asked.state, asked.error) == (RequestState.ERROR, NO_DRIVER)
        assert asked.finished_ms == asked.requested_ms > 0
        assert (await service.offloading.status(ledger)).last_error == NO_DRIVER
    await stop_service(service)


@pytest.mark.parametrize("rivals", [ATTEMPTS_MAX - 1, ATTEMPTS_MAX])
async def test_a_request_gives_way_to_others_so_many_times(rivals: int) -> None:
    store = Racing()
    service = await start_service(FOLDER, store)
    ledger = await closed_ledgers(service, 1)
    store.rivals = rivals
    if rivals < ATTEMPTS_MAX:
        await service.offloading.request(ledger, LATEST)
        assert (await on_record(service, ledger)).state is RequestState.PENDING
    else:
        with pytest.raises(Conflict, match="already in progress"):
            await service.offloading.request(ledger, LATEST)
    await stop_service(service)


@pytest.mark.parametrize("before", [None, RequestState.SUCCESS, RequestState.ERROR])
async def test_a_request_that_came_meanwhile_is_not_written_over(
    before: RequestState | None,
) -> None:
    """Another broker's, which a job has taken up between the read and the write."""

    class Overtaken(MemoryStore):
        rival: OffloadRequest | None = None

        async def put(self, key: str, value: bytes, **options: object) -> int:
            rival, self.rival = self.rival, None
            if rival is not None:
                await super().put(key, encode(rival))
            return await super().put(key, value, **options)  # type: ignore[arg-type]

    store = Overtaken()
    service = await start_service(FOLDER, store)
    ledger = await closed_ledgers(service, 2)
    key = request_key(ledger.name)
    if before is not None:
        await store.put(key, encode(OffloadRequest(LATEST, 1, before, finished_ms=2)))
    await store.put(job_key("j"), b"{}")
    rival = OffloadRequest(LATEST, 7, RequestState.RUNNING, job="j")
    store.rival = rival
    with pytest.raises(Conflict, match="already in progress"):
        await service.offloading.request(ledger, LATEST)
    assert await on_record(service, ledger) == rival
    await stop_service(service)


async def test_defaults_that_came_meanwhile_are_read_before_they_are_written_over() -> None:
    """The defaults of the broker that started last apply."""

    class Overtaken(MemoryStore):
        rival: bytes | None = None
        refused = 0

        async def put(self, key: str, value: bytes, **options: object) -> int:
            rival, self.rival = self.rival, None
            if rival is not None:
                await super().put(key, rival)
            try:
                return await super().put(key, value, **options)  # type: ignore[arg-type]
            except BadRevision:
                self.refused += 1
                raise

    for first in (None, OffloadDefaults(driver="S3", bucket="a")):
        store = Overtaken()
        if first is not None:
            await publish_defaults(store, first)
        store.rival = encode(OffloadDefaults(driver="S3", bucket="b"))
        mine = OffloadDefaults(driver="S3", bucket="c")
        await publish_defaults(store, mine)
        stored = await store.get(DEFAULTS_KEY)
        assert stored is not None
        assert decode_defaults(DEFAULTS_KEY, stored.value) == mine
        assert store.refused == 1


async def test_stats_ask_metadata_only_of_topics_that_may_have_moved() -> None:
    service = await start_service()
    ledger = await closed_ledgers(service, 2)
    offloading = service.offloading
    first = await move(service, ledger, 0)
    assert (await offloading.refresh(ledger)).size_bytes == 0, "no policy says so"
    found = await offloading.refresh(ledger, always=True)
    assert (dict(found.sizes), found.last_ledger_id, found.last_success_ms) == (
        {first: 70},
        first,
        30,
    )
    assert offloading.moved(ledger) == found
    second = await move(service, ledger, 1)
    assert dict((await offloading.refresh(ledger)).sizes) == {first: 70, second: 70}
    for ledger_id in (first, second):
        await service.store.delete(offload_key(ledger.name, ledger_id))
    assert (await offloading.refresh(ledger)).size_bytes == 0
    assert ledger.name not in offloading._moved
    await stop_service(service)


async def test_a_topic_without_closed_ledgers_is_not_requested() -> None:
    service = await start_service(FOLDER)
    ledger = await closed_ledgers(service, 0)
    await service.store.put(offload_key(ledger.name, ledger.ledgers[0].ledger_id), b"unreadable")
    assert (await service.offloading.refresh(ledger, always=True)).size_bytes == 0
    await stop_service(service)


async def test_defaults_are_published_by_the_broker_that_started_last() -> None:
    store = Racing()
    defaults = OffloadDefaults(driver="S3", bucket="b")
    store.rivals = ATTEMPTS_MAX - 1
    await publish_defaults(store, defaults)
    store.rivals = ATTEMPTS_MAX
    with pytest.raises(MetadataError, match="changed 8 times"):
        await publish_defaults(store, OffloadDefaults(driver="S3", bucket="c"))


def test_every_setting_reaches_the_jobs() -> None:
    settings = compose(
        BrokerSettings,
        offload_driver="S3",
        offload_bucket="b",
        offload_region="r",
        offload_endpoint="http://e",
        offload_folder="/f",
        offload_threshold_bytes=1,
        offload_threshold_s=2,
        offload_deletion_lag_ms=3,
        offload_read_priority="bookkeeper-first",
    )
    assert offload_defaults(settings.offload) == OffloadDefaults(
        driver="S3",
        bucket="b",
        region="r",
        endpoint="http://e",
        folder="/f",
        threshold_bytes=1,
        threshold_s=2,
        deletion_lag_ms=3,
        read_priority="bookkeeper-first",
    )
    assert offload_defaults(OffloadSettings()) == OffloadDefaults()
