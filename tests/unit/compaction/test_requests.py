"""A broker's requests for compaction, and the status that it reports."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from tests.unit.admin.support import start_service, stop_service
from tests.unit.ledger.stage import ManualClock

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.cold.compaction import ATTEMPTS_MAX, Compaction
from magnetar.broker.cold.compaction_state import (
    NEVER_COMPACTED,
    PENDING_MS_MAX,
    CompactionStatus,
    worst,
)
from magnetar.broker.service import BrokerService
from magnetar.compaction.records import (
    CompactionRecord,
    CompactionRequest,
    compaction_key,
    decode_request,
    job_key,
    request_key,
)
from magnetar.core.errors import Conflict
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import parse_topic
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision
from magnetar.offload.records import RequestState
from magnetar.offload.stores import StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

TOPIC = parse_topic("persistent://t1/n1/t")
NAME = ledger_name(TOPIC)
OTHER = ledger_name(parse_topic("persistent://t1/n1/other"))
CREATED_MS = 7
HORIZON = Position(6, 5)


class Racing(MemoryStore):
    """Another writes the same key first: `rival` once, or as often as `rivals` says."""

    rivals = 0
    rival: CompactionRequest | None = None

    async def put(self, key: str, value: bytes, **options: object) -> int:
        rival, self.rival = self.rival, None
        if rival is not None:
            await super().put(key, encode(rival))
        if self.rivals:
            self.rivals -= 1
            raise BadRevision(key, 0, 1)
        return await super().put(key, value, **options)  # type: ignore[arg-type]


class Rig:
    """Compaction of a broker with a clock of its own."""

    def __init__(self, service: BrokerService) -> None:
        assert isinstance(service.store, Racing)
        self.service, self.store = service, service.store
        self.clock = ManualClock()
        self.compaction = Compaction(
            service.store, service.ledgers.cold.files, service.policies, self.clock
        )

    async def on_record(self, name: str = NAME) -> CompactionRequest:
        stored = await self.store.get(request_key(name))
        assert stored is not None
        return decode_request(stored.key, stored.value)

    async def became(self, state: RequestState, **fields: object) -> None:
        """A job takes the request up, or is done with it."""
        asked = replace(await self.on_record(), state=state, job="j", **fields)
        await self.store.put(request_key(NAME), encode(asked))

    async def compacted(self) -> CompactionRecord:
        spec = StoreSpec("filesystem", "/nowhere")
        record = CompactionRecord(HORIZON, CREATED_MS, "a", spec, 1)
        await self.store.put(compaction_key(NAME), encode(record))
        return record

    async def status(self) -> str:
        return (await self.compaction.status(NAME)).status

    async def limit(self) -> Position | None:
        return await self.compaction.trim_limit(NAME, CREATED_MS)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    service = await start_service(store=Racing())
    yield Rig(service)
    await stop_service(service)


async def test_a_request_goes_from_pending_to_its_end(rig: Rig) -> None:
    assert await rig.status() == "NOT_RUN"
    await rig.compaction.request([NAME])
    asked = await rig.on_record()
    assert asked == CompactionRequest(rig.clock.now_ms())
    assert await rig.status() == "RUNNING"
    with pytest.raises(Conflict, match="already in progress"):
        await rig.compaction.request([NAME])
    await rig.became(RequestState.RUNNING)
    assert await rig.status() == "ERROR", "its job is dead"
    await rig.store.put(job_key("j"), b"{}")
    assert await rig.status() == "RUNNING"
    await rig.became(RequestState.ERROR, failed_ms=33, error="no room")
    assert await rig.compaction.status(NAME) == CompactionStatus("ERROR", "no room")
    rig.clock.advance(5)
    await rig.compaction.request([NAME])
    asked = await rig.on_record()
    assert (asked.requested_ms, asked.failed_ms) == (rig.clock.now_ms(), 33)
    assert asked.state is RequestState.PENDING
    await rig.became(RequestState.SUCCESS)
    assert await rig.status() == "SUCCESS"


async def test_a_request_that_no_job_takes_may_be_made_again(rig: Rig) -> None:
    await rig.compaction.request([NAME])
    rig.clock.advance(PENDING_MS_MAX - 1)
    assert await rig.status() == "RUNNING"
    rig.clock.advance(1)
    assert await rig.status() == "ERROR"
    await rig.compaction.request([NAME])
    assert await rig.status() == "RUNNING"


async def test_of_several_logs_those_that_are_not_at_it_are_requested(rig: Rig) -> None:
    await rig.compaction.request([])
    await rig.compaction.request([NAME])
    await rig.compaction.request([NAME, OTHER])
    assert (await rig.on_record(OTHER)).state is RequestState.PENDING
    with pytest.raises(Conflict):
        await rig.compaction.request([NAME, OTHER])


@pytest.mark.parametrize("rivals", [ATTEMPTS_MAX - 1, ATTEMPTS_MAX])
async def test_a_request_gives_way_to_others_so_many_times(rig: Rig, rivals: int) -> None:
    rig.store.rivals = rivals
    if rivals < ATTEMPTS_MAX:
        await rig.compaction.request([NAME])
        assert await rig.status() == "RUNNING"
    else:
        with pytest.raises(Conflict):
            await rig.compaction.request([NAME])


@pytest.mark.parametrize("before", [None, RequestState.SUCCESS, RequestState.ERROR])
async def test_a_request_that_came_meanwhile_is_not_written_over(
    rig: Rig, before: RequestState | None
) -> None:
    """Another broker's, which a job has taken up between the read and the write."""
    if before is not None:
        await rig.store.put(request_key(NAME), encode(CompactionRequest(1, before, finished_ms=2)))
    await rig.store.put(job_key("j"), b"{}")
    rival = CompactionRequest(7, RequestState.RUNNING, job="j")
    rig.store.rival = rival
    with pytest.raises(Conflict, match="already in progress"):
        await rig.compaction.request([NAME])
    assert await rig.on_record() == rival


