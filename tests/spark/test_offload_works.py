"""Plans of the job `offload`, and the states of requests."""

import dataclasses
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload import plan as planning
from magnetar.jobs.offload.plan import (
    Override,
    TopicWork,
    topic_works,
)
from magnetar.jobs.offload.release import (
    CLOCKS_APART_MS_MAX,
    _store_agrees,
    is_due,
)
from magnetar.jobs.offload.requests import finish, first_unoffloaded, mark_running
from magnetar.jobs.offload.work import LedgerTask
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
    managed_ledger_key,
)
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.offload.policy import OffloadDefaults, namespace_key, topic_policies_key
from magnetar.offload.records import (
    DEFAULTS_KEY,
    OffloadRecord,
    OffloadRequest,
    RequestState,
    decode_request,
    offload_key,
    request_key,
)
from magnetar.offload.repository import OffloadRepository
from magnetar.offload.stores import FILESYSTEM, StoreSpec

TOPIC = parse_topic("persistent://public/default/t")
NAME = log_name(TOPIC)
NOW_MS = 1_000_000
STORE = StoreSpec(FILESYSTEM, "/cold")
DEFAULTS = OffloadDefaults(driver=FILESYSTEM, folder="/cold", threshold_bytes=150)
ITEMS = (
    LedgerItem(1, 5, NOW_MS - 9_000, 5, 100),
    LedgerItem(2, 6, NOW_MS - 8_000, 5, 100),
    LedgerItem(3, 7, NOW_MS - 7_000, 5, 100),
    LedgerItem(4, 8),
)


def file(ledger_id: int, **fields: Any) -> OffloadRecord:
    return OffloadRecord(ledger_id, "a", STORE, "p", 9, 5, 100, 1, 1, 2, 3, **fields)


@pytest.fixture
async def store() -> MemoryStore:
    """Returns a store with a topic of three closed ledgers, and the brokers' defaults."""
    made = MemoryStore(SystemClock())
    await made.put(DEFAULTS_KEY, msgspec.json.encode(DEFAULTS))
    await made.put(managed_ledger_key(NAME), encode_log(ManagedLedgerRecord(1, 1, ITEMS)))
    return made


async def work_of(store: MemoryStore, override: Override | None = None) -> TopicWork:
    (found,) = await topic_works(store, [TOPIC], override or Override(), NOW_MS)
    return found


def due(work: TopicWork) -> list[int]:
    return [task.ledger_id for task in work.tasks]


async def test_a_task_says_all_of_its_ledger(store: MemoryStore) -> None:
    work = await work_of(store)
    assert (work.topic, work.name, work.plan.store) == (TOPIC, NAME, STORE)
    assert work.ledgers == ITEMS
    assert work.tasks == (
        LedgerTask(NAME, str(TOPIC), -1, 1, 100, 5, NOW_MS - 9_000, STORE),
        LedgerTask(NAME, str(TOPIC), -1, 2, 100, 6, NOW_MS - 8_000, STORE),
    )
    partition = TOPIC.partition(3)
    await store.put(
        managed_ledger_key(log_name(partition)), encode_log(ManagedLedgerRecord(1, 1, ITEMS))
    )
    (of_partition,) = await topic_works(store, [partition], Override(), NOW_MS)
    assert [task.partition for task in of_partition.tasks] == [3, 3]


async def test_topics_that_are_not_there_are_passed_over(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "TOPICS_AT_ONCE", 2)
    gone, deleted = (parse_topic(f"persistent://public/default/{each}") for each in ("x", "y"))
    record = ManagedLedgerRecord(1, 1, ITEMS, deleted=True)
    await store.put(managed_ledger_key(log_name(deleted)), encode_log(record))
    works = await topic_works(store, [gone, TOPIC, deleted, TOPIC, TOPIC], Override(), NOW_MS)
    assert [work.topic for work in works] == [TOPIC] * 3
    assert await topic_works(store, [], Override(), NOW_MS) == []


async def test_live_files_are_not_written_again(store: MemoryStore) -> None:
    revision = await store.put(offload_key(NAME, 1), encode(file(1)))
    work = await work_of(store)
    assert due(work) == [2]
    assert work.files == {1: (file(1), revision)}
    assert await OffloadRepository(store).files(NAME) == work.files


async def test_policies_of_the_topic_are_over_its_namespaces(store: MemoryStore) -> None:
    policy = b'{"offload_policies":{"managedLedgerOffloadThresholdInBytes":0}}'
    await store.put(namespace_key(NAME), policy)
    assert due(await work_of(store)) == [1, 2, 3]
    own = b'{"local":{"offload":{"managedLedgerOffloadThresholdInBytes":250}}}'
    await store.put(topic_policies_key(NAME), own)
    assert due(await work_of(store)) == [1]
    assert due(await work_of(store, Override(threshold_bytes=0))) == [1, 2, 3]
    assert due(await work_of(store, Override(threshold_s=8))) == [1, 2]
    other = StoreSpec(FILESYSTEM, "/other")
    assert {task.store for task in (await work_of(store, Override(store=other))).tasks} == {other}


async def test_a_request_of_any_process_is_due(store: MemoryStore) -> None:
    quiet = Override(threshold_bytes=-1)
    assert due(await work_of(store, quiet)) == []
    assert due(await work_of(store, Override(up_to=Position(2, 9)))) == [1]
    await store.put(request_key(NAME), encode(OffloadRequest(Position(3, 0), 5)))
    assert due(await work_of(store, quiet)) == [1, 2]
    assert due(await work_of(store, Override(up_to=Position(2, 9)))) == [1, 2]
    done = OffloadRequest(Position(3, 0), 5, RequestState.SUCCESS)
    await store.put(request_key(NAME), encode(done))
    assert due(await work_of(store, quiet)) == []


