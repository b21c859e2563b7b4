"""Which topics a broker compacts, and when."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.admin.support import start_service, stop_service
from tests.unit.ledger.stage import ManualClock

from magnetar.admin.metrics.compaction_series import compaction_families
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.cold.compactor import RETRY_S, Compactor, Result
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import as_persistent
from magnetar.compaction.records import (
    CompactedFile,
    CompactionRecord,
    CompactionRequest,
    compaction_key,
    job_key,
    request_key,
)
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.records import encode
from magnetar.offload.records import RequestState
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

TOPIC = parse_topic("persistent://t1/n1/t")
OTHER = parse_topic("persistent://t1/n1/other")
NAME = ledger_name(TOPIC)
HERE = StoreSpec(FILESYSTEM, "/here")
ENTRY = b"x" * 100


class Rig:
    """A broker's compactor, whose compactions a test runs."""

    def __init__(self, service: BrokerService, *, enabled: bool = True) -> None:
        self.service = service
        self.clock = ManualClock()
        self.began: list[TopicName] = []
        self.report: list[str] = []
        """The counters that the next compactions report, or an error."""
        self.go = asyncio.Event()
        self.go.set()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        compaction = service.compactor.compaction
        parts = (compaction, service.store, service.open_topics, self.clock, self._compact)
        self.compactor = Compactor(*parts, enabled=enabled)
        self.compactor.artifacts = HERE

    async def _compact(self, topic: TopicName, store: StoreSpec | None, result: Result) -> None:
        assert store == HERE
        self.began.append(topic)
        self.begun.set()
        await self.go.wait()
        reported = self.report.pop(0) if self.report else "topicsCompacted"
        self.ended.set()
        if reported == "bug":
            raise ValueError("a bug")
        if reported == "no extra":
            raise ModuleNotFoundError("No module named 'obstore'")
        if reported == "leftover":
            result.failure("undecodable", leftover="/compaction-attempts/t1/n1/x")
            reported = "topicsCompacted"
        if reported == "raises":
            raise PersistenceError("no space")
        if reported == "fails":
            result.failure("the store is away", topic=str(topic))
        else:
            result.count(reported)

    async def checked(self) -> list[TopicName]:
        """The topics that a check has compacted."""
        self.began.clear()
        self.ended.clear()
        await self.compactor.check()
        await self.idle()
        return list(self.began)

    async def idle(self) -> None:
        while self.compactor._running:
            await self.ended.wait()
            await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    service = await start_service()
    made = Rig(service)
    yield made
    await made.compactor.stop()
    await stop_service(service)


async def created(rig: Rig, topic: TopicName = TOPIC, entries: int = 0) -> ManagedLedger:
    loaded = as_persistent(await rig.service.topics.create(topic, {}))
    assert loaded is not None
    await append(loaded.managed_ledger, entries)
    return loaded.managed_ledger


async def append(ledger: ManagedLedger, entries: int) -> None:
    for _ in range(entries):
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ledger.append([ENTRY], lambda *_, done=done: done.set_result(None))
        await done


async def threshold(rig: Rig, size_bytes: int, topic: TopicName = TOPIC) -> None:
    await rig.service.policies.update(
        topic, lambda policies: policies.having(COMPACTION_THRESHOLD.name, size_bytes)
    )


async def compacted(rig: Rig, ledger: ManagedLedger, horizon: Position) -> None:
    record = CompactionRecord(horizon, ledger.created_ms, "a" * 32, HERE, 5, messages_removed=7)
    await rig.service.store.put(compaction_key(ledger.name), encode(record))