async def test_a_log_is_trimmed_up_to_what_was_compacted(rig: Rig) -> None:
    assert await rig.limit() is None
    await rig.compaction.request([NAME])
    assert await rig.limit() == EARLIEST, "a job is to read it"
    rig.clock.advance(2 * PENDING_MS_MAX)
    assert await rig.limit() == EARLIEST, "however long it waits"
    await rig.became(RequestState.RUNNING)
    assert await rig.limit() == EARLIEST, "its job is dead: another one will read it"
    await rig.store.put(job_key("j"), b"{}")
    assert await rig.limit() == EARLIEST
    await rig.became(RequestState.SUCCESS)
    assert await rig.limit() is None
    await rig.compacted()
    assert await rig.limit() == HORIZON
    assert await rig.compaction.trim_limit(NAME, CREATED_MS + 1) is None, "another log's"
    await rig.service.topics.create(TOPIC, {})
    await rig.service.policies.update(
        TOPIC, lambda policies: policies.having(COMPACTION_THRESHOLD.name, 1)
    )
    assert await rig.limit() == HORIZON
    await rig.store.delete(compaction_key(NAME))
    assert await rig.limit() == EARLIEST, "compaction is on"


async def test_stats_tell_of_the_artifact_and_of_the_last_failure(rig: Rig) -> None:
    ledger = await rig.service.ledgers.open(NAME)
    record = replace(await rig.compacted(), log_created_ms=ledger.created_ms)
    await rig.store.put(compaction_key(NAME), encode(record))
    assert await rig.compaction.facts(ledger) == NEVER_COMPACTED
    await rig.compaction.request([NAME])
    await rig.became(RequestState.SUCCESS, failed_ms=44)
    facts = await rig.compaction.facts(ledger)
    assert (facts.record, facts.failed_ms) == (record, 44)
    await rig.store.delete(compaction_key(NAME))
    facts = await rig.compaction.facts(ledger)
    assert (facts.record, facts.failed_ms) == (None, 44)


def test_one_of_the_partitions_is_reported() -> None:
    every = [CompactionStatus(each) for each in ("SUCCESS", "NOT_RUN", "ERROR", "RUNNING")]
    for count, told in ((1, "SUCCESS"), (2, "NOT_RUN"), (3, "ERROR"), (4, "RUNNING")):
        assert worst(every[:count]).status == told
        assert worst(every[:count][::-1]).status == told
