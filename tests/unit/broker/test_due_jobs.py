"""Which topics a broker reports as waiting for a job, to the operator."""

from msgspec.structs import replace
from tests.unit.admin.support import start_service, stop_service
from tests.unit.broker.test_offload_requests import FOLDER, became, closed_ledgers, move

from magnetar.broker.cold.due_jobs import due_jobs
from magnetar.broker.service import BrokerService
from magnetar.core.ids import Position
from magnetar.documents.due_jobs import TOPICS_NAMED_MAX, DueJobs, DueTopic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.offload.records import RequestState, job_key
from magnetar.policies.lifecycle import OFFLOAD_THRESHOLD

TOPIC = "persistent://t1/n1/t"


async def due(service: BrokerService, *ledgers: ManagedLedger) -> DueJobs:
    return await due_jobs(service.compactor, service.offloading, ledgers, service.clock)


async def test_closed_ledgers_beyond_the_threshold_wait_until_a_job_has_moved_them() -> None:
    service = await start_service(FOLDER)
    ledger = await closed_ledgers(service, 3)
    size = ledger.ledgers[0].size_bytes
    assert (await due(service, ledger)).offload == (), "there is no threshold"
    service.offloading.defaults = replace(service.offloading.defaults, threshold_bytes=size)
    text = "2 closed ledgers: beyond a threshold"
    assert (await due(service, ledger)).offload == (DueTopic(TOPIC, text, 2 * size),)
    await move(service, ledger, 0)
    (waiting,) = (await due(service, ledger)).offload
    assert waiting.bytes == size
    await move(service, ledger, 1)
    assert (await due(service, ledger)).offload == ()
    assert OFFLOAD_THRESHOLD.document == "offload_threshold"
    await stop_service(service)


async def test_a_request_waits_unless_a_job_works_on_it() -> None:
    service = await start_service(FOLDER)
    ledger = await closed_ledgers(service, 2)
    await service.offloading.request(ledger, Position(ledger.ledgers[1].ledger_id, 0))
    text = "1 closed ledgers: requested"
    waiting = (DueTopic(TOPIC, text, ledger.ledgers[0].size_bytes),)
    assert (await due(service, ledger)).offload == waiting
    assert (await due(service)).offload == (), "another broker owns the topic"
    await became(service, ledger, RequestState.RUNNING, job="j")
    assert (await due(service, ledger)).offload == waiting, "its job is dead"
    await service.store.put(job_key("j"), b"{}")
    assert (await due(service, ledger)).offload == ()
    await became(service, ledger, RequestState.ERROR, error="no store")
    assert (await due(service, ledger)).offload == ()
    await stop_service(service)


async def test_topics_beyond_the_bound_are_counted() -> None:
    service = await start_service()
    names = [f"persistent://t1/n1/t{number}" for number in range(TOPICS_NAMED_MAX + 2)]
    service.compactor.enabled = False
    service.compactor.left = {name: DueTopic(name, "too large") for name in names}
    service.compactor._forget_gone = lambda: None  # type: ignore[method-assign]
    found = await due(service)
    assert [topic.topic for topic in found.compact] == names[:TOPICS_NAMED_MAX]
    assert (found.compact_not_named, found.offload_not_named) == (2, 0)
    both = found.plus(found)
    assert (len(both.compact), both.compact_not_named) == (2 * TOPICS_NAMED_MAX, 4)
    await stop_service(service)