async def test_a_topic_is_compacted_once_what_is_new_reaches_the_threshold(rig: Rig) -> None:
    ledger = await created(rig, entries=3)
    assert await rig.checked() == [], "there is no threshold"
    await threshold(rig, 3 * len(ENTRY) + 1)
    assert await rig.checked() == []
    await threshold(rig, 3 * len(ENTRY))
    assert await rig.checked() == [TOPIC]
    await compacted(rig, ledger, ledger.last_confirmed)
    assert await rig.checked() == [], "nothing is new"
    await append(ledger, 2)
    assert await rig.checked() == [], "of which a part is"
    await append(ledger, 1)
    assert await rig.checked() == [TOPIC]
    assert rig.compactor.counters[str(TOPIC)].succeeded == 2
    assert rig.compactor.counters[str(TOPIC)].removed == 7, "of the artifact that was live then"


async def test_requests_are_taken_up_if_nothing_works_on_them(rig: Rig) -> None:
    await created(rig)
    store = rig.service.store
    await store.put(request_key(ledger_name(OTHER)), encode(CompactionRequest(1)))
    for state, job, due in (
        (RequestState.PENDING, "", True),
        (RequestState.RUNNING, "dead", True),
        (RequestState.RUNNING, "alive", False),
        (RequestState.SUCCESS, "dead", False),
        (RequestState.ERROR, "dead", False),
    ):
        await store.put(job_key("alive"), b"{}")
        await store.put(request_key(NAME), encode(CompactionRequest(1, state, job)))
        assert await rig.checked() == ([TOPIC] if due else []), (state, job)


@pytest.mark.parametrize("reported", ["raises", "fails", "topicsLeftToJobs"])
async def test_what_cannot_be_compacted_now_is_tried_later_or_on_request(
    rig: Rig, reported: str
) -> None:
    await created(rig, entries=1)
    await threshold(rig, 1)
    rig.report = [reported] * 3
    assert await rig.checked() == [TOPIC]
    rig.clock.advance(int(RETRY_S - 1) * 1000)
    assert await rig.checked() == []
    rig.began.clear()
    rig.compactor.requested([NAME])
    await rig.idle()
    assert rig.began == [TOPIC]
    rig.clock.advance(int(RETRY_S) * 1000)
    assert await rig.checked() == [TOPIC]
    failed = rig.compactor.counters[str(TOPIC)].failed if rig.compactor.counters else 0
    assert failed == (0 if reported == "topicsLeftToJobs" else 3)
    await rig.service.topics.unload(TOPIC)
    assert (await rig.checked(), rig.compactor.counters) == ([], {}), "another broker's"


async def test_topics_are_compacted_one_by_one_and_a_stop_cancels(rig: Rig) -> None:
    for topic in (TOPIC, OTHER):
        await created(rig, topic, entries=1)
        await threshold(rig, 1, topic)
    rig.go.clear()
    await rig.compactor.check()
    await rig.compactor.check()
    await rig.begun.wait()
    assert len(rig.began) == 1
    await rig.compactor.stop()
    assert not rig.compactor._running
    rig.compactor.requested([NAME])
    assert len(rig.began) == 1


async def test_an_error_of_the_program_does_not_stop_the_topics_behind_it(rig: Rig) -> None:
    for topic in (TOPIC, OTHER):
        await created(rig, topic, entries=1)
    rig.report = ["bug", "topicsCompacted"]
    rig.compactor.requested([NAME, ledger_name(OTHER)])
    await rig.idle()
    assert rig.began == [TOPIC, OTHER]
    assert rig.compactor.counters[str(TOPIC)].failed == 1
    await threshold(rig, 1)
    assert await rig.checked() == [], "it is tried again later"


async def test_leftovers_of_another_topic_do_not_count_as_a_failure(rig: Rig) -> None:
    await created(rig, entries=1)
    await threshold(rig, 1)
    rig.report = ["leftover"]
    assert await rig.checked() == [TOPIC]
    counters = rig.compactor.counters[str(TOPIC)]
    assert (counters.succeeded, counters.failed) == (1, 0)
    assert await rig.checked() == [TOPIC], "it needs not wait for RETRY_S"


async def test_a_record_that_cannot_be_read_concerns_its_topic_only(rig: Rig) -> None:
    for topic in (TOPIC, OTHER):
        await created(rig, topic, entries=1)
        await threshold(rig, 1, topic)
    await rig.service.store.put(compaction_key(NAME), b"no record")
    await rig.service.store.put(request_key(NAME), b"no record")
    assert await rig.checked() == [OTHER]