async def test_without_a_store_there_are_no_tasks(store: MemoryStore) -> None:
    await store.delete(DEFAULTS_KEY)
    work = await work_of(store)
    assert (work.tasks, work.store_missing) == ((), False)
    await store.put(request_key(NAME), encode(OffloadRequest(Position(3, 0), 5)))
    work = await work_of(store)
    assert (work.tasks, work.store_missing) == ((), True)


async def on_record(store: MemoryStore) -> OffloadRequest:
    stored = await store.get(request_key(NAME))
    assert stored is not None
    return decode_request(stored.key, stored.value)


async def asked(store: MemoryStore) -> TopicWork:
    await store.put(request_key(NAME), encode(OffloadRequest(Position(3, 0), 5)))
    work = await work_of(store)
    await mark_running(store, work, "j")
    return work


async def test_a_request_is_taken_up_by_the_first_job(store: MemoryStore) -> None:
    await mark_running(store, await work_of(store), "j")
    assert await store.get(request_key(NAME)) is None
    work = await asked(store)
    running = await on_record(store)
    assert (running.state, running.job) == (RequestState.RUNNING, "j")
    await mark_running(store, work, "late")
    assert (await on_record(store)).job == "j"
    assert await OffloadRepository(store).open_request(NAME) is not None


async def test_a_request_is_done_when_all_before_it_is_in_files(store: MemoryStore) -> None:
    work = await asked(store)
    for ledger_id in (1, 2):
        await store.put(offload_key(NAME, ledger_id), encode(file(ledger_id)))
    ended = await finish(store, work, 77, ["of another ledger"])
    assert ended == await on_record(store)
    assert (ended.state, ended.error, ended.finished_ms) == (RequestState.SUCCESS, "", 77)
    assert ended.first_unoffloaded == Position(3, 0)
    assert await finish(store, work, 78, []) is None, "it is finished"


async def test_a_request_that_failed_says_why_and_where(store: MemoryStore) -> None:
    work = await asked(store)
    await store.put(offload_key(NAME, 1), encode(file(1)))
    ended = await finish(store, work, 77, ["no room", "another"])
    assert ended is not None
    assert (ended.state, ended.error) == (RequestState.ERROR, "no room")
    assert ended.first_unoffloaded == Position(2, 0)


async def test_a_request_without_an_error_is_done_though_ledgers_are_left(
    store: MemoryStore,
) -> None:
    """For example, they were trimmed meanwhile."""
    ended = await finish(store, await asked(store), 77, [])
    assert ended is not None
    assert ended.state is RequestState.SUCCESS


async def test_a_request_that_can_be_put_nowhere_fails(store: MemoryStore) -> None:
    await store.delete(DEFAULTS_KEY)
    ended = await finish(store, await asked(store), 77, [])
    assert ended is not None
    assert ended.state is RequestState.ERROR
    assert "no offload driver" in ended.error


async def test_another_request_that_came_meanwhile_stands(store: MemoryStore) -> None:
    work = await asked(store)
    newer = OffloadRequest(Position(2, 0), 6)
    await store.put(request_key(NAME), encode(newer))
    assert await finish(store, work, 77, []) is None
    assert await on_record(store) == newer
    await store.delete(request_key(NAME))
    assert await finish(store, work, 77, []) is None
    assert await finish(store, replace_request(work), 77, []) is None


def replace_request(work: TopicWork) -> TopicWork:
    return dataclasses.replace(work, request=None)


def test_the_first_position_in_no_file_is_at_most_the_one_requested() -> None:
    for up_to, offloaded, expected in (
        (Position(3, 7), {1, 2}, Position(3, 0)),
        (Position(3, 7), {1}, Position(2, 0)),
        (Position(3, 7), {2}, Position(1, 0)),
        (Position(1, 7), set[int](), Position(1, 0)),
        (Position(9, 7), {1, 2, 3}, Position(9, 0)),
    ):
        assert first_unoffloaded(ITEMS, offloaded, up_to) == expected


@pytest.mark.parametrize(
    ("lag_ms", "age_ms", "due"),
    [(-1, 1 << 40, False), (0, 0, True), (0, -5, True), (10, 10, True), (10, 9, False)],
)
def test_a_file_is_due_after_its_lag(lag_ms: int, age_ms: int, due: bool) -> None:
    one = replace(file(1), offloaded_ms=NOW_MS - age_ms)
    assert is_due(one, lag_ms, NOW_MS) == due
    assert is_due(replace(one, released_ms=1), lag_ms, NOW_MS), "it is gone on with"


LAG_MS = 1_000_000


@pytest.mark.parametrize(
    ("by_store", "by_hosts", "agreed"),
    [
        (LAG_MS, LAG_MS, True),
        (LAG_MS, 2 * LAG_MS, True),
        (LAG_MS - 1, LAG_MS, False),
        (LAG_MS - 1, LAG_MS - 1 + CLOCKS_APART_MS_MAX, False),
        (LAG_MS - 1, LAG_MS + CLOCKS_APART_MS_MAX, None),
    ],
)
def test_the_shorter_of_two_ages_counts(by_store: int, by_hosts: int, agreed: bool | None) -> None:
    now_ms, store_now_ms = 10 * LAG_MS, 20 * LAG_MS
    one = replace(file(1), offloaded_ms=now_ms - by_hosts)
    stored_ms = store_now_ms - by_store
    if agreed is None:
        with pytest.raises(Exception, match="set the clock that is wrong"):
            _store_agrees(one, stored_ms, LAG_MS, now_ms, store_now_ms)
    else:
        assert _store_agrees(one, stored_ms, LAG_MS, now_ms, store_now_ms) is agreed