async def test_a_broker_without_the_extra_says_so_and_leaves_the_request_open(rig: Rig) -> None:
    await created(rig, entries=1)
    await rig.compactor.compaction.request([NAME])
    rig.report = ["no extra"]
    assert await rig.checked() == [TOPIC]
    told = await rig.compactor.compaction.status(NAME)
    assert told.status == "ERROR"
    assert "install magnetar[offload]" in told.last_error
    stored = await rig.service.store.get(request_key(NAME))
    assert stored is not None
    assert await rig.compactor.compaction.is_open(stored)
    await rig.compactor.compaction.request([NAME])
    assert (await rig.compactor.compaction.status(NAME)).status == "RUNNING", "it may be installed"


async def test_a_topic_below_its_threshold_is_looked_at_again_once_it_has_got_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await created(rig, entries=3)
    await threshold(rig, 2 * len(ENTRY))
    await compacted(rig, ledger, Position(ledger.last_confirmed.ledger_id, 1))
    reads: list[str] = []
    get = rig.service.store.get

    async def counted(key: str) -> object:
        reads.append(key)
        return await get(key)

    monkeypatch.setattr(rig.service.store, "get", counted)
    assert (await rig.checked(), reads) == ([], [compaction_key(NAME)])
    assert (await rig.checked(), reads) == ([], [compaction_key(NAME)]), "nothing is new"
    await threshold(rig, len(ENTRY))
    assert await rig.checked() == [TOPIC]
    await threshold(rig, 2 * len(ENTRY))
    assert await rig.checked() == []
    await append(ledger, 1)
    assert await rig.checked() == [TOPIC]


async def test_a_topic_whose_compaction_finds_too_little_waits_for_more(rig: Rig) -> None:
    """Such as one whose last messages are in an open transaction."""
    ledger = await created(rig, entries=1)
    await threshold(rig, 1)
    rig.report = ["topicsBelowThreshold"]
    assert await rig.checked() == [TOPIC]
    assert await rig.checked() == []
    await append(ledger, 1)
    assert await rig.checked() == [TOPIC]


async def test_a_check_of_many_topics_lets_the_event_loop_do_other_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in (TOPIC, OTHER):
        await created(rig, topic)
    monkeypatch.setattr("magnetar.broker.cold.compactor.TOPICS_PER_TURN", 1)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    await rig.compactor.check()
    other.cancel()
    assert turns >= 2


async def test_counters_of_topics_that_are_gone_are_dropped_without_checks_too(rig: Rig) -> None:
    for topic in (TOPIC, OTHER):
        await created(rig, topic, entries=1)
    rig.compactor.requested([NAME])
    await rig.idle()
    await rig.service.topics.unload(TOPIC)
    rig.compactor.requested([ledger_name(OTHER)])
    await rig.idle()
    assert set(rig.compactor.counters) == {str(OTHER)}


async def test_a_broker_that_compacts_nothing_looks_for_nothing(rig: Rig) -> None:
    await created(rig, entries=1)
    await threshold(rig, 1)
    off = Rig(rig.service, enabled=False)
    off.compactor.requested([NAME])
    assert await off.checked() == []


async def test_a_topic_that_is_left_to_a_job_waits_until_the_job_has_done_it(rig: Rig) -> None:
    ledger, store = await created(rig, entries=3), rig.service.store
    await threshold(rig, 1)
    pending = encode(CompactionRequest(1))
    await store.put(request_key(NAME), pending)
    for state, job, waits in (
        (RequestState.PENDING, "", True),
        (RequestState.RUNNING, "alive", False),
        (RequestState.RUNNING, "dead", True),
        (RequestState.ERROR, "dead", False),
        (RequestState.SUCCESS, "dead", False),
    ):
        await store.put(request_key(NAME), pending)
        rig.compactor.requested([NAME])
        rig.report = ["topicsLeftToJobs"]
        await rig.idle()
        assert [due.topic for due in rig.compactor.left.values()] == [str(TOPIC)]
        await store.put(job_key("alive"), b"{}")
        await store.put(request_key(NAME), encode(CompactionRequest(1, state=state, job=job)))
        await rig.compactor.forget_compacted()
        assert bool(rig.compactor.left) is waits, (state, job)
    await compacted(rig, ledger, ledger.last_confirmed)


async def test_a_topic_that_was_left_and_is_closed_waits_elsewhere(rig: Rig) -> None:
    await created(rig)
    await rig.service.store.put(request_key(NAME), encode(CompactionRequest(1)))
    rig.report = ["topicsLeftToJobs"]
    assert await rig.checked() == [TOPIC]
    assert list(rig.compactor.left) == [str(TOPIC)]
    loaded = rig.service.open_topics.get(str(TOPIC))
    assert loaded is not None
    rig.service.open_topics.remove(loaded)
    await rig.compactor.forget_compacted()
    assert rig.compactor.left == {}


async def test_brokers_that_compact_nothing_leave_all_that_is_due() -> None:
    service = await start_service()
    rig = Rig(service, enabled=False)
    await created(rig, entries=3)
    await created(rig, OTHER, entries=1)
    await threshold(rig, 3 * len(ENTRY))
    await rig.compactor.check()
    assert list(rig.compactor.left) == [str(TOPIC)]
    await service.store.put(request_key(ledger_name(OTHER)), encode(CompactionRequest(1)))
    await rig.compactor.check()
    assert set(rig.compactor.left) == {str(TOPIC), str(OTHER)}
    done = CompactionRequest(1, state=RequestState.SUCCESS)
    await service.store.put(request_key(ledger_name(OTHER)), encode(done))
    await threshold(rig, 4 * len(ENTRY))
    await rig.compactor.check()
    assert (rig.compactor.left, rig.began) == ({}, [])
    await rig.compactor.stop()
    await stop_service(service)


async def test_metrics_describe_the_last_compaction_and_count_all(rig: Rig) -> None:
    ledger = await created(rig, entries=4)
    durations = [1, 300, 4_000]

    async def compact(topic: TopicName, _store: StoreSpec | None, result: Result) -> None:
        if not durations:
            result.failure("the store is away", topic=str(topic))
            return
        record = CompactionRecord(
            *(ledger.last_confirmed, ledger.created_ms, "a" * 32, HERE, 5),
            files=(CompactedFile("p", 90, 1, EARLIEST, EARLIEST, 3, 9, 70),),
            messages_removed=7,
            duration_ms=durations.pop(0),
        )
        await rig.service.store.put(compaction_key(ledger.name), encode(record))
        result.count("topicsCompacted")
        result.count("bytesRead", 8_000)
        result.count("bytesWritten", 2_000)

    rig.compactor._compact = compact
    rig.service.compactor = rig.compactor
    rig.ended.set()
    for _ in range(4):
        rig.compactor.requested([NAME])
        await rig.idle()
    found = {}
    for text in compaction_families(rig.service):
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.partition("{")
                assert f'topic="{TOPIC}"' in value
                found[name.removeprefix("pulsar_compaction_")] = float(value.split()[-1])
    assert found == {
        "removed_event_count": 21, "succeed_count": 3, "failed_count": 1,
        "duration_time_in_mills": 4_000, "read_throughput": 2_000, "write_throughput": 500,
        "compacted_entries_count": 3, "compacted_entries_size": 70,
        "latency_le_0_5": 0, "latency_le_1": 1, "latency_le_5": 0, "latency_le_10": 0,
        "latency_le_20": 0, "latency_le_50": 0, "latency_le_100": 0, "latency_le_200": 0,
        "latency_le_1000": 1, "latency_overflow": 1, "latency_sum": 4_301, "latency_count": 3,
    }  # fmt: skip
